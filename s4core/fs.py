"""An fsspec filesystem, `s4://`, for tools that list and read checkpoints by path.

    s4://bucket/run/epoch=3.ckpt     in an S3 bucket
    s4:///data/run/epoch=3.ckpt      on the local disk: no bucket before the path

A checkpoint is one file, at the name of its ref, whatever lies behind it. Read, it is what
`torch.save` would have written of the state, so that `torch.load` and whatever builds on it
understand it. Removed, its bytes go when no other checkpoint needs them. Every other file is
plain bytes, for reading and writing. What is asked is asked of the store each time: nothing
is cached, so that `exists` never tells of what another process removed.

`ls` shows the files of one directory; directories exist as far as something lies below them,
and are not listed. The store itself, `.s4`, is not shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final

from s4core.errors import FormatError, KeyNotFoundError, StateError
from s4core.refs import STORE_DIRECTORY, read_ref
from s4core.stores import Entry, Store, open_store

try:
    from fsspec import register_implementation
    from fsspec.spec import AbstractFileSystem
except ImportError as error:
    raise ImportError(f"s4:// needs fsspec ({error}); run: pip install fsspec") from error

__all__ = ["PROTOCOL", "S4FileSystem", "register", "to_s4"]

PROTOCOL: Final = "s4"


def register() -> None:
    """Tell fsspec of `s4://`, where the installed package's entry point has not."""
    register_implementation(PROTOCOL, S4FileSystem, clobber=True)


def to_s4(url: str) -> str:
    """Return `s4://...` for `s3://...`; anything else stays."""
    return f"{PROTOCOL}://{url[5:]}" if url.startswith("s3://") else url


