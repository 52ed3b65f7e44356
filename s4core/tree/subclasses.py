"""Nodes of tensor subclasses that say how to take them apart: `__tensor_flatten__`.

Their own storage is never read: for a wrapper it is no memory at all. Their inner
tensors are stored, and their context as a node. Loading calls the class's
`__tensor_unflatten__`; so with `weights_only=True` only classes of torch itself whose
module is already imported will do.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from s4core.errors import StateError
from s4core.tree import paths
from s4core.tree.classes import checked_reference, imported
from s4core.tree.composites import assemble, parts_of
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.writing import Node, Writer

__all__ = ["READERS", "SHARED", "write_subclass"]

SHARED: Final = frozenset({"subclass"})


def write_subclass(writer: Writer, value: Any, path: str) -> Node:
    """The node of a tensor whose class has `__tensor_flatten__`.

    Raises:
        StateError: its class cannot be found by name, or its context cannot be stored.
    """
    names, context = value.__tensor_flatten__()
    inner = {name: getattr(value, name) for name in names}
    node: dict[str, Node] = {
        "$": "subclass",
        "class": checked_reference(type(value), path),
        "size": _numbers(value.shape, path),
        "stride": _numbers(value.stride(), path),
        "inner": parts_of(writer, inner, path),
        "context": writer.node(context, paths.below(path, "context")),
    }
    flags = {"param": isinstance(value, nn.Parameter), "grad": value.requires_grad}
    return node | {name: True for name, flag in flags.items() if flag}


def _numbers(sizes: Any, path: str) -> list[int]:
    if not all(type(size) is int for size in sizes):
        raise StateError(f"{paths.shown(path)}: a tensor of symbolic size cannot be stored")
    return list(sizes)


def _read_subclass(reader: Reader, fields: Fields) -> Tensor:
    name = fields.text("class")
    own = name.startswith("torch.")
    if not own:
        reader.need_trust(fields, f"the tensor subclass {name}")
    cls = imported(fields, Tensor, load=not reader.weights_only)
    size, stride = fields.sizes("size"), fields.sizes("stride")
    inner, context = reader.named(fields, "inner"), reader.child(fields, "context")
    is_param = fields.flag("param")
    unflatten = getattr(cls, "__tensor_unflatten__", None)
    if unflatten is None or not all(isinstance(part, Tensor) for part in inner.values()):
        raise fields.fail(f"class {name} cannot be put together from its parts")
    made = _put_together(fields, lambda: unflatten(inner, context, torch.Size(size), tuple(stride)))
    if type(made) is not cls:
        raise fields.fail(f"class {name} made a {type(made).__name__}")
    if made.layout is torch.jagged:
        raise fields.fail("a jagged tensor has a kind of node of its own, whose parts are checked")
    if is_param:
        return assemble(fields, lambda: nn.Parameter(made, requires_grad=False))
    return assemble(fields, lambda: made)


def _put_together(fields: Fields, make: Any) -> Any:
    try:
        return make()
    except Exception as error:
        # Code of the class, given what a damaged file holds, may raise anything.
        raise fields.fail(f"class {fields.text('class')} refused its parts: {error}") from error


READERS: Final[dict[str, Read]] = {"subclass": _read_subclass}
