"""What each exit code of ``s4-runner`` means, and the errors that carry one.

The codes are those of sysexits.h, so that a unit can tell what heals by trying again
(75) from what does not (70, 77, 78)::

    RunnerError (an S4Error)       never leaves the process: `cli` turns it into its code
    ├── SelfTestError       70     the GPU does not compute what it must
    ├── UnreachableError    75     a service did not answer in time; start again later
    ├── DeniedError         77     this machine is not entitled
    └── ConfigurationError  78     settings of the customer or of the image are wrong
"""

from __future__ import annotations

from typing import ClassVar

from s4core.errors import S4Error

__all__ = [
    "ConfigurationError",
    "DeniedError",
    "RunnerError",
    "SelfTestError",
    "UnreachableError",
]


class RunnerError(S4Error):
    """The runner cannot start; `exit_code` says which way."""

    exit_code: ClassVar[int] = 1


class SelfTestError(RunnerError):
    """The GPU is absent or does not give back what was put in."""

    exit_code = 70


class UnreachableError(RunnerError):
    """A service that must answer did not, until the deadline. Still closed."""

    exit_code = 75


class DeniedError(RunnerError):
    """The answer is no, or an answer that cannot be trusted. Trying again changes nothing.

    Attributes:
        kind: The name the service gave its error, or "".
    """

    exit_code = 77

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class ConfigurationError(RunnerError):
    """A setting is missing, misspelt or contradicts another."""

    exit_code = 78
