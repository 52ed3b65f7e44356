"""Watches for the notice that this instance will be taken, or is likely to be.

AWS gives a spot instance two minutes between the notice and the end, and says to ask for
it every five seconds. Source: EC2 user guide, "Spot Instance interruption notices" and
"EC2 instance rebalance recommendations".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone

from s4core.runner.exits import UnreachableError
from s4core.runner.imds import Imds, RebalanceNotice, SpotNotice

__all__ = ["InterruptionWatch", "seconds_left"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
# What AWS promises between the notice and the end.
NOTICE_SECONDS = 120.0


class InterruptionWatch:
    """A thread that asks the metadata service and tells each notice once.

    Args:
        imds: The metadata service.
        tell: Called from the thread with each new notice.
        poll_seconds: Between two questions.
    """

    def __init__(
        self,
        imds: Imds,
        tell: Callable[[SpotNotice | RebalanceNotice], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._imds = imds
        self._tell = tell
        self._poll_seconds = poll_seconds
        self._told: set[SpotNotice | RebalanceNotice] = set()
        self._stopped = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._watch, name="interruption", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._stopped.set()
        self._thread.join(timeout=10.0)

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                found = (self._imds.spot_notice(), self._imds.rebalance_notice())
            except UnreachableError as error:
                # Once, not every five seconds: a machine that is no spot instance runs on.
                if not self._failing:
                    logger.warning("interruption notices cannot be read: %s", error)
                self._failing = True
                continue
            self._failing = False
            for notice in found:
                if notice is not None and notice not in self._told:
                    self._told.add(notice)
                    self._tell(notice)


def seconds_left(notice: SpotNotice, now: float | None = None) -> float:
    """Seconds until the instance is taken; never more than AWS gives.

    Args:
        notice: Its time is UTC, e.g. ``2026-01-31T08:22:00Z``.
        now: Seconds since the epoch.
    """
    try:
        end = datetime.strptime(notice.time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return NOTICE_SECONDS
    left = end.timestamp() - (time.time() if now is None else now)
    return min(max(left, 0.0), NOTICE_SECONDS)
