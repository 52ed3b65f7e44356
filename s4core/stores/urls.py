"""From a URL or a path to a store.

URLs are taken as they stand: nothing is percent-decoded, as in every S3 tool and in
fsspec, so ``epoch=3%2.ckpt`` names exactly that.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import TYPE_CHECKING

from s4core.errors import StoreError
from s4core.stores.local import LocalStore
from s4core.stores.memory import MemoryStore
from s4core.stores.s3 import S3Store
from s4core.stores.s3_options import S3Options

if TYPE_CHECKING:
    from s4core.stores.base import Store

__all__ = ["open_store"]

ACCEPTED = "a path, file:///path, s3://bucket/prefix or memory://name"

# pathlib and os.path.normpath make "s3:/b/x" of "s3://b/x": one slash is accepted. A
# scheme has two letters at least, as a single one is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)", re.DOTALL)


def open_store(url: str | os.PathLike[str], **options: object) -> Store:
    """The store at `url`. Nothing is asked of it yet, and nothing is made.

    Args:
        url: A path, ``file:///path``, ``s3://bucket/prefix`` or ``memory://name``. The
            scheme of `s4core.fs`, ``s4:``, stands for ``s3:`` or, before ``///``, ``file:``.
        **options: For S3, the fields of `S3Options`; other stores take none.

    Raises:
        StoreError: The scheme, the form of the URL or an option is not known.
    """
    text = os.fspath(url)
    match = _SCHEME.match(text)
    if match is None:
        _no_options(text, options)
        return LocalStore(text)
    scheme, rest = match[1].lower(), match[3]
    if scheme == "s3" or (scheme == "s4" and not rest.startswith("/")):
        return _open_s3(text, rest, options)
    _no_options(text, options)
    if scheme in ("file", "s4"):
        return LocalStore(_file_path(text, rest, double_slash=bool(match[2])))
    if scheme == "memory":
        return _open_memory(text, rest)
    raise StoreError(f"{text}: unknown scheme {match[1]!r}; expected {ACCEPTED}")


def _open_s3(url: str, rest: str, options: dict[str, object]) -> S3Store:
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise StoreError(f"{url}: names no bucket; expected s3://bucket/prefix")
    known = {field.name for field in fields(S3Options)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise StoreError(
            f"{url}: unknown options {', '.join(unknown)}; expected {', '.join(sorted(known))}"
        )
    return S3Store(bucket, prefix.rstrip("/"), S3Options(**options))  # type: ignore[arg-type]


def _open_memory(url: str, rest: str) -> MemoryStore:
    name, _, prefix = rest.partition("/")
    if not name:
        raise StoreError(f"{url}: names no memory; expected memory://name")
    return MemoryStore(name, prefix.rstrip("/"))


def _file_path(url: str, rest: str, *, double_slash: bool) -> str:
    if not double_slash:
        return f"/{rest}"
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost"):
        raise StoreError(f"{url}: expected file:///path with three slashes, found host {host!r}")
    return f"/{path}"


def _no_options(url: str, options: dict[str, object]) -> None:
    if options:
        raise StoreError(
            f"{url}: unknown options {', '.join(sorted(options))}; only S3 stores take options"
        )
