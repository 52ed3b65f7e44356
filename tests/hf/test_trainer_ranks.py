"""Two ranks of a Trainer resume bit for bit, mirrored and direct, with both ranks' generators."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from launching import ROOT, run_ranks

import s4weights
from s4_accelerate.hf import prepare


@pytest.mark.s3
def test_two_ranks_resume_bit_for_bit(
    tmp_path: Path, s3_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    mirror, direct = str(tmp_path / "run"), f"{s3_url}/direct"
    script = ROOT / "tests" / "hf_ranks.py"
    assert run_ranks(script, str(tmp_path), mirror, direct, ranks=2) == [0, 0]
    for url in (mirror, direct):
        # on_save of rank 0 comes before rank 1 has written its generators.
        files = s4weights.load(f"{url}/checkpoint-4")["files"]
        assert "rng_state_0.pth" in files["0"]
        assert list(files["1"]) == ["rng_state_1.pth"]
    caplog.set_level(logging.WARNING)
    prepare(mirror, tmp_path / "one")
    assert "holds no random number generators for rank 0 of 1 (no rng_state.pth)" in caplog.text
