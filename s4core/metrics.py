"""How a training tells `s4-runner` about a save: one datagram, never waited for.

The runner listens on a Unix datagram socket and puts its path into ``S4_METRICS``. A
datagram arrives whole or not at all, so no line is ever half written, no file grows, and a
runner that is gone or busy costs the training nothing: the report is dropped, the save is
not. This module imports the standard library only.

A report is one JSON object; every field but ``event`` may be left out::

    {"event": "save", "step": 1200, "raw_bytes": ..., "stored_bytes": ...,
     "pause_seconds": ..., "upload_seconds": ...}
    {"event": "error", "message": "..."}
"""

from __future__ import annotations

import json
import os
import socket

__all__ = ["MAX_REPORT_BYTES", "report_error", "report_save"]

MAX_REPORT_BYTES = 8192
# Twelve bytes each at most, as JSON writes them.
MAX_MESSAGE_CHARACTERS = 600


def report_save(
    *,
    step: int | None,
    raw_bytes: int,
    stored_bytes: int,
    pause_seconds: float,
    upload_seconds: float,
) -> bool:
    """Report one committed checkpoint.

    Args:
        step: Of the training, if it has one.
        raw_bytes: Of the state.
        stored_bytes: Put into the store for it.
        pause_seconds: How long the training waited.
        upload_seconds: From the first put to the commit.

    Returns:
        Whether the runner got it; False also where no runner listens.
    """
    return _send(
        {
            "event": "save",
            **({} if step is None else {"step": int(step)}),
            "raw_bytes": int(raw_bytes),
            "stored_bytes": int(stored_bytes),
            "pause_seconds": float(pause_seconds),
            "upload_seconds": float(upload_seconds),
        }
    )


def report_error(message: str) -> bool:
    """Report a save that failed, in one line; returns whether the runner got it."""
    return _send({"event": "error", "message": message[:MAX_MESSAGE_CHARACTERS]})


def _send(report: dict[str, object]) -> bool:
    path = os.environ.get("S4_METRICS")
    if not path:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(json.dumps(report).encode(), path)
    except OSError:
        return False
    return True
