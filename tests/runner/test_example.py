"""The example training under the runner: killed or asked to stop, it ends with the same bits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from runner.fake_aws import FakeImds
from runner.running import ROOT, running

EXAMPLE = ROOT / "examples/train-runner/train.py"
STEPS = ["--steps", "60", "--every", "20"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
WAIT_SECONDS = 120.0  # imports of torch take their time on a busy machine
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SLOW = (
    "import runpy, sys, time, torch; step = torch.optim.AdamW.step\n"
    "def slow(self, *a): time.sleep(0.05); return step(self, *a)\n"
    "torch.optim.AdamW.step = slow; sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def digest(text: str) -> str:
    found = re.findall(r"step 60: weights ([0-9a-f]{64})", text)
    assert len(found) == 1, text
    return str(found[0])


def alone(store: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *STEPS],
        env={**os.environ, "PYTHONPATH": str(ROOT), "S4_STORE": str(store), **ONE_THREAD},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_killed_restarted_and_asked_for_a_checkpoint_it_ends_with_the_same_bits(
    tmp_path: Path, fake_imds: tuple[FakeImds, str]
) -> None:
    expected = digest(alone(tmp_path / "reference"))
    command = [sys.executable, "-c", SLOW, str(EXAMPLE), *STEPS]
    with running(tmp_path, fake_imds[1], command, **ONE_THREAD) as found:
        found.until(lambda: "saved step 20" in found.log, WAIT_SECONDS)
        pid = int(re.findall(r"training runs as process (\d+)", found.log)[0])
        os.kill(pid, signal.SIGKILL)
        found.until(lambda: "resumed from step" in found.log, WAIT_SECONDS)
        fake_imds[0].paths[REBALANCE] = {"noticeTime": "2026-01-31T08:22:00Z"}
        found.until(lambda: found.metric("checkpoint_requests_total") == 1)
        found.until(lambda: bool(re.search(r"saved step \d*[1-9]:|saved step \d*[13579]0:",
                                           found.log)), WAIT_SECONDS)  # fmt: skip
        assert (found.metric("saves_total") or 0) >= 2
        assert found.wait(WAIT_SECONDS) == 0
    assert digest(found.log) == expected
    assert (tmp_path / "store/step-00000060.ckpt").exists()


def test_a_stop_saves_what_was_trained(tmp_path: Path, fake_imds: tuple[FakeImds, str]) -> None:
    command = [sys.executable, "-c", SLOW, str(EXAMPLE), "--steps", "100000", "--every", "100000"]
    with running(tmp_path, fake_imds[1], command, **ONE_THREAD) as found:
        found.until(lambda: "training runs as" in found.log)
        pid = int(re.findall(r"training runs as process (\d+)", found.log)[0])
        mask = 1 << (signal.SIGTERM - 1)
        found.until(lambda: bool(handled(pid) & mask), WAIT_SECONDS)
        found.stop()
        assert found.wait(WAIT_SECONDS) == 0
    step = int(re.findall(r"step (\d+): weights", found.log)[0])
    assert step == 0 or (tmp_path / f"store/step-{step:08d}.ckpt").exists()


def handled(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"SigCgt:\s*([0-9a-f]+)", status)[0], 16)
