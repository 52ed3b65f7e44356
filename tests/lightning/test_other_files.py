"""What is not S4's: temporary files, plain checkpoints, links, classes; and clear errors."""

from __future__ import annotations

import enum
import inspect
import io
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bits import assert_same_state
from lightning_trainings import make_model, make_trainer, save_every_epoch, save_in_child

import s4weights
from s4_lightning import S4CheckpointIO
from s4core.stores import MemoryStore, open_store
from s4weights import KeyNotFoundError, StateError, StoreError

STATE = {"state_dict": {"w": torch.arange(6.0)}, "global_step": 3, "epoch": 0}


class Flavour(enum.Enum):
    SWEET = 1


class Custom:
    """A class that no checkpoint format knows."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.value == self.value


@pytest.mark.parametrize("name", [".temp.ckpt", ".lr_find_1f2e.ckpt", ".scale_batch_size_1.ckpt"])
def test_lightnings_temporary_files_are_plain_torch_files(name: str, tmp_path: Path) -> None:
    plugin, path = S4CheckpointIO(wait=False), str(tmp_path / name)
    plugin.save_checkpoint(STATE["state_dict"], path)

    assert_same_state(STATE["state_dict"], torch.load(path, weights_only=True))
    assert_same_state(STATE["state_dict"], plugin.load_checkpoint(path))
    assert os.listdir(tmp_path) == [name]

    plugin.remove_checkpoint(path)
    plugin.remove_checkpoint(path)
    assert os.listdir(tmp_path) == []
    assert plugin.history == []


def test_lr_find_works_and_leaves_nothing(package: ModuleType, tmp_path: Path) -> None:
    from lightning.pytorch.tuner import Tuner

    model = make_model(package)
    model.lr = 1e-3
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=1, default_root_dir=tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    found = Tuner(trainer).lr_find(model, num_training=5, update_attr=False)

    assert found is not None
    assert_same_state(before, dict(model.state_dict()))
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_a_plain_lightning_checkpoint_is_resumed_from_and_replaced(
    package: ModuleType, tmp_path: Path
) -> None:
    def fit(epochs: int, *plugins: Any) -> Any:
        callback = save_every_epoch(package, tmp_path / "run", save_top_k=1)
        trainer = make_trainer(package, *plugins, max_epochs=epochs, callbacks=[callback])
        trainer.fit(make_model(package), ckpt_path="last" if plugins else None)
        return trainer

    fit(1)
    assert fit(3, S4CheckpointIO()).global_step == 6

    names = {entry.name for entry in (tmp_path / "run").iterdir()}
    # Lightning itself keeps what it resumed from, here last.ckpt, which has a new state.
    assert names == {".s4", "epoch=2-step=6.ckpt", "last.ckpt"}
    assert s4weights.load(tmp_path / "run" / "last.ckpt")["global_step"] == 6


@pytest.mark.parametrize("name", ["plain.ckpt", "self.s4"])
def test_files_of_other_writers_load_and_are_removed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    (torch.save if name == "plain.ckpt" else s4weights.save)(STATE, path)
    plugin = S4CheckpointIO()

    assert_same_state(STATE, plugin.load_checkpoint(path))
    S4CheckpointIO().remove_checkpoint(path)
    assert not path.exists()


def test_a_directory_of_another_strategy_is_removed_whole(tmp_path: Path) -> None:
    (tmp_path / "sharded.ckpt").mkdir()
    (tmp_path / "sharded.ckpt" / "meta.pt").write_bytes(b"x")

    S4CheckpointIO().remove_checkpoint(tmp_path / "sharded.ckpt")

    assert os.listdir(tmp_path) == []


def test_save_last_link_makes_a_link_that_loads(package: ModuleType, tmp_path: Path) -> None:
    callback = save_every_epoch(package, tmp_path / "run", save_last="link", save_top_k=1)
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=3, callbacks=[callback])
    trainer.fit(make_model(package))

    last = tmp_path / "run" / "last.ckpt"
    assert last.is_symlink()
    (tmp_path / "elsewhere.ckpt").symlink_to(last)
    for path in (last, tmp_path / "elsewhere.ckpt"):
        assert S4CheckpointIO().load_checkpoint(path)["global_step"] == 6

    S4CheckpointIO().remove_checkpoint(last)
    assert not last.is_symlink()
    assert S4CheckpointIO().load_checkpoint(last.parent / "epoch=2-step=6.ckpt")


def test_a_link_that_leads_nowhere_is_removed(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").symlink_to("gone.ckpt")

    S4CheckpointIO().remove_checkpoint(tmp_path / "last.ckpt")

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [Custom(5), Flavour.SWEET])
def test_saving_hyperparameters_of_any_class_succeeds_and_loading_names_them(
    package: ModuleType, value: object, tmp_path: Path
) -> None:
    path = str(tmp_path / "a.ckpt")
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=1, enable_checkpointing=False)
    trainer.fit(make_model(package, optimizer_kind=value))
    trainer.save_checkpoint(path)

    with pytest.raises(
        StateError,
        match=rf"hyper_parameters/optimizer_kind.*{type(value).__name__}.*weights_only=False",
    ):
        S4CheckpointIO().load_checkpoint(path)
    for loaded in (
        S4CheckpointIO().load_checkpoint(path, weights_only=False),
        S4CheckpointIO(weights_only=False).load_checkpoint(path),
    ):
        assert loaded["hyper_parameters"]["optimizer_kind"] == value


def test_fit_passes_weights_only_on(package: ModuleType, tmp_path: Path) -> None:
    if "weights_only" not in inspect.signature(package.Trainer.fit).parameters:
        pytest.skip("this Lightning cannot be told; S4CheckpointIO(weights_only=False) can")
    path = str(tmp_path / "a.ckpt")
    for epochs, ckpt_path in ((1, None), (2, path)):
        trainer = make_trainer(
            package, S4CheckpointIO(), max_epochs=epochs, enable_checkpointing=False
        )
        model = make_model(package, custom=Custom(1))
        trainer.fit(model, ckpt_path=ckpt_path, weights_only=False if ckpt_path else None)
        trainer.save_checkpoint(path)

    assert trainer.global_step == 4


def test_weights_alone_are_saved_and_loaded(package: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "a.ckpt")
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=1, enable_checkpointing=False)
    model = make_model(package)
    trainer.fit(model)
    trainer.save_checkpoint(path, weights_only=True)

    loaded = S4CheckpointIO().load_checkpoint(path)
    assert "optimizer_states" not in loaded
    assert_same_state(dict(model.state_dict()), dict(loaded["state_dict"]))


def test_storage_options_change_one_save(tmp_path: Path) -> None:
    plugin = S4CheckpointIO()
    weights = torch.randn(20_000)
    for step, options in enumerate([None, {"max_depth": 0}, None]):
        state = {"w": weights + 1e-5 * step, "global_step": step}
        plugin.save_checkpoint(state, tmp_path / f"{step}.ckpt", storage_options=options)

    assert [(info.kind, info.depth) for info in plugin.history] == [
        *(("base", 0), ("base", 0), ("delta", 1)),
    ]


def test_map_location_is_the_cpu_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    S4CheckpointIO().save_checkpoint({"w": torch.rand(100)}, path)

    def keep(storage: Any, _: str) -> Any:
        return storage

    for map_location in (None, "cpu", torch.device("cpu"), keep):
        loaded = S4CheckpointIO().load_checkpoint(path, map_location=map_location)
        assert loaded["w"].device == torch.device("cpu")
    loaded = S4CheckpointIO().load_checkpoint(path, map_location="meta")
    assert loaded["w"].device == torch.device("meta")


def test_the_plugin_is_pickled_without_what_belongs_to_its_process(tmp_path: Path) -> None:
    plugin = S4CheckpointIO(max_depth=3, weights_only=False)
    plugin.save_checkpoint(STATE, tmp_path / "a.ckpt")

    twin = pickle.loads(pickle.dumps(plugin))

    assert (twin.options, twin.weights_only, twin.wait) == (plugin.options, False, True)
    assert twin.history == []
    assert_same_state(STATE, twin.load_checkpoint(tmp_path / "a.ckpt"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_plugin_works_in_a_forked_and_in_a_spawned_process(method: str, tmp_path: Path) -> None:
    plugin = S4CheckpointIO(wait=False)
    plugin.save_checkpoint(STATE, tmp_path / "parent.ckpt")
    plugin.teardown()
    child = multiprocessing.get_context(method).Process(
        target=save_in_child, args=(plugin, STATE, str(tmp_path / "child.ckpt"))
    )
    child.start()
    child.join(120)

    assert child.exitcode == 0
    plugin.save_checkpoint(STATE, tmp_path / "after.ckpt")
    for name in ("parent", "child", "after"):
        assert_same_state(STATE, plugin.load_checkpoint(tmp_path / f"{name}.ckpt"))
    plugin.teardown()


class Broken(MemoryStore):
    """Refuses what a test says."""

    refused: str | None = None
    deaf = False

    def child(self, prefix: str) -> Broken:
        inner = super().child(prefix)
        return Broken(inner._name, inner._prefix)

    def _put(self, key: str, *args: Any) -> None:
        if Broken.refused is not None and Broken.refused in f"{self._prefix}/{key}":
            raise StoreError(f"{self.url_of(key)}: refused by the test")
        super()._put(key, *args)

    def _delete(self, keys: Any) -> None:
        if Broken.deaf:
            raise StoreError(f"{self.url}: deaf")
        super()._delete(keys)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.setattr("s4core.stores.urls.MemoryStore", Broken)
    monkeypatch.setattr(Broken, "refused", None)
    monkeypatch.setattr(Broken, "deaf", False)
    yield monkeypatch
    Broken.deaf = False
    store = open_store("memory://broken")
    store.delete([entry.key for entry in store.list()])


def test_a_failed_save_is_raised_once_and_does_not_poison_the_next(broken: Any) -> None:
    plugin = S4CheckpointIO(wait=False)
    plugin.save_checkpoint(STATE, "memory://broken/a.ckpt")
    plugin.teardown()

    broken.setattr(Broken, "refused", "checkpoints/")
    plugin.save_checkpoint(STATE | {"epoch": 1}, "memory://broken/b.ckpt")
    plugin.remove_checkpoint("memory://broken/a.ckpt")
    with pytest.raises(StoreError, match="refused by the test"):
        plugin.teardown()
    # The last good checkpoint is not what goes.
    assert_same_state(STATE, S4CheckpointIO().load_checkpoint("memory://broken/a.ckpt"))

    broken.setattr(Broken, "refused", None)
    plugin.teardown()
    plugin.save_checkpoint(STATE | {"epoch": 2}, "memory://broken/c.ckpt")
    plugin.teardown()
    assert [os.path.basename(info.url) for info in plugin.history] == ["a.ckpt", "c.ckpt"]
    assert not open_store("memory://broken").exists("a.ckpt")


def test_a_removal_that_fails_is_said_and_ends_nothing(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = S4CheckpointIO()
    for name in "ab":
        plugin.save_checkpoint({"w": torch.rand(5000)}, f"memory://broken/{name}.ckpt")
    broken.setattr(Broken, "deaf", True)

    with caplog.at_level(logging.WARNING):
        plugin.remove_checkpoint("memory://broken/a.ckpt")

    assert "a.ckpt could not be removed wholly: memory://broken" in caplog.text
    assert "`s4weights gc memory://broken` tries again" in caplog.text


def test_errors_are_sentences(tmp_path: Path) -> None:
    plugin = S4CheckpointIO()
    with pytest.raises(StateError, match="profile 'best': expected 'open' or 'nvcomp'"):
        S4CheckpointIO(profile="best")
    with pytest.raises(StateError, match="S4CheckpointIO: expected a dict with some of profile,"):
        S4CheckpointIO(speed="fast")
    with pytest.raises(StateError, match=r"storage_options: expected .* found \{'anon': True\}"):
        plugin.save_checkpoint(STATE, tmp_path / "a.ckpt", storage_options={"anon": True})
    with pytest.raises(StoreError, match="unknown scheme 'gs'"):
        plugin.save_checkpoint(STATE, "gs://bucket/a.ckpt")
    with pytest.raises(KeyNotFoundError, match=r"missing\.ckpt: nothing is stored there"):
        plugin.load_checkpoint(tmp_path / "missing.ckpt")
    (tmp_path / "torn.ckpt").write_bytes(b"\x00" * 100)
    with pytest.raises(s4weights.FormatError, match=r"torn\.ckpt is no checkpoint that S4 knows"):
        plugin.load_checkpoint(tmp_path / "torn.ckpt")
    unpicklable = io.TextIOWrapper(io.BytesIO())
    with pytest.raises(StateError, match="callbacks/x"):
        plugin.save_checkpoint({"callbacks": {"x": unpicklable}}, tmp_path / "a.ckpt")


WITHOUT_LIGHTNING = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lightning", "pytorch_lightning", "lightning_fabric"):
            raise ModuleNotFoundError(name)
        return None

import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if "lightning" in name else find(name, *a)
sys.meta_path.insert(0, Hidden())
import s4_lightning
try:
    s4_lightning.S4CheckpointIO()
except ImportError as error:
    print(error)
"""


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_lightning_there_is_a_sentence() -> None:
    assert "pip install 's4weights[lightning]'" in run_python(WITHOUT_LIGHTNING)


ORDERS = """
import sys
import s4_lightning
assert not any("lightning" in name.partition(".")[0] and name != "s4_lightning"
               and not name.startswith("s4_lightning.") for name in sys.modules)
early = s4_lightning.S4CheckpointIO()
from {first} import Trainer
assert "{second}" not in sys.modules
Trainer(plugins=[early], accelerator="cpu", logger=False)
Trainer(plugins=[s4_lightning.S4CheckpointIO()], accelerator="cpu", logger=False)
from {second} import Trainer as Other
Other(plugins=[early], accelerator="cpu", logger=False)
import lightning.fabric.plugins.io.checkpoint_io as module
assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__
assert type(module.__loader__).__name__ == "SourceFileLoader"
assert not any(type(f).__module__ == "s4_lightning.attach" for f in sys.meta_path)
print("accepted")
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [("lightning", "pytorch_lightning"), ("pytorch_lightning", "lightning")],
)
def test_the_plugin_is_accepted_whatever_is_imported_first(first: str, second: str) -> None:
    assert "accepted" in run_python(ORDERS.format(first=first, second=second))
