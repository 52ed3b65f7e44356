"""Tell systemd how the service is doing, by the protocol of sd_notify(3).

Without ``NOTIFY_SOCKET`` (a runner started by hand) every call does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]

MAX_STATUS_CHARACTERS = 300


class Notifier:
    """The service's line to systemd.

    The variables are taken out of `environment`, so that the training does not inherit
    them and speak in the runner's name.

    Args:
        environment: Usually `os.environ`.
    """

    def __init__(self, environment: dict[str, str] | os._Environ[str]) -> None:
        self._address = _address(environment.pop("NOTIFY_SOCKET", ""))
        self.watchdog_seconds = _watchdog(environment)
        environment.pop("WATCHDOG_USEC", None)
        environment.pop("WATCHDOG_PID", None)
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(1.0)

    def ready(self, status: str) -> None:
        """The service is up."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, text: str) -> None:
        """What ``systemctl status`` shows."""
        self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """The service is going down."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}")

    def _send(self, message: str) -> None:
        if self._socket is not None and self._address is not None:
            try:
                self._socket.sendto(message.encode(), self._address)
            except OSError:
                return  # systemd is restarting; it asks again by its own means


def _address(text: str) -> str | None:
    # A leading @ stands for the NUL of an abstract address.
    return (f"\0{text[1:]}" if text.startswith("@") else text) or None


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Seconds after which systemd takes silence for death; None if it does not watch us."""
    text = environment.get("WATCHDOG_USEC", "")
    mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(text) / 1e6 if text.isdigit() and mine else None


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_STATUS_CHARACTERS]
