"""Both examples on a GPU: states encoded there, generators of CUDA restored, every bit the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from launching import ROOT


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["accelerate_resume.py", "hf_trainer_resume.py"])
def test_an_example_ends_bit_for_bit_on_a_gpu(name: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / name), "--width", "256", "--layers", "4"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
