"""The examples run as they stand, and the demo's verdict can be relied on."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(EXAMPLES.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    pytest.importorskip("lightning", reason="no Lightning: install lightning")
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "lightning_resume.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_save_load(tmp_path: Path) -> None:
    done = run_example("save_load.py", f"--dir={tmp_path}")

    assert done.returncode == 0, done.stderr
    assert "every bit is back" in done.stdout
    assert "resumed from step 500; kept are the steps [300, 400, 500]" in done.stdout


def test_the_demo_is_killed_resumes_and_finds_no_difference(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="no Lightning: install lightning")
    small = ("--epochs=2", "--steps=2", "--width=64", "--layers=1")

    done = run_example("lightning_resume.py", f"--dir={tmp_path}", "--json", *small)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["differing"] == []
    assert result["checkpoints"] == 3
    assert [row["step"] for row in result["saves"]] == [2, 2, 4, 4]
    assert [row["kind"] for row in result["saves"]] == ["base", "alias", "delta", "alias"]
    assert result["stored_bytes"]["s4"] < result["stored_bytes"]["lightning"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(2, 1)),
        ([torch.zeros(2)], [torch.zeros(2), torch.zeros(2)]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"step": 3}, {"step": 4}),
    ],
)
def test_the_demo_sees_every_difference(demo: ModuleType, a: object, b: object) -> None:
    assert demo.differences(a, b, "at", []) != []
    assert demo.differences(a, a, "at", []) == []


def test_the_demo_refuses_to_write_into_what_is_there(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s4").mkdir()
    monkeypatch.setattr(sys, "argv", ["lightning_resume.py", f"--dir={tmp_path}"])

    with pytest.raises(SystemExit, match="exists: choose another --dir"):
        demo.main()
