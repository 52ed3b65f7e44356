"""`s4://bucket/run/last.ckpt`: checkpoints on S3 as files, for tools that speak fsspec.

`s4://` is `s3://` seen through this library's own S3 client: nothing is cached, an error
is never "there is nothing", a name exists iff its checkpoint is committed and not removed.
Reading a checkpoint gives what `torch.save` would have written, so that tools that know
only torch files can load it; removing one keeps what other checkpoints stand on.

The one file that imports fsspec; `pip install fsspec` (Lightning and torch bring it).
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, ClassVar, Final

from fsspec import register_implementation
from fsspec.spec import AbstractFileSystem

from s4core.checkpoint import load, open_run
from s4core.checkpoint.foreign import dump_torch
from s4core.errors import FormatError, KeyNotFoundError, StoreError
from s4core.format import MAGIC
from s4core.refs import read_ref, split_url
from s4core.stores import Store, open_store

__all__ = ["PROTOCOL", "S4FileSystem", "register", "to_s4"]

PROTOCOL: Final = "s4"


def register() -> None:
    """Tell fsspec of `s4://`, where no installed package has."""
    register_implementation(PROTOCOL, S4FileSystem, clobber=True)


def to_s4(url: str) -> str:
    """Return `s4://...` for `s3://...`; anything else stays."""
    return f"s4://{url[5:]}" if url.startswith("s3://") else url


class S4FileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Checkpoints on S3 as files. Paths are `bucket/key`, with or without `s4://`."""

    protocol: ClassVar[str] = PROTOCOL
    cachable: ClassVar[bool] = False
    root_marker: ClassVar[str] = ""

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size in bytes and type of a file or directory.

        Raises:
            KeyNotFoundError: nothing is there (also FileNotFoundError).
            StoreError: it could not be found out.
        """
        bare = self._strip_protocol(path)
        directory = {"name": bare, "size": 0, "type": "directory"}
        if "/" not in bare:
            return directory
        store, name = self._split(bare)
        try:
            return {"name": bare, "size": store.size(name), "type": "file"}
        except KeyNotFoundError:
            if any(True for _ in store.list(f"{name}/")):
                return directory
            raise

    def exists(self, path: str, **_: Any) -> bool:
        """Whether something is there; a failure to find out raises."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether it is a directory; a failure to find out raises."""
        return self.exists(path) and self.info(path)["type"] == "directory"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the files that lie directly in a directory, or the file itself."""
        bare = self._strip_protocol(path)
        entries = [
            {"name": f"{bare}/{entry.key}", "size": entry.size, "type": "file"}
            for entry in open_store(f"s3://{bare}").list(shallow=True)
        ]
        if not entries and self.info(bare)["type"] == "file":
            entries = [self.info(bare)]
        return entries if detail else [entry["name"] for entry in entries]

    def modified(self, path: str) -> datetime:
        """Return when it was put, by the store's clock."""
        store, name = self._split(path)
        for entry in store.list(name, shallow=True):
            if entry.key == name:
                return datetime.fromtimestamp(entry.modified, timezone.utc)
        raise KeyNotFoundError(f"{path}: nothing is stored there")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: directories are parts of names."""

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: directories are parts of names."""

    def rm(self, path: str | Iterable[str], recursive: bool = False, **_: Any) -> None:
        """Remove files; what other checkpoints stand on stays.

        Raises:
            StoreError: `recursive`, which could only break chains.
        """
        if recursive:
            raise StoreError(f"{path}: only single checkpoints are removed; see `s4weights rm`")
        for each in [path] if isinstance(path, str) else path:
            self.rm_file(each)

    def rm_file(self, path: str) -> None:
        """Remove a checkpoint, or a file of another tool."""
        store, name = self._split(path)
        try:
            read_ref(store, name)
        except FormatError:
            store.delete([name])
        else:
            open_run(store.url).remove(name=name)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        store, name = self._split(path)
        if mode == "wb":
            return _Upload(store, name)
        if mode != "rb":
            raise StoreError(f"{path}: opened with mode {mode!r}; expected 'rb' or 'wb'")
        if _is_checkpoint(store, name):
            return io.BytesIO(dump_torch(load(store.url_of(name), "cpu")))
        return io.BytesIO(store.get(name))

    def _split(self, path: str) -> tuple[Store, str]:
        return split_url(f"s3://{self._strip_protocol(path)}")


def _is_checkpoint(store: Store, name: str) -> bool:
    (head,) = store.get_ranges(name, [(0, min(store.size(name), len(MAGIC)))])
    if head == MAGIC:
        return True
    try:
        read_ref(store, name)
    except FormatError:
        return False
    return True


class _Upload(io.BytesIO):
    """What is written is put when it is closed, unless an error ends the `with` before."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__()
        self._store, self._name, self._wanted = store, name, True

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._wanted = kind is None
        self.close()

    def close(self) -> None:
        if not self.closed and self._wanted:
            self._store.put(self._name, self.getvalue(), replace=True)
        super().close()
