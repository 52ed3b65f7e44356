"""Side files: the small files that a trainer writes beside the weights, as leaves of a state.

Schedulers, samplers, scaler, random number generators, custom objects, configuration. A
file becomes a `uint8` tensor, so that it is compressed, checked, and not stored again
while it stays the same. Each rank's files are kept apart; restoring gives a rank those of
rank 0, then its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from s4weights import FormatError

__all__ = ["as_leaves", "read_files", "write_files"]

Files = dict[str, bytes]


def read_files(directory: str | Path, wanted: Callable[[str], bool] = lambda _: True) -> Files:
    """Return the files below `directory` whose relative name (with `/`) is wanted."""
    root = Path(directory)
    return {name: (root / name).read_bytes() for name in sorted(_names(root)) if wanted(name)}


def _names(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield (Path(folder) / name).relative_to(root).as_posix()


def as_leaves(files: Mapping[str, bytes]) -> dict[str, Tensor]:
    """Return the files as 1-D uint8 tensors."""
    # frombuffer takes no empty buffer.
    return {
        name: torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
        for name, data in files.items()
    }


def write_files(files: Mapping[str, Tensor], directory: str | Path) -> None:
    """Write stored files below `directory`, whole or not at all, each.

    Raises:
        FormatError: a name that leads out of `directory`, or a leaf that is no file.
    """
    for name, data in files.items():
        path = Path(directory) / _checked(name, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(data.cpu().numpy().tobytes())
        os.replace(partial, path)


def _checked(name: str, data: object) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        raise FormatError(
            f"the checkpoint holds a side file called {name!r}: a relative name was "
            "expected; nothing is written outside the directory"
        )
    if not isinstance(data, Tensor) or data.dtype != torch.uint8 or data.dim() != 1:
        raise FormatError(f"the checkpoint's side file {name!r} is not bytes: found {type(data)}")
    return name
