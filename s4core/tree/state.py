"""A whole state: `flatten` and `unflatten`, over the tables of all nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
from torch import Tensor

from s4core.errors import FormatError, StateError
from s4core.tree import (
    arrays,
    classes,
    composites,
    containers,
    distributed,
    scalars,
    subclasses,
    tensors,
    torch_values,
)
from s4core.tree.reading import Read, Reader
from s4core.tree.writing import MAX_LEVELS, Node, TensorLeaf, Write, Writer, levels

__all__ = ["FlatState", "flatten", "unflatten"]

_WRITERS: Final[dict[type, Write]] = {
    **scalars.WRITERS,
    **containers.WRITERS,
    **torch_values.WRITERS,
    Tensor: tensors.write_tensor,
    np.ndarray: arrays.write_array,
}
_READERS: Final[dict[str, Read]] = {
    **scalars.READERS,
    **containers.READERS,
    **torch_values.READERS,
    **classes.READERS,
    **arrays.READERS,
    **tensors.READERS,
    **composites.READERS,
    **subclasses.READERS,
    **distributed.READERS,
}
_SHARED: Final = arrays.SHARED | tensors.SHARED | composites.SHARED | subclasses.SHARED


@dataclass(frozen=True)
class FlatState:
    """A state taken apart.

    Attributes:
        tree: JSON; a tensor is there as its number in `leaves`.
        leaves: the tensors, in the order in which they were met.
    """

    tree: Node
    leaves: list[TensorLeaf]


def flatten(state: Any, *, allow_pickle: bool = False, allow_classes: bool = False) -> FlatState:
    """Take a nested state apart. Tensors keep sharing the caller's memory.

    Args:
        state: dicts, lists, tensors, numbers, ... as listed in FORMAT.md, section 8.1.
        allow_pickle: store leaves of any other class pickled.
        allow_classes: store enums and dataclasses by the name of their class. Both load
            only with `weights_only=False`.

    Raises:
        StateError: the state holds something that cannot be stored, contains itself, or is
            nested too deeply; the message names the path.
    """
    writer = Writer(_WRITERS, _choose, allow_pickle, allow_classes)
    try:
        tree = writer.node(state, "")
    except RecursionError:
        raise StateError("the state is nested too deeply for Python's stack; flatten it") from None
    except MemoryError as error:
        raise StateError(f"no memory for a copy of a part of the state: {error}") from error
    if levels(tree) > MAX_LEVELS:
        raise StateError(
            f"the state nests {levels(tree)} levels of JSON: expected at most {MAX_LEVELS}; "
            "flatten it"
        )
    return FlatState(tree, writer.leaves)


def _choose(_: Writer, value: Any) -> Write:
    """The writer of a value whose exact class the table does not list."""
    # By the real class: `isinstance` believes an object's `__class__`, which may lie.
    cls = type(value)
    if issubclass(cls, Tensor):
        return tensors.write_tensor
    if issubclass(cls, np.dtype):
        return arrays.write_dtype
    if issubclass(cls, np.generic):
        return arrays.write_scalar
    if issubclass(cls, Enum):
        return classes.write_enum
    if classes.is_namedtuple(value):
        return classes.write_namedtuple
    if classes.is_plain_dataclass(value):
        return classes.write_dataclass
    return classes.write_foreign


def unflatten(tree: Node, tensors: Sequence[Tensor | None], *, weights_only: bool = True) -> Any:
    """Put a state together again.

    Args:
        tree: as `flatten` made it, or as a file claims that it did.
        tensors: the plain tensors by number, on whatever device; None where one was not
            loaded. Equal numbers give one object.
        weights_only: refuse whatever would import or call something that the tree names.

    Raises:
        FormatError: the tree breaks FORMAT.md; the message names the path.
        StateError: it needs `weights_only=False`, or a class that is not here.
    """
    if levels(tree) > MAX_LEVELS:
        raise FormatError(f"the tree nests more than {MAX_LEVELS} levels")

    def read() -> Any:
        return Reader(_READERS, _SHARED, tensors, weights_only).value(tree, "")

    try:
        return read()
    except RecursionError:
        # The caller's stack may be deep by itself; a thread begins with an empty one. What
        # could be saved must load, from wherever it is called.
        with ThreadPoolExecutor(1, thread_name_prefix="s4-tree") as fresh:
            return fresh.submit(_refusing, read).result()


def _refusing(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RecursionError:
        raise FormatError("the tree is nested too deeply for Python's stack") from None
