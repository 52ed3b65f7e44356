"""Kill -9 a Trainer at the worst moments: `latest` resumes bit for bit, on a fresh machine.

S4_SOAK=1 (`make soak-accelerate`): at every put, several times.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from hf_toy import final, trainer
from launching import ROOT, run_ranks

import s4weights
from s4_accelerate.hf import S4TrainerCallback, latest, prepare

SCRIPT = ROOT / "tests" / "hf_killed.py"
SHORT = [("direct", "side-files"), ("mirror", "put-3"), ("direct", "rotation")]
LONG = [
    (kind, moment)
    for kind in ("mirror", "direct")
    for moment in ("side-files", "rotation", *(f"put-{n}" for n in range(1, 5)))
]
CASES = LONG * 5 if os.environ.get("S4_SOAK") else SHORT


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    done = trainer(tmp_path_factory.mktemp("native"), save_strategy="no")
    done.train()
    yield final(done)
    torch.set_num_threads(threads)


def resumed(url: str, output_dir: Path) -> dict[str, Any]:
    shutil.rmtree(output_dir, ignore_errors=True)
    again = trainer(output_dir, S4TrainerCallback(url), seed=9)
    again.train(resume_from_checkpoint=prepare(url, output_dir))
    return final(again)


@pytest.mark.parametrize(("kind", "moment"), CASES)
def test_killed_and_resumed(
    tmp_path: Path, kind: str, moment: str, uninterrupted: dict[str, Any]
) -> None:
    url, out = str(tmp_path / "run"), tmp_path / "out"
    assert run_ranks(SCRIPT, url, str(out), kind, moment) == [-9]
    step = 4 if moment == "rotation" else 2
    assert latest(url) == f"{url}/checkpoint-{step}"
    assert all(finding.ok for finding in s4weights.open(url).verify(full=True))
    assert_same_state(uninterrupted, resumed(url, out))


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["mirror", "direct"])
def test_a_checkpoint_on_sigterm_is_committed(
    tmp_path: Path, s3_url: str, kind: str, uninterrupted: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    assert run_ranks(SCRIPT, s3_url, str(out), kind, "sigterm") == [0]
    assert latest(s3_url) == f"{s3_url}/checkpoint-4"
    assert_same_state(uninterrupted, resumed(s3_url, out))
