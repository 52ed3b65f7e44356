"""Runs: base -> delta chains whose every link loads bit for bit, and nothing lost to a removal."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import s4weights
from s4core.checkpoint import Options, Run
from s4core.stores import MemoryStore
from s4weights import (
    BaseMismatchError,
    BaseNotFoundError,
    KeyNotFoundError,
    StateError,
    StoreError,
)


class Training:
    """A tiny training: weights move a little at each step, one part is frozen."""

    def __init__(self, seed: int = 0, rows: int = 256) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.w = 0.02 * torch.randn(rows, 300, generator=self.random)
        self.frozen = torch.randn(200 * rows, generator=self.random)
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        self.w += 1e-5 * torch.randn(self.w.shape, generator=self.random)
        return self.state()

    def state(self) -> dict[str, Any]:
        return {
            "w": self.w.clone(),
            "half": self.w.bfloat16(),
            "frozen": self.frozen.clone(),
            "step": torch.tensor(float(self.steps)),
            "lr": 1e-5 * self.steps,
        }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return s4weights.open(tmp_path / "run", max_depth=3)


def save_many(run: Run, count: int) -> dict[int, dict[str, Any]]:
    training, states = Training(), {}
    for step in range(1, count + 1):
        states[step] = training.step()
        run.save(states[step], step)
    return states


def test_every_link_of_a_chain_loads_bit_for_bit(run: Run) -> None:
    states = save_many(run, 9)
    fresh = s4weights.open(run.url)
    assert fresh.steps() == list(states)
    for step, state in states.items():
        assert_same_state(state, fresh.load(step))


def test_depth_is_bounded_and_a_base_follows(run: Run) -> None:
    training = Training()
    infos = [run.save(training.step(), step).result() for step in range(8)]
    assert [info.depth for info in infos] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [info.kind for info in infos] == ["base", "delta", "delta", "delta"] * 2


def test_deltas_are_smaller_and_frozen_tensors_cost_nothing(run: Run) -> None:
    training = Training()
    base = run.save(training.step(), 1).result()
    delta = run.save(training.step(), 2).result()
    assert delta.stored_bytes < 0.6 * base.stored_bytes
    manifest = run.reader(2).manifest
    kinds = {t.path: manifest.arrays[t.array] for t in manifest.tensors}
    assert kinds["frozen"].same is not None
    assert kinds["w"].delta in ("xor", "zigzag")
    assert kinds["step"].data is not None


def test_a_tensor_that_a_delta_would_enlarge_is_stored_whole(run: Run) -> None:
    run.save({"t": torch.randn(100_000)}, 1)
    info = run.save({"t": torch.randn(100_000)}, 2).result()
    assert run.reader(2).manifest.arrays[0].delta is None
    assert info.depth == 0


def test_the_same_state_again_costs_a_ref(run: Run) -> None:
    training = Training()
    first = run.save(training.step(), 1, name="epoch=1.ckpt").result()
    alias = run.save(training.state(), 1, name="last.ckpt").result()
    assert (alias.kind, alias.stored_bytes, alias.id) == ("alias", 0, first.id)
    assert_same_state(training.state(), run.load(name="last.ckpt"))


def test_the_same_tensors_in_another_state_cost_a_manifest(run: Run) -> None:
    training = Training()
    run.save(training.step(), 1, name="epoch=1.ckpt")
    state = {**training.state(), "callbacks": {"last": "last.ckpt"}}
    info = run.save(state, 1, name="last.ckpt").result()
    assert 0 < info.stored_bytes < 10_000
    assert_same_state(state, s4weights.load(Path(run.url.removeprefix("file://")) / "last.ckpt"))


def test_a_new_process_goes_on_with_the_chain(run: Run) -> None:
    training = Training()
    run.save(training.step(), 1)
    resumed = s4weights.open(run.url)
    info = resumed.save(training.step(), 2).result()
    assert info.depth == 1
    assert_same_state(training.state(), s4weights.load_checkpoint(run.url))


def test_words_beyond_the_memory_budget_come_from_the_store(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path, reference_bytes=0)
    states = save_many(run, 4)
    assert run.reader(4).manifest.depth == 3
    assert_same_state(states[4], run.load(4))


def test_tensors_that_change_shape_or_dtype_or_name_are_stored_anew(run: Run) -> None:
    states = [
        {"a": torch.ones(5000), "b": torch.zeros(3000)},
        {"a": torch.ones(5001), "b": torch.zeros(3000, dtype=torch.bfloat16)},
        {"c": torch.ones(5000), "b": torch.zeros(30, 100)},
        {"c": {"d": torch.ones(5000)}},
    ]
    for step, state in enumerate(states):
        run.save(state, step)
    for step, state in enumerate(states):
        assert_same_state(state, run.load(step))


def test_functions_of_the_front_page(tmp_path: Path) -> None:
    training = Training()
    for step in (10, 20):
        info = s4weights.save_checkpoint(training.step(), tmp_path, step=step)
    assert (info.step, info.kind) == (20, "delta")
    assert_same_state(training.state(), s4weights.load_checkpoint(tmp_path))
    assert_same_state(training.state(), s4weights.load(info.url))
    found = s4weights.load_checkpoint(tmp_path, step=10, keys=["frozen"])
    assert_same_state({"frozen": training.frozen}, found)


def test_s4_store_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S4_STORE", str(tmp_path))
    s4weights.save_checkpoint([torch.ones(3)], step=1)
    assert_same_state([torch.ones(3)], s4weights.load_checkpoint())
    monkeypatch.delenv("S4_STORE")
    with pytest.raises(StoreError, match="no store is named: .*S4_STORE"):
        s4weights.load_checkpoint()


def test_removing_a_base_keeps_its_deltas_loadable(run: Run) -> None:
    states = save_many(run, 4)
    for step in (1, 2, 3):
        run.remove(step)
    fresh = s4weights.open(run.url)
    assert fresh.steps() == [4]
    assert_same_state(states[4], fresh.load())


def test_bytes_go_when_no_chain_needs_them(run: Run) -> None:
    save_many(run, 8)  # bases at 1 and 5
    for step in (1, 2, 3, 4):
        run.remove(step)
    assert len(list(run.repository.ids())) == 4 + 1  # the frozen tensor still lies in 1
    for step in (5, 6, 7):
        run.remove(step)
    run.remove(8)
    kept = {identity for identity, _ in run.repository.ids()}
    assert run._saver.reference is not None
    assert run._saver.reference.manifest.id in kept  # the next delta stands on it
    run.close()
    run.gc(grace_seconds=0)
    assert list(run.repository.ids()) == []
    assert [e.key for e in run.repository.store.list("shards/")] == []


def test_removing_twice_is_no_error(run: Run) -> None:
    save_many(run, 1)
    run.remove(1)
    run.remove(1)
    run.remove(name="never there")


def test_keep_last_keeps_the_newest(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path, keep_last=2)
    states = save_many(run, 6)
    assert run.steps() == [5, 6]
    assert_same_state(states[5], run.load(5))


def test_young_garbage_is_left_to_writers_that_cannot_be_seen(run: Run) -> None:
    save_many(run, 2)
    run.repository.put_shard("crashed/0-0.s4", [b"half a shard"], 12)
    plan = run.gc(dry_run=True)
    assert plan.keys == ()
    plan = run.gc(grace_seconds=0)
    assert plan.swept == {"crashed": "its save never committed"}
    assert run.steps() == [1, 2]


def test_a_delta_is_never_made_against_what_someone_else_removed(run: Run) -> None:
    training = Training()
    run.save(training.step(), 1)
    other = s4weights.open(run.url)
    other.remove(1)
    other.gc(grace_seconds=0)
    info = run.save(training.step(), 2).result()
    assert info.kind == "base"
    assert_same_state(training.state(), s4weights.load_checkpoint(run.url))


def test_a_damaged_newest_checkpoint_does_not_stop_the_next_save(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_many(run, 2)
    training = Training(seed=1)
    ref = tmp_path / "run" / "step-00000002.ckpt"
    ref.write_text(ref.read_text()[:40])
    fresh = s4weights.open(run.url)
    info = fresh.save(training.step(), 3).result()
    assert info.kind == "base"
    assert "step-00000002.ckpt cannot be stood on" in caplog.text
    assert_same_state(training.state(), fresh.load(3))


def test_a_damaged_base_is_not_stood_on_again(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_many(run, 1)
    (shard,) = (tmp_path / "run" / ".s4" / "shards").glob("*/*.s4")
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    training = Training(seed=1)
    fresh = s4weights.open(run.url)
    fresh.save(training.step(), 2)
    assert "is stored whole: " in caplog.text
    assert_same_state(training.state(), s4weights.open(run.url).load(2))


def test_options_out_of_range_are_refused(tmp_path: Path) -> None:
    for bad, message in (
        ({"profile": "fast"}, "profile 'fast': expected 'open' or 'nvcomp'"),
        ({"max_depth": 256}, "max_depth 256: expected 0 to 255"),
        ({"keep_last": 0}, "keep_last 0: expected at least 1"),
    ):
        with pytest.raises(StateError, match=message):
            s4weights.open(tmp_path, **bad)
    with pytest.raises(StateError, match="needs a step or a name"):
        s4weights.open(tmp_path).save({})


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match="holds no committed checkpoint"):
        s4weights.load_checkpoint(tmp_path)


def test_runs_are_pickled_without_their_state(run: Run) -> None:
    states = save_many(run, 2)
    again = pickle.loads(pickle.dumps(run))
    assert again.options == run.options
    assert_same_state(states[2], again.load())


def test_damage_to_a_base_is_found_and_named(run: Run, tmp_path: Path) -> None:
    save_many(run, 5)
    assert all(finding.ok for finding in run.verify())
    first = run.names()["step-00000001.ckpt"].checkpoint
    (shard,) = (tmp_path / "run" / ".s4" / "shards" / first).glob("*.s4")
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    for full in (False, True):
        findings = {f.name: f for f in s4weights.open(run.url).verify(full=full)}
        assert not findings["step-00000001.ckpt"].ok
        assert "is damaged: expected XXH3-64" in findings["step-00000001.ckpt"].error
        assert not findings["step-00000002.ckpt"].ok


def test_a_lost_manifest_is_named_with_the_ref_that_needs_it(run: Run) -> None:
    save_many(run, 2)
    first = run.names()["step-00000001.ckpt"].checkpoint
    run.repository.store.delete([f"checkpoints/{first}.json"])
    fresh = s4weights.open(run.url)
    with pytest.raises(BaseNotFoundError, match=r"step-00000001.ckpt names checkpoint .* is gone"):
        fresh.load(1)
    with pytest.raises(BaseNotFoundError, match="needs checkpoint .*, which is gone"):
        fresh.load(2)


def test_a_swapped_manifest_is_refused(run: Run) -> None:
    save_many(run, 2)
    refs = run.names()
    one, two = (refs[f"step-0000000{n}.ckpt"].checkpoint for n in (1, 2))
    data = run.repository.manifest_bytes(two)
    run.repository.store.put(f"checkpoints/{one}.json", data, replace=True)
    with pytest.raises(BaseMismatchError, match="is not the manifest that .*step-00000001"):
        s4weights.open(run.url).load(1)


def test_every_flipped_bit_of_a_ref_is_an_error_or_the_same_ref(run: Run, tmp_path: Path) -> None:
    states = save_many(run, 1)
    path = tmp_path / "run" / "step-00000001.ckpt"
    good = path.read_bytes()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        try:
            found = s4weights.load(path)
        except s4weights.S4Error:
            continue
        assert_same_state(states[1], found)  # a flipped bit of the white space at its end


def test_foreign_files_in_the_directory_are_left_alone(run: Run, tmp_path: Path) -> None:
    save_many(run, 1)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "big.bin").write_bytes(bytes(100_000))
    (tmp_path / "run" / "broken.json").write_text("{")
    run.gc(grace_seconds=0)
    assert set(run.names()) == {"step-00000001.ckpt"}
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_newer_store_or_ref_asks_for_an_upgrade(run: Run, tmp_path: Path) -> None:
    save_many(run, 1)
    ref = tmp_path / "run" / "step-00000001.ckpt"
    ref.write_text(ref.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(s4weights.VersionError, match="ref version 2: .*upgrade"):
        s4weights.load(ref)
    ref.unlink()
    marker = tmp_path / "run" / ".s4" / "store.json"
    marker.write_text(marker.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(s4weights.VersionError, match="store version 2: .*upgrade"):
        s4weights.open(run.url).save([1], 9)


class FailingStore(MemoryStore):
    """Fails, as a crash would, at the n-th thing it is asked to put or delete."""

    fail_at = -1
    calls = 0
    error: type[Exception] = ConnectionAbortedError

    def child(self, prefix: str) -> FailingStore:
        found = super().child(prefix)
        found.__class__ = FailingStore
        return found  # type: ignore[return-value]

    def put(self, key: str, data: Any, **options: Any) -> None:
        self._count(f"put {key}")
        super().put(key, data, **options)

    def delete(self, keys: Iterable[str]) -> None:
        self._count("delete")
        super().delete(keys)

    def _count(self, what: str) -> None:
        FailingStore.calls += 1
        if FailingStore.calls == FailingStore.fail_at:
            raise FailingStore.error(f"crash at {what}")


def test_a_crash_at_any_write_leaves_every_committed_checkpoint_and_no_half_one() -> None:
    crashes = 0
    for fail_at in range(1, 40):
        name = f"crash-{fail_at}"
        FailingStore.fail_at, FailingStore.calls = fail_at, 0
        run = Run(FailingStore(name), Options(max_depth=2, keep_last=3))
        training, saved = Training(rows=4), {}
        try:
            for step in range(1, 6):
                state = training.step()
                run.save(state, step)
                saved[step] = state
        except ConnectionAbortedError:
            crashes += 1
        FailingStore.fail_at = -1
        again = Run(MemoryStore(name), Options(max_depth=2))
        for step in again.steps():
            if step in saved:
                assert_same_state(saved[step], again.load(step))
            else:
                again.load(step)  # committed, though its save did not return
        assert set(sorted(saved)[-2:]) <= set(again.steps())
        again.save(training.step(), 99)
        assert_same_state(training.state(), again.load())
    assert crashes > 15


@pytest.mark.s3
def test_a_run_on_s3_behaves_the_same(s3_url: str) -> None:
    run = s4weights.open(f"{s3_url}/run", max_depth=2)
    states = save_many(run, 4)
    fresh = s4weights.open(f"{s3_url}/run")
    for step, state in states.items():
        assert_same_state(state, fresh.load(step))
    for step in (1, 2):
        fresh.remove(step)
    assert_same_state(states[3], s4weights.load(f"{s3_url}/run/step-00000003.ckpt"))
    assert all(finding.ok for finding in fresh.verify(full=True))


class Chains(RuleBasedStateMachine):
    """Saves, removals, sweeps, rebases, crashes and restarts in any order, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        Chains.count = getattr(Chains, "count", 0) + 1
        self.name = f"machine-{Chains.count}"
        self.model: dict[int, Any] = {}
        self.training = Training(rows=4)
        self.step = 0
        self.source: int | None = None  # what was loaded last
        self.waiting: set[int] = set()  # steps whose removal waits for the next commit
        self.restart()

    @rule(grow=st.booleans())
    def save(self, grow: bool) -> None:
        self._next_state(grow)
        self.run.save(self.model[self.step], self.step)
        for step in self.waiting:
            del self.model[step]
        self.source, self.waiting, self.failing = None, set(), False

    def _next_state(self, grow: bool) -> None:
        self.step += 1
        if grow:
            self.training.frozen = torch.randn(len(self.training.frozen) + 1)
        self.model[self.step] = self.training.step()

    @rule(at=st.integers(1, 12), grow=st.booleans())
    def crash(self, at: int, grow: bool) -> None:
        self._next_state(grow)
        FailingStore.calls, FailingStore.fail_at = 0, at
        try:
            self.run.save(self.model[self.step], self.step)
        except ConnectionAbortedError:
            pass
        finally:
            FailingStore.fail_at = -1
        there = Run(MemoryStore(self.name)).steps()
        assert set(there) >= set(self.model) - self.waiting - {self.step}
        self.model = {step: self.model[step] for step in there}
        self.restart()

    @rule(grow=st.booleans())
    def fail(self, grow: bool) -> None:
        self._next_state(grow)
        FailingStore.calls, FailingStore.fail_at, FailingStore.error = 0, 1, StoreError
        with pytest.raises(StoreError, match="crash at put"):
            self.run.save(self.model.pop(self.step), self.step)
        FailingStore.fail_at, FailingStore.error = -1, ConnectionAbortedError
        self.failing = True

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        self.run.remove(step)
        if self.failing or step == self.source:
            self.waiting.add(step)
        else:
            del self.model[step]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def rebase(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        self.run.rebase(step)
        assert self.run.reader(step).manifest.needs == ()

    @rule()
    def sweep(self) -> None:
        self.run.gc(grace_seconds=0)

    @rule()
    def restart(self) -> None:
        self.run = Run(FailingStore(self.name), Options(max_depth=2, reference_bytes=0))
        self.source, self.waiting, self.failing = None, set(), False

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        assert_same_state(self.model[step], self.run.load(step))
        self.source = step

    @invariant()
    def all_is_there(self) -> None:
        fresh = Run(MemoryStore(self.name))
        assert fresh.steps() == sorted(self.model)
        assert all(finding.ok for finding in fresh.verify(full=True))


Chains.TestCase.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
test_any_history_leaves_what_the_model_says = Chains.TestCase
