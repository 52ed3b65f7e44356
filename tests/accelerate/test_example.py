"""The example of Accelerate: killed, resumed, every bit the same."""

from __future__ import annotations

import pytest
from launching import ROOT, run_ranks


def test_the_example_of_accelerate_ends_bit_for_bit(capfd: pytest.CaptureFixture[str]) -> None:
    small = ("--width", "32", "--steps", "8", "--every", "2", "--kill", "5")
    assert run_ranks(ROOT / "examples" / "accelerate_resume.py", *small) == [0]
    assert "every bit is the same" in capfd.readouterr().out
