"""Upkeep of chains: rebase, repair, verdicts on damage, and interrupts of the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from s3_hooks import unfinished_uploads

import s4weights
from s4core.checkpoint import Options, Run
from s4core.cli import main
from s4core.refs import scan_refs
from s4core.repair import plan_repair, repair
from s4core.stores import MemoryStore, open_store
from s4weights import ChainError, StoreUnavailableError


def state(step: int) -> dict[str, Any]:
    w = torch.randn(30_000, generator=torch.Generator().manual_seed(0))
    return {"w": w + 1e-6 * step, "frozen": torch.ones(5000), "step": step}


def saved(name: str, steps: int, **options: Any) -> Run:
    run = Run(MemoryStore(name), Options(**options))
    for step in range(1, steps + 1):
        run.save(state(step), step)
    return run


def identity(run: Run, step: int) -> str:
    return run.names()[f"step-{step:08d}.ckpt"].checkpoint


# Rebase.


def test_a_rebased_tip_stands_on_nothing_and_the_rest_goes() -> None:
    run = saved("rebase", 4)
    run.put = None  # type: ignore[attr-defined]
    old = identity(run, 4)
    new = run.rebase(4).result()
    assert new != old
    assert run.reader(4).manifest.needs == ()
    assert_same_state(state(4), run.load(4))
    for step in (1, 2, 3):
        run.remove(step)
    run.save(state(5), 5)
    assert run.reader(5).manifest.base is not None
    assert {i for i, _ in run.repository.ids()} == {identity(run, 4), identity(run, 5)}
    assert_same_state(state(5), Run(MemoryStore("rebase")).load())


def test_every_ref_to_a_rebased_checkpoint_follows_it() -> None:
    run = saved("rebase-refs", 2)
    run.save(state(2), 2, name="best.ckpt")
    assert run.names()["best.ckpt"].checkpoint == identity(run, 2)
    new = run.rebase(name="best.ckpt", wait=False).result()
    assert identity(run, 2) == run.names()["best.ckpt"].checkpoint == new
    assert run.rebase(2).result() == new  # it stands on nothing already
    assert run.rebase().result() == new


def test_a_damaged_tip_is_not_rebased() -> None:
    run = saved("rebase-damaged", 3)
    run.repository.store.delete([f"checkpoints/{identity(run, 1)}.json"])
    fresh = Run(MemoryStore("rebase-damaged"))
    before = fresh.names()
    with pytest.raises(ChainError, match="is gone"):
        fresh.rebase(3)
    assert fresh.names() == before


def test_a_chain_ends_where_deltas_stop_paying() -> None:
    run = Run(MemoryStore("paying"), Options(max_depth=8))
    kinds = []
    for step in range(6):
        noise = torch.Generator().manual_seed(step)
        w = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
        if step == 3:
            w = torch.randn(50_000, generator=noise)  # nothing in common with the one before
        kinds.append(run.save({"w": w + 1e-7 * step}, step).result().depth)
    assert kinds[:3] == [0, 1, 2]
    assert kinds[3] == 0


# Damage: exactly what stands on it is lost.


def test_damage_in_one_link_names_exactly_the_checkpoints_that_are_lost() -> None:
    run = saved("damage", 9, max_depth=2)  # bases at 1, 4, 7
    store = run.repository.store
    (shard,) = store.list(f"shards/{identity(run, 5)}/")
    data = bytearray(store.get(shard.key))
    data[100] ^= 1
    store.put(shard.key, data, replace=True)
    for full in (False, True):
        findings = {f.name: f for f in Run(MemoryStore("damage")).verify(full=full)}
        lost = {name for name, finding in findings.items() if not finding.ok}
        assert lost == {"step-00000005.ckpt", "step-00000006.ckpt"}
        assert shard.key in findings["step-00000006.ckpt"].error
    for step in (1, 2, 3, 4, 7, 8, 9):
        assert_same_state(state(step), Run(MemoryStore("damage")).load(step))


def test_a_store_that_does_not_answer_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved("silent", 2)

    def silent(self: MemoryStore, key: str, ranges: Any) -> list[bytes]:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(MemoryStore, "get_ranges", silent)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        Run(run.directory).verify()


def test_verify_tells_its_progress() -> None:
    run = saved("progress", 3)
    seen: list[int] = []
    findings = run.verify(progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == sum(finding.bytes for finding in findings) > 0


# Repair.


def test_repair_puts_back_every_ref_that_was_lost() -> None:
    run = saved("lost-refs", 3)
    run.save(state(4), 4, name="epoch=4.ckpt")
    before = run.names()
    run.directory.delete(list(before))
    plan = plan_repair(run.directory, run.repository)
    assert plan.refs == {name: ref.checkpoint for name, ref in before.items()}
    assert run.names() == {}  # a plan changes nothing
    repair(run.directory, run.repository, plan)
    assert run.names() == before
    for step in (1, 2, 3):
        assert_same_state(state(step), run.load(step))


def test_repair_replaces_a_damaged_ref_and_leaves_foreign_files() -> None:
    run = saved("damaged-refs", 3)
    good = run.directory.get("step-00000002.ckpt")
    run.directory.put("step-00000002.ckpt", good[:30], replace=True)
    run.directory.put("step-00000003.ckpt", b"PK\x03\x04 another tool's file", replace=True)
    assert run.gc(dry_run=True, grace_seconds=0).swept == {}  # their checkpoints are kept
    plan = plan_repair(run.directory, run.repository)
    assert plan.replaced == {"step-00000002.ckpt"}
    (reason,) = plan.beyond.values()
    assert "step-00000003.ckpt is a file that is no ref" in reason
    repair(run.directory, run.repository, plan)
    assert run.directory.get("step-00000002.ckpt") == good
    assert run.directory.get("step-00000003.ckpt").startswith(b"PK")


def test_repair_names_what_cannot_be_put_back() -> None:
    run = saved("beyond", 3)
    gone = identity(run, 1)
    run.directory.delete(list(run.names()))
    run.repository.store.delete([f"checkpoints/{gone}.json"])
    fresh = Run(MemoryStore("beyond"))
    plan = plan_repair(fresh.directory, fresh.repository)
    assert plan.refs == {}
    assert all(f"checkpoint {gone}" in reason for reason in plan.beyond.values())
    assert len(plan.beyond) == 2


def test_of_several_checkpoints_of_one_name_the_newest_is_put_back() -> None:
    run = Run(MemoryStore("overwritten"))
    for step in (1, 2):
        run.save(state(step), step, name="last.ckpt")
        time.sleep(1.05 if step == 1 else 0)  # ids have seconds
    newest = run.names()["last.ckpt"].checkpoint
    run.directory.delete(["last.ckpt"])
    assert plan_repair(run.directory, run.repository).refs == {"last.ckpt": newest}


def test_repair_and_rebase_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3):
        s4weights.save_checkpoint(state(step), tmp_path, step=step)
    (tmp_path / "step-00000002.ckpt").unlink()
    assert main(["repair", str(tmp_path), "--dry-run"]) == 0
    assert "1 refs would be put back, 0 checkpoints beyond repair" in capsys.readouterr().out
    assert main(["repair", str(tmp_path), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["refs"]) == ["step-00000002.ckpt"]
    assert main(["rebase", str(tmp_path), "step-00000003.ckpt"]) == 0
    assert "1 refs to checkpoints that stand on no other now" in capsys.readouterr().out
    assert s4weights.open(tmp_path).reader(3).manifest.needs == ()
    assert_same_state(state(2), s4weights.load_checkpoint(tmp_path, step=2))


def test_a_scan_tells_refs_from_everything_else() -> None:
    run = saved("scan", 1)
    run.directory.put("notes.txt", b"mine")
    run.directory.put("big", bytes(100_000))
    listing = scan_refs(run.directory)
    assert set(listing.refs) == {"step-00000001.ckpt"}
    assert set(listing.others) == {"notes.txt", "big"}


# Interrupts.

EXPORT = """
import os, sys, threading
from s4core.cli import main
from s4core.stores import s3_upload
send = s3_upload.Upload._send_part
def and_say(*arguments):
    sent = send(*arguments)
    print("sent", flush=True)
    return sent
s3_upload.Upload._send_part = and_say
complete = s3_upload.Upload._complete
def wait(*_):
    import time
    time.sleep(60)
s3_upload.Upload._complete = wait
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.s3
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_line_ends_its_upload(
    number: signal.Signals, s3_url: str, tmp_path: Path
) -> None:
    noise = torch.randint(0, 256, (40 << 20,), dtype=torch.uint8)
    s4weights.save({"w": noise}, tmp_path / "x.s4")
    process = subprocess.Popen(
        [sys.executable, "-c", EXPORT, "export", str(tmp_path / "x.s4"), f"{s3_url}/y.s4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"sent\n"
        store = open_store(s3_url)
        assert len(unfinished_uploads(store)) == 1
        os.kill(process.pid, number)
        assert process.wait(60) != 0
    assert unfinished_uploads(store) == []
    assert list(store.list()) == []
