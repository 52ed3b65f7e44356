"""The soak of `make soak-lightning` in short: SIGKILL at random moments, and nothing is lost."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SOAK = Path(__file__).parent / "soak.py"


def test_a_training_that_is_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    assert spec is not None
    assert spec.loader is not None
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)

    soak.soak(tmp_path / "killed", kills=1, ranks=1, epochs=5, seed=11)
