"""The commit protocol: races with writers and with whoever deletes, lost answers, leftovers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from s3_hooks import SMALL, client_of, fail_times, no_answer, unfinished_uploads
from store_suite import MiB

import s4weights
from s4core import doomed
from s4core.checkpoint import Options, Run
from s4core.checkpoint.collect import plan_sweep, sweep
from s4core.checkpoint.committer import Asked
from s4core.checkpoint.handle import SaveHandle
from s4core.checkpoint.snapshot import take_snapshot
from s4core.errors import AccessDeniedError
from s4core.repository import NAME_KEY
from s4core.stores import MemoryStore, Store, open_store
from s4weights import BaseNotFoundError, KeyExistsError, StateError


class Interrupted(MemoryStore):
    """Lets another process act at the n-th request of a kind, before it is done."""

    at: tuple[str, int] | None = None
    act: Callable[[], object]
    seen: list[str]

    def child(self, prefix: str) -> Interrupted:
        found = super().child(prefix)
        found.__class__ = Interrupted
        return found  # type: ignore[return-value]

    def put(self, key: str, data: Any, **options: Any) -> None:
        self._pass("put")
        super().put(key, data, **options)

    def delete(self, keys: Iterable[str]) -> None:
        self._pass("delete")
        super().delete(keys)

    def list(self, prefix: str = "", *, shallow: bool = False) -> Any:
        self._pass("list")
        return super().list(prefix, shallow=shallow)

    def size(self, key: str) -> int:
        self._pass("size")
        return super().size(key)

    def _pass(self, kind: str) -> None:
        if Interrupted.at is None:
            return
        Interrupted.seen.append(kind)
        if Interrupted.at == ("any", len(Interrupted.seen)):
            Interrupted.at = None
            Interrupted.act()


def state(value: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(20_000, generator=generator)
    return {"w": w + 1e-6 * value, "frozen": torch.ones(10_000), "n": value}


def interrupted_at(number: int, act: Callable[[], object]) -> None:
    Interrupted.at, Interrupted.act, Interrupted.seen = ("any", number), act, []


def others_remove(name: str, steps: Iterable[int]) -> None:
    """Another process removes steps and sweeps without grace: what they stood on goes too."""
    other = Run(MemoryStore(name))
    for step in steps:
        other.remove(step)
    other.gc(grace_seconds=0)


def test_a_delta_is_never_committed_on_a_base_that_goes_at_any_moment() -> None:
    """Whichever request of a save the deletion of its base comes before: what is there loads."""
    moments, whole = 0, 0
    for number in range(1, 100):
        name = f"race-{number}"
        run = Run(Interrupted(name), Options(max_depth=8))
        run.save(state(1.0), 1)
        run.save(state(2.0), 2)
        interrupted_at(number, lambda name=name: others_remove(name, (1, 2)))
        run.save(state(3.0), 3)
        if Interrupted.at is not None:  # the save makes fewer requests than that
            Interrupted.at = None
            break
        moments += 1
        fresh = Run(MemoryStore(name))
        assert fresh.steps() == [3]
        assert_same_state(state(3.0), fresh.load(3))
        whole += fresh.reader(3).manifest.depth == 0
    assert moments > 8
    assert 0 < whole < moments  # before its manifest was put the base went, later it stayed


def test_a_sweep_spares_what_a_save_comes_to_need_at_any_moment() -> None:
    """The same race from the other side: the save comes between two requests of the sweep."""
    moments, spared = 0, 0
    for number in range(1, 100):
        name = f"sweep-race-{number}"
        run = Run(MemoryStore(name))
        run.save(state(1.0), 1)
        sweeper = Run(Interrupted(name))
        interrupted_at(number, lambda run=run: run.save(state(2.0), 2))
        sweeper.remove(1)
        if Interrupted.at is not None:
            Interrupted.at = None
            break
        moments += 1
        fresh = Run(MemoryStore(name))
        assert_same_state(state(2.0), fresh.load(2))
        assert all(finding.ok for finding in fresh.verify(full=True))
        spared += fresh.reader(2).manifest.depth == 1
    assert moments > 8
    assert 0 < spared < moments


def test_a_further_ref_to_a_checkpoint_that_goes_is_saved_whole_instead() -> None:
    for number in range(1, 30):
        name = f"alias-{number}"
        run = Run(Interrupted(name))
        run.save(state(1.0), 1)
        interrupted_at(number, lambda name=name: others_remove(name, (1,)))
        run.save(state(1.0), 1, name="last.ckpt")
        Interrupted.at = None
        assert_same_state(state(1.0), Run(MemoryStore(name)).load(name="last.ckpt"))


def test_what_was_encoded_ahead_fails_clearly_when_its_base_goes() -> None:
    run = Run(MemoryStore("ahead"))
    run.save(state(1.0), 1)
    prepared = run._prepare(take_snapshot(state(2.0)), ahead=True)
    others_remove("ahead", (1,))
    asked = Asked("step-00000002.ckpt", 2, {}, SaveHandle())
    with pytest.raises(BaseNotFoundError, match="another process deletes at this moment; save ag"):
        run._finish(asked, lambda whole: None if whole else prepared)
    assert run.steps() == []
    assert list(run.repository.ids()) == []
    run.save(state(3.0), 3)
    assert_same_state(state(3.0), Run(MemoryStore("ahead")).load())


def test_nothing_new_stands_on_what_a_dead_sweeper_announced() -> None:
    run = Run(MemoryStore("dead"))
    run.save(state(1.0), 1)
    identity = run.names()["step-00000001.ckpt"].checkpoint
    doomed.announce(run.repository.store, [identity])
    info = run.save(state(2.0), 2).result()
    assert info.kind == "base"
    assert_same_state(state(1.0), run.load(1))


def test_a_dead_sweepers_announcement_is_withdrawn_when_it_protects_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(MemoryStore("stale"))
    run.save(state(1.0), 1)
    identity = run.names()["step-00000001.ckpt"].checkpoint
    doomed.announce(run.repository.store, [identity, "long-gone"])
    run.gc(grace_seconds=0)
    assert doomed.announced(run.repository.store) == {identity, "long-gone"}  # still young
    monkeypatch.setattr("s4core.checkpoint.collect.MAX_SWEEP_SECONDS", -1.0)
    run.gc(grace_seconds=0)
    assert doomed.announced(run.repository.store) == set()


def test_a_sweep_that_fails_keeps_its_announcement() -> None:
    run = Run(MemoryStore("failing-sweep"))
    run.save(state(1.0), 1)
    run.directory.delete(["step-00000001.ckpt"])
    run.close()

    def fail(keys: Iterable[str]) -> None:
        raise AccessDeniedError("no")

    repository = run.repository
    plan = plan_sweep(repository, run._removals.roots(), 0.0)
    repository.store.delete = fail  # type: ignore[method-assign]
    with pytest.raises(AccessDeniedError, match="no"):
        sweep(repository, plan, run._removals.roots)
    del repository.store.delete
    assert doomed.announced(repository.store) == set(plan.swept)


def test_a_kept_young_checkpoint_keeps_what_it_stands_on() -> None:
    run = Run(MemoryStore("young"))
    run.save(state(1.0), 1)
    run.save(state(2.0), 2)
    first, second = (run.names()[f"step-0000000{n}.ckpt"].checkpoint for n in (1, 2))
    run.directory.delete(["step-00000001.ckpt", "step-00000002.ckpt"])
    run.close()
    held = run.repository.store._objects()
    key = f"young/.s4/checkpoints/{first}.json".removeprefix("young/")
    held[key] = type(held[key])(held[key].data, 0.0)  # as if put long ago
    plan = run.gc(dry_run=True, grace_seconds=3600)
    assert plan.kept[second] == "younger than 3600 s"
    assert plan.kept[first] == "a checkpoint that stays stands on it"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "local" else request.getfixturevalue("s3_url")


def test_of_two_writers_of_one_name_one_wins_and_both_checkpoints_load(url: str) -> None:
    runs = [s4weights.open(url) for _ in range(4)]

    def save(number: int) -> str:
        try:
            return runs[number].save(state(float(number)), 7).result().id
        except KeyExistsError:
            return ""

    with ThreadPoolExecutor(4) as writers:
        ids = list(writers.map(save, range(4)))
    fresh = s4weights.open(url)
    winners = [number for number, identity in enumerate(ids) if identity]
    # A writer that began after the winner had ended replaces it, as a second save would.
    assert winners
    assert fresh.load(7)["n"] in winners
    names = fresh.names()
    assert len(names) == 1 + 4 - len(winners)
    found = {fresh.load(name=name)["n"] for name in names}
    assert found >= {float(n) for n in range(4) if n not in winners}
    fresh.gc(grace_seconds=0)
    assert all(finding.ok for finding in fresh.verify())


def test_a_name_taken_while_a_save_runs_is_a_conflict_told_clearly(url: str) -> None:
    first, second = s4weights.open(url), s4weights.open(url)
    theirs: list[str] = []
    commit = first.repository.commit

    def commit_late(manifest: Any) -> str:
        theirs.append(second.save(state(2.0), 7).result().id)
        return commit(manifest)

    first.repository.commit = commit_late  # type: ignore[method-assign]
    with pytest.raises(
        KeyExistsError, match=r"took that name .*; theirs stays.*give each its own"
    ) as caught:
        first.save(state(1.0), 7)
    fresh = s4weights.open(url)
    assert fresh.names()["step-00000007.ckpt"].checkpoint == theirs[0]
    (beside,) = set(fresh.names()) - {"step-00000007.ckpt"}
    assert beside in str(caught.value)
    assert_same_state(state(2.0), fresh.load(7))
    assert_same_state(state(1.0), fresh.load(name=beside))
    assert fresh.steps() == [7]


def test_a_name_is_replaced_by_whoever_saw_it(url: str) -> None:
    run = s4weights.open(url)
    for value in (1.0, 2.0, 3.0):
        run.save(state(value), int(value), name="last.ckpt")
    assert_same_state(state(3.0), s4weights.open(url).load(name="last.ckpt"))
    assert set(run.names()) == {"last.ckpt"}


@pytest.mark.s3
@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
@pytest.mark.parametrize("times", [1, 6])
def test_a_commit_whose_answers_are_lost_is_a_commit(
    s3_url: str, operation: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s4core.stores.s3_deadline.FIRST_PAUSE_SECONDS", 0.001)
    store = open_store(s3_url, **SMALL)
    run = Run(store)
    big = {"w": torch.randint(0, 256, (11 * MiB,), dtype=torch.uint8)}
    client_of(store).meta.events.register(
        f"after-call.s3.{operation}", fail_times(times, no_answer)
    )
    info = run.save(big, 1).result()
    assert info.kind == "base"
    assert_same_state(big, s4weights.open(s3_url).load(1))
    assert unfinished_uploads(store) == []


def test_the_first_save_ends_what_killed_processes_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = s4weights.open(tmp_path / "run", unfinished_seconds=3600)
    left = [
        tmp_path / "run" / ".s4tmp-1-a",
        tmp_path / "run" / ".s4" / "shards" / "x" / ".s4tmp-2-b",
    ]
    mine = tmp_path / "run" / "my-data" / ".s4tmp-not-ours"
    for path in (*left, mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    run.save(state(1.0), 1)
    assert [path.exists() for path in (*left, mine)] == [False, False, True]
    left[0].write_bytes(b"half")
    os.utime(left[0], (0, 0))
    run.save(state(2.0), 2)
    assert left[0].exists()  # once is enough


def test_a_sweep_that_is_not_allowed_does_not_fail_the_save(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Store, older_than_seconds: float, *, shallow: bool = False) -> int:
        raise AccessDeniedError("s3:ListBucketMultipartUploads is not allowed")

    monkeypatch.setattr(MemoryStore, "sweep_unfinished", refuse)
    Run(MemoryStore("no-sweep")).save(state(1.0), 1)
    assert "unfinished writes remain: s3:ListBucketMultipartUploads" in caplog.text


def test_names_are_recorded_and_own_keys_refused() -> None:
    run = Run(MemoryStore("named"))
    run.save(state(1.0), 1, name="epoch=1.ckpt", meta={"val_loss": 0.5})
    meta = run.reader(name="epoch=1.ckpt").manifest.meta
    assert meta == {"val_loss": 0.5, NAME_KEY: "epoch=1.ckpt"}
    with pytest.raises(StateError, match="keys that start with 's4.' are the writer's own"):
        run.save(state(1.0), 2, meta={"s4.x": 1})


def test_the_resume_source_stays_until_something_newer_is_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Run(MemoryStore("source"))
    for value in (1.0, 2.0):
        first.save(state(value), int(value))
    run = Run(MemoryStore("source"))
    run.load(1)
    run.remove(1)
    run.remove(2)
    assert run.steps() == [1]
    run.close()
    assert "step-00000001.ckpt stays: nothing newer was committed" in caplog.text
    run.save(state(3.0), 3)
    assert run.steps() == [3]
    assert_same_state(state(3.0), Run(MemoryStore("source")).load())
