"""Write runner.lock: every package of the image with one version and one wheel's SHA-256.

Two steps, because no one tool does both: ``uv pip compile`` resolves for the image's Python
(its markers too, which pip would take from the interpreter that runs it), and pip then picks
the one wheel that the image's platform takes. The result is installed with
``pip install --require-hashes --no-deps``, so what is not in it cannot get in.

Run with ``uv`` on PATH: ``python ami/requirements/make_lock.py``. Needs the package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = "3.10"  # Ubuntu 22.04's
GLIBC_MINORS = range(35, 4, -1)  # Ubuntu 22.04 has glibc 2.35
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
HEADER = f"""\
# Made by make_lock.py from runner.in for CPython {PYTHON}, x86-64, glibc 2.35. Do not edit.
# One wheel for each package. Install: pip install --require-hashes --no-deps -r runner.lock
"""


def resolved(directory: Path) -> Path:
    """All packages with all their hashes, for the image's Python; the path of that file."""
    found = directory / "all.lock"
    subprocess.run(
        ["uv", "pip", "compile", "-q", "--native-tls", "--generate-hashes", "--no-annotate",
         "--only-binary", ":all:", "--python-version", PYTHON,
         "--python-platform", "x86_64-manylinux_2_35", "-o", str(found), str(HERE / "runner.in")],
        check=True,
    )  # fmt: skip
    return found


def chosen(lock: Path, directory: Path) -> list[dict[str, Any]]:
    """pip's report of the wheels it would install on the image."""
    report = directory / "report.json"
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    # A machine's own pip settings could offer wheels that the index does not have.
    clean = {k: v for k, v in os.environ.items() if k != "PIP_FIND_LINKS"}
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed",
         "--require-hashes", "-r", str(lock), "--python-version", PYTHON,
         "--implementation", "cp", "--abi", "cp310", "--abi", "abi3", "--abi", "none",
         "--only-binary", ":all:", *platforms,
         "--target", str(directory / "target"), "--report", str(report)],
        check=True, env={**clean, "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    installs: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return installs


def line(install: dict[str, Any]) -> str:
    """One line of the lock."""
    name = install["metadata"]["name"].lower().replace("_", "-")
    digest = install["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={install['metadata']['version']} --hash=sha256:{digest}\n"


def main() -> None:
    """Resolve, choose and write."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        installs = chosen(resolved(directory), directory)
    (HERE / "runner.lock").write_text(HEADER + "".join(sorted(line(one) for one in installs)))


if __name__ == "__main__":
    main()
