"""The command ``s4-runner``.

``s4-runner serve`` runs the service, with the training of ``S4_RUNNER_COMMAND`` if that is
set; ``s4-runner exec -- command`` does the same with the command given. Its exit code is
the training's, or one of `exits` if it never started.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Sequence

from s4core.runner.entitlement import entitlement_of
from s4core.runner.exits import RunnerError
from s4core.runner.image import load_image_settings
from s4core.runner.imds import Imds
from s4core.runner.notify import Notifier
from s4core.runner.service import Runner
from s4core.runner.settings import load_settings
from s4core.runner.signals import exit_on_signals

__all__ = ["main"]

logger = logging.getLogger("s4-runner")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    command = _command(list(sys.argv[1:] if arguments is None else arguments))
    # The watchdog ends a hanging runner with SIGABRT: say where it hung.
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(levelname)s: %(message)s")
    exit_on_signals()
    notifier = Notifier(os.environ)
    try:
        return _run(notifier, command)
    except RunnerError as error:
        logger.error("%s (exit code %d)", error, error.exit_code)
        notifier.status(str(error))
        return error.exit_code


def _run(notifier: Notifier, command: Sequence[str] | None) -> int:
    settings = load_settings(os.environ)
    image = load_image_settings()
    imds = Imds()
    entitlement = entitlement_of(image, settings.directory, imds=imds)
    runner = Runner(settings, image, entitlement, imds, notifier, os.environ)
    return runner.run(settings.command if command is None else command)


def _command(arguments: list[str]) -> list[str] | None:
    """The training to supervise; None takes that of the settings."""
    # Split here: argparse would take options of the training for its own.
    split = arguments.index("--") if "--" in arguments else len(arguments)
    command = arguments[split + 1 :]
    parser = argparse.ArgumentParser(prog="s4-runner", description="The S4 Weights runner.")
    parser.add_argument(
        "verb",
        choices=["serve", "exec"],
        help="serve: run the service; exec -- command: pass its gates, then run a training",
    )
    verb = parser.parse_args(arguments[:split]).verb
    if (verb == "exec") != bool(command):
        parser.error("expected: s4-runner serve, or s4-runner exec -- command")
    return command or None


if __name__ == "__main__":
    sys.exit(main())
