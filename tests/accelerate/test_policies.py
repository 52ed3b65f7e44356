"""Names, limits, refusals and warnings of S4Accelerate; public bugs of Accelerate, each a test."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.tracking import GeneralTracker
from accelerate_toy import Toy, fresh_accelerator
from bits import assert_same_state
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import s4_accelerate
import s4weights
from s4_accelerate import S4Accelerate
from s4_accelerate.archive import Archive, newest_last, superfluous
from s4_accelerate.canonical import canonical_state, live_state
from s4_accelerate.files import as_leaves, read_files, write_files
from s4core.stores import LocalStore


def naming(project: Path, url: Path, limit: int | None = None, seed: int = 0) -> Toy:
    toy = Toy(fresh_accelerator(project, total_limit=limit), seed=seed)
    toy.s4 = S4Accelerate(toy.accelerator, url)  # type: ignore[attr-defined]
    return toy


def names(url: Path) -> list[str]:
    return sorted(name for name in os.listdir(url) if not name.startswith("."))


def test_iteration_is_restored_and_no_name_is_used_twice(tmp_path: Path) -> None:
    """accelerate#1601: the third save after a resume said "already exists"."""
    url = tmp_path / "run"
    first = naming(tmp_path, url)
    first.train(1)
    first.accelerator.save_state()
    first.train(1)
    first.accelerator.save_state()
    first.s4.close()  # type: ignore[attr-defined]
    second = naming(tmp_path, url, seed=9)
    second.accelerator.load_state()
    assert second.counter.steps == 2
    assert second.accelerator.save_iteration == 2
    second.train(1)
    second.accelerator.save_state()
    second.s4.close()  # type: ignore[attr-defined]
    assert names(url) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    assert not (tmp_path / "checkpoints").exists()


def test_going_back_does_not_overwrite_what_came_after(tmp_path: Path) -> None:
    url = tmp_path / "run"
    toy = naming(tmp_path, url)
    for _ in range(3):
        toy.train(1)
        toy.accelerator.save_state()
    toy.accelerator.load_state("checkpoint_0")
    toy.train(1)
    toy.accelerator.save_state()
    toy.s4.flush()  # type: ignore[attr-defined]
    assert s4weights.load(url / "checkpoint_3")["iteration"] == 3
    assert s4_accelerate.latest(url) == str(url / "checkpoint_3")


def test_a_new_training_does_not_overwrite_an_old_one(tmp_path: Path) -> None:
    first = naming(tmp_path, tmp_path / "run")
    first.accelerator.save_state()
    first.s4.close()  # type: ignore[attr-defined]
    second = naming(tmp_path, tmp_path / "run")
    with pytest.raises(s4weights.StateError, match="checkpoint_0 is there already: load_state"):
        second.accelerator.save_state()


def test_total_limit_is_honoured_only_after_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate#1163: the old checkpoint went before the new one was written."""
    url = tmp_path / "run"
    toy = naming(tmp_path, url, limit=2)
    seen: list[list[str]] = []
    put = LocalStore.put

    def watch(store: LocalStore, key: str, *args: Any, **kwargs: Any) -> None:
        if key.startswith("checkpoint_"):
            seen.append(names(url))
        put(store, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "put", watch)
    for _ in range(4):
        toy.train(1)
        toy.accelerator.save_state()
        toy.s4.flush()  # type: ignore[attr-defined]
    toy.s4.close()  # type: ignore[attr-defined]
    assert seen[2:] == [["checkpoint_0", "checkpoint_1"], ["checkpoint_1", "checkpoint_2"]]
    assert names(url) == ["checkpoint_2", "checkpoint_3"]
    for name in names(url):
        s4weights.load(url / name)


def test_a_failed_commit_removes_nothing_and_does_not_stop_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = tmp_path / "run"
    toy = naming(tmp_path, url, limit=1)
    toy.train(1)
    toy.accelerator.save_state()
    toy.s4.flush()  # type: ignore[attr-defined]
    put = LocalStore.put

    def refuse(*_: Any, **__: Any) -> None:
        raise s4weights.StoreUnavailableError("the store did not answer")

    monkeypatch.setattr(LocalStore, "put", refuse)
    toy.train(1)
    toy.accelerator.save_state()
    with pytest.raises(s4weights.StoreUnavailableError, match="did not answer"):
        toy.s4.flush()  # type: ignore[attr-defined]
    assert names(url) == ["checkpoint_0"]
    assert "a checkpoint was not committed" in caplog.text
    monkeypatch.setattr(LocalStore, "put", put)
    toy.train(1)
    toy.accelerator.save_state()
    toy.s4.close()  # type: ignore[attr-defined]
    assert names(url) == ["checkpoint_2"]
    assert s4weights.load(url / "checkpoint_2")["optimizers"][0]["state"][0]["step"] == 3


