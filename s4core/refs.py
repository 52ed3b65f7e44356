"""Refs: the small mutable objects at the names users choose (FORMAT.md, section 10)."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from s4core.errors import (
    FormatError,
    KeyExistsError,
    KeyNotFoundError,
    StoreError,
    VersionError,
)
from s4core.manifest import SURROGATE, Fields, check_id, loads_strict
from s4core.stores import Store, open_store

__all__ = [
    "STORE_DIRECTORY",
    "Listing",
    "Ref",
    "dump_ref",
    "list_refs",
    "parse_ref",
    "put_ref",
    "read_ref",
    "scan_refs",
    "split_url",
]

STORE_DIRECTORY: Final = ".s4"
MAX_REF_BYTES: Final = 64 * 1024
_VERSION: Final = 1
# Refs are read so many at a time: each is a request of its own.
_READERS: Final = 16


@dataclass(frozen=True)
class Ref:
    """What a ref says.

    Attributes:
        checkpoint: id.
        digest: of its manifest.
        store: path of the store, relative to the ref's directory, or an absolute URL.
    """

    checkpoint: str
    digest: str
    store: str = STORE_DIRECTORY


def dump_ref(ref: Ref) -> bytes:
    """Return the bytes of a ref."""
    document = {
        "format": "s4-ref",
        "version": _VERSION,
        "store": ref.store,
        "checkpoint": ref.checkpoint,
        "digest": ref.digest,
    }
    return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


def parse_ref(data: bytes, where: str) -> Ref:
    """Read a ref.

    Raises:
        VersionError: a newer version.
        FormatError: not a ref.
    """
    if len(data) > MAX_REF_BYTES or not data.startswith(b"{"):
        raise FormatError(f"{where} is not a ref: expected a JSON object of at most 64 KiB")
    fields = Fields(loads_strict(data, where), where)
    if fields.text("format") != "s4-ref":
        raise FormatError(f"{where} is not a ref: its format is {fields.text('format')!r}")
    if fields.number("version") != _VERSION:
        raise VersionError(
            f"{where} has ref version {fields.number('version')}: this release reads version "
            f"{_VERSION}; upgrade s4weights"
        )
    check_id(fields.text("checkpoint"), where)
    return Ref(fields.text("checkpoint"), fields.text("digest"), fields.text("store"))


def split_url(url: str | os.PathLike[str]) -> tuple[Store, str]:
    """Return the store of the directory that holds `url`, and the name in it.

    Raises:
        StoreError: there is no name in `url`.
    """
    text = os.fspath(url)
    if "://" in text or text.startswith(("s3:/", "s4:/")):
        parent, _, name = text.rstrip("/").rpartition("/")
        if parent.endswith(("/", ":")):
            raise StoreError(f"{text} names a whole store: expected the name of a checkpoint in it")
    else:
        parent, name = os.path.split(os.path.abspath(text))
    if not name:
        raise StoreError(f"{text!r} has no name in it: expected the path of a checkpoint")
    return open_store(parent), name


def read_ref(store: Store, name: str) -> Ref:
    """Return the ref called `name` in the directory `store`.

    Raises:
        KeyNotFoundError: nothing of that name.
        FormatError: what is there is not a ref.
    """
    size = store.size(name)
    if size > MAX_REF_BYTES:
        raise FormatError(f"{store.url_of(name)} is not a ref: {size} bytes, at most 64 KiB")
    try:
        return parse_ref(store.get(name), store.url_of(name))
    except KeyNotFoundError:
        raise KeyNotFoundError(
            f"{store.url_of(name)} was removed while it was being read; list the run again"
        ) from None


def put_ref(directory: Store, name: str, ref: Ref, *, was_there: bool) -> None:
    """Put a ref: create it if nothing had its name when the save began, else replace it.

    Args:
        directory: of the run.
        name: of the ref.
        ref: what it says.
        was_there: whether something had that name when the save began.

    Raises:
        KeyExistsError: another writer took the name meanwhile. Its ref stays, and this
            one is put beside it.
    """
    if was_there:
        directory.put(name, dump_ref(ref), replace=True)
        return
    try:
        directory.put(name, dump_ref(ref))
    except KeyExistsError as error:
        beside = f"{name}.{ref.checkpoint}"
        directory.put(beside, dump_ref(ref), replace=True)
        raise KeyExistsError(
            f"{directory.url_of(name)}: another writer took that name while this checkpoint was "
            f"saved; theirs stays, this one is kept as {beside}. Two trainings write one "
            "directory: give each its own"
        ) from error


@dataclass(frozen=True)
class Listing:
    """What lies directly in a run's directory.

    Attributes:
        refs: those that can be read, by name.
        others: why everything else is no ref, by name; a damaged ref among them.
    """

    refs: dict[str, Ref] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def scan_refs(directory: Store) -> Listing:
    """Read every ref that lies directly in `directory`, in one listing pass.

    Raises:
        StoreError: the directory could not be listed; an error is never an empty run.
    """
    entries = list(directory.list("", shallow=True))
    found = Listing(others={e.key: "too large" for e in entries if e.size > MAX_REF_BYTES})
    names = [entry.key for entry in entries if entry.size <= MAX_REF_BYTES]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="s4-refs") as readers:
        for name, ref in zip(names, readers.map(partial(_try_ref, directory), names), strict=True):
            if isinstance(ref, Ref):
                found.refs[name] = ref
            elif ref is not None:
                found.others[name] = ref
    return found


def _try_ref(directory: Store, name: str) -> Ref | str | None:
    if not name.isprintable() and SURROGATE.search(name):
        return "its name is not Unicode"  # no key of any store: another tool's file
    try:
        return parse_ref(directory.get(name), directory.url_of(name))
    except FormatError as error:
        return str(error)  # another tool's file, or a damaged ref
    except KeyNotFoundError:
        return None  # removed meanwhile


def list_refs(directory: Store) -> dict[str, Ref]:
    """Return every ref that lies directly in `directory`, by name; other files are passed over.

    Raises:
        StoreError: the directory could not be listed; an error is never an empty run.
    """
    return scan_refs(directory).refs
