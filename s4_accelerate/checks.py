"""What `S4Accelerate` checks before it writes or loads, and what it warns of."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

import torch

from s4_accelerate.archive import Archive
from s4weights import FormatError, StateError

__all__ = [
    "FORMAT",
    "check_kind",
    "is_plain",
    "refuse_pickles",
    "refuse_taken",
    "warn_of_missing_random_states",
]

FORMAT: Final = "s4-accelerate"

_log = logging.getLogger("s4_accelerate")


def refuse_taken(archive: Archive, name: str) -> None:
    """Raise if automatic naming came to a name that holds a checkpoint."""
    if archive.run.directory.exists(name):
        where = archive.run.directory.url_of(name)
        raise StateError(
            f"{where} is there already: load_state() first to continue that training, or choose "
            "another url"
        )


def is_plain(archive: Archive, name: str, path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a directory that Accelerate wrote without S4's URL."""
    return os.path.isdir(path) and not archive.run.directory.exists(name)


def check_kind(state: Any, where: str) -> None:
    """Raise unless `state` is one of `S4Accelerate`."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise FormatError(f"{where} is no checkpoint of S4Accelerate: load it with s4weights.load")
    if state["version"] != 1:
        raise FormatError(f"{where} has version {state['version']}; expected 1: upgrade s4weights")


def warn_of_missing_random_states(
    rank: int, ranks: int, saved: int, staging: str, where: str
) -> None:
    """Say which rank's random number generators are not restored."""
    path = Path(staging) / f"random_states_{rank}.pkl"
    if not path.exists():
        _log.warning(
            "%s holds no random number generators for rank %d (it was saved by %d ranks, and %d "
            "load it): this rank goes on with fresh ones, and training is not repeated exactly",
            *(where, rank, saved, ranks),
        )
    elif rank == 0 and saved > ranks:
        _log.warning(
            "%s was saved by %d ranks and is loaded by %d: the random number generators of ranks "
            "%d and up are not restored, and training is not repeated exactly",
            *(where, saved, ranks, ranks),
        )


def refuse_pickles(staging: str, where: str) -> None:
    """Raise if a registered object's file would run code: Accelerate loads these unchecked."""
    for path in sorted(Path(staging).glob("custom_checkpoint_*.pkl")):
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise StateError(
                f"{where}: the registered object in {path.name} holds a pickle, which may run "
                f"code when it is loaded; pass allow_pickle=True if you trust it ({error})"
            ) from error
