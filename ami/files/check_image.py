"""Check this machine against image.goss.yaml: the part of goss that the spec uses, no more.

goss is a binary that the build should not have to fetch; the spec stays in its syntax so that
it can judge the image too. Prints one line for each check; the exit code is 1 if any failed.

An unknown resource or attribute is an error, never a check that silently passes.
"""

from __future__ import annotations

import argparse
import grp
import pwd
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

SPEC = Path(__file__).parent / "image.goss.yaml"
DEFAULT_MILLISECONDS = 10_000
ABOUT = {"title", "meta"}  # say something about a check and check nothing

Attributes = dict[str, Any]
Found = dict[str, Any]


class SpecError(Exception):
    """The spec asks for something that this program does not know."""


def matches(text: str, pattern: str) -> bool:
    """goss's patterns: ``text``, ``/regex/`` (any line), and ``!`` before either."""
    if pattern.startswith("!"):
        return not matches(text, pattern[1:])
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        return re.search(pattern[1:-1], text, re.M) is not None
    return pattern in text


def file(name: str, wanted: Attributes) -> Found:
    """A file's existence, and the rest where it exists."""
    path = Path(name)
    if not path.exists():
        return {"exists": False}
    status = path.stat()
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFCHR: "character-device"}
    return {
        "exists": True,
        "owner": pwd.getpwuid(status.st_uid).pw_name,
        "group": grp.getgrgid(status.st_gid).gr_name,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "filetype": kinds.get(stat.S_IFMT(status.st_mode), "other"),
        "contents": path.read_text(errors="replace") if "contents" in wanted else "",
    }


def user(name: str, _wanted: Attributes) -> Found:
    """An account of this machine."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return {"exists": False}
    return {"exists": True, "home": found.pw_dir, "shell": found.pw_shell, "uid": found.pw_uid}


def service(name: str, _wanted: Attributes) -> Found:
    """A unit of systemd."""
    states = {"enabled": ["is-enabled"], "running": ["is-active"]}
    return {key: _succeeds("systemctl", *argv, "--quiet", name) for key, argv in states.items()}


def package(name: str, _wanted: Attributes) -> Found:
    """A Debian package."""
    found = _run(["dpkg-query", "-W", "-f=${db:Status-Abbrev}", name])
    return {"installed": found.returncode == 0 and found.stdout.startswith("ii")}


def port(name: str, _wanted: Attributes) -> Found:
    """A TCP port of loopback."""
    kind, number = name.split(":")
    if kind != "tcp":
        raise SpecError(f"port {name}: only tcp is known")
    try:
        socket.create_connection(("127.0.0.1", int(number)), timeout=2).close()
    except OSError:
        return {"listening": False}
    return {"listening": True}


def command(_name: str, wanted: Attributes) -> Found:
    """A shell command; as in goss, `exec` is read by a shell."""
    seconds = wanted.get("timeout", DEFAULT_MILLISECONDS) / 1000
    try:
        found = _run(["sh", "-c", wanted["exec"]], seconds)
    except subprocess.TimeoutExpired:
        return {"exit-status": "no end in time", "stdout": "", "stderr": "", **_asked(wanted)}
    return {"exit-status": found.returncode, "stdout": found.stdout, "stderr": found.stderr,
            **_asked(wanted)}  # fmt: skip


def _asked(wanted: Attributes) -> Found:
    return {key: wanted[key] for key in ("exec", "timeout") if key in wanted}


def _run(argv: list[str], seconds: float = 10) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=seconds)


def _succeeds(*argv: str) -> bool:
    return _run(list(argv)).returncode == 0


RESOURCES: dict[str, Callable[[str, Attributes], Found]] = {
    "file": file,
    "user": user,
    "service": service,
    "package": package,
    "port": port,
    "command": command,
}


def complaints(kind: str, name: str, wanted: Attributes) -> Iterator[str]:
    """What is not as the spec wants it.

    Raises:
        SpecError: The kind or an attribute is unknown.
    """
    if kind not in RESOURCES:
        raise SpecError(f"{kind}: not one of {', '.join(RESOURCES)}")
    found = RESOURCES[kind](name, wanted)
    absent = found.get("exists") is False
    for key in wanted.keys() - ABOUT:
        if key not in found:
            if not absent:
                raise SpecError(f"{kind} {name}: unknown attribute {key}")
            continue
        yield from _differences(key, wanted[key], found[key])


def _differences(key: str, wanted: Any, found: Any) -> Iterator[str]:
    if not isinstance(wanted, list):
        if wanted != found:
            yield f"{key}: expected {wanted!r}, found {found!r}"
        return
    for pattern in wanted:
        if not matches(found, pattern):
            yield f"{key}: expected {pattern!r}, found {found[:200]!r}"


def check(spec: dict[str, dict[str, Attributes]], without: set[str]) -> Iterator[tuple[str, str]]:
    """For each check its name and "ok", "skipped" or what is wrong."""
    for kind, resources in spec.items():
        for name, wanted in resources.items():
            if wanted.get("meta", {}).get("needs") in without:
                yield f"{kind} {name}", "skipped"
                continue
            yield f"{kind} {name}", "; ".join(complaints(kind, name, wanted)) or "ok"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--without", action="append", default=[], help="skip what needs this")
    given = parser.parse_args()
    spec = yaml.safe_load(given.spec.read_text())
    results = list(check(spec, set(given.without)))
    for name, result in results:
        print(f"{name}: {result}")
    bad = [name for name, result in results if result not in ("ok", "skipped")]
    print(f"{len(results)} checks, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