def test_keep_last_rules_names_of_ones_own(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path, keep_last=2, wait=True)
    for name in ("epoch_1", "epoch_2", "epoch_10"):
        toy.train(1)
        toy.accelerator.save_state(f"somewhere/{name}")
    s4.close()
    assert names(tmp_path) == ["epoch_10", "epoch_2"]


def test_two_directories_do_not_share_one_name(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    S4Accelerate(toy.accelerator, tmp_path)
    toy.accelerator.save_state("best/ckpt")
    with pytest.raises(s4weights.StateError, match="would both be 'ckpt'"):
        toy.accelerator.save_state("last/ckpt")


def test_consecutive_checkpoints_are_a_chain(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path, wait=True)
    for number in range(3):
        toy.train(1)
        toy.accelerator.save_state(f"step_{number}")
    assert s4.reports[0].info.kind == "base"
    assert s4weights.open(tmp_path).reader(name="step_2").manifest.needs


class Tracker(GeneralTracker):
    name = "test"
    requires_logging_directory = False
    tracker: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, Any]] = []

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.logged.append(values)


def test_ratio_and_pause_reach_the_trackers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "s4_accelerate")
    toy, tracker = Toy(fresh_accelerator()), Tracker()
    toy.accelerator.trackers = [tracker]
    s4 = S4Accelerate(toy.accelerator, tmp_path)
    toy.accelerator.save_state("a")
    s4.flush()
    assert set(tracker.logged[0]) == {
        "s4/ratio", "s4/pause_seconds", "s4/stored_mb", "s4/raw_mb"
    }  # fmt: skip
    assert tracker.logged[0]["s4/ratio"] > 0
    assert "MB stored" in caplog.text
    assert "training paused" in caplog.text


def test_a_missing_rank_is_a_loud_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate swallows it: "Could not load random states", at level info."""
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path, wait=True)
    toy.accelerator.save_state("a")
    monkeypatch.setattr(type(s4._ranks), "index", 1)
    toy.accelerator.load_state("a")
    assert "holds no random number generators for rank 1" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("FSDP", "FSDP and FSDP2 need sharded checkpoints \\(s4core.dcp\\)"),
        ("DEEPSPEED", "use DeepSpeed's own checkpoints"),
        ("MEGATRON_LM", "use Megatron-LM's own checkpoints"),
    ],
)
def test_sharded_trainings_are_refused_before_anything_is_written(
    tmp_path: Path, kind: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(fresh_accelerator())
    S4Accelerate(toy.accelerator, tmp_path / "run")
    kinds = SimpleNamespace(value=kind)
    monkeypatch.setattr(type(toy.accelerator), "distributed_type", property(lambda _: kinds))
    with pytest.raises(s4weights.StateError, match=message):
        toy.accelerator.save_state("a")
    with pytest.raises(s4weights.StateError, match=message):
        toy.accelerator.load_state("a")
    assert not (tmp_path / "run").exists()


def test_the_bare_save_hook_refuses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FSDP a hook sees no weights: a hook that passes saves nothing."""
    toy = Toy(fresh_accelerator())
    caller = SimpleNamespace(
        distributed_type=SimpleNamespace(value="FSDP"),
        _save_model_state_pre_hook={},
        _optimizers=[],
    )

    class Caller:
        def __getattr__(self, name: str) -> Any:
            return getattr(caller, name)

        def save_state(self) -> None:
            s4_accelerate.save_hook([toy.net], [], str(tmp_path))

    with pytest.raises(s4weights.StateError, match="FSDP"):
        Caller().save_state()
    with pytest.raises(s4weights.StateError, match="found no Accelerator among the callers"):
        s4_accelerate.save_hook([toy.net], [], str(tmp_path))


def test_other_models_are_refused(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    S4Accelerate(toy.accelerator, tmp_path, wait=True)
    toy.accelerator.save_state("a")
    toy.accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(s4weights.StateError, match="holds 1 models, the Accelerator 2"):
        toy.accelerator.load_state("a")


class Custom:
    pass


def test_a_pickle_in_a_custom_object_needs_leave(tmp_path: Path) -> None:
    """Accelerate loads custom objects with weights_only=False: they may run code."""
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path, wait=True)
    toy.counter.state_dict = lambda: {"steps": Custom()}  # type: ignore[method-assign]
    toy.accelerator.save_state("a")
    with pytest.raises(s4weights.StateError, match=r"custom_checkpoint_0.pkl holds a pickle"):
        toy.accelerator.load_state("a")
    s4.close()
    S4Accelerate(toy.accelerator, tmp_path, allow_pickle=True)
    toy.accelerator.load_state("a")
    assert isinstance(toy.counter.steps, Custom)


