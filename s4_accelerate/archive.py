"""The checkpoints below one URL: saved, found, and removed by explicit rules.

Words: a checkpoint's *name* is that of its ref; checkpoints are *older* and *newer* in
the order of their commits, not of the numbers in their names: after going back to step 20
and training on, step 25 is newer than the abandoned step 40.

Promises:

1. One commit holds model, optimizer and side files; there is no mixture to be seen.
2. Only committed checkpoints are listed.
3. Nothing is removed but by a rule that the caller gave, only after a newer commit, and
   never the newest nor one that is pinned.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import s4weights
from s4weights import CheckpointInfo, SaveHandle

__all__ = ["Archive", "Report", "newest_last", "superfluous"]

_log = logging.getLogger("s4_accelerate")

_HISTORY: Final = 1000
_NUMBER: Final = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True)
class Report:
    """What a save cost.

    Attributes:
        info: what was committed.
        pause_seconds: for which this rank's training stood still.
    """

    info: CheckpointInfo
    pause_seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for a tracker."""
        return {
            "s4/ratio": self.info.ratio if self.info.stored_bytes else 0.0,
            "s4/pause_seconds": self.pause_seconds,
            "s4/stored_mb": self.info.stored_bytes / 1e6,
            "s4/raw_mb": self.info.raw_bytes / 1e6,
        }

    def __str__(self) -> str:
        info = self.info
        return (
            f"{info.url}: {info.kind}, depth {info.depth}, {info.raw_bytes / 1e6:.1f} MB raw, "
            f"{info.stored_bytes / 1e6:.1f} MB stored ({info.ratio:.2f} to 1), training paused "
            f"{self.pause_seconds:.2f} s"
        )


def newest_last(checkpoints: dict[str, str]) -> list[str]:
    """Return names of checkpoints, oldest first.

    Args:
        checkpoints: id by name. Ids start with the second of their commit; within one
            second the last number in the name decides.
    """
    return sorted(checkpoints, key=lambda name: (checkpoints[name][:16], _number(name), name))


def _number(name: str) -> int:
    match = _NUMBER.search(name)
    return int(match[1]) if match else -1


def superfluous(
    names: Sequence[str],
    keep_last: int | None,
    *,
    keep_every: int | None = None,
    pinned: Collection[str] = (),
) -> list[str]:
    """Return which of `names` (oldest first) a rule gives up, never the newest.

    Args:
        names: of committed checkpoints.
        keep_last: keep so many newest; pinned ones count among them, as Hugging Face has
            it. None: keep all.
        keep_every: keep also those whose number is a multiple of this.
        pinned: names to keep in any case.
    """
    if keep_last is None or not names:
        return []
    kept = {names[-1], *(name for name in names if name in pinned)}
    room = max(keep_last, len(kept)) - len(kept)
    free = [name for name in names if name not in kept]
    given_up = free[: max(len(free) - room, 0)]
    return [n for n in given_up if not (keep_every and _number(n) % keep_every == 0)]


class Archive:
    """Saves, loads, lists and removes the checkpoints below one URL.

    Args:
        url: local path, `s3://`, ...; None: `S4_STORE`.
        options: fields of `s4weights.Options`.
    """

    def __init__(self, url: str | Path | None, options: dict[str, Any]) -> None:
        self.run = s4weights.open(url, **options)
        self._last: SaveHandle | None = None
        self._settled = threading.Event()  # what follows the last commit is done
        self.reports: deque[Report] = deque(maxlen=_HISTORY)
        self._untold: deque[Report] = deque(maxlen=_HISTORY)

    @property
    def url(self) -> str:
        """Its directory."""
        return self.run.url

    def names(self, pattern: re.Pattern[str] | None = None, *, wait: bool = False) -> list[str]:
        """Return the names of committed checkpoints, oldest first.

        Args:
            pattern: of the whole name; None: all.
            wait: for the last save first.

        Raises:
            StoreError: the directory could not be listed; an error is never an empty list.
        """
        if wait:
            self.wait()
        refs = {name: ref.checkpoint for name, ref in self.run.names().items()}
        matching = {n: i for n, i in refs.items() if pattern is None or pattern.fullmatch(n)}
        ordered = newest_last(matching)
        if pattern is not None and ordered and ordered[-1] != max(ordered, key=_number):
            _log.warning(
                "%s: %s is the newest commit although %s has the higher number: training went "
                "back and on from an older checkpoint, or clocks disagree",
                *(self.url, ordered[-1], max(ordered, key=_number)),
            )
        return ordered

    def save(
        self,
        state: Any,
        name: str,
        *,
        step: int | None = None,
        meta: dict[str, Any] | None = None,
        wait: bool = False,
        started: float | None = None,
        then: Callable[[Report], None] = lambda _: None,
    ) -> SaveHandle:
        """Save `state` as `name`; when this returns it may be mutated.

        A save that fails behind the training is an error in the log, and does not stop
        the next one, which is newer. `flush` raises if the last one failed.

        Args:
            state: of everything.
            name: of the ref.
            step: of the training.
            meta: for people.
            wait: return when it is committed.
            started: when the training's pause began (`time.monotonic`); None: now.
            then: called when it is committed, on the thread that did it.

        Raises:
            StateError: it holds something that cannot be stored.
            StoreError: the store refused; older checkpoints are unharmed.
        """
        began = time.monotonic() if started is None else started
        paused: list[float] = []

        def committed(info: CheckpointInfo) -> None:
            report = Report(info, paused[0] if paused else time.monotonic() - began)
            _log.info("%s", report)
            self.reports.append(report)
            self._untold.append(report)
            then(report)

        if self._last is not None and self._last.done():
            self._settled.wait()  # what failed has been told before the run could raise it here
        handle = self.run.save(state, step, name=name, wait=wait, meta=meta)
        paused.append(time.monotonic() - began)
        self._last = handle
        self._settled = settled = threading.Event()
        handle.add_done_callback(lambda ended: _after(ended, committed, settled))
        return handle

    def new_reports(self) -> list[Report]:
        """Return the reports that have come since this was last called."""
        return [self._untold.popleft() for _ in range(len(self._untold))]

    def flush(self) -> None:
        """Wait for the last save.

        Raises:
            S4Error: it was not committed. Said once.
        """
        handle, self._last = self._last, None
        if handle is not None:
            self._settled.wait()
            handle.result()
            self.run.flush()  # and for the removals that it brought about

    def wait(self) -> None:
        """Wait for the last save, however it ends: `flush` and the log say how."""
        if self._last is not None:
            self._settled.wait()

    def prune(self, names: Sequence[str]) -> None:
        """Remove checkpoints, in turn with the saves; never waits."""
        for name in names:
            self.run.remove(name=name, wait=False)

    def close(self) -> None:
        """Flush, and let go of memory.

        Raises:
            S4Error: as `flush`.
        """
        try:
            self.flush()
        finally:
            self.run.close()


def _after(
    handle: SaveHandle, then: Callable[[CheckpointInfo], None], settled: threading.Event
) -> None:
    try:
        info = handle.result()
    except Exception as error:  # noqa: BLE001  # whoever waits for the handle gets it too
        _log.error("a checkpoint was not committed: %s: %s", type(error).__name__, error)
        settled.set()
        return
    try:
        then(info)
    except Exception:  # noqa: BLE001  # the commit stands; what follows is told
        _log.exception("%s is committed, but older ones were not looked through", info.url)
    finally:
        settled.set()
