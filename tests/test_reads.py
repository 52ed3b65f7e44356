"""Partial reads: a slice of one tensor, tensors when they are asked for, few requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from bits import assert_same_bits, assert_same_state
from hypothesis import given, settings
from hypothesis import strategies as st

from s4core.checkpoint import Options, Run
from s4core.stores import MemoryStore
from s4weights import ChecksumError, KeyNotFoundError, StateError

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.uint8]
SIZE = 300_007


class Counting(MemoryStore):
    """Counts requests and the bytes they bring."""

    requests = 0
    fetched = 0

    def child(self, prefix: str) -> Counting:
        found = super().child(prefix)
        found.__class__ = Counting
        return found  # type: ignore[return-value]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        Counting.requests += 1
        Counting.fetched += sum(length for _, length in ranges)
        return super().get_ranges(key, ranges)

    def put(self, key: str, data: Any, **options: Any) -> None:
        Counting.requests += 1
        super().put(key, data, **options)


@lru_cache
def tensors(step: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    base = torch.randn(SIZE, generator=random)
    found = {str(dtype).removeprefix("torch."): (base * 100).to(dtype) for dtype in DTYPES}
    found["float32"] = base + 1e-6 * step
    found["2d"] = base[: 300 * 1000].reshape(300, 1000).clone()
    found["transposed"] = base[:6000].reshape(60, 100).t()
    found["tiny[*]"] = torch.arange(5)
    return found


@pytest.fixture(scope="module")
def run() -> Run:
    run = Run(Counting("slices"), Options(max_depth=3))
    for step in range(4):
        run.save(tensors(step), step)
    return run


@pytest.mark.parametrize("step", [0, 3])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_slice_is_what_the_whole_tensor_holds_there(
    run: Run, step: int, data: st.DataObject
) -> None:
    wanted = tensors(step)
    path = data.draw(st.sampled_from(sorted(wanted)))
    count = wanted[path].numel()
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    found = run.reader(step).slice(path, start, stop)
    assert_same_bits(wanted[path].reshape(-1)[start:stop].contiguous(), found)


def test_a_slice_fetches_only_its_chunks() -> None:
    run = Run(Counting("one-tensor"), Options(max_depth=3))
    w = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0))
    for step in range(3):
        run.save({"w": w + 1e-6 * step}, step)
    reader = run.reader(2)
    assert reader.manifest.depth == 2
    reader.slice("w", 0, 1)  # the index of each shard is there now
    Counting.fetched = 0
    found = reader.slice("w", 1000, 1100)
    one = Counting.fetched
    assert_same_bits(w[1000:1100] + 1e-6 * 2, found)
    reader.select(["w"])
    assert 0 < one < 0.2 * (Counting.fetched - one)


def test_what_is_not_there_is_told(run: Run) -> None:
    reader = run.reader(0)
    with pytest.raises(KeyNotFoundError, match="no tensor with elements is called 'nothing'"):
        reader.slice("nothing", 0, 1)
    for start, stop in ((-1, 2), (3, 2), (0, SIZE + 1)):
        with pytest.raises(StateError, match=f"has {SIZE} elements: expected 0 <= start <= stop"):
            reader.slice("float32", start, stop)


def test_damage_in_a_slice_is_found() -> None:
    run = Run(MemoryStore("slice-damage"))
    run.save({"w": torch.randn(SIZE)}, 1)
    (entry,) = run.repository.store.list("shards/")
    data = bytearray(run.repository.store.get(entry.key))
    data[5000] ^= 1
    run.repository.store.put(entry.key, data, replace=True)
    with pytest.raises(ChecksumError, match="is damaged"):
        run.reader(1).slice("w", 0, SIZE)


def test_lazy_tensors_are_read_when_they_are_asked_for(run: Run) -> None:
    lazy = run.reader(3).lazy()
    wanted = tensors(3)
    assert set(lazy) == set(wanted)
    assert len(lazy) == len(wanted)
    Counting.fetched = 0
    assert_same_state(wanted["tiny[*]"], lazy["tiny[*]"])
    assert Counting.fetched == 0  # it lies in the manifest
    assert_same_state(wanted["2d"], lazy["2d"])
    assert 0 < Counting.fetched < 3 * 4 * SIZE
    with pytest.raises(KeyError):
        lazy["nothing"]


def test_thousands_of_small_tensors_are_saved_and_loaded_in_few_requests() -> None:
    run = Run(Counting("many-tensors"))
    count = 10_000 if os.environ.get("S4_SOAK") else 2000
    random = torch.randn(count, 1024, generator=torch.Generator().manual_seed(0))
    state = {f"layer{number}": random[number].clone() for number in range(count)}
    Counting.requests = 0
    run.save(state, 1)
    assert Counting.requests <= 4  # marker, shard, manifest, ref
    Counting.requests = 0
    found = Run(Counting("many-tensors")).load(1)
    assert Counting.requests <= 6
    for number in (0, count // 2, count - 1):
        assert_same_bits(state[f"layer{number}"], found[f"layer{number}"])


def test_a_thousand_checkpoints_are_listed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(MemoryStore("thousand"))
    state = {"w": torch.ones(100)}
    run.save(state, 1)
    ref = run.directory.get("step-00000001.ckpt")
    for step in range(2, 1001):
        run.directory.put(f"step-{step:08d}.ckpt", ref)
    asked: list[str] = []
    listing = MemoryStore.list

    def count(self: MemoryStore, prefix: str = "", *, shallow: bool = False) -> Any:
        asked.append(prefix)
        assert shallow  # what lies below .s4 costs nothing
        return listing(self, prefix, shallow=shallow)

    monkeypatch.setattr(MemoryStore, "list", count)
    assert run.steps() == list(range(1, 1001))
    assert len(asked) == 1
    assert len(run.names()) == 1000
    assert len(asked) == 2
