"""Every promise of `s4core.stores.Store`, as tests that each store inherits.

A subclass gives a fixture `store` (empty), and says what an unfinished put leaves.
"""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_suite_puts import MiB, PutSuite, pattern

from s4core.errors import KeyNotFoundError, StoreError, TruncatedError
from s4core.stores import Store, open_store

__all__ = ["ODD_KEYS", "MiB", "StoreSuite", "pattern"]

ODD_KEYS = [
    "epoch=3-step=40.ckpt",
    "with space/and more ",
    "plus+and%percent%2Fslash",
    "Ünïcödé/模型/🧠",
    "q?u&e#r;y'\"<>*[x]",
    "back\\slash",
    "...",
    ".hidden/..double",
    "a" * 200,
]
BAD_KEYS = [
    ("", "empty segment"),
    ("/a", "empty segment"),
    ("a/", "empty segment"),
    ("a//b", "empty segment"),
    ("..", "leave the store"),
    ("a/../b", "leave the store"),
    ("./a", "leave the store"),
    ("a\0b", "NUL"),
    ("a\ud800", "not valid Unicode"),
    (".s4tmp-1/a", "reserved"),
    ("a/.s4tmp-x", "reserved"),
]
BAD_PREFIXES = [("/", "starts with"), ("a//", "empty segment"), ("../a", "leave"), ("a\0", "NUL")]


# Every store runs the same test, and adds to the same objects from one example to the next.
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


