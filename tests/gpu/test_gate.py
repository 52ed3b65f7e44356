"""The image's GPU gate on a real GPU: it passes, and with one planted off-by-one it does not.

Only what ties it to the image is relaxed here: which GPUs and driver are allowed, and the
interpreter's isolation (`-I`), so that the checkout is what is tested.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import s4core
from s4core import kernels

ROOT = Path(__file__).parents[2]
PLANTED = ("if (4 * i + b < W * count) at[", "if (4 * i + b + 1 < W * count) at[")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "gpu_gate", ROOT / "ami" / "files" / "gpu_gate.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    here = frozenset({torch.cuda.get_device_name()})
    allow = module.gpu_rows
    monkeypatch.setattr(module, "gpu_rows", lambda text, branch: allow(text, branch, here))
    test = (sys.executable, "-m", "s4core.selftest", "--require-gpu", "--json")
    monkeypatch.setattr(module, "SELF_TEST", test)
    monkeypatch.setattr(module, "PACKAGES", ("torch", "numpy"))
    return module


def run_gate(gate: ModuleType, monkeypatch: pytest.MonkeyPatch, output: Path) -> int:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    branch = driver.split(".")[0]
    arguments = ["gpu_gate", "--driver-branch", branch, "--output", str(output), __file__]
    monkeypatch.setattr(sys, "argv", arguments)
    return int(gate.main())


def test_the_gate_passes_on_a_gpu_that_works(
    gate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_gate(gate, monkeypatch, tmp_path / "gate.json") == 0
    assert '"passed": true' in (tmp_path / "gate.json").read_text()


def test_one_planted_off_by_one_in_a_kernel_fails_the_gate(
    gate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(Path(s4core.__file__).parent, broken / "s4core")
    source = broken / "s4core" / "kernels" / "words.cuh"
    text = source.read_text()
    assert text.count(PLANTED[0]) == 1
    source.write_text(text.replace(*PLANTED))
    found = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{broken}{os.pathsep}{found}")
    monkeypatch.chdir(broken)
    assert run_gate(gate, monkeypatch, tmp_path / "gate.json") == 1
    assert "GPU gate FAILED, no image will be made" in capsys.readouterr().err
    assert not (tmp_path / "gate.json").exists()
    assert kernels.available()
