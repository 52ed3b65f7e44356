"""A store in a local directory: one file per key, durable and atomic (`local_files`)."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from s4core.errors import StoreError
from s4core.stores.base import (
    TEMPORARY_PREFIX,
    Entry,
    Put,
    Store,
    check_key,
    join_key,
    key_exists,
    key_not_found,
    truncated,
)
from s4core.stores.local_files import TemporaryFile, translated, walk

__all__ = ["LocalStore"]


class LocalStore(Store):
    """Objects as files below one directory, which the first put makes.

    Args:
        root: The directory; a relative path is taken from the current directory, now.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        if not text or "\0" in text:
            raise StoreError(f"expected the path of a directory, found {text!r}")
        self._root = os.path.abspath(os.path.expanduser(text))

    @property
    def url(self) -> str:
        """The absolute path of the directory."""
        return self._root

    def child(self, prefix: str) -> LocalStore:
        """A view of the keys below `prefix`."""
        check_key(prefix)
        return LocalStore(self._path(prefix))

    def sweep_unfinished(self, older_than_seconds: float, *, shallow: bool = False) -> int:
        """Delete temporary files that no living writer is left to finish."""
        before = time.time() - older_than_seconds
        swept = 0
        for entry in walk(self._root, shallow=shallow):
            if _is_unfinished(entry.key) and entry.modified <= before:
                with translated(self.url_of(entry.key)), suppress(FileNotFoundError):
                    os.unlink(self._path(entry.key))
                    swept += 1
        return swept

    def _put(self, key: str, views: Iterator[memoryview], how: Put) -> None:
        path = self._path(key)
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise StoreError(
                f"{self.url_of(key)} is a pipe or a device, which a file would replace: expected "
                "a file or nothing; choose another name"
            )
        if not how.replace and os.path.exists(path):  # only saves the work; `publish` decides
            raise self._name_taken(key)
        with TemporaryFile(path, self.url_of(key)) as file:
            for view in views:
                file.write(view)
            published = file.publish(replace=how.replace)
        if not published:
            raise self._name_taken(key)

    def _name_taken(self, key: str) -> StoreError:
        if os.path.isdir(self._path(key)):
            return StoreError(f"{self.url_of(key)}: a directory has that name; choose another one")
        return key_exists(self.url_of(key))

    def _get(self, key: str) -> bytes:
        with self._opened(key) as file:
            return file.read()

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        with self._opened(key) as file:
            size = os.fstat(file.fileno()).st_size
            for offset, length in ranges:  # all of them, before any is allocated
                if offset + length > size:
                    raise truncated(self.url_of(key), offset, length, size)
            return [self._read_at(file, key, offset, length) for offset, length in ranges]

    def _read_at(self, file: BinaryIO, key: str, offset: int, length: int) -> bytes:
        file.seek(offset)
        data = file.read(length)
        if len(data) < length:  # cut while it was read
            raise truncated(self.url_of(key), offset, length, offset + len(data))
        return data

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        with translated(self.url_of(key)):
            try:
                file = open(self._path(key), "rb")  # noqa: SIM115 (closed below)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise key_not_found(self.url_of(key)) from error
            with file:
                yield file

    def _size(self, key: str) -> int:
        with translated(self.url_of(key)):
            try:
                found = os.stat(self._path(key))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise key_not_found(self.url_of(key)) from error
        if not stat.S_ISREG(found.st_mode):
            raise key_not_found(self.url_of(key))
        return found.st_size

    def _list(self, prefix: str, shallow: bool) -> Iterator[Entry]:
        if os.path.isfile(self._root):
            raise StoreError(f"{self._root}: expected a directory, found a file")
        directory, slash, start = prefix.rpartition("/")
        for entry in walk(self._path(directory), directory + slash, start, shallow=shallow):
            if not _is_unfinished(entry.key):
                yield entry

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            missing = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
            with translated(self.url_of(key)), suppress(*missing):
                os.unlink(self._path(key))
            self._prune(os.path.dirname(self._path(key)))

    def _prune(self, directory: str) -> None:
        """Remove empty directories below the root: they are only parts of keys."""
        with suppress(OSError):  # not empty, not there or not ours: it stays, and harms nobody
            while len(directory) > len(self._root):
                os.rmdir(directory)
                directory = os.path.dirname(directory)

    def _path(self, key: str) -> str:
        return join_key(self._root.rstrip("/"), key) if key else self._root


def _is_unfinished(key: str) -> bool:
    return key.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
