"""Trying again until a deadline, with growing pauses of random length.

A client's own repetitions give up within seconds, which suits a web page. A checkpoint is
worth minutes: an outage shorter than the deadline costs time and nothing else. Pauses are
random so that many writers that failed together do not come back together (Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from s4core.stores.s3_faults import Fault, Outlook

__all__ = ["FaultError", "insist"]

_log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 20.0

# A bit that flips on the wire is gone the next time. One that flips in this machine's
# memory stays: repeating for minutes would only delay the message.
MAX_DAMAGED = 5

Result = TypeVar("Result")


class FaultError(Exception):
    """Carries a `Fault` from the request to `insist`, which never lets it out."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def insist(
    attempt: Callable[[], Result],
    url: str,
    deadline_seconds: float,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """Call `attempt` until it succeeds, fails for good, or the deadline has passed.

    Args:
        attempt: Raises `FaultError` if it failed.
        url: How errors call what was asked for.
        deadline_seconds: After it no new attempt starts.
        pause: Waits for so many seconds; what it raises ends the trying.

    Raises:
        S4Error: The last fault, as `Fault.error` puts it.
    """
    deadline = time.monotonic() + deadline_seconds
    failures = damaged = 0
    while True:
        try:
            return attempt()
        except FaultError as error:
            fault = error.fault
            damaged += fault.outlook is Outlook.DAMAGED
            left = deadline - time.monotonic()
            if fault.outlook is Outlook.HOPELESS or damaged >= MAX_DAMAGED or left <= 0:
                raise fault.error(url) from error.__cause__
        if failures == 0:
            _log.warning("%s: %s (%s); trying again", url, fault.code, fault.reason)
        pause(min(left, _pause_seconds(failures)))
        failures += 1


def _pause_seconds(failures: int) -> float:
    longest = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 30))
    return random.uniform(longest / 2, longest)
