"""What every mode of the entitlement check gives: a grant, or an error with its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Entitlement", "Grant"]


@dataclass(frozen=True)
class Grant:
    """This machine may run the product.

    Attributes:
        mode: Which mode granted it.
        detail: On what ground, for the log; one line.
        warnings: What a person should look at; the grant stands.
        renew_seconds: After how long it has to be asked for again; None for never.
    """

    mode: str
    detail: str
    warnings: tuple[str, ...] = ()
    renew_seconds: float | None = None


class Entitlement(Protocol):
    """One mode of the check."""

    def ask(self) -> Grant:
        """Ask once.

        Raises:
            DeniedError: No, or an answer that cannot be trusted.
            UnreachableError: No answer; asking again may help.
            ConfigurationError: The image's settings are wrong.
        """
        ...
