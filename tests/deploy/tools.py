"""Where the programs of these tests are: by the interpreter, in environments of their own, on PATH.

checkov pins an old boto3, so it lives in an environment of its own; tests/deploy/README.md
has the two commands that make them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEMPLATE = REPOSITORY / "deploy/cfn-train-runner.yaml"
AMI = REPOSITORY / "ami"
DIRECTORIES = (
    Path(sys.executable).parent,
    REPOSITORY / ".venv-deploy/bin",
    REPOSITORY / ".venv-checkov/bin",
)


def tool(name: str) -> str:
    """The path of the program `name`; the test is skipped with a reason where there is none."""
    path = os.pathsep.join([*map(str, DIRECTORIES), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed; see tests/deploy/README.md")
    return found


def run(
    *argv: str | Path,
    timeout: float = 300.0,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program and give its output; `env` is added to this process's."""
    return subprocess.run(
        [str(word) for word in argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        cwd=cwd,
    )
