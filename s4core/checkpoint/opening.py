"""Opening a run by its URL."""

from __future__ import annotations

import os
from typing import Any

from s4core.checkpoint.options import Options
from s4core.checkpoint.run import Run
from s4core.errors import StoreError
from s4core.stores import open_store

__all__ = ["open_run"]


def open_run(url: str | os.PathLike[str] | None = None, **options: Any) -> Run:
    """Open a run; nothing is written before the first save.

    Args:
        url: its directory: a local path, `file://`, `s3://` or `memory://`; None: the
            environment variable `S4_STORE`.
        options: the fields of `Options`.

    Raises:
        StoreError: no URL, or one that no store has.
        StateError: an option out of range.
    """
    where = url if url is not None else os.environ.get("S4_STORE", "")
    if not os.fspath(where):
        raise StoreError("no store is named: pass a path or URL, or set S4_STORE to one")
    return Run(open_store(where), Options(**options))
