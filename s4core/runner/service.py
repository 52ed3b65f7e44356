"""The runner from start to end: every gate in order, then ready, then the training."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager

from s4core.runner.entitlement import entitled
from s4core.runner.exits import ConfigurationError, RunnerError
from s4core.runner.exposition import exposition
from s4core.runner.gates import check_store, default_self_test, self_test
from s4core.runner.grant import Entitlement, Grant
from s4core.runner.health import HealthServer, Reply
from s4core.runner.image import ImageSettings
from s4core.runner.imds import Imds
from s4core.runner.intake import Counters, Intake
from s4core.runner.interruption import InterruptionWatch
from s4core.runner.notify import Notifier
from s4core.runner.settings import Settings
from s4core.runner.signals import SignalQueue
from s4core.runner.supervise import Supervisor

__all__ = ["Runner"]

logger = logging.getLogger(__name__)

# The main loop turns every second; silent for this long, it hangs.
SILENT_SECONDS = 20.0
MAX_REASON_CHARACTERS = 500


class Runner:
    """One run of the service.

    Args:
        settings: The customer's.
        image: The product's.
        entitlement: The check.
        imds: Where notices of interruption come from.
        notifier: The line to systemd.
        environment: What the training inherits.
    """

    def __init__(
        self,
        settings: Settings,
        image: ImageSettings,
        entitlement: Entitlement,
        imds: Imds,
        notifier: Notifier,
        environment: MutableMapping[str, str],
    ) -> None:
        self._settings = settings
        self._image = image
        self._entitlement = entitlement
        self._imds = imds
        self._notifier = notifier
        self._environment = environment
        self._counters = Counters()
        self._reason: str | None = "starting"
        self._beat: float | None = None
        self._health: HealthServer | None = None
        self._began = time.monotonic()

    def run(self, command: Sequence[str]) -> int:
        """Pass the gates, run `command` if there is one, and give its exit code.

        Raises:
            RunnerError: A gate did not open; its `exit_code` says which way.
        """
        with ExitStack() as stack:
            stack.enter_context(_alone(self._settings))
            grant = self._entitled()
            self._open_health(stack)
            self._pass_gates()
            return self._serve(stack, grant, command)

    def _entitled(self) -> Grant:
        self._notifier.status(f"entitlement: asking, mode {self._image.mode}")
        grant = entitled(self._entitlement)
        logger.info("entitled: %s: %s", grant.mode, grant.detail)
        for warning in grant.warnings:
            logger.warning("entitlement: %s", warning)
        self._counters.put("entitled", 1)
        return grant

    def _open_health(self, stack: ExitStack) -> None:
        if self._settings.health is None:
            return
        routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        self._health = HealthServer(self._settings.health, routes)
        stack.callback(self._health.close)

    def _pass_gates(self) -> None:
        self._not_ready("GPU self-test: running")
        begin = time.monotonic()
        found = self_test(self._image.self_test_command or default_self_test())
        logger.info("GPU self-test passed: %s", found)
        self._counters.put("gpu_self_test_passed", 1)
        self._counters.put("gpu_self_test_seconds", time.monotonic() - begin)
        self._not_ready("store check: running")
        begin = time.monotonic()
        check_store(self._settings.store, self._not_ready)
        self._counters.put("store_check_seconds", time.monotonic() - begin)

    def _serve(self, stack: ExitStack, grant: Grant, command: Sequence[str]) -> int:
        intake = Intake(self._settings.directory / "metrics.sock", self._counters)
        stack.callback(intake.close)
        signals = stack.enter_context(SignalQueue())
        environment = {
            **self._environment,
            "S4_STORE": self._settings.store,
            "S4_METRICS": str(intake.path),
        }
        supervisor = Supervisor(
            self._settings, self._counters, signals, environment, self._tick, self._stopping
        )
        watch = InterruptionWatch(self._imds, supervisor.notify)
        stack.callback(watch.close)
        if grant.renew_seconds is not None:
            stack.callback(self._start_renewal(grant.renew_seconds).set)
        self._reason = None
        self._counters.put("ready", 1)
        self._counters.put("start_seconds", time.monotonic() - self._began)
        self._tick()
        self._notifier.ready("ready")
        code = supervisor.run(command)
        logger.info("ends with %d", code)
        self._stopping()
        return code

    def _tick(self) -> None:
        self._beat = time.monotonic()
        # A health port that hangs is a service that hangs: systemd hears from neither.
        if self._health is None or self._health.alive():
            self._notifier.alive()

    def _not_ready(self, reason: str) -> None:
        self._reason = " ".join(reason.split())[:MAX_REASON_CHARACTERS]
        self._counters.put("ready", 0)
        self._notifier.status(self._reason)
        logger.info("not ready: %s", self._reason)

    def _stopping(self) -> None:
        self._not_ready("stopping")
        self._notifier.stopping("stopping")

    def _start_renewal(self, seconds: float) -> threading.Event:
        stopped = threading.Event()
        thread = threading.Thread(
            target=self._renew, args=(seconds, stopped), name="renewal", daemon=True
        )
        thread.start()
        return stopped

    def _renew(self, seconds: float, stopped: threading.Event) -> None:
        """Ask again, every hour. A no is shown, but never stops a training that runs."""
        while not stopped.wait(seconds):
            try:
                seconds = entitled(self._entitlement).renew_seconds or 3600.0
            except RunnerError as error:
                seconds = 600.0
                self._counters.put("entitled", 0)
                self._counters.add("entitlement_renewal_failures_total")
                logger.error("entitlement: not renewed, the next start will fail: %s", error)
            else:
                self._counters.put("entitled", 1)

    def _healthz(self) -> Reply:
        beat = self._beat
        if beat is not None and time.monotonic() - beat > SILENT_SECONDS:
            return Reply(503, f"the main loop is silent for {SILENT_SECONDS:g} s or more\n")
        return Reply(200, "ok\n")

    def _readyz(self) -> Reply:
        reason = self._reason
        return Reply(200, "ready\n") if reason is None else Reply(503, f"{reason}\n")

    def _metrics(self) -> Reply:
        text = exposition(self._counters.snapshot())
        return Reply(200, text, "text/plain; version=0.0.4; charset=utf-8")


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Hold the runner's directory, so that no second runner takes its socket."""
    path = settings.directory / "lock"
    try:
        settings.directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"S4_RUNNER_DIRECTORY: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigurationError(
            f"{path}: another runner holds it; name another S4_RUNNER_DIRECTORY"
        ) from error
    finally:
        os.close(handle)
