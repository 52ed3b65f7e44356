"""The gate of the image build: no image without a bit-exact round trip on a real L4 or L40S.

It asks the driver which GPU there is, runs ``python -m s4core.selftest --require-gpu --json``
and believes nothing that is not said: exit code 0, ``ok``, both profiles, every dtype, no
mismatch. Then it writes gate.json, which stays in the image as the record of what was tested.
There is no option that lets an image pass without it.

What it needs of the self-test's report (other keys are kept)::

    {"ok": true, "gpu": "NVIDIA L4" | {"name": "NVIDIA L4"},
     "profiles": {"open": {"ok": true, "cases": 812, "mismatches": 0}, "nvcomp": {...}},
     "dtypes": ["bfloat16", ...]}
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

GPUS = frozenset({"NVIDIA L4", "NVIDIA L40S"})  # of g6 and g6e
PROFILES = frozenset({"open", "nvcomp"})
# The dtypes that a checkpoint is most likely to hold; the self-test must name these at least.
DTYPES = frozenset(
    {"bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
     "int8", "int16", "int32", "int64", "uint8", "bool", "complex64"}
)  # fmt: skip
PACKAGES = ("s4weights", "torch", "numpy", "cupy-cuda13x", "nvidia-nvcomp-cu13", "boto3")
SELF_TEST = (sys.executable, "-I", "-m", "s4core.selftest", "--require-gpu", "--json")
SELF_TEST_SECONDS = 1800


class GateError(Exception):
    """The image must not be made; the message says why."""


def gpu_rows(text: str, branch: str, allowed: Collection[str] = GPUS) -> list[dict[str, str]]:
    """The GPUs in the driver's answer, all of an allowed kind and of one driver branch.

    Raises:
        GateError: None is there, one is of another kind, or the driver is another branch.
    """
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line]
    if not rows:
        raise GateError("the driver sees no GPU")
    names = ("name", "driver", "memory", "uuid")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for gpu in found:
        if gpu["name"] not in allowed:
            wanted = " or ".join(sorted(allowed))
            raise GateError(f"GPU: expected {wanted}, found {gpu['name']!r}")
        if gpu["driver"].split(".")[0] != branch:
            raise GateError(f"driver: expected branch {branch}, found {gpu['driver']}")
    return found


def check_report(report: Any, gpu: str) -> None:
    """Raise GateError unless the self-test's report says that everything passed on `gpu`."""
    if not isinstance(report, dict) or report.get("ok") is not True:
        raise GateError(f"self-test: 'ok' is {_brief(report, 'ok')}, expected true")
    name = report.get("gpu")
    name = name.get("name") if isinstance(name, dict) else name
    if name != gpu:
        raise GateError(f"self-test ran on {name!r}, the driver names {gpu!r}")
    profiles = report.get("profiles")
    if not isinstance(profiles, dict) or not set(profiles) >= PROFILES:
        raise GateError(f"self-test: profiles {_brief(report, 'profiles')}, expected both")
    for profile in sorted(PROFILES):
        _check_profile(profile, profiles.get(profile))
    missing = DTYPES - {str(one).removeprefix("torch.") for one in report.get("dtypes") or ()}
    if missing:
        raise GateError(f"self-test: dtypes not tested: {', '.join(sorted(missing))}")


def _check_profile(name: str, found: Any) -> None:
    if not isinstance(found, dict) or found.get("ok") is not True:
        raise GateError(f"self-test: profile {name} did not pass: {found!r}")
    cases, mismatches = found.get("cases"), found.get("mismatches")
    if type(cases) is not int or cases < 1 or mismatches != 0:
        raise GateError(f"self-test: profile {name}: {cases!r} cases, {mismatches!r} mismatches")


def _brief(report: Any, key: str) -> str:
    return repr(report.get(key) if isinstance(report, dict) else report)[:200]


def run(argv: Sequence[str], seconds: float = 60) -> str:
    """The standard output of a program that must end with 0."""
    try:
        found = subprocess.run(argv, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GateError(f"{argv[0]}: {error}") from error
    if found.returncode != 0:
        raise GateError(
            f"{' '.join(argv)}: exit code {found.returncode}\n{found.stdout}{found.stderr}"
        )
    return found.stdout


def self_test() -> Any:
    """The report of the self-test: the JSON object on its last line."""
    last = (run(SELF_TEST, SELF_TEST_SECONDS).strip().splitlines() or [""])[-1]
    try:
        return json.loads(last)
    except ValueError as error:
        raise GateError(f"self-test: its last line is not JSON: {last[:200]!r}") from error


def record(gpus: list[dict[str, str]], report: Any, files: Sequence[Path]) -> dict[str, Any]:
    """What gate.json says: what was tested, with what, on what."""
    return {
        "format": "s4-gate",
        "version": 1,
        "passed": True,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpus": gpus,
        "driver": gpus[0]["driver"],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "self_test": report,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise GateError(f"package {package} is not installed") from error


def write(path: Path, found: dict[str, Any]) -> None:
    """Write gate.json whole or not at all, readable by all and writable by root alone."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    partial.chmod(0o444)
    os.replace(partial, path)


def main() -> int:
    """The command line; 1 and a reason if the image must not be made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver-branch", required=True, help="for example 580")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("files", type=Path, nargs="+", help="files whose SHA-256 is recorded")
    given = parser.parse_args()
    given.output.unlink(missing_ok=True)
    query = "--query-gpu=name,driver_version,memory.total,uuid"
    try:
        text = run(["nvidia-smi", query, "--format=csv,noheader"])
        gpus = gpu_rows(text, given.driver_branch)
        report = self_test()
        check_report(report, gpus[0]["name"])
        write(given.output, record(gpus, report, given.files))
    except GateError as error:
        print(f"GPU gate FAILED, no image will be made: {error}", file=sys.stderr)
        return 1
    print(f"GPU gate passed on {len(gpus)} x {gpus[0]['name']}, driver {gpus[0]['driver']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
