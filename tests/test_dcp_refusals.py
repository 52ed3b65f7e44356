"""What distributed checkpoints refuse, by whom and with which words."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from bits import assert_same_bits
from dcp_plans import group_of_one, save_ranks  # noqa: F401
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import s4core.dcp as s4dcp
import s4weights
from s4weights import KeyNotFoundError, StateError


def test_another_dtype_raises_unless_casting_is_allowed(tmp_path: Path) -> None:
    s4dcp.save({"w": torch.tensor([1.5, 2.5])}, tmp_path / "x")
    for dtype in (torch.bfloat16, torch.int64):
        state = {"w": torch.zeros(2, dtype=dtype)}
        with pytest.raises(StateError, match=r"w is stored as torch\.float32.*allow_cast=True"):
            s4dcp.load(state, tmp_path / "x")
        assert_same_bits(torch.zeros(2, dtype=dtype), state["w"])
        s4dcp.load(state, tmp_path / "x", allow_cast=True)
        assert_same_bits(torch.tensor([1.5, 2.5]).to(dtype), state["w"])


def test_missing_keys_raise_and_extra_ones_are_left(tmp_path: Path) -> None:
    s4dcp.save({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "x")
    state = {"a": torch.zeros(2)}
    s4dcp.load(state, tmp_path / "x")
    assert_same_bits(torch.ones(2), state["a"])
    more = {"a": torch.zeros(2), "c": torch.zeros(2)}
    with pytest.raises(dcp.CheckpointException, match=r"Missing key in checkpoint state_dict: c"):
        s4dcp.load(more, tmp_path / "x")
    s4dcp.load(more, tmp_path / "x", planner=DefaultLoadPlanner(allow_partial_load=True))
    assert_same_bits(torch.ones(2), more["a"])
    with pytest.raises(dcp.CheckpointException, match="Size mismatch"):
        s4dcp.load({"a": torch.zeros(5)}, tmp_path / "x")


class Colour(enum.Enum):
    RED = 1


def test_values_of_users_classes_need_leave_on_both_sides(tmp_path: Path) -> None:
    state = {"v": Colour.RED, "w": torch.ones(2)}
    with pytest.raises(StateError, match="v.*allow_classes"):
        s4dcp.save(state, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    s4dcp.save(state, tmp_path / "x", allow_classes=True)
    loaded: dict[str, Any] = {"v": None, "w": torch.zeros(2)}
    with pytest.raises(StateError, match="weights_only=False"):
        s4dcp.load(loaded, tmp_path / "x")
    s4dcp.load(loaded, tmp_path / "x", weights_only=False)
    assert loaded["v"] is Colour.RED


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3, device="meta"), "no bits to save"),
        ((1, torch.ones(3, device="meta")), "no bits to save"),
        (torch.eye(3).to_sparse(), "sparse tensor cannot be cut into parts"),
        (lambda: 0, "cannot be stored|pickle"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(StateError, match=rf"(?s)odd.*({message})"):
        s4dcp.save({"odd": value}, tmp_path / "x")
    with pytest.raises(StateError, match=rf"(?s)odd.*({message})"):
        s4dcp.async_save({"odd": value}, tmp_path / "x").result(60)
    assert not list(tmp_path.glob(".s4/checkpoints/*"))


def test_modes_of_dcp_that_cannot_be_safe_are_refused(tmp_path: Path) -> None:
    writer = s4dcp.S4StorageWriter(tmp_path / "x")
    caching = DefaultSavePlanner(enable_plan_caching=True)
    dcp.save({"w": torch.ones(2)}, storage_writer=writer, planner=caching)
    with pytest.raises(dcp.CheckpointException, match="enable_plan_caching=False"):
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, planner=caching)
    with pytest.raises(StateError, match="use_collectives=False"):
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, use_collectives=False)


def test_part_of_a_tensor_is_no_checkpoint(tmp_path: Path) -> None:
    tensor = torch.ones(4, 4)
    with pytest.raises(StateError, match="w: the ranks that saved hold 8 of 16 elements"):
        save_ranks(tmp_path / "x", {"w": tensor}, [[("w", ((0, 0), (2, 4)))]])
    assert not (tmp_path / "x").exists()


def test_two_saves_of_one_writer_at_a_time_fail_loudly(tmp_path: Path) -> None:
    writer = s4dcp.S4StorageWriter(tmp_path / "x")
    first = writer.stage({"w": torch.ones(100)})
    writer.stage({"w": torch.zeros(100)})
    with pytest.raises(dcp.CheckpointException, match="Wait for one async_save before the next"):
        dcp.save(first, storage_writer=writer)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match="nothing is stored there"):
        s4dcp.load({}, tmp_path / "x")


def test_a_checkpoint_saved_whole_is_sent_to_load(tmp_path: Path) -> None:
    s4weights.save({"w": torch.ones(2)}, tmp_path / "x.s4")
    with pytest.raises(StateError, match="load it with s4weights.load"):
        s4dcp.load({"w": torch.ones(2)}, tmp_path / "x.s4")


def test_a_planner_that_turns_what_was_staged_is_refused(tmp_path: Path) -> None:
    class Turned(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return super().transform_object(write_item, object.t())

    state = {"w": torch.randn(20, 20)}
    s4dcp.save(state, tmp_path / "x", planner=Turned())
    assert_same_bits(state["w"].t(), s4weights.load(tmp_path / "x")["w"])
    with pytest.raises(StateError, match="w: the planner changed a tensor"):
        s4dcp.async_save(state, tmp_path / "y", planner=Turned()).result(60)