def test_hooks_of_others_take_their_models_first(tmp_path: Path) -> None:
    """As diffusers' scripts do: weights popped, files and folders of their own."""
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path, wait=True)

    def save(models: Any, weights: Any, output_dir: str) -> None:
        weights.pop()
        os.makedirs(os.path.join(output_dir, "unet"))
        torch.save(models[0].state_dict(), os.path.join(output_dir, "unet", "own.pt"))

    def load(models: Any, input_dir: str) -> None:
        models.pop().load_state_dict(torch.load(os.path.join(input_dir, "unet", "own.pt")))

    toy.accelerator.register_save_state_pre_hook(save)
    toy.accelerator.register_load_state_pre_hook(load)
    toy.train(2)
    before = toy.copy()
    toy.accelerator.save_state("a")
    toy.train(2)
    toy.accelerator.load_state("a")
    assert_same_state(before, toy.copy())
    assert "unet/own.pt" in s4weights.load(tmp_path / "a")["files"]["0"]
    s4.close()


def test_latest_of_an_unreachable_store_is_an_error_and_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dlio_benchmark#347: an error was taken for "no checkpoints"."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise s4weights.StoreUnavailableError("503")

    assert s4_accelerate.latest(tmp_path) is None
    monkeypatch.setattr(LocalStore, "list", refuse)
    with pytest.raises(s4weights.StoreUnavailableError):
        s4_accelerate.latest(tmp_path)


# Pure functions


@settings(max_examples=200)
@given(
    count=st.integers(0, 12),
    keep=st.none() | st.integers(1, 5),
    every=st.none() | st.integers(1, 4),
    pinned=st.sets(st.integers(0, 11)),
)
def test_a_rule_never_gives_up_newest_or_pinned_and_keeps_as_many_as_it_says(
    count: int, keep: int | None, every: int | None, pinned: set[int]
) -> None:
    """transformers#25129, #11421: save_total_limit deleted the newest, or the best."""
    everything = [f"checkpoint-{n}" for n in range(count)]
    pins = {f"checkpoint-{n}" for n in pinned}
    gone = superfluous(everything, keep, keep_every=every, pinned=pins)
    left = [name for name in everything if name not in gone]
    assert not pins & set(gone)
    assert everything[-1:] == left[-1:]
    if keep is None:
        assert left == everything
    else:
        assert len(left) >= min(keep, count)
        if every is None:
            held = len(pins & set(everything) | set(everything[-1:]))
            assert len(left) == min(count, max(keep, held))
        else:
            assert all(int(name[11:]) % every for name in gone)


def test_newest_is_by_commit_then_by_number() -> None:
    second = "20260101T000000Z-"
    ids = {"c-9": f"{second}b", "c-10": f"{second}a", "c-2": "20260101T000001Z-a"}
    assert newest_last(ids) == ["c-9", "c-10", "c-2"]


def test_going_back_is_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import re

    archive = Archive(tmp_path, {})
    archive.save({"a": 1}, "c-9", wait=True)
    ids = iter(["20990101T000000Z-000000000000"])
    import s4core.checkpoint.saver as saver

    original = saver.new_id
    try:
        saver.new_id = lambda *_: next(ids)
        archive.save({"a": 2}, "c-3", wait=True)
    finally:
        saver.new_id = original
    assert archive.names(re.compile(r"c-(\d+)"))[-1] == "c-3"
    assert "c-3 is the newest commit although c-9 has the higher number" in caplog.text


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.BatchNorm1d(4)
        self._orig = nn.Linear(4, 4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_only_what_a_wrapper_added_is_taken_from_a_name(compiled: bool, parallel: bool) -> None:
    inner: Any = Inner()
    expected = list(inner.state_dict())
    model = torch.compile(inner, backend="eager") if compiled else inner
    model = nn.DataParallel(model) if parallel else model
    stored = canonical_state(model, model.state_dict())
    assert list(stored) == expected
    assert stored._metadata["module"] == {"version": 2}  # type: ignore[attr-defined]
    back = live_state(model, stored)
    assert list(back) == list(model.state_dict())
    assert back._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]


def test_regionally_compiled_parts_are_canonical_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    expected = list(model.state_dict())
    model[1] = torch.compile(model[1], backend="eager")  # type: ignore[assignment]
    assert "1._orig_mod.weight" in model.state_dict()
    assert list(canonical_state(model, model.state_dict())) == expected


def test_side_files_come_back_and_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "empty").write_bytes(b"")
    (tmp_path / "a" / "deep" / "x.bin").write_bytes(bytes(range(256)))
    files = read_files(tmp_path / "a")
    write_files(as_leaves(files), tmp_path / "b")
    assert read_files(tmp_path / "b") == files
    for name in ("../x", "/x", "a/../../x", "", "a\\..\\x"):
        with pytest.raises(s4weights.FormatError, match="nothing is written outside"):
            write_files(as_leaves({name: b"1"}), tmp_path / "b")
    with pytest.raises(s4weights.FormatError, match="not bytes"):
        write_files({"x": torch.zeros(2)}, tmp_path / "b")
