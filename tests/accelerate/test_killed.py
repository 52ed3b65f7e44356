"""Kill -9 at the worst moments: `latest` is loadable and complete, never a mixture.

The short form kills at chosen moments; S4_SOAK=1 (`make soak-accelerate`) at every put.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate_toy import Toy, fresh_accelerator
from bits import assert_same_state
from launching import ROOT, run_ranks

import s4_accelerate
import s4weights
from s4_accelerate import S4Accelerate

SCRIPT = ROOT / "tests" / "accelerate_killed.py"
SHORT = ["side-files", "put-3", "rotation"]
LONG = ["side-files", "rotation", *(f"put-{n}" for n in range(1, 7))]
MOMENTS = LONG * 5 if os.environ.get("S4_SOAK") else SHORT


def check(url: str, expected: dict[int, dict[str, Any]]) -> str:
    """Every committed checkpoint is of one moment; the newest one's name."""
    newest = s4_accelerate.latest(url)
    assert newest is not None
    run = s4weights.open(url)
    for name in run.names():
        steps = int(name.removeprefix("checkpoint_")) + 1
        state = run.load(name=name)
        files = state["files"]["0"]
        schedule = torch.load(as_file(files["scheduler.bin"]), weights_only=True)
        random = torch.load(as_file(files["random_states_0.pkl"]), weights_only=False)
        counter = torch.load(as_file(files["custom_checkpoint_0.pkl"]), weights_only=True)
        same = expected[steps]
        assert counter == {"steps": steps}
        assert_same_state(same["schedule"], schedule)
        assert_same_state(same["torch"], random["torch_manual_seed"])
        assert_same_state(same["optimizer"], state["optimizers"][0])
        assert_same_state(same["net"], dict(state["models"][0]), stride=False)
    assert all(finding.ok for finding in run.verify(full=True)), run.verify(full=True)
    return newest.rpartition("/")[2]


def as_file(leaf: torch.Tensor) -> Any:
    return io.BytesIO(leaf.numpy().tobytes())


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[int, dict[str, Any]]]:
    """The training, undisturbed, on one thread like the one that is killed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    toy, states = Toy(fresh_accelerator()), {}
    for step in range(1, 7):
        toy.train(1)
        states[step] = toy.copy()
    yield states
    torch.set_num_threads(threads)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed(
    tmp_path: Path, moment: str, expected: dict[int, dict[str, Any]]
) -> None:
    url = str(tmp_path / "run")
    assert run_ranks(SCRIPT, url, moment) == [-9]
    newest = check(url, expected)
    assert newest == ("checkpoint_2" if moment == "rotation" else "checkpoint_1")
    resume(tmp_path, url, expected)


@pytest.mark.s3
def test_killed_while_uploading_to_s3(
    tmp_path: Path, s3_url: str, expected: dict[int, dict[str, Any]]
) -> None:
    assert run_ranks(SCRIPT, s3_url, "put-1") == [-9]
    assert check(s3_url, expected) == "checkpoint_1"
    resume(tmp_path, s3_url, expected)


def resume(project: Path, url: str, expected: dict[int, dict[str, Any]]) -> None:
    toy = Toy(fresh_accelerator(project, total_limit=2), seed=9)
    s4 = S4Accelerate(toy.accelerator, url)
    toy.accelerator.load_state()
    while toy.counter.steps < 6:
        toy.train(1)
        toy.accelerator.save_state()
        assert_same_state(expected[toy.counter.steps], toy.copy())
    s4.close()
    names = sorted(s4weights.open(url).names())
    assert len(names) == 2, names


def test_one_of_two_ranks_killed_amid_its_side_files(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    first, second = run_ranks(SCRIPT, url, "rank-1", ranks=2)
    assert second == -9
    assert first != 0, "rank 0 went on alone"
    assert s4_accelerate.latest(url) == f"{url}/checkpoint_1"
    files = s4weights.load(f"{url}/checkpoint_1")["files"]
    assert "random_states_1.pkl" in files["1"]
