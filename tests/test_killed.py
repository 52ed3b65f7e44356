"""SIGKILL at every call of the store in turn: what was saved is there, half of nothing shows.

A sample of the moments here, every one of them with `make soak-kill` (S4_SOAK=1).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT

SOAK = bool(os.environ.get("S4_SOAK"))
SCENARIOS = ["save", "async", "upkeep"]


def kill(url: str, scenario: str, kills: int) -> None:
    command = [sys.executable, str(ROOT / "tests" / "killing.py"), url, "--scenario", scenario]
    if not SOAK:
        command += ["--kills", str(kills)]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    print(f"{report['kills']} kills: {report}")
    assert report["kills"] >= kills * 0.8  # threads may make some events fewer than before


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_system_call_loses_nothing(
    scenario: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled():
        kill(str(tmp_path / "run"), scenario, {"save": 4, "async": 3, "upkeep": 5}[scenario])


@pytest.mark.s3
@pytest.mark.parametrize("scenario", SCENARIOS if SOAK else ["upkeep"])
def test_a_kill_at_any_request_to_s3_loses_nothing(
    scenario: str, s3_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled():
        kill(s3_url, scenario, 6)
