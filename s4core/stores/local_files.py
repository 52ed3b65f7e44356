"""Files written whole or not at all, directories walked in order, and what errors mean.

A file is written under a temporary name beside its final one, flushed to the disk, and
named in one step: a hard link, which fails if the name is taken, or a rename to replace.
Then the directory is flushed. Who opens the name sees all or nothing, also after a power
cut (the recipe of LWN, "Ensuring data reaches disk", 2011).
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO

from s4core.errors import AccessDeniedError, S4Error, StoreError, StoreUnavailableError
from s4core.stores.base import TEMPORARY_PREFIX, Entry

__all__ = ["TemporaryFile", "flush_directory", "make_directory", "translated", "walk"]

# What link() answers where the file system has no hard links (vfat, exfat, some FUSE).
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

# What fsync() answers for a directory where the file system has no such thing.
_NO_DIRECTORY_FLUSH = frozenset({errno.EINVAL, errno.ENOTSUP})

# A deletion may prune the empty directory that a put has just made; the put makes it
# again. Losing so often in a row needs a deletion between every two of its calls.
_DIRECTORY_ATTEMPTS = 100

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EFBIG: "the file is too large for this file system",
    errno.EROFS: "the file system is mounted read-only; choose another place",
    errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
    errno.ENOTDIR: "a file stands where a directory is needed; choose another name",
    errno.EEXIST: "a file stands where a directory is needed; choose another name",
    errno.EISDIR: "a directory has that name; choose another one",
    errno.ELOOP: "symbolic links lead in a circle; remove one of them",
}
_UNAVAILABLE = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN})


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise an `OSError` of the body as the `StoreError` that names `url`."""
    try:
        yield
    except S4Error:  # some of them are OSErrors too
        raise
    except OSError as error:
        raise _store_error(url, error) from error


def _store_error(url: str, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return AccessDeniedError(
            f"{url}: {reason}; check who owns the directory and this process's user"
        )
    if error.errno in _UNAVAILABLE:
        return StoreUnavailableError(f"{url}: {reason}; the disk or the mount does not answer")
    advice = _ADVICE.get(error.errno or 0, "the file system refused")
    return StoreError(f"{url}: {reason}; {advice}")


class TemporaryFile:
    """A file that gets its name when it is complete, and otherwise never existed.

    Use as a context manager: write, then `publish`. The temporary name is gone at the
    end, whatever happens.

    Args:
        path: The final name. Its directory is made if it is missing.
        url: How errors call it.
    """

    def __init__(self, path: str, url: str) -> None:
        self._path = path
        self._url = url
        self._directory = os.path.dirname(path)
        name = f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        self._temporary = os.path.join(self._directory, name)

    def __enter__(self) -> TemporaryFile:
        with translated(self._url):
            self._file = self._create()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()  # a raw file: nothing is written here that could fail
        with translated(self._url), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._temporary)

    def write(self, view: memoryview) -> None:
        """Append the bytes of `view`, all of them."""
        with translated(self._url):
            while view:
                view = view[self._file.write(view) :]

    def publish(self, *, replace: bool) -> bool:
        """Flush to the disk and give the file its name.

        Returns:
            False if the name is taken and `replace` is false; the file is then discarded.
        """
        with translated(self._url), _opened_directory(self._directory) as directory:
            os.fsync(self._file.fileno())
            if replace:
                os.replace(self._temporary, self._path)
            elif not self._link(directory):
                return False
            _flush(directory)
        return True

    def _link(self, directory: int) -> bool:
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            return self._is_ours()
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return self._rename_once(directory)
        return True

    def _is_ours(self) -> bool:
        # NFS may lose the acknowledgement of a link and answer its own repetition so.
        with suppress(FileNotFoundError):
            return os.path.samefile(self._temporary, self._path)
        return False

    def _rename_once(self, directory: int) -> bool:
        # Without hard links writers agree by a lock on the directory, which the kernel
        # lifts when its holder dies. The name itself still appears with all its bytes.
        fcntl.flock(directory, fcntl.LOCK_EX)
        if os.path.lexists(self._path):
            return False
        os.rename(self._temporary, self._path)
        return True

    def _create(self) -> FileIO:
        for _ in range(_DIRECTORY_ATTEMPTS):
            make_directory(self._directory)
            with suppress(FileNotFoundError):
                # Raw: no second buffer, and nothing left to fail when it is closed.
                return FileIO(self._temporary, "x")
        raise StoreError(f"{self._directory}: vanishes whenever it is made; what deletes it?")


def make_directory(directory: str) -> None:
    """Make `directory` and its parents, each flushed into the one above it."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    make_directory(parent)
    try:
        os.mkdir(directory)
    except FileNotFoundError:  # the parent was pruned meanwhile: the caller tries again
        return
    except FileExistsError:  # a file; or made meanwhile, and perhaps pruned again by now
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(directory).st_mode):
                raise
        return
    with suppress(FileNotFoundError):
        flush_directory(parent)


def flush_directory(directory: str) -> None:
    """Have the names in `directory` survive a crash of the machine."""
    with _opened_directory(directory) as descriptor:
        _flush(descriptor)


@contextmanager
def _opened_directory(directory: str) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_FLUSH:
            raise


@dataclass(frozen=True)
class _Child:
    """A name in a directory; `order` sorts it as its key does among all keys."""

    order: str
    entry: os.DirEntry[str]
    is_directory: bool


def walk(
    directory: str, prefix: str = "", start: str = "", *, shallow: bool = False
) -> Iterator[Entry]:
    """Every regular file below `directory`, sorted by its key.

    Symbolic links are followed, as opening a key follows them. What vanishes during the
    walk is left out; what cannot be read is an error.

    Args:
        directory: May be missing: then there is nothing.
        prefix: Goes before each key: empty, or ends with '/'.
        start: Only first names that start so.
        shallow: Only files directly in `directory`.
    """
    yield from _walk(directory, prefix, start, None if shallow else ())


def _walk(
    directory: str, prefix: str, start: str, above: tuple[tuple[int, int], ...] | None
) -> Iterator[Entry]:
    for child in _children(directory):
        if not child.order.startswith(start):
            continue
        key = prefix + child.entry.name
        with translated(child.entry.path):
            try:
                found = child.entry.stat()
            except FileNotFoundError:
                continue
        if not child.is_directory:
            yield Entry(key, found.st_size, found.st_mtime)
        elif above is not None and (found.st_dev, found.st_ino) not in above:
            inside = (*above, (found.st_dev, found.st_ino))
            yield from _walk(child.entry.path, f"{key}/", "", inside)


def _children(directory: str) -> list[_Child]:
    with translated(directory):
        try:
            with os.scandir(directory) as entries:
                found = [_child(entry) for entry in entries if entry.is_dir() or entry.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(found, key=lambda child: child.order)


def _child(entry: os.DirEntry[str]) -> _Child:
    is_directory = entry.is_dir()
    return _Child(entry.name + "/" * is_directory, entry, is_directory)
