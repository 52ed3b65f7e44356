"""From the items of a save plan to plain tensors and nodes.

Tensors are views of the training's own memory, or stand for something that was staged.
Values are taken apart by the typed tree: no pickle, unless the caller allows it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from s4core import tree
from s4core.errors import StateError
from s4core.tree import Node, TensorLeaf, Way

__all__ = ["Leaves", "Resolved", "Rules", "flatten_at", "plain_leaf", "resolve", "way_of"]


@dataclass(frozen=True)
class Rules:
    """What may be stored beside tensors and Python's own values.

    Attributes:
        allow_pickle: leaves of any other class, pickled.
        allow_classes: enums and dataclasses, by the name of their class.
    """

    allow_pickle: bool = False
    allow_classes: bool = False


@dataclass(frozen=True)
class Leaves:
    """A value taken apart."""

    node: Node
    leaves: list[TensorLeaf]


@dataclass(frozen=True)
class Resolved:
    """One item of a plan with its data."""

    item: WriteItem
    way: Way | None
    parts: Leaves


def way_of(mapping: object, name: str) -> Way | None:
    """The way that the planner's mapping has for an item, if it is such a mapping."""
    way = mapping.get(name) if isinstance(mapping, Mapping) else None
    if not isinstance(way, tuple) or not way or type(way[0]) is not str:
        return None
    return way if all(type(step) in (str, int) for step in way) else None


def flatten_at(way: Way, value: Any, rules: Rules) -> Leaves:
    """Take a value apart that lies at `way`, so that paths and messages say where.

    Raises:
        StateError: it cannot be stored.
    """
    nested, keys = value, [str(step) for step in way]
    for key in reversed(keys):
        nested = {key: nested}
    flat = tree.flatten(nested, allow_pickle=rules.allow_pickle, allow_classes=rules.allow_classes)
    node = flat.tree
    for _ in keys:
        # A key with a `$` or a surrogate makes a node of kind `dict`.
        node = node["items"][0][1] if "$" in node else next(iter(node.values()))
    return Leaves(node, flat.leaves)


def plain_leaf(way: Way, value: Tensor) -> Leaves:
    """Take a tensor apart that must be plain: strided bits of one dtype.

    Raises:
        StateError: it is sparse, quantized, nested, a wrapper, or cannot be stored at all.
    """
    found = flatten_at(way, value.detach().resolve_conj().resolve_neg(), Rules())
    if found.node["$"] != "tensor":
        raise StateError(
            f"{'.'.join(map(str, way))}: a {found.node['$']} tensor cannot be cut into parts; "
            "store a dense copy"
        )
    return found


def resolve(item: WriteItem, planner: SavePlanner, mapping: object, rules: Rules) -> Resolved:
    """Ask the planner for the data of one item and take it apart.

    Args:
        item: of the plan.
        planner: of the save.
        mapping: from names to ways, as the planner made it.
        rules: what may be stored.

    Raises:
        StateError: it cannot be stored, or is not what the plan says.
    """
    way = way_of(mapping, item.index.fqn)
    at = way or (item.index.fqn,)
    if item.type is WriteItemType.BYTE_IO:
        return Resolved(item, way, flatten_at(at, _value(item, planner, rules), rules))
    found = planner.resolve_data(item)
    if not isinstance(found, Tensor) or item.tensor_data is None:
        raise StateError(f"{item.index.fqn}: the planner gave no tensor for a tensor's item")
    planned = item.tensor_data
    expected = (planned.properties.dtype, torch.Size(planned.chunk.sizes))
    if (found.dtype, found.shape) != expected:
        raise StateError(
            f"{item.index.fqn}: the planner gave {found.dtype} of shape {tuple(found.shape)}: "
            f"its plan says {expected[0]} of {tuple(expected[1])}"
        )
    return Resolved(item, way, plain_leaf(at, found))


def _value(item: WriteItem, planner: SavePlanner, rules: Rules) -> Any:
    if _gives_objects(planner):
        return planner.lookup_object(item.index)  # type: ignore[attr-defined]
    data = planner.resolve_data(item)
    if not isinstance(data, io.BytesIO):
        raise StateError(f"{item.index.fqn}: the planner gave no bytes for a value's item")
    data.seek(0)
    try:
        return torch.load(data, weights_only=not rules.allow_pickle)
    except Exception as error:
        raise StateError(
            f"{item.index.fqn}: {type(planner).__name__} pickled a value that cannot be stored "
            f"without allow_pickle=True: {error}"
        ) from error


def _gives_objects(planner: SavePlanner) -> bool:
    """Whether a value can be had as it is, rather than as bytes of torch.save."""
    kind = type(planner)
    names = ("resolve_data", "transform_object")
    return isinstance(planner, DefaultSavePlanner) and all(
        getattr(kind, name) is getattr(DefaultSavePlanner, name) for name in names
    )