class S4FileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Checkpoints and plain files of a store, by path.

    Args:
        weights_only: refuse to read checkpoints that would run code of the file's choosing.
        storage_options: fsspec's own.
    """

    protocol = PROTOCOL
    cachable = False
    root_marker = ""

    def __init__(self, *, weights_only: bool = True, **storage_options: Any) -> None:
        super().__init__(**storage_options)
        self.weights_only = weights_only
        self._buckets: dict[str, Store] = {}  # their connections are used again

    def _store(self, path: str) -> Store:
        bucket, _, prefix = path.partition("/")
        if not bucket:
            return open_store(f"s4://{path}")
        store = self._buckets.setdefault(bucket, open_store(f"s4://{bucket}"))
        return store.child(prefix.rstrip("/")) if prefix.rstrip("/") else store

    def _split(self, path: str) -> tuple[Store, str]:
        directory, slash, name = path.rpartition("/")
        if not name or not slash or (not directory and not path.startswith("/")):
            raise KeyNotFoundError(f"s4://{path} names no file: expected s4://bucket/name")
        return self._store(directory or "/"), name

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List the files of a directory, or one file.

        Raises:
            FileNotFoundError: nothing is there.
        """
        path = self._strip_protocol(path)
        if self.isfile(path):
            found = {path: self._entry(path)}
        else:
            entries = self._store(path).list("", shallow=True)
            found = {f"{path}/{entry.key}": entry for entry in entries}
            if not found and not self.isdir(path):
                found = {path: self._entry(path)}  # says that nothing is there
        return [_described(name, entry) for name, entry in found.items()] if detail else list(found)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe a file or directory; the size is that of the stored object.

        Raises:
            FileNotFoundError: nothing is there.
        """
        path = self._strip_protocol(path)
        try:
            return _described(path, self._entry(path))
        except KeyNotFoundError:
            if not self.isdir(path):
                raise
        return {"name": path, "size": 0, "type": "directory"}

    def _entry(self, path: str) -> Entry:
        directory, name = self._split(path)
        for entry in directory.list(name, shallow=True):
            if entry.key == name:
                return entry
        raise KeyNotFoundError(f"s4://{path}: nothing is stored there; list its directory")

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a file or directory is there; a failure to find out raises."""
        return bool(self.isfile(path) or self.isdir(path))

    def isfile(self, path: str) -> bool:
        """Whether a file is there."""
        path = self._strip_protocol(path)
        try:
            directory, name = self._split(path)
        except KeyNotFoundError:
            return False
        return directory.exists(name)

    def isdir(self, path: str) -> bool:
        """Whether anything lies below."""
        path = self._strip_protocol(path)
        return not self.isfile(path) and next(self._store(path).list(""), None) is not None

    def modified(self, path: str) -> datetime:
        """When a file was put."""
        entry = self._entry(self._strip_protocol(path))
        return datetime.fromtimestamp(entry.modified, timezone.utc)

    created = modified

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: directories are parts of names."""

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: directories are parts of names."""

    def rm(self, path: str | Iterable[str], recursive: bool = False, maxdepth: int = 0) -> None:  # noqa: ARG002 (fsspec's)
        """Remove files, or with `recursive` all that lies below a directory.

        Raises:
            FileNotFoundError: nothing is there.
        """
        for one in [path] if isinstance(path, str) else list(path):
            if self.isfile(one):
                self.rm_file(one)
            elif recursive and self.isdir(one):
                store = self._store(self._strip_protocol(one))
                store.delete([entry.key for entry in store.list("")])
            else:
                self._entry(self._strip_protocol(one))

    def rm_file(self, path: str) -> None:
        """Remove one file; of a checkpoint also the bytes that no other one needs."""
        from s4core.checkpoint import Run

        directory, name = self._split(self._strip_protocol(path))
        if _is_ref(directory, name):
            Run(directory).remove(name=name)
        else:
            directory.delete([name])

    _rm = rm_file

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a plain file, or a checkpoint's ref within its directory.

        Raises:
            StateError: a checkpoint to another directory: use `s4weights export`.
        """
        (source, name), (target, new) = (
            self._split(self._strip_protocol(p)) for p in (path1, path2)
        )
        if source.url != target.url and _is_ref(source, name):
            raise StateError(
                f"{source.url_of(name)} is a checkpoint of a run, whose bytes lie beside it; copy "
                "it with: s4weights export"
            )
        target.put(new, source.get(name), replace=True)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        directory, name = self._split(path)
        if mode == "rb":
            return io.BytesIO(self._content(directory, name))
        if mode == "wb":
            return _Writing(directory, name)
        raise StateError(f"s4://{path}: opened with {mode!r}: expected 'rb' or 'wb'")

    def _content(self, directory: Store, name: str) -> bytes:
        from s4core.checkpoint import Run, load
        from s4core.checkpoint.foreign import dump_torch
        from s4core.format import MAGIC

        if _is_ref(directory, name):
            reader = Run(directory).reader(name=name)
            return dump_torch(reader.state("cpu", weights_only=self.weights_only))
        data = directory.get(name)
        if not data.startswith(MAGIC):
            return data
        return dump_torch(load(io.BytesIO(data), "cpu", weights_only=self.weights_only))


class _Writing(io.BytesIO):
    """Bytes that become a file when they are closed, whole, unless an exception ends them."""

    def __init__(self, directory: Store, name: str) -> None:
        super().__init__()
        self._directory, self._name = directory, name

    def close(self) -> None:
        """Put the file."""
        if not self.closed:
            self._directory.put(self._name, self.getvalue(), replace=True)
        super().close()

    def discard(self) -> None:
        """Forget what was written."""
        super().close()

    def __exit__(self, kind: Any, *_: object) -> None:
        self.discard() if kind is not None else self.close()

    def __del__(self) -> None:
        self.discard()  # never put what its writer did not close


def _is_ref(directory: Store, name: str) -> bool:
    try:
        return read_ref(directory, name).store == STORE_DIRECTORY
    except FormatError:
        return False


def _described(path: str, entry: Entry) -> dict[str, Any]:
    return {"name": path, "size": entry.size, "type": "file", "mtime": entry.modified}
