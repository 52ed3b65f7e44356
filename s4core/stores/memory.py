"""A store in this process's memory: for tests, and for trying things out.

Stores of the same name share their objects within one process. It promises everything
but what memory cannot: nothing survives the process, and a forked child or another
process that unpickles a store has a memory of its own from then on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from s4core.stores.base import (
    Entry,
    Put,
    Store,
    check_key,
    join_key,
    key_exists,
    key_not_found,
    truncated,
)

__all__ = ["MemoryStore"]


@dataclass(frozen=True)
class _Held:
    data: bytes
    modified: float


# Only operations that one dict performs as a whole are used (setdefault, assignment,
# pop, copying): no lock, so a fork cannot copy one that is held.
_MEMORIES: dict[str, dict[str, _Held]] = {}


class MemoryStore(Store):
    """Objects held by name in this process.

    Args:
        name: Stores of one name share their objects.
        prefix: View only the keys below it.
    """

    def __init__(self, name: str, prefix: str = "") -> None:
        if prefix:
            check_key(prefix)
        self._name = name
        self._prefix = prefix

    @property
    def url(self) -> str:
        """``memory://name/prefix``."""
        return join_key(f"memory://{self._name}", self._prefix).rstrip("/")

    def child(self, prefix: str) -> MemoryStore:
        """A view of the keys below `prefix`."""
        check_key(prefix)
        return MemoryStore(self._name, join_key(self._prefix, prefix))

    def sweep_unfinished(self, older_than_seconds: float, *, shallow: bool = False) -> int:  # noqa: ARG002 (none exist)
        """Nothing: a put happens in one step here."""
        return 0

    def _put(self, key: str, views: Iterator[memoryview], how: Put) -> None:
        held = _Held(b"".join(views), time.time())
        objects, name = self._objects(), join_key(self._prefix, key)
        if how.replace:
            objects[name] = held
        elif objects.setdefault(name, held) is not held:
            raise key_exists(self.url_of(key))

    def _get(self, key: str) -> bytes:
        held = self._objects().get(join_key(self._prefix, key))
        if held is None:
            raise key_not_found(self.url_of(key))
        return held.data

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        data = self._get(key)
        for offset, length in ranges:
            if offset + length > len(data):
                raise truncated(self.url_of(key), offset, length, len(data))
        return [data[offset : offset + length] for offset, length in ranges]

    def _size(self, key: str) -> int:
        return len(self._get(key))

    def _list(self, prefix: str, shallow: bool) -> Iterator[Entry]:
        root = join_key(self._prefix, "")
        found = [item for item in self._objects().copy().items() if item[0].startswith(root)]
        for name, held in sorted(found, key=lambda item: item[0]):
            key = name[len(root) :]
            if key.startswith(prefix) and not (shallow and "/" in key[len(prefix) :]):
                yield Entry(key, len(held.data), held.modified)

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects().pop(join_key(self._prefix, key), None)

    def _objects(self) -> dict[str, _Held]:
        # Looked up at each use: after unpickling, this process's memory of that name.
        return _MEMORIES.setdefault(self._name, {})
