"""How a run saves."""

from __future__ import annotations

from dataclasses import dataclass

from s4core.errors import StateError
from s4core.retention import Rules

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """How a run saves.

    Attributes:
        profile: `open` (restores anywhere) or `nvcomp`.
        max_depth: the most deltas that may lie under a checkpoint; then a new base.
        keep_last: after a commit, remove all but so many newest steps; None: keep all.
        keep_every: keep steps that are multiples of it, too.
        keep_best: keep so many with the best `metric`, a number in the `meta` of a save, too.
        metric: its key.
        mode: `min` or `max`: which end of the metric is best.
        pinned: shell-like patterns of names that are never removed so.
        verify: decode every chunk again and compare before it counts.
        reference_bytes: host memory for the words that the next delta stands on; what is
            beyond it is decoded from the store.
        host_bytes: host memory for the states of asynchronous saves under way; a state
            that is larger is saved while the caller waits.
        max_in_flight: asynchronous saves under way at a time; the next one waits.
        allow_pickle: store leaves of unknown classes pickled.
        allow_classes: store enums and dataclasses by their class's name.
        grace_seconds: `gc` leaves what is younger than this to writers it cannot see.
        unfinished_seconds: the first save ends uploads and files that are unfinished for so
            long: their process was killed.
    """

    profile: str = "open"
    max_depth: int = 8
    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: int | None = None
    metric: str = ""
    mode: str = "min"
    pinned: tuple[str, ...] = ()
    verify: bool = True
    reference_bytes: int = 1 << 30
    host_bytes: int = 4 << 30
    max_in_flight: int = 1
    allow_pickle: bool = False
    allow_classes: bool = False
    grace_seconds: float = 24 * 3600.0
    unfinished_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if self.profile not in ("open", "nvcomp"):
            raise StateError(f"profile {self.profile!r}: expected 'open' or 'nvcomp'")
        if not 0 <= self.max_depth <= 255:
            raise StateError(f"max_depth {self.max_depth}: expected 0 to 255")
        _ = self.rules  # says what is wrong with them
        if self.max_in_flight < 1:
            raise StateError(f"max_in_flight {self.max_in_flight}: expected at least 1")

    @property
    def rules(self) -> Rules:
        """What is kept after a commit."""
        return Rules(
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            keep_best=self.keep_best,
            metric=self.metric,
            mode=self.mode,
            pinned=self.pinned,
        )
