"""Distributed checkpoints beside the rest: without a process group, in runs, in single files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bits import assert_same_state
from dcp_plans import save_ranks

import s4core.dcp as s4dcp
import s4weights
from s4core.checkpoint import export_state, open_reader

W = torch.randn(40, 30)
CUT = [[("w", ((0, 0), (25, 30)))], [("w", ((25, 0), (15, 30)))]]


@pytest.fixture
def alone() -> Iterator[None]:
    """torch says of each call that it sees no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


@pytest.mark.usefixtures("alone")
def test_one_process_needs_no_group(tmp_path: Path) -> None:
    state = {"w": W.clone(), "v": [1, "x"]}
    s4dcp.save(state, tmp_path / "now")
    saving = s4dcp.async_save(state, tmp_path / "behind")
    state["w"].zero_()  # type: ignore[attr-defined]
    assert saving.result(60) is not None
    for name in ("now", "behind"):
        loaded = {"w": torch.zeros(40, 30), "v": None}
        s4dcp.load(loaded, tmp_path / name)
        assert_same_state({"w": W, "v": [1, "x"]}, loaded)


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_of_ranks_is_one_of_the_run(tmp_path: Path) -> None:
    save_ranks(tmp_path / "step-00000100.ckpt", {"w": W}, CUT)
    run = s4weights.open(tmp_path)
    assert run.latest() == 100
    assert_same_state({"w": W}, run.load())
    changed = {"w": W + 1e-3}
    run.save(changed, step=101)
    assert all(finding.ok for finding in run.verify(full=True))
    assert not run.gc(grace_seconds=0.0).swept
    assert_same_state({"w": W}, run.load(100))
    assert_same_state(changed, run.load(101))
    assert len(list(tmp_path.glob(".s4/shards/*/*"))) == 3
    run.remove(100)
    run.close()
    assert len(list(tmp_path.glob(".s4/shards/*/*"))) == 1


@pytest.mark.usefixtures("alone")
def test_exported_to_one_file_it_still_loads_onto_ranks(tmp_path: Path) -> None:
    save_ranks(tmp_path / "x", {"w": W}, CUT)
    export_state(open_reader(tmp_path / "x"), tmp_path / "x.s4", weights_only=True)
    export_state(open_reader(tmp_path / "x"), tmp_path / "x.pt", weights_only=True)
    assert_same_state({"w": W}, s4weights.load(tmp_path / "x.s4"))
    assert_same_state({"w": W}, torch.load(tmp_path / "x.pt"))
    loaded = {"w": torch.zeros(40, 30)}
    s4dcp.load(loaded, tmp_path / "x.s4")
    assert_same_state({"w": W}, loaded)
