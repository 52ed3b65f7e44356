"""S4CheckpointIO under a real Trainer: call order, resume, removal, on every store."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bits import assert_same_state
from lightning_trainings import make_model, make_trainer, needed, save_every_epoch, stored

import s4weights
from s4_lightning import S4CheckpointIO
from s4_lightning.addresses import address
from s4core.refs import split_url
from s4core.stores import open_store


class Recording(S4CheckpointIO):
    """Notes every call, and what each save was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self.given: dict[str, Any] = {}

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.calls.append(f"SAVE {os.path.basename(path)}")
        super().save_checkpoint(checkpoint, path, storage_options)
        self.given[os.fspath(path)] = copied(checkpoint)

    def remove_checkpoint(self, path: Any) -> None:
        self.calls.append(f"REMOVE {os.path.basename(path)}")
        super().remove_checkpoint(path)

    def teardown(self) -> None:
        self.calls.append("TEARDOWN")
        super().teardown()


def copied(state: Any) -> Any:
    """A deep copy by torch's own means."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


CALLS = [
    *("SAVE epoch=0-step=2.ckpt", "SAVE last.ckpt"),
    *("SAVE epoch=1-step=4.ckpt", "SAVE last.ckpt"),
    *("SAVE epoch=2-step=6.ckpt", "REMOVE epoch=0-step=2.ckpt", "SAVE last.ckpt"),
    *("SAVE epoch=3-step=8.ckpt", "REMOVE epoch=1-step=4.ckpt", "SAVE last.ckpt"),
    "TEARDOWN",
]


def in_place(callback: Any, place: str) -> Any:
    """Point Lightning's callback to a URL that its own file systems do not know.

    It asks them for the names that are taken; here none is, as in a fresh directory.
    """
    setup = type(callback).setup

    def elsewhere(trainer: Any, module: Any, stage: str) -> None:
        setup(callback, trainer, module, stage)
        callback.dirpath = place

    callback.setup = elsewhere
    callback.file_exists = lambda path, trainer: False
    return callback


def trained(package: ModuleType, plugin: Any, place: str, tmp_path: Path, epochs: int = 4) -> Any:
    """Train into `place`, whatever store it is in."""
    callback = save_every_epoch(package, tmp_path / "unused")
    trainer = make_trainer(
        package, plugin, max_epochs=epochs, callbacks=[in_place(callback, place)]
    )
    model = make_model(package)
    trainer.fit(model)
    return model


@pytest.mark.parametrize("wait", [True, False])
def test_the_calls_of_a_training_leave_top_k_and_last_and_nothing_else(
    package: ModuleType, place: str, wait: bool, tmp_path: Path
) -> None:
    plugin = Recording(wait=wait)

    trained(package, plugin, place, tmp_path)

    assert plugin.calls == CALLS
    names, manifests, shards = stored(place)
    assert names == {"epoch=2-step=6.ckpt", "epoch=3-step=8.ckpt", "last.ckpt"}
    assert manifests == needed(place), "a manifest that no ref needs, or one that is missing"
    assert shards <= manifests, "a shard of no checkpoint"
    for name in names:
        where = f"{place}/{name}"
        loaded = S4CheckpointIO().load_checkpoint(where, weights_only=True)
        assert_same_state(plugin.given[where], loaded)


def test_both_packages_accept_the_plugin_and_resume_from_last(
    namespace: ModuleType, tmp_path: Path
) -> None:
    for epochs in (2, 4):
        trainer = make_trainer(
            namespace,
            S4CheckpointIO(),
            max_epochs=epochs,
            callbacks=[save_every_epoch(namespace, tmp_path / "run")],
        )
        resumed = make_model(namespace)
        trainer.fit(resumed, ckpt_path="last" if epochs == 4 else None)

    uninterrupted = make_model(namespace)
    make_trainer(namespace, max_epochs=4, enable_checkpointing=False).fit(uninterrupted)
    assert trainer.global_step == 8
    assert_same_state(uninterrupted.state_dict(), resumed.state_dict())


def test_resume_restores_what_lightnings_own_files_restore(
    package: ModuleType, tmp_path: Path
) -> None:
    ends = {}
    for kind, plugins in {"own": [], "s4": [S4CheckpointIO()]}.items():
        for epochs in (2, 3):
            trainer = make_trainer(
                package,
                *plugins,
                max_epochs=epochs,
                callbacks=[save_every_epoch(package, tmp_path / kind)],
            )
            trainer.fit(make_model(package), ckpt_path="last" if epochs == 3 else None)
        ends[kind] = trainer

    own = torch.load(tmp_path / "own" / "last.ckpt", weights_only=True)
    ours = s4weights.load(tmp_path / "s4" / "last.ckpt")
    for part in set(own) - {"callbacks"}:
        assert_same_state(own[part], ours[part], where=part)
    assert set(own) == set(ours)


def test_best_is_found_and_loaded(package: ModuleType, tmp_path: Path) -> None:
    callback = save_every_epoch(package, tmp_path / "run", save_top_k=1, save_last=False)
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=2, callbacks=[callback])
    model = make_model(package)
    model.validation_step = lambda batch, batch_idx: None
    model.val_dataloader = model.train_dataloader
    trainer.fit(model)

    trainer.validate(model, ckpt_path="best", verbose=False)

    assert os.listdir(tmp_path / "run" / ".s4" / "shards")


def test_last_of_the_same_step_costs_no_array_bytes(package: ModuleType, tmp_path: Path) -> None:
    plugin = S4CheckpointIO()
    trained(package, plugin, str(tmp_path / "run"), tmp_path)

    lasts = [info for info in plugin.history if info.url.endswith("last.ckpt")]
    assert [info.kind for info in lasts] == ["alias"] * 4
    # The state of the callback differs the first time: it names last.ckpt from then on.
    assert 0 < lasts[0].stored_bytes < 10_000
    assert [info.stored_bytes for info in lasts[1:]] == [0, 0, 0]


def test_consecutive_checkpoints_are_a_chain_of_bounded_depth(
    package: ModuleType, tmp_path: Path
) -> None:
    plugin = S4CheckpointIO(max_depth=2)
    callback = save_every_epoch(package, tmp_path / "run", save_top_k=-1, save_last=False)
    make_trainer(package, plugin, max_epochs=5, callbacks=[callback]).fit(make_model(package))

    assert [(info.step, info.depth) for info in plugin.history] == [
        *((2, 0), (4, 1), (6, 2), (8, 0), (10, 1)),
    ]


def test_the_first_checkpoint_after_a_resume_is_a_delta_on_its_source(
    package: ModuleType, tmp_path: Path
) -> None:
    trained(package, S4CheckpointIO(), str(tmp_path / "run"), tmp_path, epochs=2)
    plugin = S4CheckpointIO()
    callback = save_every_epoch(package, tmp_path / "run", save_top_k=-1)
    trainer = make_trainer(package, plugin, max_epochs=3, callbacks=[callback])

    trainer.fit(make_model(package), ckpt_path=str(tmp_path / "run" / "last.ckpt"))

    assert [(info.kind, info.depth) for info in plugin.history] == [("delta", 2), ("alias", 2)]


def test_a_removed_base_keeps_its_deltas_loadable(place: str) -> None:
    plugin = S4CheckpointIO()
    states = [{"w": torch.full((5000,), 1.0) + 1e-3 * i, "global_step": i} for i in range(4)]
    for i, state in enumerate(states):
        plugin.save_checkpoint(state, f"{place}/{i}.ckpt")
    for i in range(3):
        plugin.remove_checkpoint(f"{place}/{i}.ckpt")
    plugin.teardown()

    assert_same_state(states[3], S4CheckpointIO().load_checkpoint(f"{place}/3.ckpt"))
    names, manifests, _ = stored(place)
    assert names == {"3.ckpt"}
    assert manifests == needed(place)


def test_what_was_removed_last_leaves_nothing_behind(place: str) -> None:
    plugin = S4CheckpointIO()
    plugin.save_checkpoint({"w": torch.rand(5000)}, f"{place}/on_exception.ckpt")
    plugin.remove_checkpoint(f"{place}/on_exception.ckpt")
    plugin.teardown()

    assert stored(place) == (set(), set(), set())


@pytest.mark.parametrize("wait", [True, False])
def test_the_resume_source_stays_until_a_newer_checkpoint_is_committed(
    place: str, wait: bool
) -> None:
    S4CheckpointIO().save_checkpoint({"w": torch.rand(5000)}, f"{place}/a.ckpt")
    plugin = S4CheckpointIO(wait=wait)
    plugin.load_checkpoint(f"{place}/a.ckpt")

    plugin.remove_checkpoint(f"{place}/a.ckpt")
    assert stored(place)[0] == {"a.ckpt"}

    plugin.save_checkpoint({"w": torch.rand(5000)}, f"{place}/elsewhere/b.ckpt")
    plugin.teardown()
    assert stored(place)[0] == {"elsewhere/b.ckpt"} | {
        name for name in stored(place)[0] if name.startswith("elsewhere/.s4/")
    }
    assert open_store(place).exists("a.ckpt") is False


def test_a_resume_source_that_is_saved_again_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    S4CheckpointIO().save_checkpoint({"step": 1}, path)
    plugin = S4CheckpointIO()
    plugin.load_checkpoint(path)
    plugin.remove_checkpoint(path)

    plugin.save_checkpoint({"step": 2}, path)
    plugin.teardown()

    assert plugin.load_checkpoint(path) == {"step": 2}


def test_removing_what_is_not_there_is_silent(place: str, caplog: pytest.LogCaptureFixture) -> None:
    S4CheckpointIO().remove_checkpoint(f"{place}/never.ckpt")

    assert not caplog.records


def test_a_load_waits_for_what_is_being_saved(place: str) -> None:
    plugin = S4CheckpointIO(wait=False)
    for value in range(5):
        plugin.save_checkpoint({"w": torch.full((5000,), float(value))}, f"{place}/last.ckpt")
        loaded = plugin.load_checkpoint(f"{place}/last.ckpt")
        assert_same_state({"w": torch.full((5000,), float(value))}, loaded)
    plugin.teardown()


def test_mutation_after_the_return_of_a_save_changes_nothing_stored(tmp_path: Path) -> None:
    plugin = S4CheckpointIO(wait=False)
    weights = torch.zeros(1 << 20)
    plugin.save_checkpoint({"w": weights}, tmp_path / "a.ckpt")
    weights.fill_(9.0)

    assert_same_state({"w": torch.zeros(1 << 20)}, plugin.load_checkpoint(tmp_path / "a.ckpt"))


def test_paths_may_be_strings_or_paths_and_urls_that_pathlib_shortened(place: str) -> None:
    plugin = S4CheckpointIO()
    plugin.save_checkpoint({"step": 3}, Path(f"{place}/a.ckpt"))

    assert plugin.load_checkpoint(f"{place}/a.ckpt") == {"step": 3}
    assert plugin.load_checkpoint(Path(f"{place}/a.ckpt")) == {"step": 3}
    S4CheckpointIO().remove_checkpoint(Path(f"{place}/a.ckpt"))
    with pytest.raises(FileNotFoundError, match=r"a\.ckpt: nothing is stored there"):
        plugin.load_checkpoint(f"{place}/a.ckpt")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3:/bucket/run/a.ckpt", "s3://bucket/run/a.ckpt"),
        ("s3://bucket/run/a.ckpt", "s3://bucket/run/a.ckpt"),
        ("memory:/name/a.ckpt", "memory://name/a.ckpt"),
        ("file:///tmp/a.ckpt", "/tmp/a.ckpt"),
        ("file:/tmp/a.ckpt", "/tmp/a.ckpt"),
        ("/tmp/x/../a.ckpt", "/tmp/a.ckpt"),
        ("~/a.ckpt", os.path.expanduser("~/a.ckpt")),
        ("a.ckpt", os.path.abspath("a.ckpt")),
        ("c:/a.ckpt", os.path.abspath("c:/a.ckpt")),
    ],
)
def test_addresses(given: str, meant: str) -> None:
    assert address(given) == meant
    assert split_url(meant)[1] == "a.ckpt"
