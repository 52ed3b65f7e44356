"""The processes below one: who handles a signal, and who is left over. Read from /proc.

A signal that a process does not handle ends it, so a request for a checkpoint must reach
those that handle it and no other. A process that handles it answers for its children: the
data loaders of a trainer inherit its handlers and must be left alone. Source: proc(5), the
fields State, SigCgt and PPid of ``/proc/PID/status``; PR_SET_CHILD_SUBREAPER in prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "adopt_orphans", "below", "handlers_of"]

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Process:
    """One process: its id, its parent's, the mask of signals it handles, whether it ended."""

    pid: int
    parent: int
    handled: int
    ended: bool

    def handles(self, wanted: signal.Signals) -> bool:
        """Whether it has a handler for `wanted`."""
        return bool(self.handled >> (wanted - 1) & 1)


def below(root: int, proc: Path = Path("/proc")) -> list[Process]:
    """Every process below `root` in the tree of parents, `root` left out; parents first."""
    children = _by_parent(proc)
    found = list(children.get(root, ()))
    for process in found:  # grows while it is walked
        found.extend(children.get(process.pid, ()))
    return found


def handlers_of(root: int, wanted: signal.Signals, proc: Path = Path("/proc")) -> list[int]:
    """The ids of the topmost processes below `root` that handle `wanted`, sorted."""
    children = _by_parent(proc)
    found, left = [], list(children.get(root, ()))
    while left:
        process = left.pop()
        if process.handles(wanted):
            found.append(process.pid)
        else:
            left.extend(children.get(process.pid, ()))
    return sorted(found)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends.

    Raises:
        OSError: The kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _by_parent(proc: Path) -> dict[int, list[Process]]:
    found: dict[int, list[Process]] = {}
    for process in _every(proc):
        found.setdefault(process.parent, []).append(process)
    return found


def _every(proc: Path) -> Iterator[Process]:
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            lines = (directory / "status").read_text(errors="replace").splitlines()
        except OSError:  # it ended meanwhile
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        handled = int(fields.get("SigCgt", "0"), 16)
        ended = fields["State"].strip()[0] in "ZX"
        yield Process(int(directory.name), int(fields["PPid"]), handled, ended)
