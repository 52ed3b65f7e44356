"""The way down: what all writers of nodes share.

A writer turns one value into its node (FORMAT.md, section 8.1) and puts tensors
aside. Which writer serves which class is decided by the exact class: a subclass of
dict may mean anything, so it is a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from s4core.errors import StateError
from s4core.tree import paths

__all__ = ["MAX_LEVELS", "Node", "TensorLeaf", "Write", "Writer", "levels"]

Node = Any  # JSON as the json module makes it
# JSON may nest 256 levels (FORMAT.md, section 7); the manifest around the tree is one.
MAX_LEVELS: Final = 255


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor put aside.

    Attributes:
        path: where it sits in the state; unique.
        tensor: the plain tensor to store: detached, strided, no conjugate or negative
            view; shares the caller's memory.
        host: never moved by `map_location` (states of random number generators, arrays of
            numpy, step counters that optimizers keep on the CPU).
        also: the other paths at which the same object sits (tied weights).
    """

    path: str
    tensor: Tensor
    host: bool = False
    also: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Written:
    """An object with identity that was written.

    The object is kept so that its id is not given to another one meanwhile.
    """

    value: object
    node: Node
    path: str
    leaves: range


Write = Callable[["Writer", Any, str], Node]


@dataclass
class Writer:
    """One flattening of one state.

    Attributes:
        choose: gives the writer of a class that `table` does not list.
        table: writers by exact class.
        allow_pickle: store what nothing else can as pickled leaves.
        allow_classes: store enums and dataclasses by the name of their class.
        leaves: the tensors met so far, in order.
    """

    table: dict[type, Write]
    choose: Callable[[Writer, Any], Write]
    allow_pickle: bool
    allow_classes: bool
    leaves: list[TensorLeaf] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _written: dict[int, _Written] = field(default_factory=dict)

    def node(self, value: Any, path: str) -> Node:
        """Return the node of a value.

        Raises:
            StateError: it cannot be stored, or contains itself, or is too deep.
        """
        if value is None or type(value) is bool:
            return value
        if id(value) in self._open:
            raise StateError(f"{paths.shown(path)}: a {_name(value)} contains itself; untie it")
        if len(self._open) >= MAX_LEVELS:
            raise StateError(
                f"{paths.shown(path)}: nested too deeply: expected at most {MAX_LEVELS} levels; "
                "flatten the state"
            )
        write = self.table.get(type(value)) or self.choose(self, value)
        self._open.add(id(value))
        try:
            return write(self, value, path)
        finally:
            self._open.discard(id(value))

    def once(self, value: object, path: str, write: Callable[[], Node]) -> Node:
        """Return the node of a value with identity: the same one each time it is met."""
        known = self._written.get(id(value))
        if known is not None:
            for leaf in (self.leaves[number] for number in known.leaves):
                leaf.also.append(path + leaf.path.removeprefix(known.path))
            return known.node
        first = len(self.leaves)
        node = write()
        self._written[id(value)] = _Written(value, node, path, range(first, len(self.leaves)))
        return node

    def leaf(self, tensor: Tensor, path: str, *, host: bool = False) -> int:
        """Put a plain tensor aside and return its number."""
        self.leaves.append(TensorLeaf(path, tensor, host))
        return len(self.leaves) - 1


def _name(value: object) -> str:
    return type(value).__name__


def levels(tree: Node) -> int:
    """How deeply JSON nests: 0 for a scalar. Not recursive, so it may be asked of anything."""
    deepest, waiting = 0, [(tree, 0)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        if isinstance(node, dict):
            waiting.extend((child, level + 1) for child in node.values())
        elif isinstance(node, list):
            waiting.extend((child, level + 1) for child in node)
    return deepest
