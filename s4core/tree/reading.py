"""The way up: what all readers of nodes share. Nothing in a tree is believed.

A reader turns one node into its value and takes every field by type. What a tree may
not hold is `FormatError`, a kind of node that this release does not know
`VersionError`, and what the caller did not allow `StateError`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from s4core.errors import FormatError, StateError, VersionError
from s4core.tree import paths
from s4core.tree.writing import Node

__all__ = ["Fields", "Read", "Reader"]


class Fields:
    """Takes typed values out of one `{"$": ...}` node; every miss names its place."""

    def __init__(self, node: dict[str, Node], path: str) -> None:
        self.kind = node["$"]
        self.path = path
        self._node = node
        self._taken = {"$"}

    def fail(self, problem: str) -> FormatError:
        """The error for a node that breaks the format."""
        return FormatError(f"{paths.shown(self.path)}: node {self.kind!r}: {problem}")

    def raw(self, key: str) -> Node:
        """Whatever is under `key`, which must be there."""
        self._taken.add(key)
        if key not in self._node:
            raise self.fail(f"{key} is missing")
        return self._node[key]

    def has(self, key: str) -> bool:
        """Whether there is anything under `key`."""
        return key in self._node

    def typed(self, key: str, expected: type, name: str) -> Any:
        """The value under `key`, which is exactly an `expected`."""
        value = self.raw(key)
        if type(value) is not expected:
            raise self.fail(f"{key}: expected {name}, found {_shown(value)}")
        return value

    def text(self, key: str) -> str:
        """The string under `key`."""
        found: str = self.typed(key, str, "a string")
        return found

    def integer(self, key: str) -> int:
        """The integer under `key`."""
        found: int = self.typed(key, int, "an integer")
        return found

    def items(self, key: str) -> list[Node]:
        """The list under `key`."""
        found: list[Node] = self.typed(key, list, "a list")
        return found

    def entries(self, key: str) -> dict[str, Node]:
        """The object under `key`."""
        found: dict[str, Node] = self.typed(key, dict, "an object")
        return found

    def flag(self, key: str) -> bool:
        """True if `key` holds true, False if it is absent; nothing else is allowed."""
        if not self.has(key):
            return False
        if self.raw(key) is not True:
            raise self.fail(f"{key}: expected true or nothing, found {_shown(self.raw(key))}")
        return True

    def integers(self, key: str) -> list[int]:
        """The list of integers under `key`."""
        found = self.items(key)
        if not all(type(item) is int for item in found):
            raise self.fail(f"{key}: expected a list of integers, found {_shown(found)}")
        return found

    def sizes(self, key: str) -> list[int]:
        """The list of integers of at least 0 and below 2^63 under `key`."""
        found = self.integers(key)
        if not all(0 <= item < 1 << 63 for item in found):
            raise self.fail(f"{key}: expected sizes of 0 to 2^63 - 1, found {_shown(found)}")
        return found

    def names(self, key: str) -> list[str]:
        """The list of strings under `key`."""
        found = self.items(key)
        if not all(type(item) is str for item in found):
            raise self.fail(f"{key}: expected a list of strings, found {_shown(found)}")
        return found

    def finish(self) -> None:
        """Refuse keys that nobody asked for: a newer writer means something by them."""
        unknown = sorted(set(self._node) - self._taken)
        if unknown:
            raise self.fail(f"unknown key {_shown(unknown[0])}")


Read = Callable[["Reader", Fields], Any]


@dataclass
class Reader:
    """One unflattening of one tree.

    Attributes:
        table: readers by the name under `$`.
        shared: kinds whose values have identity: equal nodes are one object.
        tensors: by number; None where one was not loaded.
        weights_only: refuse what would import or call something that the file names.
    """

    table: dict[str, Read]
    shared: frozenset[str]
    tensors: Sequence[Tensor | None]
    weights_only: bool
    _known: dict[int, Any] = field(default_factory=dict)
    _outlines: dict[str, int] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)  # by the id of a node

    def value(self, node: Node, path: str) -> Any:
        """Return the value of a node.

        Raises:
            FormatError: the node breaks the format.
            StateError: it needs `weights_only=False`, or a class that is not here.
        """
        if type(node) is list:
            return [self.value(item, paths.below(path, str(i))) for i, item in enumerate(node)]
        if type(node) is dict:
            return self._tagged(node, path) if "$" in node else self._mapping(node, path)
        if node is None or type(node) in (bool, int, str):
            return node
        # JSON of Python's reads 1e999 as infinity; the format has a node for that.
        if type(node) is float and math.isfinite(node):
            return node
        raise FormatError(
            f"{paths.shown(path)}: expected JSON, found the {type(node).__name__} {_shown(node)}"
        )

    def _mapping(self, node: dict[str, Node], path: str) -> dict[str, Any]:
        names = paths.segments(node)
        return {
            key: self.value(child, paths.below(path, name))
            for name, (key, child) in zip(names, node.items(), strict=True)
        }

    def _tagged(self, node: dict[str, Node], path: str) -> Any:
        kind = node["$"]
        read = self.table.get(kind) if type(kind) is str else None
        if read is None:
            raise VersionError(
                f"{paths.shown(path)}: a node of kind {_shown(kind)} is not known to this "
                "release; upgrade s4weights"
            )
        if kind not in self.shared:
            return self._read(read, node, path)
        identity = self._identity(node)
        if identity not in self._known:
            self._known[identity] = self._read(read, node, path)
        return self._known[identity]

    def _identity(self, node: dict[str, Node]) -> int:
        """A number for a node with identity: the same one for equal nodes.

        Nodes within it stand for themselves by their own numbers, so that each value of a
        tree is looked at once however deep it lies.
        """
        number = self._numbers.get(id(node))
        if number is None:
            text = json.dumps({k: self._outline(v) for k, v in node.items()}, sort_keys=True)
            number = self._outlines.setdefault(text, len(self._outlines))
            self._numbers[id(node)] = number
        return number

    def _outline(self, node: Node) -> Node:
        if type(node) is list:
            return [self._outline(item) for item in node]
        if type(node) is not dict:
            return node
        kind = node.get("$")
        if type(kind) is str and kind in self.shared:
            return {"$": self._identity(node)}  # no kind is a number
        return {key: self._outline(item) for key, item in node.items()}

    def _read(self, read: Read, node: dict[str, Node], path: str) -> Any:
        fields = Fields(node, path)
        value = read(self, fields)
        fields.finish()
        return value

    def child(self, fields: Fields, key: str) -> Any:
        """The value of the node under `key`."""
        return self.value(fields.raw(key), paths.below(fields.path, key))

    def children(self, fields: Fields, key: str) -> list[Any]:
        """The values of the list of nodes under `key`."""
        nodes = fields.items(key)
        return [self.value(node, paths.below(fields.path, str(i))) for i, node in enumerate(nodes)]

    def named(self, fields: Fields, key: str) -> dict[str, Any]:
        """The values of the object of nodes under `key`, by name."""
        nodes = fields.entries(key)
        return {
            name: self.value(node, paths.attribute(fields.path, name))
            for name, node in nodes.items()
        }

    def tensor(self, fields: Fields, key: str = "t") -> Tensor:
        """The tensor whose number is under `key`."""
        number = fields.integer(key)
        if not 0 <= number < len(self.tensors):
            raise fields.fail(f"tensor {number}: there are {len(self.tensors)}")
        tensor = self.tensors[number]
        if tensor is None:
            raise fields.fail(f"tensor {number} was not loaded")
        return tensor

    def need_trust(self, fields: Fields, what: str) -> None:
        """Refuse, when the caller wants weights only, what the file's writer could abuse."""
        if self.weights_only:
            raise StateError(
                f"{paths.shown(fields.path)}: {what} is loaded only with weights_only=False; "
                "pass it if you trust whoever wrote this checkpoint"
            )


def _shown(value: Node) -> str:
    text = repr(value) if not isinstance(value, int) else "an integer"
    return text if len(text) <= 60 else text[:57] + "..."