class StoreSuite(PutSuite):
    odd_keys: ClassVar[list[str]] = ODD_KEYS

    # 6. Exact ranges.

    def test_ranges_come_in_the_order_asked(self, store: Store) -> None:
        data = pattern(5000)
        store.put("a", data)
        ranges = [(4000, 1000), (0, 1), (0, 5000), (0, 0), (10, 20), (15, 20), (10, 20), (9999, 0)]
        expected = [data[offset : offset + length] for offset, length in ranges]
        assert store.get_ranges("a", ranges) == expected
        assert all(type(piece) is bytes for piece in store.get_ranges("a", ranges))
        assert store.get_ranges("a", []) == []

    @settings(max_examples=15, suppress_health_check=SHARED)
    @given(ranges=st.lists(st.tuples(st.integers(0, 40 * MiB - 1), st.integers(0, 2 * MiB))))
    def test_ranges_are_slices(self, store: Store, ranges: list[tuple[int, int]]) -> None:
        data = bytes(range(256)) * (42 * MiB // 256)
        if not store.exists("a"):
            store.put("a", data)
        expected = [data[offset : offset + length] for offset, length in ranges]
        assert store.get_ranges("a", ranges) == expected

    @pytest.mark.parametrize(
        "past", [(0, 101), (100, 1), (99, 2), (500, 5), (0, 1 << 62), (1 << 40, 1 << 50)]
    )
    def test_a_range_past_the_end_is_truncation(self, store: Store, past: tuple[int, int]) -> None:
        store.put("a", pattern(100))
        with pytest.raises(TruncatedError, match="found 100") as caught:
            store.get_ranges("a", [(0, 10), past, (50, 10)])
        message = str(caught.value)
        assert store.url_of("a") in message
        assert f"expected {past[1]} bytes at offset {past[0]}" in message

    def test_a_range_of_an_empty_object_is_truncation(self, store: Store) -> None:
        store.put("a", b"")
        with pytest.raises(TruncatedError, match="expected 1 bytes at offset 0.*found 0"):
            store.get_ranges("a", [(0, 1)])

    @pytest.mark.parametrize("bad", [(-1, 5), (5, -1), (1 << 63, 1), (1, (1 << 63) - 1)])
    def test_an_impossible_range_is_refused(self, store: Store, bad: tuple[int, int]) -> None:
        store.put("a", b"abc")
        with pytest.raises(StoreError, match="no such range"):
            store.get_ranges("a", [bad])

    # 7. Sorted listings.

    def test_list_is_sorted_and_takes_string_prefixes(self, store: Store) -> None:
        keys = ["a", "a-b", "ab/c", "ab/d/e", "ab-c", "ab.d", "b/é", "b/z", "b/Z", "b/0"]
        for key in keys:
            store.put(key, key.encode())
        for prefix in ["", "a", "ab", "ab/", "ab/d", "ab/d/", "b/", "b/z", "c", "c/d", "ab/c/"]:
            found = [entry.key for entry in store.list(prefix)]
            assert found == sorted(key for key in keys if key.startswith(prefix)), prefix

    def test_a_shallow_list_stays_in_its_directory(self, store: Store) -> None:
        keys = ["a", "ab", "b/a", "b/c/d", "b/c/e", "b-c/x", ".s4/shards/1/0-0.s4"]
        for key in keys:
            store.put(key, b"x")
        for prefix in ["", "a", "b", "b/", "b/c", "b/c/", "c/"]:
            below = [key for key in keys if key.startswith(prefix)]
            expected = sorted(key for key in below if "/" not in key[len(prefix) :])
            assert [entry.key for entry in store.list(prefix, shallow=True)] == expected, prefix

    def test_list_tells_size_and_time(self, store: Store) -> None:
        before = time.time()
        store.put("a", b"12345")
        (entry,) = store.list("a")
        assert (entry.key, entry.size) == ("a", 5)
        assert before - 5 <= entry.modified <= time.time() + 5

    def test_list_of_an_empty_store_is_empty(self, store: Store) -> None:
        assert list(store.list()) == []
        assert list(store.child("never/made").list("x")) == []

    def test_an_unfinished_put_is_not_listed(self, store: Store) -> None:
        seen: list[list[str]] = []

        def source() -> Iterator[bytes]:
            for _ in range(12):
                yield bytes(MiB)
            seen.append([entry.key for entry in store.list()])
            assert not store.exists("dir/a")

        store.put("dir/a", source())
        assert seen == [[]]
        assert [entry.key for entry in store.list()] == ["dir/a"]

    @pytest.mark.parametrize(("prefix", "reason"), BAD_PREFIXES)
    def test_bad_prefixes_are_refused(self, store: Store, prefix: str, reason: str) -> None:
        with pytest.raises(StoreError, match=reason):
            store.list(prefix)

    # 8. Idempotent deletion.

    def test_delete_is_idempotent(self, store: Store) -> None:
        for key in ["a", "dir/b", "dir/c"]:
            store.put(key, b"x")
        store.delete(["a", "dir/b", "a", "never", "dir", "a/below"])
        assert [entry.key for entry in store.list()] == ["dir/c"]
        store.delete(iter(["dir/c", "dir/b"]))
        store.delete([])
        assert list(store.list()) == []
        store.put("a", b"again")
        assert store.get("a") == b"again"

    def test_delete_takes_many_keys(self, store: Store) -> None:
        store.put("keep", b"x")
        store.put("k/2100", b"x")
        store.delete(f"k/{number}" for number in range(2200))
        assert [entry.key for entry in store.list()] == ["keep"]

    def test_delete_of_a_string_is_refused(self, store: Store) -> None:
        store.put("a", b"x")
        with pytest.raises(StoreError, match="pass \\[key\\]"):
            store.delete("a")
        assert store.exists("a")

    def test_a_bad_key_deletes_nothing(self, store: Store) -> None:
        store.put("a", b"x")
        with pytest.raises(StoreError, match="leave the store"):
            store.delete(["a", "../b"])
        assert store.exists("a")

    # 9. Errors with an address.

    @pytest.mark.parametrize(
        "ask",
        [
            lambda store, key: store.get(key),
            lambda store, key: store.size(key),
            lambda store, key: store.get_ranges(key, [(0, 1), (1 << 30, 1)]),
        ],
        ids=["get", "size", "get_ranges"],
    )
    @pytest.mark.parametrize("key", ["never", "never/made", "there/below"])
    def test_a_missing_key_is_named(
        self, store: Store, ask: Callable[[Store, str], object], key: str
    ) -> None:
        store.put("there", b"x")
        with pytest.raises(KeyNotFoundError, match="nothing is stored there") as caught:
            ask(store, key)
        assert store.url_of(key) in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)
        assert not store.exists(key)

    def test_a_part_of_a_key_is_no_key(self, store: Store) -> None:
        store.put("dir/a", b"x")
        assert not store.exists("dir")
        with pytest.raises(KeyNotFoundError, match="nothing is stored there"):
            store.get("dir")

    @pytest.mark.parametrize(("key", "reason"), BAD_KEYS)
    def test_bad_keys_are_refused(self, store: Store, key: str, reason: str) -> None:
        for ask in (store.get, store.size, store.exists, store.child):
            with pytest.raises(StoreError, match=reason):
                ask(key)
        with pytest.raises(StoreError, match=reason):
            store.put(key, b"x")
        with pytest.raises(StoreError, match=reason):
            store.get_ranges(key, [])
        with pytest.raises(StoreError, match=reason):
            store.delete([key])

    def test_odd_keys_are_kept_as_they_are(self, store: Store) -> None:
        for key in self.odd_keys:
            store.put(key, key.encode())
        assert [entry.key for entry in store.list()] == sorted(self.odd_keys)
        for key in self.odd_keys:
            assert store.get(key) == key.encode()
            assert store.size(key) == len(key.encode())
            assert [entry.key for entry in store.list(key)] == [key]
        store.delete(self.odd_keys)
        assert list(store.list()) == []

    # 10. Shared freely.

    def test_threads_share_a_store(self, store: Store) -> None:
        def put_and_get(number: int) -> bool:
            key, data = f"t/{number}", pattern(1000, number)
            store.put(key, [data, data])
            return store.get(key) == data + data and store.get_ranges(key, [(0, 9)]) == [data[:9]]

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(put_and_get, range(32)))

    def test_a_store_survives_pickling(self, store: Store) -> None:
        store.put("dir/a", pattern(11 * MiB))
        again: Store = pickle.loads(pickle.dumps(store))
        assert again.url == store.url
        assert again.get("dir/a") == store.get("dir/a")
        child: Store = pickle.loads(pickle.dumps(store.child("dir")))
        assert child.size("a") == 11 * MiB

    def test_a_store_survives_fork(self, store: Store) -> None:
        data = pattern(11 * MiB)
        store.put("a", data)  # connections and threads exist now

        def in_child() -> bool:
            store.put("b", iter([data, data]))
            return store.get("b") == data + data and store.get_ranges("a", [(3, 4)]) == [data[3:7]]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point
            child = os.fork()
        if child == 0:
            os._exit(0 if in_child() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.get("a") == data

    # Views and addresses.

    def test_a_child_is_a_view(self, store: Store) -> None:
        child = store.child("run/1")
        child.put("a", b"x")
        store.put("run/1/b", b"y")
        store.put("run/10", b"not below")
        assert store.get("run/1/a") == b"x"
        assert [entry.key for entry in child.list()] == ["a", "b"]
        assert child.url_of("a") == store.url_of("run/1/a")
        assert child.child("deep").url == store.child("run/1/deep").url
        child.delete(["b"])
        assert not store.exists("run/1/b")

    def test_the_url_opens_the_same_store(self, store: Store) -> None:
        store.put("a/b", b"x")
        assert open_store(store.url).get("a/b") == b"x"
        assert open_store(store.url + "/a/").get("b") == b"x"
        assert store.url in repr(store)

    def test_a_sweep_spares_what_is_young_or_whole(self, store: Store) -> None:
        swept: list[int] = []

        def source() -> Iterator[bytes]:
            for _ in range(12):
                yield bytes(MiB)
            swept.append(store.sweep_unfinished(older_than_seconds=3600))

        store.put("a", b"x")
        store.put("b", source())
        assert swept == [0]
        assert store.sweep_unfinished(older_than_seconds=0) == 0
        assert store.sweep_unfinished(older_than_seconds=0, shallow=True) == 0
        assert [entry.key for entry in store.list()] == ["a", "b"]
