"""Saves behind the training: safe to mutate on return, in order, bounded, honest about failures."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state

import s4weights
from s4core.checkpoint import Options, Run
from s4core.checkpoint.committer import Asked
from s4core.stores import MemoryStore
from s4weights import StoreError, StoreUnavailableError


class SlowStore(MemoryStore):
    """Holds every put until it is let go; fails on demand."""

    gate = threading.Event()
    fail = False
    puts: list[str]

    def __init__(self, name: str, prefix: str = "") -> None:
        super().__init__(name, prefix)

    def child(self, prefix: str) -> SlowStore:
        found = super().child(prefix)
        found.__class__ = SlowStore
        return found  # type: ignore[return-value]

    def put(self, key: str, data: Any, **options: Any) -> None:
        assert SlowStore.gate.wait(60)
        if SlowStore.fail:
            raise StoreUnavailableError(f"{self.url_of(key)} does not answer")
        super().put(key, data, **options)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    SlowStore.gate.set()
    SlowStore.fail = False
    return Run(SlowStore(f"slow-{request.node.name}"), Options())


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((20_000,), value), "step": torch.tensor(value), "n": [value]}


def test_a_mutation_right_after_return_changes_nothing_stored(run: Run) -> None:
    SlowStore.gate.clear()
    live = state(1.0)
    handle = run.save(live, 1, wait=False)
    assert not handle.done()
    live["w"].fill_(99.0)
    live["step"].fill_(99.0)
    live["n"].append(99.0)
    SlowStore.gate.set()
    assert handle.result(60).step == 1
    assert_same_state(state(1.0), run.load(1))


def test_a_load_right_after_a_save_returns_the_new_state(run: Run) -> None:
    for value in range(5):
        run.save(state(float(value)), value, wait=False)
        assert_same_state(state(float(value)), run.load())


def test_at_most_so_many_saves_are_under_way_then_the_next_waits(run: Run) -> None:
    SlowStore.gate.clear()
    run.save(state(1.0), 1, wait=False)
    second: list[Any] = []
    thread = threading.Thread(target=lambda: second.append(run.save(state(2.0), 2, wait=False)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    SlowStore.gate.set()
    thread.join(60)
    run.flush()
    assert run.steps() == [1, 2]


def test_saves_and_removals_are_taken_in_the_order_they_were_asked_for(run: Run) -> None:
    run.options = Options(max_in_flight=8)
    run.save(state(1.0), 1)
    SlowStore.gate.clear()
    run.save(state(2.0), 2, wait=False)
    run.remove(1, wait=False)
    assert run.steps() == [1]  # not before the newer one is committed
    SlowStore.gate.set()
    run.flush()
    assert run.steps() == [2]
    assert_same_state(state(2.0), run.load())


def test_a_removal_after_a_failed_save_waits_for_the_next_commit(run: Run) -> None:
    run.save(state(1.0), 1)
    SlowStore.fail = True
    run.save(state(2.0), 2, wait=False)
    run.remove(1)
    SlowStore.fail = False
    with pytest.raises(StoreUnavailableError):
        run.flush()
    assert run.steps() == [1]
    run.save(state(3.0), 3)
    assert run.steps() == [3]
    assert_same_state(state(3.0), run.load())


def test_a_failure_is_told_once_and_later_saves_are_not_affected(run: Run) -> None:
    run.save(state(1.0), 1)
    SlowStore.fail = True
    run.save(state(2.0), 2, wait=False)
    run._worker.wait()
    SlowStore.fail = False
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        run.save(state(3.0), 3, wait=False)
    run.save(state(4.0), 4, wait=False)
    run.close()
    assert run.steps() == [1, 4]
    assert_same_state(state(4.0), run.load())


def test_a_failure_that_the_handle_told_is_not_told_again(run: Run) -> None:
    SlowStore.fail = True
    handle = run.save(state(2.0), 2, wait=False)
    with pytest.raises(StoreUnavailableError):
        handle.result(60)
    SlowStore.fail = False
    run.save(state(3.0), 3, wait=False).result(60)
    run.close()


def test_progress_reaches_the_whole_and_callbacks_run(run: Run) -> None:
    called = []
    SlowStore.gate.clear()
    handle = run.save(state(1.0), 1, wait=False)
    handle.add_done_callback(called.append)
    assert handle.progress().done_bytes < handle.progress().total_bytes
    SlowStore.gate.set()
    handle.result(60)
    run.flush()
    assert handle.progress().done_bytes == handle.progress().total_bytes == 80_004
    assert called == [handle]


def test_a_state_beyond_the_memory_budget_is_saved_while_the_caller_waits(run: Run) -> None:
    run.options = Options(host_bytes=1000)
    assert run.save(state(1.0), 1, wait=False).done()


def test_words_encoded_ahead_are_never_what_a_delta_stands_on(run: Run) -> None:
    # The way of states on GPUs, with host tensors in their place.
    live = {"w": torch.randn(20_000)}
    for step in range(4):
        prepared = run._prepare(_snapshot(live), ahead=True)
        live["w"] += 1e-6
        asked = Asked(f"step-{step:08d}.ckpt", step, {}, _handle())
        finish = run._finish(asked, lambda _, p=prepared: p)
        assert finish.kind == ("delta" if step else "base")
    wanted = live["w"].clone()
    run.save(live, 9)
    assert_same_state({"w": wanted}, Run(MemoryStore(run.url.split("/")[-1])).load(9))
    assert all(finding.ok for finding in run.verify(full=True))


def _snapshot(state: Any) -> Any:
    from s4core.checkpoint.snapshot import take_snapshot

    return take_snapshot(state)


def _handle() -> Any:
    from s4core.checkpoint import SaveHandle

    return SaveHandle(0)


def test_a_reference_that_was_changed_in_memory_is_not_stood_on(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    base = {"w": torch.randn(20_000)}
    run.save(base, 1)
    assert run._saver.reference is not None
    run._saver.reference.words(0)[7] += 1  # type: ignore[index]
    base["w"] += 1e-6
    info = run.save(base, 2).result()
    assert info.kind == "base"
    assert "its base was changed in memory" in caplog.text
    assert_same_state(base, run.load(2))


def test_memory_is_flat_over_a_hundred_saves(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path, keep_last=2)
    w = torch.randn(200_000)
    sizes = []
    for step in range(100):
        w += 1e-6
        run.save({"w": w}, step, wait=False)
        if step % 10 == 9:
            run.flush()
            gc.collect()
            sizes.append(_resident_bytes())
    run.close()
    assert max(sizes[5:]) - min(sizes[3:]) < 16 << 20, sizes


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


PENDING = """
import logging, sys, torch, s4weights
logging.basicConfig()
run = s4weights.open(sys.argv[1])
run.save({"w": torch.randn(1_500_000)}, 1, wait=False)
run.save({"w": torch.randn(1_500_000)}, 2, wait=False)
"""


def test_what_is_pending_at_exit_is_finished_with_a_message(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PENDING, tmp_path], capture_output=True, text=True, check=True
    )
    assert "pending checkpoint jobs before exit" in done.stderr
    run = s4weights.open(tmp_path)
    assert run.steps() == [1, 2]
    assert all(finding.ok for finding in run.verify(full=True))


FORKED = """
import os, sys, torch, s4weights
run = s4weights.open(sys.argv[1], max_in_flight=4)
run.save({"w": torch.randn(300_000)}, 1, wait=False)
pid = os.fork()
if not pid:
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    run.save({"w": torch.ones(300_000)}, 2, wait=False)
    run.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
