"""Signals as something a loop can wait for, instead of something that interrupts it."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType

__all__ = ["FORWARDED", "STOPPING", "SignalQueue", "exit_on_signals"]

# Ask the runner to end, after the training has.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# Mean nothing to the runner and are passed on.
FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def exit_on_signals() -> None:
    """Until a `SignalQueue` takes over: a stopping signal ends the process, 128 + its number."""
    for number in STOPPING:
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class SignalQueue:
    """Collects signals from when it is entered; only for the main thread.

    `wake` and any signal end a `wait` early.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, object] = {}

    def __enter__(self) -> SignalQueue:
        signal.set_wakeup_fd(self._sender, warn_on_full_buffer=False)
        for number in (*STOPPING, *FORWARDED, signal.SIGCHLD):
            # Python writes the number to the pipe; a handler is only needed to be one.
            self._before[number] = signal.signal(number, _noticed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() gave
        signal.set_wakeup_fd(-1)
        os.close(self._receiver)
        os.close(self._sender)

    def wait(self, seconds: float) -> list[signal.Signals]:
        """The signals that came, in order; none when `seconds` passed or `wake` was called."""
        ready, _, _ = select.select([self._receiver], [], [], max(seconds, 0.0))
        raw = os.read(self._receiver, 4096) if ready else b""
        return [signal.Signals(number) for number in raw if number]

    def wake(self) -> None:
        """End the wait of another thread."""
        os.write(self._sender, b"\0")


def _noticed(_number: int, _frame: FrameType | None) -> None:
    return
