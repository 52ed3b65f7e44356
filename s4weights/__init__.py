"""S4 Weights: lossless compression of PyTorch training checkpoints.

    save, load                          any nested state, one self-contained file
    save_checkpoint, load_checkpoint    the next checkpoint of a run: base -> delta chain
    estimate                            what a state would cost, whole and as a delta
    open                                a run, to save, load, list, remove, verify
    S4Error and its tree                every error raised on purpose

What is loaded equals what was saved, bit for bit. Everything else is in s4core.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from s4core.checkpoint import (
    CheckpointInfo,
    Estimate,
    MapLocation,
    Options,
    Progress,
    Run,
    SaveHandle,
    estimate,
    load,
    save,
)
from s4core.checkpoint import open_run as open
from s4core.errors import (
    AccessDeniedError,
    BaseMismatchError,
    BaseNotFoundError,
    ChainError,
    ChecksumError,
    CodecError,
    CodecUnavailableError,
    FormatError,
    KeyExistsError,
    KeyNotFoundError,
    S4Error,
    StateError,
    StoreError,
    StoreUnavailableError,
    TruncatedError,
    VersionError,
)
from s4core.version import __version__

__all__ = [
    "AccessDeniedError",
    "BaseMismatchError",
    "BaseNotFoundError",
    "ChainError",
    "CheckpointInfo",
    "ChecksumError",
    "CodecError",
    "CodecUnavailableError",
    "Estimate",
    "FormatError",
    "KeyExistsError",
    "KeyNotFoundError",
    "Options",
    "Progress",
    "Run",
    "S4Error",
    "SaveHandle",
    "StateError",
    "StoreError",
    "StoreUnavailableError",
    "TruncatedError",
    "VersionError",
    "__version__",
    "estimate",
    "load",
    "load_checkpoint",
    "open",
    "save",
    "save_checkpoint",
]


def save_checkpoint(
    state: Any, url: str | os.PathLike[str] | None = None, *, step: int, **options: Any
) -> CheckpointInfo:
    """Save the next checkpoint of a run: a base, or a delta on the newest one there.

    Args:
        state: nested dicts, lists, tensors, numbers, ...
        url: directory of the run: local path, `s3://`, ...; None: `S4_STORE`.
        step: of the training.
        options: the fields of `Options`.

    Returns:
        What was committed.

    Raises:
        StateError: the state holds something that cannot be stored.
        StoreError: the store refused; older checkpoints are unharmed.
    """
    return open(url, **options).save(state, step).result()


def load_checkpoint(
    url: str | os.PathLike[str] | None = None,
    *,
    step: int | None = None,
    map_location: MapLocation = None,
    weights_only: bool = True,
    keys: Sequence[str] | None = None,
) -> Any:
    """Load a checkpoint of a run.

    Args:
        url: directory of the run; None: `S4_STORE`.
        step: which; None: the newest committed.
        map_location: as for `torch.load`.
        weights_only: refuse whatever would run code of the file's choosing.
        keys: patterns of tensor paths; only those, as a flat dict.

    Raises:
        KeyNotFoundError: no such checkpoint (also FileNotFoundError).
        FormatError, ChainError: it is damaged, or something it stands on is gone.
    """
    return open(url).load(step, map_location=map_location, weights_only=weights_only, keys=keys)