run.save({"w": torch.zeros(300_000)}, 3, wait=False)
run.close()
"""


def test_a_fork_while_a_save_is_under_way_harms_neither_process(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, tmp_path], check=True, timeout=120
    )
    run = s4weights.open(tmp_path)
    assert run.steps() == [1, 2, 3]
    assert all(finding.ok for finding in run.verify(full=True))


def test_several_threads_may_save_and_load(run: Run) -> None:
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for step in range(first, first + 40, 4):
                run.save(state(float(step)), step, wait=bool(step % 8)).result(60)
                assert_same_state(state(float(step)), run.load(step))
        except BaseException as error:  # noqa: BLE001  # the test reports it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert run.steps() == list(range(40))


def test_a_store_that_never_existed_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        s4weights.open(tmp_path / "file" / "run").save(state(1.0), 1)


def test_a_runner_that_listens_is_told_of_every_save(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as runner:
        runner.bind(str(tmp_path / "metrics"))
        monkeypatch.setenv("S4_METRICS", str(tmp_path / "metrics"))
        info = run.save(state(1.0), 7, wait=False).result(60)
        report = json.loads(runner.recv(8192))
        SlowStore.fail = True
        with pytest.raises(StoreUnavailableError):
            run.save(state(2.0), 8)
        failure = json.loads(runner.recv(8192))
    assert report["step"] == 7
    assert report["stored_bytes"] == info.stored_bytes
    assert 0 < report["pause_seconds"] <= info.seconds
    assert "does not answer" in failure["message"]
