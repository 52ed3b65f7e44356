"""The example of the Trainer: killed, its machine lost, resumed, every bit the same."""

from __future__ import annotations

import pytest
from launching import ROOT, run_ranks


def test_the_example_of_the_trainer_ends_bit_for_bit(capfd: pytest.CaptureFixture[str]) -> None:
    small = ("--width", "32", "--steps", "8", "--every", "2", "--kill", "5")
    assert run_ranks(ROOT / "examples" / "hf_trainer_resume.py", *small) == [0]
    shown = capfd.readouterr().out
    assert "mirror: resumed from S4, every bit the same" in shown
    assert "direct: resumed from S4, every bit the same" in shown
