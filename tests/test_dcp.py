"""Distributed checkpoints in one process: any cut, any box, errors that say what is wrong."""

from __future__ import annotations

import json
import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from bits import assert_same_bits, assert_same_state
from dcp_plans import (  # noqa: F401
    Box,
    cut,
    group_of_one,
    load_box,
    manifest_of,
    save_ranks,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import Shard as ShardPlacement

import s4core.dcp as s4dcp
import s4weights
from s4core.dcp import sources
from s4core.tree.tiling import tiles
from s4weights import StateError

# --- laws ---


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A size and boxes that tile it: a grid."""
    size = draw(st.lists(st.integers(0, 9), max_size=3))
    inner = [st.integers(1, length - 1) if length > 1 else st.nothing() for length in size]
    ticks = [
        [0, *sorted(draw(st.sets(between))), length]
        for between, length in zip(inner, size, strict=True)
    ]
    spans = [list(pairwise(marks)) for marks in ticks]
    boxes = [(tuple(a for a, _ in cell), tuple(b - a for a, b in cell)) for cell in product(*spans)]
    return tuple(size), draw(st.permutations(boxes))


@st.composite
def boxes_in(draw: st.DrawFn, size: tuple[int, ...]) -> Box:
    offsets = tuple(draw(st.integers(0, length)) for length in size)
    return offsets, tuple(
        draw(st.integers(0, length - start)) for length, start in zip(size, offsets, strict=True)
    )


@given(cuts(), st.data())
def test_boxes_tile_iff_every_element_is_in_exactly_one(
    tiling: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    size, boxes = tiling
    assert tiles(size, boxes)
    changed = [*boxes, data.draw(boxes_in(size))]
    removed = data.draw(st.integers(0, len(boxes)))
    changed = changed[:removed] + changed[removed + 1 :]
    count = np.zeros(size, np.int64)
    for offsets, sizes in changed:
        count[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] += 1
    assert tiles(size, changed) == bool((count == 1).all())


@pytest.mark.parametrize(
    ("size", "boxes"),
    [
        ((4,), [((0,), (5,))]),
        ((4,), [((-1,), (4,))]),
        ((4,), [((0, 0), (4, 1))]),
        ((), []),
        ((), [((), ()), ((), ())]),
        ((3,), [((0,), (2,)), ((1,), (2,))]),
        ((2, 2), [((0, 0), (2, 1)), ((0, 0), (2, 1))]),
        ((2,) * 9, [(corner, (1,) * 9) for corner in product((0, 1), repeat=9)]),
    ],
)
def test_what_is_no_tiling(size: tuple[int, ...], boxes: list[Box]) -> None:
    assert not tiles(size, boxes)


@settings(max_examples=30)
@given(
    tiling=cuts(),
    ranks=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.int64]),
    data=st.data(),
)
def test_any_box_of_any_cut_is_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory,
    tiling: tuple[tuple[int, ...], list[Box]],
    ranks: int,
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    size, boxes = tiling
    raw = torch.randint(0, 256, (math.prod(size) * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).view(size)
    held = [[("w", box) for box in boxes[rank::ranks]] for rank in range(ranks)]
    url = tmp_path_factory.mktemp("cut") / "x.ckpt"
    save_ranks(url, {"w": tensor}, held)
    wanted = data.draw(boxes_in(size))
    assert_same_bits(cut(tensor, wanted), load_box(url, "w", dtype, wanted))
    assert_same_bits(tensor, s4weights.load(url)["w"])


# --- states ---


def everything() -> dict[str, Any]:
    torch.manual_seed(1)
    weight = torch.randn(50, 40)
    weight.view(torch.int32)[0, :3] = torch.tensor([0x7FA00001, -0x80000000, 1])
    mesh = init_device_mesh("cpu", (1,))
    return {
        "model": {"w": weight, "tied": weight, "half": weight[3:], "t": weight.t()},
        "mask": weight > 0,
        "sharded": distribute_tensor(torch.randn(5, 3), mesh, [ShardPlacement(0)]),
        "list": [torch.arange(3), {"deep": torch.ones(2, 2, dtype=torch.complex64)}, "text"],
        "grad": torch.nn.Parameter(torch.randn(3)),
        "conj": torch.randn(4, dtype=torch.complex64).conj(),
        "values": {
            "pair": (1, torch.randn(300), None),
            "numpy": np.arange(40, dtype="<i2"),
            "bytes": b"x" * 3000,
            "odd/~key": float("inf"),
            "$": -0.0,
            "empty": [],
        },
    }


def blank(value: Any) -> Any:
    """The same state with other contents."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: blank(below) for key, below in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    return None


def as_plain(state: dict[str, Any]) -> dict[str, Any]:
    state = dict(state)
    state["sharded"] = state["sharded"].full_tensor()
    state["conj"] = state["conj"].resolve_conj()
    state["grad"] = state["grad"].detach()
    return state


@pytest.mark.parametrize("how", ["now", "behind", "encoded ahead"])
def test_a_state_comes_back_through_dcp_and_through_load(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, url = everything(), tmp_path / "x.ckpt"
    if how == "encoded ahead":  # as arrays on a GPU are
        monkeypatch.setattr(sources, "encode_ahead", lambda words: words.nbytes > 64)
    if how != "now":
        info = s4dcp.async_save(state, url, step=5).result(60)
    else:
        info = s4dcp.save(state, url, step=5)
    assert info is not None
    assert (info.step, info.kind, info.url) == (5, "base", str(url))
    assert info.raw_bytes > 10_000
    loaded = blank(everything())
    s4dcp.load(loaded, url)
    assert_same_state(as_plain(everything()), as_plain(loaded), stride=False)
    whole = s4weights.load(url)
    assert whole["grad"].requires_grad
    whole["grad"] = whole["grad"].detach()
    expected = as_plain(everything())
    assert_same_state(expected, whole, stride=False)


def test_memory_that_is_shared_is_stored_once(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    info = s4dcp.save({"a": weight, "b": weight, "c": weight[10:]}, tmp_path / "x")
    assert info is not None
    assert info.raw_bytes == 64 * 64 * 4
    assert s4dcp.async_save({"a": weight, "b": weight[1:]}, tmp_path / "y").result(60) is not None
    (manifest,) = [json.loads(manifest_of(tmp_path / "y").read_bytes())]
    assert manifest["raw_bytes"] == 64 * 64 * 4


def test_the_same_writer_saves_behind_again_and_again(tmp_path: Path) -> None:
    writer = s4dcp.S4StorageWriter(tmp_path / "0")
    weight = torch.zeros(100, 100)
    for number in range(4):
        weight.fill_(number)
        saving: Any = dcp.async_save(
            {"w": weight}, checkpoint_id=tmp_path / str(number), storage_writer=writer
        )
        weight.fill_(-1)
        saving.result()
    for number in range(4):
        found = s4weights.load(tmp_path / str(number))["w"]
        assert_same_bits(torch.full((100, 100), float(number)), found)


@pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")
def test_sharded_tensors_of_older_torch(tmp_path: Path) -> None:
    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        shards = [
            Shard.from_tensor_and_offsets(torch.randn(3, 4), [0, 0], 0),
            Shard.from_tensor_and_offsets(torch.randn(2, 4), [3, 0], 0),
        ]
        return sharded_tensor.init_from_local_shards(shards, 5, 4)

    s4dcp.save({"s": made(1)}, tmp_path / "now")
    saving = s4dcp.async_save({"s": (state := made(1))}, tmp_path / "behind")
    for shard in state.local_shards():
        shard.tensor.zero_()
    saving.result(60)
    expected = torch.cat([shard.tensor for shard in made(1).local_shards()])
    for name in ("now", "behind"):
        loaded = {"s": made(2)}
        s4dcp.load(loaded, tmp_path / name)
        found = torch.cat([shard.tensor for shard in loaded["s"].local_shards()])
        assert_same_bits(expected, found)
        assert_same_bits(expected, s4weights.load(tmp_path / name)["s"])


def test_torch_can_rebuild_the_state_from_the_metadata_alone(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    state = {"a": {"b": torch.arange(4)}, "c": [1, "x"]}
    s4dcp.save(state, tmp_path / "x")
    reader = s4dcp.S4StorageReader(tmp_path / "x")
    assert_same_state(state, _load_state_dict_from_keys(storage_reader=reader))


def test_a_flat_state_stays_flat(tmp_path: Path) -> None:
    state = {"a.b": torch.arange(4), "v": {"n": 1}}
    planner = DefaultSavePlanner(flatten_state_dict=False)
    s4dcp.save(state, tmp_path / "x", planner=planner)
    assert_same_state(state, s4weights.load(tmp_path / "x"))
    loaded: dict[str, Any] = {"a.b": torch.zeros(4, dtype=torch.int64), "v": None}
    flat = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    s4dcp.load(loaded, tmp_path / "x", planner=flat)
    assert_same_state(state, loaded)


def test_a_planner_that_converts_is_followed(tmp_path: Path) -> None:
    class Half(DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            for item in plan.items:
                if item.tensor_data is not None:
                    item.tensor_data.properties.dtype = torch.float16
            return plan

        def transform_object(self, write_item: Any, object: Any) -> Any:
            found = super().transform_object(write_item, object)
            return found.half() if isinstance(found, Tensor) else found

    state = {"w": torch.randn(40), "v": {"n": [1, 2]}}
    s4dcp.save(state, tmp_path / "x", planner=Half())
    expected = {"w": state["w"].half(), "v": {"n": [1, 2]}}
    assert_same_state(expected, s4weights.load(tmp_path / "x"))
    with pytest.raises(StateError, match="w: the planner changed a tensor|no bits to save"):
        s4dcp.async_save(state, tmp_path / "y", planner=Half()).result(60)


def test_values_may_change_as_soon_as_async_save_returns(tmp_path: Path) -> None:
    state = {"v": {"numpy": np.arange(5000), "list": [1, 2], "in": (torch.ones(50),)}}
    writer = s4dcp.S4StorageWriter(tmp_path / "x")
    staged = writer.stage(state)
    state["v"]["numpy"][:] = 0
    state["v"]["list"].append(3)  # type: ignore[attr-defined]
    state["v"]["in"][0].zero_()  # type: ignore[union-attr]
    dcp.save(staged, storage_writer=writer)
    expected = {"v": {"numpy": np.arange(5000), "list": [1, 2], "in": (torch.ones(50),)}}
    assert_same_state(expected, s4weights.load(tmp_path / "x"))


def test_planner_data_of_other_kinds_is_kept(tmp_path: Path) -> None:
    class Extra(DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            metadata.planner_data = ["per rank", (1, 2)]
            return plans, metadata

    s4dcp.save({"w": torch.ones(3)}, tmp_path / "x", planner=Extra())
    metadata = s4dcp.S4StorageReader(tmp_path / "x").read_metadata()
    assert metadata.planner_data == ["per rank", (1, 2)]


def test_dtensor_targets_are_filled_in_place(tmp_path: Path) -> None:
    mesh = init_device_mesh("cpu", (1,))
    tensor = torch.randn(5, 3)
    s4dcp.save({"d": tensor}, tmp_path / "x")
    target = distribute_tensor(torch.zeros(5, 3), mesh, [ShardPlacement(1)])
    s4dcp.load({"d": target}, tmp_path / "x")
    assert isinstance(target, DTensor)
    assert_same_bits(tensor, target.full_tensor())
