"""Paths as Lightning passes them, and whose they are.

A checkpoint's *address* is a local path or a URL as s4core's stores take it. Lightning
passes strings and `Path` objects; pathlib makes `s3:/bucket/run` of `s3://bucket/run`.
"""

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["address", "is_temporary", "link_target"]

# Two letters at least: a single one is a drive.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def address(path: str | os.PathLike[str]) -> str:
    """Return the address that `path` means."""
    text = os.fspath(path)
    match = _SCHEME.match(text)
    if match is None:
        return os.path.abspath(os.path.expanduser(text))
    if match[1].lower() == "file":
        return os.path.abspath("/" + text[match.end() :].removeprefix("localhost/"))
    # s4:// is s3:// as fsspec knows it (s4core.fs).
    scheme = "s3" if match[1] == "s4" else match[1]
    return f"{scheme}://{text[match.end() :]}"


def is_temporary(where: str) -> bool:
    """Whether a checkpoint is Lightning's own and short-lived, so that S4 leaves it plain.

    Their names start with a dot: `.temp.ckpt` carries weights from a spawned process to
    its parent, `.lr_find_*.ckpt` and `.scale_batch_size_*.ckpt` are read back at once.
    """
    return where.rstrip("/").rpartition("/")[2].startswith(".")


def link_target(where: str) -> str:
    """Follow a local symbolic link (`save_last="link"`): refs are relative to their directory."""
    return os.path.realpath(where) if os.path.islink(where) else where
