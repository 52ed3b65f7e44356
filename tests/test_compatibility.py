"""Every golden file of every format version is read for ever, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from bits import assert_same_state
from golden_states import FILES, MOMENT_STEPS, RUN_STEPS, moments_state, run_state

import s4weights
from s4core.checkpoint import open_reader

V1 = Path(__file__).parent / "golden" / "v1"


@pytest.mark.parametrize("name", FILES)
def test_golden_files_of_version_1_are_read(name: str) -> None:
    assert_same_state(FILES[name](), s4weights.load(V1 / name))


@pytest.mark.parametrize("step", RUN_STEPS)
def test_the_golden_run_of_version_1_is_read(step: int) -> None:
    assert_same_state(run_state(step), s4weights.load_checkpoint(V1 / "run", step=step))


@pytest.mark.parametrize("step", MOMENT_STEPS)
def test_the_golden_moments_of_version_1_are_read(step: int) -> None:
    assert_same_state(moments_state(step), s4weights.load_checkpoint(V1 / "moments", step=step))


def test_the_golden_files_hold_every_codec_layout_and_delta_of_version_1() -> None:
    readers = [open_reader(V1 / name) for name in FILES]
    readers += [open_reader(V1 / "run" / f"step-{step:08d}.ckpt") for step in RUN_STEPS]
    moments = [open_reader(V1 / "moments" / f"step-{step:08d}.ckpt") for step in MOMENT_STEPS]
    found = {name for reader in readers + moments for name in reader.manifest.requires}
    codecs = {"raw", "const", "bitpack", "rans", "rans.ctx", "rans.grid", "zstd"}
    assert found == {f"codec:{codec}" for codec in codecs} | {
        "layout:words",
        "layout:float",
        "layout:bytes",
        "delta:xor",
        "delta:zigzag",
        "derived:copy",
        "derived:rne",
        "context:exponent",
    }
    last = readers[-1].manifest
    kinds = {tensor.path: last.arrays[tensor.array] for tensor in last.tensors}
    assert kinds["frozen"].same is not None
    assert kinds["noise"].delta is None
    assert kinds["step"].data is not None
