"""Every error s4core raises.

The tree is by what a caller would do next, not by where the error arose::

    S4Error
    ├── FormatError           (also ValueError)         stored bytes break FORMAT.md
    │   ├── TruncatedError                              bytes are missing: fetch again
    │   ├── ChecksumError                               bytes changed: use another copy
    │   └── VersionError                                newer writer: upgrade s4weights
    ├── CodecError                                      the codec could not do its work
    │   └── CodecUnavailableError (also ImportError)    install it, or load on a GPU host
    ├── ChainError                                      a chain cannot be followed
    │   ├── BaseNotFoundError (also FileNotFoundError)  the base was deleted or never written
    │   └── BaseMismatchError                           the base is not the one of the delta
    ├── StoreError                                      the store did not do what was asked
    │   ├── KeyNotFoundError  (also FileNotFoundError)  nothing is stored under that key
    │   ├── KeyExistsError    (also FileExistsError)    something is, and it is never replaced
    │   ├── AccessDeniedError (also PermissionError)    credentials or policy forbid it
    │   └── StoreUnavailableError (also ConnectionError) the store did not answer: try again
    └── StateError            (also TypeError)          the state holds something S4 cannot store

A message says what, where, expected, found, and the next step.
"""

from __future__ import annotations

__all__ = [
    "AccessDeniedError",
    "BaseMismatchError",
    "BaseNotFoundError",
    "ChainError",
    "ChecksumError",
    "CodecError",
    "CodecUnavailableError",
    "FormatError",
    "KeyExistsError",
    "KeyNotFoundError",
    "S4Error",
    "StateError",
    "StoreError",
    "StoreUnavailableError",
    "TruncatedError",
    "VersionError",
]


class S4Error(Exception):
    """Base of every error this project raises on purpose."""

    def __str__(self) -> str:
        # OSError and KeyError relatives format their arguments in their own way;
        # the message was written for a person and is shown as it is.
        return str(self.args[0]) if self.args else type(self).__name__


class FormatError(S4Error, ValueError):
    """Stored bytes break FORMAT.md."""


class TruncatedError(FormatError):
    """Bytes are missing at the end: fetch the object again."""


class ChecksumError(FormatError):
    """Bytes are not the ones that were written: use another copy."""


class VersionError(FormatError):
    """A newer writer made this: upgrade s4weights."""


class CodecError(S4Error):
    """A codec could not do its work."""


class CodecUnavailableError(CodecError, ImportError):
    """A codec that these bytes need cannot run on this machine."""


class ChainError(S4Error):
    """A chain of checkpoints cannot be followed."""


class BaseNotFoundError(ChainError, FileNotFoundError):
    """The base of a delta was deleted or never written."""


class BaseMismatchError(ChainError):
    """The base found is not the one that the delta was taken from."""


class StoreError(S4Error):
    """The store did not do what was asked."""


class KeyNotFoundError(StoreError, FileNotFoundError):
    """Nothing is stored under that key."""


class KeyExistsError(StoreError, FileExistsError):
    """Something is already stored under that key; it is never replaced."""


class AccessDeniedError(StoreError, PermissionError):
    """Credentials or policy forbid the request."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store did not answer, or not in time: try again later."""


class StateError(S4Error, TypeError):
    """The state holds something that S4 cannot store, or cannot restore as asked."""
