"""Runs the real `Runner` in this process, entitled, with what the tests stand in for AWS.

    python run_runner.py IMDS_URL [command ...]

The rest comes from the environment, as for ``s4-runner``. ``TEST_SELF_TEST`` replaces the
GPU self-test, ``TEST_POLL_SECONDS`` the time between two questions for notices,
``TEST_RENEW_SECONDS`` makes the grant one that ends, after which it is denied.
"""

from __future__ import annotations

import json
import logging
import os
import sys

from s4core.runner import interruption
from s4core.runner.exits import DeniedError, RunnerError
from s4core.runner.grant import Grant
from s4core.runner.image import ImageSettings
from s4core.runner.imds import Imds
from s4core.runner.notify import Notifier
from s4core.runner.service import Runner
from s4core.runner.settings import load_settings
from s4core.runner.signals import exit_on_signals


class Granted:
    """Yes, the first time."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> Grant:
        self.asked += 1
        if self.asked > 1:
            raise DeniedError("the subscription ended")
        renew = os.environ.get("TEST_RENEW_SECONDS")
        return Grant("test", "of a test", ("a warning",), float(renew) if renew else None)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    exit_on_signals()
    interruption.InterruptionWatch.__init__.__defaults__ = (
        float(os.environ.get("TEST_POLL_SECONDS", "0.1")),
    )
    passes = [sys.executable, "-c", "print('{}')"]
    image = ImageSettings(
        "register-usage",
        "abc",
        self_test_command=tuple(json.loads(os.environ.get("TEST_SELF_TEST", json.dumps(passes)))),
    )
    imds = Imds(sys.argv[1])
    notifier = Notifier(os.environ)
    try:
        settings = load_settings(os.environ)
        runner = Runner(settings, image, Granted(), imds, notifier, os.environ)
        return runner.run(sys.argv[2:])
    except RunnerError as error:
        logging.getLogger().error("%s", error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
