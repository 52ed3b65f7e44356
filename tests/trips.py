"""A state through the tree and back, the way a checkpoint takes it: JSON and fresh memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from s4core import tree
from s4core.tree import FlatState, Grouping, TensorLeaf

__all__ = ["flat_trip", "reload", "round_trip"]


def reload(leaves: Sequence[TensorLeaf]) -> tuple[Grouping, list[Tensor | None]]:
    """Store the leaves as bytes of arrays and place them in fresh memory."""
    grouped = tree.group_storages(leaves)
    arrays = [_copy(array) for array in grouped.arrays]
    placed: list[Tensor | None] = [
        tree.meta_tensor(place.dtype, place.shape, place.stride)
        if place.array is None
        else tree.place(arrays[place.array], place.dtype, place.shape, place.stride, place.offset)
        for place in grouped.places
    ]
    return grouped, placed


def _copy(array: tree.ArrayGroup) -> Tensor:
    words = array.gather()
    assert (words.shape, words.stride()) == ((array.numel,), (1,)), array
    assert str(words.dtype) == f"torch.{array.dtype}"
    fresh = tree.empty(array.dtype, array.numel, "cpu")
    fresh.view(torch.uint8).copy_(words.view(torch.uint8).cpu())
    return fresh


def flat_trip(flat: FlatState, *, weights_only: bool = True) -> Any:
    """Load what `flatten` gave, through JSON and bytes."""
    text = json.dumps(flat.tree, allow_nan=False)
    _, placed = reload(flat.leaves)
    return tree.unflatten(json.loads(text), placed, weights_only=weights_only)


def round_trip(state: Any, *, weights_only: bool = True, **allowed: bool) -> Any:
    """Flatten and load a state."""
    return flat_trip(tree.flatten(state, **allowed), weights_only=weights_only)
