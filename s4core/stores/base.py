"""What every store promises, and the checks that all of them share.

A store holds named bytes. Its *keys* are relative, '/'-separated strings; its *root* is
where the caller opened it. The promises stand in the docstring of `Store`; each is
checked, for every store there is, by a test of `tests/store_suite.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from s4core.errors import KeyExistsError, KeyNotFoundError, StoreError, TruncatedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "TEMPORARY_PREFIX",
    "Entry",
    "Put",
    "Store",
    "check_key",
    "check_prefix",
    "join_key",
    "key_exists",
    "key_not_found",
    "truncated",
]

# A name that starts so is an unfinished write: never a key, never listed.
TEMPORARY_PREFIX = ".s4tmp-"

# Offsets travel as signed 64-bit integers through every file system and HTTP stack.
MAX_OFFSET_BYTES = 2**63 - 1


@dataclass(frozen=True)
class Entry:
    """One stored object, as a listing shows it.

    Attributes:
        key: Relative to the store that was listed.
        size: In bytes.
        modified: When it was put, in seconds since the epoch by the store's own clock.
    """

    key: str
    size: int
    modified: float


@dataclass(frozen=True)
class Put:
    """How to put, as `Store.put` was asked.

    Attributes:
        replace: What is there.
        size_hint: Expected bytes, if known.
        unique: Nobody else ever writes the key.
    """

    replace: bool
    size_hint: int | None
    unique: bool


class Store(ABC):
    """Named bytes under one root.

    Promises, each kept by every store:

    1. **All or nothing.** A put is visible whole or not at all. If it fails, is
       interrupted, or its source raises, nothing is visible and nothing is left behind
       (only if its very last request was under way then, the whole may be visible).
    2. **Create-only by default.** Putting an existing key raises `KeyExistsError` and
       changes nothing. Of any number of writers racing for one key exactly one wins, and
       a write whose acknowledgement was lost is known as one's own, never as a conflict.
    3. **Replace is atomic.** With ``replace=True`` a reader sees the old bytes or the new.
    4. **Durable.** When put returns, the bytes survive a crash of the machine.
    5. **Streaming.** An iterable source is never held whole in memory.
    6. **Exact ranges.** A range gives exactly the bytes asked for, in the order asked, or
       raises `TruncatedError`. An empty range asks for nothing and gives ``b""``.
    7. **Sorted listings.** `list` gives every key that starts with the prefix (a string
       prefix: ``"a"`` matches ``"a/b"`` and ``"ab"``), once, sorted by code point. What
       is unfinished is never listed. An error is never an empty listing.
    8. **Idempotent deletion.** Deleting what is not there is no error.
    9. **Errors with an address.** Only the tree of `s4core.errors`, with the full URL. A
       missing key is `KeyNotFoundError`, and never another error in disguise.
    10. **Shared freely.** By threads, across fork, and by pickle.

    A key holds at least one segment; no segment is empty, ``.``, ``..`` or starts with
    ``.s4tmp-``; no NUL, no leading '/'. Anything else is allowed ('=', spaces, '%', '+',
    Unicode). No key may be a directory of another: a local directory cannot hold both.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The root; `open_store` of it gives an equal store."""

    @abstractmethod
    def child(self, prefix: str) -> Store:
        """A view of the keys below `prefix`, which has the form of a key."""

    def url_of(self, key: str) -> str:
        """The full address of `key`, as error messages show it."""
        return f"{self.url.rstrip('/')}/{key}"

    def put(
        self,
        key: str,
        data: Buffer | Iterable[Buffer],
        *,
        replace: bool = False,
        size_hint: int | None = None,
        unique: bool = False,
    ) -> None:
        """Store `data` under `key`: whole, durable, or not at all.

        Args:
            key: Where.
            data: One C-contiguous buffer, or an iterable of them that is stored end to
                end and consumed once. No buffer may change until put returns.
            replace: Replace what is there, atomically. For refs only.
            size_hint: Expected total bytes of an iterable; it need not be exact.
            unique: The caller knows that nobody else ever writes `key`, as it holds random
                bits. Then "create-only" holds by itself, and a store may take a faster way.

        Raises:
            KeyExistsError: The key exists and `replace` is false.
            StoreError: And its relatives; or what the iterable itself raised.
        """
        check_key(key)
        try:
            whole = memoryview(data)  # type: ignore[arg-type]  # the question asked
        except TypeError:
            self._put(key, _views(data), Put(replace, size_hint, unique))  # type: ignore[arg-type]
        else:
            self._put(key, _views([whole]), Put(replace, whole.nbytes, unique))

    def get(self, key: str) -> bytes:
        """The bytes of one small object, whole.

        Raises:
            KeyNotFoundError: Nothing is stored under `key`.
        """
        check_key(key)
        return self._get(key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each ``(offset, length)``, in the order asked; both in bytes.

        Ranges may overlap, repeat and stand in any order.

        Raises:
            TruncatedError: A range ends past the end of the object.
            KeyNotFoundError: Nothing is stored under `key`.
        """
        check_key(key)
        for offset, length in ranges:
            _check_range(self.url_of(key), offset, length)
        wanted = [pair for pair in ranges if pair[1] > 0]
        found = iter(self._get_ranges(key, wanted) if wanted else ())
        return [next(found) if length else b"" for _, length in ranges]

    def size(self, key: str) -> int:
        """Stored bytes under `key`.

        Raises:
            KeyNotFoundError: Nothing is stored under `key`.
        """
        check_key(key)
        return self._size(key)

    def exists(self, key: str) -> bool:
        """Whether something is stored under `key`; a failure to find out raises."""
        try:
            self.size(key)
        except KeyNotFoundError:
            return False
        return True

    def list(self, prefix: str = "", *, shallow: bool = False) -> Iterator[Entry]:
        """Every key that starts with `prefix`, sorted; ``""`` lists the whole store.

        Args:
            prefix: What the keys start with.
            shallow: Only keys that have no '/' after `prefix`: what lies deeper costs nothing.
        """
        check_prefix(prefix)
        return self._list(prefix, shallow)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete each key, in batches where the store has them. Missing keys are no error."""
        if isinstance(keys, str):
            raise StoreError(f"delete takes several keys, found one string {keys!r}: pass [key]")
        checked = list_of_keys(keys)
        if checked:
            self._delete(checked)

    @abstractmethod
    def sweep_unfinished(self, older_than_seconds: float, *, shallow: bool = False) -> int:
        """End writes that a killed process left behind under this root.

        Args:
            older_than_seconds: Younger ones may belong to a living writer and stay.
            shallow: Only those whose key has no '/'.

        Returns:
            How many were ended.
        """

    @abstractmethod
    def _put(self, key: str, views: Iterator[memoryview], how: Put) -> None:
        """Put; `views` are flat, of bytes, and not empty."""

    @abstractmethod
    def _get(self, key: str) -> bytes: ...

    @abstractmethod
    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Get; every length is positive, every offset is not negative."""

    @abstractmethod
    def _size(self, key: str) -> int: ...

    @abstractmethod
    def _list(self, prefix: str, shallow: bool) -> Iterator[Entry]: ...

    @abstractmethod
    def _delete(self, keys: Sequence[str]) -> None:
        """Delete; `keys` is not empty and holds each key once."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def check_key(key: str) -> None:
    """Raise `StoreError` unless `key` may name an object in every store."""
    _check_text(key, "key")
    for segment in key.split("/"):
        _check_segment(segment, key)


def check_prefix(prefix: str) -> None:
    """Raise `StoreError` unless some key may start with `prefix`."""
    _check_text(prefix, "prefix")
    if prefix.startswith("/"):
        raise StoreError(f"prefix {prefix!r} starts with '/': keys are relative to the store")
    *directories, last = prefix.split("/")
    for segment in directories:
        _check_segment(segment, prefix)
    if last == "..":
        raise StoreError(f"key {prefix!r} holds '..', which would leave the store")


def list_of_keys(keys: Iterable[str]) -> list[str]:
    """Each key once, checked, in the order given."""
    unique = list(dict.fromkeys(keys))
    for key in unique:
        check_key(key)
    return unique


def join_key(prefix: str, key: str) -> str:
    """`key` below `prefix`, where ``""`` is the root."""
    return f"{prefix}/{key}" if prefix else key


def key_not_found(url: str) -> KeyNotFoundError:
    """The one error for a missing key."""
    return KeyNotFoundError(f"{url}: nothing is stored there; check the name, or list the store")


def key_exists(url: str) -> KeyExistsError:
    """The one error for a key that is taken."""
    return KeyExistsError(f"{url}: already exists and is never replaced; choose another name")


def truncated(url: str, offset: int, length: int, size: int) -> TruncatedError:
    """The one error for a range past the end; all numbers in bytes."""
    return TruncatedError(
        f"{url}: expected {length} bytes at offset {offset}, so at least {offset + length} "
        f"in all, found {size}: the object is cut short or not the one its index describes"
    )


def _views(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    """Each buffer as flat bytes, without a copy; empty ones are left out."""
    for buffer in buffers:
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise StoreError("a buffer to put is not C-contiguous; copy it first")
        if view.nbytes:
            yield view.cast("B")


def _check_range(url: str, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > MAX_OFFSET_BYTES:
        raise StoreError(
            f"{url}: no such range: offset {offset}, length {length}; both must be at least 0 "
            f"and end before 2**63"
        )


def _check_text(text: str, noun: str) -> None:
    if "\0" in text:
        raise StoreError(f"{noun} {text!r} holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{noun} {text!r} is not valid Unicode: {error.reason}") from error


def _check_segment(segment: str, key: str) -> None:
    if not segment:
        raise StoreError(
            f"key {key!r} has an empty segment: expected segments joined by single '/', "
            "none at the start or the end"
        )
    if segment in (".", ".."):
        raise StoreError(f"key {key!r} holds {segment!r}, which would leave the store")
    if segment.startswith(TEMPORARY_PREFIX):
        raise StoreError(f"key {key!r}: names that start with {TEMPORARY_PREFIX!r} are reserved")
