"""A process group of our own: saves that run behind the training meet nobody on it.

A collective of a checkpoint on the training's own group could be matched with one of the
training, and both would wait for ever. All ranks must call everything here, in the same
order.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

__all__ = ["OwnGroup"]

# A rank that dies is noticed at once, by its closed connection; this bounds only the wait
# for one that hangs, or uploads.
_TIMEOUT: Final = timedelta(hours=6)


class OwnGroup:
    """A gloo group of all ranks, made at first use, and the save that is using it."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self._world: Any = None
        self._pending: Future[Any] | None = None

    def get(self) -> dist.ProcessGroup | None:
        """Return the group when nobody uses it any more; None without `torch.distributed`."""
        if self._pending is not None:
            # How it went is for whoever has its future.
            wait([self._pending])
            self._pending = None
        if not (dist.is_available() and dist.is_initialized()):
            return None
        # A new default group (after destroy_process_group) needs a new one of ours.
        if self._group is None or self._world is not dist.group.WORLD:
            self._world = dist.group.WORLD
            self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        return self._group

    def lend(self, save: Future[Any]) -> None:
        """Keep the group for a save that runs behind the training."""
        self._pending = save
