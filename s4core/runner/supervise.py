"""Runs the user's training: passes signals on, starts it again, ends it in good time.

One loop in the main thread, woken by signals, notices and the clock. The training runs in
a session of its own; before it is started again, everything it left behind is killed, so
that two generations never write to one store. It resumes by itself: whoever opens the store
loads the newest commit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from s4core.runner.exits import ConfigurationError
from s4core.runner.imds import RebalanceNotice, SpotNotice
from s4core.runner.intake import Counters
from s4core.runner.interruption import seconds_left
from s4core.runner.processes import adopt_orphans, below, handlers_of
from s4core.runner.settings import RestartPolicy, Settings
from s4core.runner.signals import STOPPING, SignalQueue

__all__ = ["Restarts", "Supervisor"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
# Between the last SIGKILL and the end of the instance.
LAST_SECONDS = 5.0
# A killed process that holds a device can take this long.
KILL_SECONDS = 10.0


class Restarts:
    """Decides whether, and after how long, the training is started again."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def wait_after(self, code: int, now: float) -> float | None:
        """Seconds to wait before the next start, or None for no other.

        Args:
            code: What the training ended with.
            now: Seconds, monotonic.
        """
        policy = self._policy
        if policy.when == "never" or (policy.when == "on-failure" and code == 0):
            return None
        while self._times and now - self._times[0] > policy.window_seconds:
            self._times.popleft()
        if len(self._times) >= policy.limit:
            logger.error("%d restarts in %g s: giving up", len(self._times), policy.window_seconds)
            return None
        wait = policy.backoff_seconds * 2.0 ** min(len(self._times), 32)
        self._times.append(now)
        return min(wait, policy.backoff_max_seconds)


class Supervisor:
    """Runs one command until it has ended for good.

    Args:
        settings: Restart policy, signals and times.
        counters: Where restarts and requests are counted.
        signals: Entered; shared with whoever wakes the loop.
        environment: Of the training.
        tick: Called at least every second.
        ending: Called when the training is asked to end.
    """

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        signals: SignalQueue,
        environment: Mapping[str, str],
        tick: Callable[[], None],
        ending: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._signals = signals
        self._environment = environment
        self._tick = tick
        self._on_ending = ending
        self._restarts = Restarts(settings.restart)
        self._notices: queue.SimpleQueue[SpotNotice | RebalanceNotice] = queue.SimpleQueue()
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._term_at: float | None = None
        self._kill_at: float | None = None

    def notify(self, notice: SpotNotice | RebalanceNotice) -> None:
        """Hand over a notice, from any thread."""
        self._notices.put(notice)
        self._signals.wake()

    def run(self, command: Sequence[str]) -> int:
        """Run `command`; without one, only wait for a stopping signal.

        Returns:
            The exit code of the last run, 128 + n for signal n, as a shell gives it; 0
            without a command.

        Raises:
            ConfigurationError: The command cannot be started.
        """
        adopt_orphans()
        if not command:
            return self._idle()
        while True:
            code = self._run_once(command)
            wait = None if self._ending else self._restarts.wait_after(code, time.monotonic())
            if wait is None:
                return code
            logger.warning("training ended with %d; starting again in %g s", code, wait)
            if not self._paused(wait):
                return code
            self._counters.add("training_restarts_total")

    def _idle(self) -> int:
        while not self._ending:
            self._turn(TICK_SECONDS)
        return 0

    def _paused(self, seconds: float) -> bool:
        """Wait; False when a stop came meanwhile."""
        end = time.monotonic() + seconds
        while not self._ending and time.monotonic() < end:
            self._turn(min(TICK_SECONDS, end - time.monotonic()))
        return not self._ending

    def _run_once(self, command: Sequence[str]) -> int:
        try:
            self._child = subprocess.Popen(
                command, env=dict(self._environment), start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the training {command[0]!r} cannot start: {error}"
            ) from error
        logger.info("training runs as process %d", self._child.pid)
        self._counters.put("training_running", 1)
        while self._child_lives():
            self._turn(self._next_wait())
        self._kill_leftovers()
        code = self._child.wait()
        self._child = None
        self._counters.put("training_running", 0)
        return 128 - code if code < 0 else code

    def _turn(self, seconds: float) -> None:
        for number in self._signals.wait(seconds):
            self._handle(number)
        while not self._notices.empty():
            self._handle_notice(self._notices.get())
        now = time.monotonic()
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            self._end_child(signal.SIGTERM, self._settings.term_before_seconds - LAST_SECONDS)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            logger.error("training did not end in time: killed")
            self._kill_leftovers()
        self._tick()

    def _next_wait(self) -> float:
        now = time.monotonic()
        times = [t - now for t in (self._term_at, self._kill_at) if t is not None]
        return max(min([TICK_SECONDS, *times]), 0.0)

    def _handle(self, number: signal.Signals) -> None:
        if number in STOPPING:
            self._end_child(number, self._settings.stop_seconds)
        elif number != signal.SIGCHLD:
            self._send(number)

    def _end_child(self, number: signal.Signals, seconds: float) -> None:
        """Pass on a request to end, and give `seconds` to follow it."""
        self._ending = True
        self._on_ending()
        kill_at = time.monotonic() + max(seconds, 0.0)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        # Not yet reaped, so the id is still the training's.
        if self._child is not None:
            os.kill(self._child.pid, number)

    def _handle_notice(self, notice: SpotNotice | RebalanceNotice) -> None:
        logger.warning("notice: %s", notice)
        if isinstance(notice, SpotNotice):
            self._counters.put("interruption_notice", 1)
            end = time.monotonic() + seconds_left(notice)
            self._term_at = max(end - self._settings.term_before_seconds, time.monotonic())
        else:
            self._counters.put("rebalance_notice", 1)
        self._ask_for_checkpoint()

    def _ask_for_checkpoint(self) -> None:
        wanted = self._settings.checkpoint_signal
        if wanted is None or self._child is None:
            return
        pids = handlers_of(os.getpid(), wanted)
        if not pids:
            logger.warning("nothing in the training handles %s: not sent", wanted.name)
        for pid in pids:
            self._counters.add("checkpoint_requests_total")
            os.kill(pid, wanted)

    def _child_lives(self) -> bool:
        """Whether the training runs; reaps what it orphaned, but not the training itself."""
        assert self._child is not None
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return True
            if found.si_pid == self._child.pid:
                return False
            os.waitpid(found.si_pid, 0)

    def _kill_leftovers(self) -> None:
        """End every process below this one, and wait until none can write any more."""
        end = time.monotonic() + KILL_SECONDS
        while living := [p.pid for p in below(os.getpid()) if not p.ended]:
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > end:
                logger.error("processes %s do not end, although killed", living)
                return
            time.sleep(0.01)
