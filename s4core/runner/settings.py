"""The customer's settings, from the environment (systemd reads ``/etc/s4/runner.env``).

``S4_STORE`` and the ``S4_RUNNER_`` names of `NAMES`; a name with that prefix that is not
among them is an error with a suggestion, never ignored. ``docs/runner.md`` describes each.
"""

from __future__ import annotations

import difflib
import math
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from s4core.runner.exits import ConfigurationError

__all__ = ["NAMES", "RESTART_POLICIES", "RestartPolicy", "Settings", "load_settings"]

T = TypeVar("T")
PREFIX = "S4_RUNNER_"
RESTART_POLICIES = ("never", "on-failure", "always")

# Each name with what it is when it is not set.
NAMES: Mapping[str, str] = {
    "S4_RUNNER_HEALTH": "0.0.0.0:8080",
    "S4_RUNNER_COMMAND": "",
    "S4_RUNNER_RESTART": "on-failure",
    "S4_RUNNER_RESTART_LIMIT": "5",
    "S4_RUNNER_RESTART_WINDOW": "3600",
    "S4_RUNNER_RESTART_BACKOFF": "5",
    "S4_RUNNER_RESTART_BACKOFF_MAX": "300",
    "S4_RUNNER_CHECKPOINT_SIGNAL": "SIGUSR1",
    "S4_RUNNER_TERM_BEFORE": "45",
    "S4_RUNNER_STOP_SECONDS": "100",
    "S4_RUNNER_DIRECTORY": "/run/s4-runner",
}


@dataclass(frozen=True)
class RestartPolicy:
    """When and how often the training is started again.

    Attributes:
        when: One of `RESTART_POLICIES`.
        limit: Most restarts within `window_seconds`.
        window_seconds: See `limit`.
        backoff_seconds: Before the first restart; doubles with each one in the window.
        backoff_max_seconds: Never longer than this.
    """

    when: str = "on-failure"
    limit: int = 5
    window_seconds: float = 3600.0
    backoff_seconds: float = 5.0
    backoff_max_seconds: float = 300.0


@dataclass(frozen=True)
class Settings:
    """The customer's settings, checked.

    Attributes:
        store: URL of the store that the training saves to.
        health: Address and port of the health server; None for none.
        command: The training; empty for none.
        restart: When it is started again.
        checkpoint_signal: Asks the training for a checkpoint; None sends nothing.
        term_before_seconds: How long before a spot interruption the training is ended.
        stop_seconds: How long it may flush before it is killed, at every stop.
        directory: For the metrics socket and the kept entitlement.
    """

    store: str
    health: tuple[str, int] | None
    command: tuple[str, ...]
    restart: RestartPolicy
    checkpoint_signal: signal.Signals | None
    term_before_seconds: float
    stop_seconds: float
    directory: Path


def load_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in `environment`, checked whole.

    Raises:
        ConfigurationError: One is missing, unknown or of the wrong form.
    """
    _check_names(environment)
    found = {**NAMES, **{k: v for k, v in environment.items() if k in NAMES}}

    def read(name: str, parse: Callable[[str], T]) -> T:
        value = found[PREFIX + name]
        try:
            return parse(value)
        except ValueError as error:
            raise ConfigurationError(f"{PREFIX}{name}={value!r}: {error}") from error

    return Settings(
        store=_store(environment.get("S4_STORE", "")),
        health=read("HEALTH", _address),
        command=read("COMMAND", lambda text: tuple(shlex.split(text))),
        restart=RestartPolicy(
            when=read("RESTART", _policy),
            limit=int(read("RESTART_LIMIT", _count)),
            window_seconds=read("RESTART_WINDOW", _seconds),
            backoff_seconds=read("RESTART_BACKOFF", _seconds),
            backoff_max_seconds=read("RESTART_BACKOFF_MAX", _seconds),
        ),
        checkpoint_signal=read("CHECKPOINT_SIGNAL", _signal),
        term_before_seconds=read("TERM_BEFORE", _seconds),
        stop_seconds=read("STOP_SECONDS", _seconds),
        directory=Path(found[PREFIX + "DIRECTORY"]),
    )


def _check_names(environment: Mapping[str, str]) -> None:
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigurationError(f"{name}: no such setting{hint}")


def _store(url: str) -> str:
    if not url:
        raise ConfigurationError(
            "S4_STORE is not set: expected the URL of a store, e.g. s3://bucket/run-1"
        )
    if url.startswith("memory:"):
        raise ConfigurationError(f"S4_STORE={url!r}: memory is gone when the training ends")
    return url


def _address(text: str) -> tuple[str, int] | None:
    if text == "none":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError("expected address:port, e.g. 0.0.0.0:8080, or none")
    return host.strip("[]"), int(port)


def _policy(text: str) -> str:
    if text not in RESTART_POLICIES:
        raise ValueError(f"expected one of {', '.join(RESTART_POLICIES)}")
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise ValueError("expected a number of at least 0")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or not 0 <= value <= 86400:
        raise ValueError("expected seconds, between 0 and 86400")
    return value


def _signal(text: str) -> signal.Signals | None:
    if text == "none":
        return None
    try:
        found = signal.Signals[text]
    except KeyError:
        raise ValueError("expected the name of a signal, e.g. SIGUSR1, or none") from None
    if found in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
        raise ValueError("a process cannot handle this signal as a request")
    return found
