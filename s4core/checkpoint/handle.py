"""What a save gives back: how it went, or how far it is."""

from __future__ import annotations

import time
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
        kind: `base`, `delta`, or `alias` (no array was stored: a further ref to a checkpoint
            that was there, or a manifest of references to its arrays).
        depth: number of deltas under it.
        raw_bytes: of its arrays.
        stored_bytes: that this save added: shard and manifest.
        seconds: from the call to the commit.
        pause_seconds: that the caller waited.
    """

    url: str
    id: str
    step: int | None
    kind: str
    depth: int
    raw_bytes: int
    stored_bytes: int
    seconds: float
    pause_seconds: float

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

    def __init__(self, total_bytes: int = 0) -> None:
        self._future: Future[CheckpointInfo] = Future()
        self.total_bytes = total_bytes
        self._done_bytes = 0
        self._reported = False
        self._started = time.monotonic()
        self._returned: float | None = None

    def follow(self, future: Future[CheckpointInfo]) -> SaveHandle:
        """Take the outcome from `future`; the run calls this once, before anyone sees it."""
        self._future = future
        return self

    def ended(self, info: CheckpointInfo) -> SaveHandle:
        """Take the outcome of a save that has ended."""
        self._future.set_result(info)
        return self

    def release(self) -> None:
        """Note that the caller goes on; the run calls this before it queues the rest."""
        self._returned = time.monotonic()

    def seconds(self) -> tuple[float, float]:
        """Return how long the save has taken so far, and how long the caller waited."""
        now = time.monotonic()
        return now - self._started, (self._returned or now) - self._started

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._future.done()

    def progress(self) -> Progress:
        """How far it is."""
        ended = self.done() and self._future.exception() is None
        return Progress(self.total_bytes if ended else self._done_bytes, self.total_bytes)

    def advance(self, done_bytes: int) -> None:
        """Note how far it is; the run calls this."""
        self._done_bytes = done_bytes

    def result(self, timeout: float | None = None) -> CheckpointInfo:
        """Wait for the commit.

        Args:
            timeout: seconds; None: for ever.

        Raises:
            TimeoutError: it has not ended by then.
            S4Error: what went wrong.
        """
        try:
            return self._future.result(timeout)
        finally:
            self._reported = self._reported or self.done()

    def add_done_callback(self, callback: Callable[[SaveHandle], None]) -> None:
        """Call `callback` with this handle when the save has ended, on the run's thread."""
        self._future.add_done_callback(lambda _: callback(self))

    def unreported_error(self) -> BaseException | None:
        """Return what went wrong if nobody has been told yet, and count it as told."""
        if self._reported or not self.done():
            return None
        self._reported = True
        return self._future.exception()
