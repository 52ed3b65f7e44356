"""What the processes of one training tell each other about a checkpoint.

Promises:

1. A failure is a message, never a skipped collective: what fails on one rank raises on
   all, so that no rank waits for one that has given up.
2. A process group of its own (gloo, on the host): nothing here can meet a collective of
   the training on the same group, nor needs a GPU.

Every method must be called by all ranks, in the same order. With one process, or without
`torch.distributed`, they do nothing but the work.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch.distributed as dist

from s4weights import S4Error

__all__ = ["Ranks"]

T = TypeVar("T")

# The others wait for as long as rank 0 uploads. A rank that dies is noticed at once, by
# its closed connection; this bounds only the wait for one that hangs.
_TIMEOUT: Final = timedelta(hours=6)


class Ranks:
    """The ranks of the default process group, seen from one of them."""

    def __init__(self) -> None:
        self._group: Any = None
        self._world: Any = None

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(dist.get_world_size()) if _distributed() else 1

    @property
    def index(self) -> int:
        """Number of this process, from 0."""
        return int(dist.get_rank()) if _distributed() else 0

    def gather(self, produce: Callable[[], T]) -> list[T]:
        """Run `produce` on every rank; return all results on rank 0, and [] on the others.

        Raises:
            S4Error: it failed on another rank; the message says where and how. The same
                class as there, if that is one of ours.
            Exception: it failed here.
        """
        mine, error = _attempt(produce)
        if self.count == 1:
            return [_result(mine, error)]
        group = self._own_group()
        found: list[Any] = [None] * self.count
        item = (mine, _shown(error))
        dist.gather_object(item, found if self.index == 0 else None, 0, group=group)
        failed = [(rank, item[1]) for rank, item in enumerate(found) if item and item[1]]
        failed = self._share(failed)
        _result(mine, error)
        if failed:
            rank, (kind, text) = failed[0]
            raise kind(f"no checkpoint was saved, as rank {rank} failed: {text}")
        return [item[0] for item in found] if self.index == 0 else []

    def first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 only; return its (small) result on all.

        Raises:
            S4Error: it failed, and this is another rank.
            Exception: it failed, and this is rank 0.
        """
        if self.count == 1:
            return work()
        done, error = _attempt(work) if self.index == 0 else (None, None)
        shared, failure = self._share((done, _shown(error)))
        _result(done, error)
        if failure:
            kind, text = failure
            raise kind(f"rank 0 failed: {text}")
        result: T = shared
        return result

    def _share(self, item: Any) -> Any:
        box = [item]
        dist.broadcast_object_list(box, 0, group=self._own_group())
        return box[0]

    def _own_group(self) -> Any:
        # A new default group (after destroy_process_group) needs a new one of ours.
        if self._group is None or self._world is not dist.group.WORLD:
            self._world = dist.group.WORLD
            self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        return self._group


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  # raised by `_result`, once the others know
        return None, error


def _result(value: T | None, error: Exception | None) -> Any:
    if error is not None:
        raise error
    return value


def _shown(error: Exception | None) -> tuple[type[S4Error], str] | None:
    """An error as the other ranks raise it: of the same kind, so that all go on alike."""
    if error is None:
        return None
    kind = type(error) if isinstance(error, S4Error) else S4Error
    return kind, f"{type(error).__name__}: {error}"
