"""Two processes: bit-identical resumes on each, from a directory and from S3; shared failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import ROOT, run_ranks
from s3_server import S3Server

import s4weights

SCRIPT = ROOT / "tests" / "accelerate_ranks.py"


@pytest.mark.s3
def test_two_ranks_resume_bit_for_bit(
    tmp_path: Path, s3_url: str, s3_environment: S3Server
) -> None:
    local = str(tmp_path / "run")
    assert run_ranks(SCRIPT, str(tmp_path), local, s3_url, ranks=2) == [0, 0]
    for url in (local, s3_url):
        state = s4weights.load(f"{url}/step_3")
        assert not any(name.startswith("module.module.") for name in state["models"][0])
        assert "module.0.weight" in state["models"][0]
        assert "random_states_0.pkl" in state["files"]["0"]
        assert sorted(state["files"]["1"]) == ["random_states_1.pkl", "scaler.pt"]
