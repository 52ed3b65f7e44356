"""The promises of `Store` about putting: all or nothing, once, atomically, streaming."""

from __future__ import annotations

import array
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest

from s4core.errors import KeyExistsError, StoreError
from s4core.stores import Store

MiB = 1 << 20


class SourceError(Exception):
    """What a broken source of bytes raises in these tests."""


def pattern(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def broken_source(good_buffers: int, error: BaseException) -> Iterator[bytes]:
    for number in range(good_buffers):
        yield pattern(MiB, number)
    raise error


class Watched(bytearray):
    """A buffer whose life can be watched."""


class PutSuite:
    # Bytes of a streamed source that may be alive at a time; None: all of them.
    max_alive_bytes: ClassVar[int | None]
    # Whether of writers racing with parts exactly one wins.
    exclusive_parts: ClassVar[bool] = True

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    def left_behind(self, store: Store) -> list[str]:
        """Temporary files and unfinished uploads below the store's root."""
        raise NotImplementedError

    # 1. All or nothing.

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"bytes",
            bytearray(b"bytearray"),
            memoryview(b"0123456789")[2:7],
            array.array("d", [1.0, float("nan")]),
            np.arange(12, dtype=np.float32).reshape(3, 4),
            np.array(7, dtype=np.int64),
            np.zeros((0, 4)),
        ],
        ids=["empty", "bytes", "bytearray", "view", "array", "numpy", "0-dim", "no-elements"],
    )
    def test_put_stores_the_bytes_of_any_buffer(self, store: Store, data: bytes) -> None:
        store.put("one", data)
        store.put("several", [data, b"-", data])
        expected = memoryview(data).tobytes()
        assert store.get("one") == expected
        assert store.get("several") == expected + b"-" + expected
        assert store.size("one") == len(expected)

    def test_put_of_an_empty_iterable_stores_an_empty_object(self, store: Store) -> None:
        store.put("a", iter(()))
        assert store.get("a") == b""
        assert [(entry.key, entry.size) for entry in store.list()] == [("a", 0)]

    def test_put_refuses_a_buffer_that_is_not_contiguous(self, store: Store) -> None:
        with pytest.raises(StoreError, match="not C-contiguous"):
            store.put("a", memoryview(b"0123456789")[::2])
        assert not store.exists("a")
        assert self.left_behind(store) == []

    @pytest.mark.parametrize("good_buffers", [0, 1, 17])
    @pytest.mark.parametrize(
        "error",
        [SourceError("broken"), OSError(28, "no space, elsewhere"), KeyboardInterrupt()],
        ids=lambda error: type(error).__name__,
    )
    @pytest.mark.parametrize("replace", [False, True])
    def test_a_failing_source_leaves_nothing(
        self, store: Store, good_buffers: int, error: BaseException, replace: bool
    ) -> None:
        with pytest.raises(type(error)) as caught:
            store.put("dir/a", broken_source(good_buffers, error), replace=replace)
        assert caught.value is error
        assert not store.exists("dir/a")
        assert list(store.list()) == []
        assert self.left_behind(store) == []

    def test_a_failing_replacement_keeps_the_old_bytes(self, store: Store) -> None:
        store.put("a", b"old")
        with pytest.raises(SourceError):
            store.put("a", broken_source(12, SourceError()), replace=True)
        assert store.get("a") == b"old"

    # 2. Create-only by default.

    @pytest.mark.parametrize("size", [3, 11 * MiB])
    def test_put_never_replaces(self, store: Store, size: int) -> None:
        store.put("a", b"first")
        with pytest.raises(KeyExistsError, match="already exists and is never replaced") as caught:
            store.put("a", [pattern(size)])
        assert store.url_of("a") in str(caught.value)
        assert isinstance(caught.value, FileExistsError)
        assert store.get("a") == b"first"
        assert self.left_behind(store) == []

    @pytest.mark.parametrize(("writers", "size"), [(16, 2000), (4, 6 * MiB)])
    def test_of_racing_writers_one_wins(self, store: Store, writers: int, size: int) -> None:
        start = threading.Barrier(writers)

        def write(number: int) -> bool:
            start.wait()
            try:
                store.put("dir/key", [bytes([number]) * size])
            except KeyExistsError:
                return False
            return True

        with ThreadPoolExecutor(writers) as threads:
            won = list(threads.map(write, range(writers)))
        winners = [number for number in range(writers) if won[number]]
        assert len(winners) == 1 or (winners and size > MiB and not self.exclusive_parts)
        assert store.get("dir/key") in [bytes([number]) * size for number in winners]
        assert self.left_behind(store) == []

    # 3. Replace is atomic.

    def test_replace_puts_and_replaces(self, store: Store) -> None:
        store.put("ref", b"1", replace=True)
        store.put("ref", b"a longer text", replace=True)
        assert store.get("ref") == b"a longer text"
        store.put("ref", b"", replace=True)
        assert store.get("ref") == b""

    def test_readers_see_the_old_bytes_or_the_new(self, store: Store) -> None:
        versions = [bytes([number]) * (1000 + 37 * number) for number in range(40)]
        store.put("ref", versions[0])
        done = threading.Event()

        def read_all() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(store.get("ref"))
            return seen

        with ThreadPoolExecutor(3) as threads:
            readers = [threads.submit(read_all) for _ in range(3)]
            for version in versions:
                store.put("ref", version, replace=True)
            done.set()
            seen = set().union(*(reader.result() for reader in readers))
        assert seen <= set(versions)
        assert seen
        assert self.left_behind(store) == []

    # 5. Streaming.

    def test_a_long_stream_round_trips(self, store: Store) -> None:
        buffers = [pattern(size, size) for size in [1, 3 * MiB + 1, 0, 20 * MiB, 7, 17 * MiB]]
        store.put("big", iter(buffers), size_hint=sum(map(len, buffers)))
        assert store.get("big") == b"".join(buffers)

    def test_one_large_buffer_round_trips(self, store: Store) -> None:
        data = pattern(13 * MiB + 5)
        store.put("big", data)
        assert store.get("big") == data

    def test_a_stream_is_not_held_whole(self, store: Store) -> None:
        if self.max_alive_bytes is None:
            pytest.skip("this store is the memory that holds it")
        alive: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        most = 0

        def source() -> Iterator[bytearray]:
            nonlocal most
            for number in range(64):
                buffer = Watched(bytes([number]) * MiB)
                token = threading.Event()  # bytearrays cannot be hashed into a set
                buffer.token = token  # type: ignore[attr-defined]
                alive.add(token)
                del token
                most = max(most, len(alive))
                yield buffer
                del buffer

        store.put("big", source())
        assert store.size("big") == 64 * MiB
        assert most * MiB <= self.max_alive_bytes
