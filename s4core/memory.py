"""How much memory this machine can still give, so that no file can ask for more.

A stored byte may stand for millions of loaded ones (constant planes, gaps between the
elements of a tensor). What could never fit is refused before it is allocated: an
allocation that succeeds lazily would end in the kernel killing the training.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from s4core.errors import StateError

__all__ = ["available_bytes", "check_available"]

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the bytes that new allocations can get: free or reclaimable memory and swap.

    Where the system does not say, all the memory that it has.
    """
    try:
        lines = (line.split() for line in _MEMINFO.read_text("ascii").splitlines())
        known = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
        free = known["MemAvailable:"] + known["SwapFree:"]
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, _left_in_group(free))


def _left_in_group(free: int) -> int:
    """What the limit of a container leaves; its page cache can be dropped."""
    try:
        limit = int((_CGROUP / "memory.max").read_text("ascii"))
        used = int((_CGROUP / "memory.current").read_text("ascii"))
        lines = (_CGROUP / "memory.stat").read_text("ascii").splitlines()
        stat = dict(line.split(maxsplit=1) for line in lines)
        return limit - used + int(stat["inactive_file"]) + int(stat["active_file"])
    except (OSError, KeyError, ValueError):
        return free  # no limit, or another kind of system


def check_available(wanted: int, what: str) -> None:
    """Raise `StateError` if `wanted` bytes for `what` are more than there can be."""
    if wanted < 1 << 26:  # asking would cost more than it could save
        return
    available = available_bytes()
    if wanted > available:
        raise StateError(
            f"{what} needs {wanted} bytes of memory: {available} are available here; load it on "
            "a larger machine, to a GPU, or in parts with keys="
        )
