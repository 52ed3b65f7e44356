"""What a save gives back: how it went, or how far it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

__all__ = ["CheckpointInfo", "Progress", "SaveHandle"]


@dataclass(frozen=True)
class CheckpointInfo:
    """One committed checkpoint.

    Attributes:
        url: of its ref.
        id: of the checkpoint.
        step: of the training, if it was given.
        kind: `base`, `delta`, or `alias` (a further ref to a checkpoint that was there).
        depth: number of deltas under it.
        raw_bytes: of its arrays.
        stored_bytes: that this save added: shard and manifest.
        seconds: that the save took.
    """

    url: str
    id: str
    step: int | None
    kind: str
    depth: int
    raw_bytes: int
    stored_bytes: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Raw bytes for each stored byte; infinite for an alias."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else float("inf")


@dataclass(frozen=True)
class Progress:
    """How far a save is, in bytes of the state's arrays."""

    done_bytes: int
    total_bytes: int


class SaveHandle:
    """A save under way or done.

    When `save` has returned this, the state may be mutated.
    """

    def __init__(self, future: Future[CheckpointInfo], progress: Callable[[], Progress]) -> None:
        self._future, self._progress = future, progress

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._future.done()

    def progress(self) -> Progress:
        """How far it is."""
        return self._progress()

    def result(self, timeout: float | None = None) -> CheckpointInfo:
        """Wait for the commit.

        Args:
            timeout: seconds; None: for ever.

        Raises:
            TimeoutError: it has not ended by then.
            S4Error: what went wrong.
        """
        return self._future.result(timeout)
