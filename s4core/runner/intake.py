"""What the runner has counted: reports of the training (`metrics`) and its own events.

Reports come from the customer's process and are checked like any foreign input: a wrong
one is counted as rejected and changes nothing else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s4core.metrics import MAX_REPORT_BYTES
from s4core.runner.objects import parse_object

__all__ = ["Counters", "Intake"]

SAVE_FIELDS = ("step", "raw_bytes", "stored_bytes", "pause_seconds", "upload_seconds")
# Largest integer that every JSON reader and every float keeps exactly.
MAX_NUMBER = 2**53


class Counters:
    """Numbers by name, for ``/metrics``; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, float] = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        """Add to a total."""
        with self._lock:
            self._numbers[name] = self._numbers.get(name, 0.0) + amount

    def put(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._numbers[name] = value

    def snapshot(self) -> dict[str, float]:
        """All numbers, as of one moment."""
        with self._lock:
            return dict(self._numbers)

    def take(self, raw: bytes) -> None:
        """Count one report of the training."""
        try:
            self._take(parse_object(raw))
        except ValueError:
            self.add("reports_rejected_total")

    def _take(self, report: Mapping[str, Any]) -> None:
        if report.get("event") == "error":
            self.add("save_errors_total")
            return
        if report.get("event") != "save":
            raise ValueError(f"event: expected save or error, found {report.get('event')!r}")
        numbers = {name: _number(report, name) for name in SAVE_FIELDS if name in report}
        self.add("saves_total")
        if "step" in numbers:
            self.put("last_step", numbers.pop("step"))
        for name, value in numbers.items():
            self.add(f"{name}_total", value)
            self.put(f"last_{name}", value)


def _number(report: Mapping[str, Any], name: str) -> float:
    value = report[name]
    # NaN fails the comparison; True, an int to isinstance, fails the type.
    if type(value) not in (int, float) or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{name}: expected a number of at least 0, found {value!r}")
    return float(value)


class Intake:
    """The receiving end of `metrics`: a socket and the thread that reads it.

    Args:
        path: Of the socket; replaced if a dead runner left one.
        counters: Where reports are counted.
    """

    def __init__(self, path: Path, counters: Counters) -> None:
        self.path = path
        self._counters = counters
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._socket.bind(os.fspath(path))
        path.chmod(0o660)
        self._thread = threading.Thread(target=self._receive, name="intake", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Count what has arrived, then stop listening."""
        self._closing = True
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join(timeout=5.0)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _receive(self) -> None:
        while True:
            # One byte more than allowed: longer reports arrive cut, and are then no JSON.
            raw = self._socket.recv(MAX_REPORT_BYTES + 1)
            if raw:
                self._counters.take(raw)
            elif self._closing:  # else an empty datagram, which anyone may send
                return
