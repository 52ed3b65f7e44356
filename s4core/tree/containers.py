"""Nodes of Python's containers: lists, tuples, sets and mappings."""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any, Final

from s4core.errors import StateError
from s4core.tree import paths
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.writing import Node, Write, Writer

__all__ = ["READERS", "WRITERS", "may_be_attribute", "write_attributes"]

# Python's hashes of numbers are no secret: keys chosen to share one make every look-up a
# search through all of them. No honest container has so many.
_MAX_ALIKE: Final = 256
# What a defaultdict may make: classes of Python's own whose call without arguments is
# harmless.
_FACTORIES: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (list, dict, set, tuple, int, float, bool, str)
}


def _write_list(writer: Writer, value: list[Any], path: str) -> Node:
    return [writer.node(item, paths.below(path, str(i))) for i, item in enumerate(value)]


def _write_tuple(writer: Writer, value: tuple[Any, ...], path: str) -> Node:
    return {"$": "tuple", "items": _write_list(writer, list(value), path)}


def _read_tuple(reader: Reader, fields: Fields) -> tuple[Any, ...]:
    return tuple(reader.children(fields, "items"))


def _write_set(writer: Writer, value: set[Any] | frozenset[Any], path: str) -> Node:
    nodes = [writer.node(item, paths.key_of(path, i)) for i, item in enumerate(value)]
    # A set has no order of its own (Python's changes from run to run): the same state
    # must give the same bytes.
    return {"$": type(value).__name__, "items": sorted(nodes, key=json.dumps)}


def _read_set(reader: Reader, fields: Fields) -> set[Any]:
    found: set[Any] = set()
    keys = _Keys(reader, fields)
    for item in reader.children(fields, "items"):
        keys.check(item, found)
        found.add(item)
    return found


def _read_frozenset(reader: Reader, fields: Fields) -> frozenset[Any]:
    return frozenset(_read_set(reader, fields))


class _Keys:
    """Checks the keys of one container as they come."""

    def __init__(self, reader: Reader, fields: Fields) -> None:
        self._fields = fields
        self._most = _MAX_ALIKE if reader.weights_only else sys.maxsize
        self._alike: Counter[int] = Counter()

    def check(self, key: Any, found: set[Any] | dict[Any, Any]) -> None:
        """Refuse a key that cannot be one, is there, or is made to be slow."""
        name = type(key).__name__
        try:
            mark = hash(key)
        except TypeError:
            raise self._fields.fail(f"a {name} cannot be a key") from None
        self._alike[mark] += 1
        if self._alike[mark] > self._most:
            raise self._fields.fail(
                f"more than {self._most} keys share one hash, which only malice does; "
                "pass weights_only=False if you trust whoever wrote this checkpoint"
            )
        if key in found:
            raise self._fields.fail(f"a {name} stands twice among the keys")


def _write_dict(writer: Writer, value: dict[Any, Any], path: str) -> Node:
    if all(type(key) is str and key != "$" and not paths.SURROGATE.search(key) for key in value):
        names = zip(value.items(), paths.segments(value), strict=True)
        return {key: writer.node(child, paths.below(path, name)) for (key, child), name in names}
    return {"$": "dict", "items": _pairs(writer, value, path)}


def _pairs(writer: Writer, value: Mapping[Any, Any], path: str) -> Node:
    names = paths.segments(value)
    return [
        [writer.node(key, paths.key_of(path, i)), writer.node(child, paths.below(path, name))]
        for i, ((key, child), name) in enumerate(zip(value.items(), names, strict=True))
    ]


def _read_pairs(reader: Reader, fields: Fields, into: dict[Any, Any]) -> None:
    keys = _Keys(reader, fields)
    for number, pair in enumerate(fields.items("items")):
        if type(pair) is not list or len(pair) != 2:
            raise fields.fail(f"items[{number}]: expected a key and a value")
        key = reader.value(pair[0], paths.key_of(fields.path, number))
        keys.check(key, into)
        into[key] = reader.value(pair[1], paths.below(fields.path, *paths.segments([key])))


def _read_dict(reader: Reader, fields: Fields) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    _read_pairs(reader, fields, found)
    return found


def _write_ordered(writer: Writer, value: OrderedDict[Any, Any], path: str) -> Node:
    node = {"$": "odict", "items": _pairs(writer, value, path)}
    # The _metadata of a state_dict() lives here.
    return node | write_attributes(writer, vars(value), OrderedDict, path)


def _read_ordered(reader: Reader, fields: Fields) -> OrderedDict[Any, Any]:
    found: OrderedDict[Any, Any] = OrderedDict()
    _read_pairs(reader, fields, found)
    if fields.has("attrs"):
        for name, value in reader.named(fields, "attrs").items():
            if not may_be_attribute(name, OrderedDict):
                raise fields.fail(f"attribute {name!r} would hide one of OrderedDict's own")
            vars(found)[name] = value
    return found


def write_attributes(writer: Writer, attributes: dict[str, Any], owner: type, path: str) -> Node:
    """The part of a node that holds an object's own attributes, {} when there are none.

    Raises:
        StateError: an attribute hides one of its class.
    """
    if not attributes:
        return {}
    nodes = {}
    for name, value in attributes.items():
        if not may_be_attribute(name, owner):
            raise StateError(
                f"{paths.shown(path)}: attribute {name!r} hides one of {owner.__name__}'s own; "
                "rename it"
            )
        nodes[name] = writer.node(value, paths.attribute(path, name))
    return {"attrs": nodes}


def may_be_attribute(name: str, owner: type) -> bool:
    """Whether setting `name` on an instance hides nothing of its class."""
    return name.isidentifier() and not name.startswith("__") and not hasattr(owner, name)


def _write_default(writer: Writer, value: defaultdict[Any, Any], path: str) -> Node:
    factory: Any = value.default_factory
    known = None if factory is None else getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(known or "") is not factory:
        known = writer.node(factory, paths.attribute(path, "default_factory"))
    return {"$": "defaultdict", "factory": known, "items": _pairs(writer, value, path)}


def _read_default(reader: Reader, fields: Fields) -> defaultdict[Any, Any]:
    node = fields.raw("factory")
    factory: Any = _FACTORIES.get(node) if type(node) is str else reader.child(fields, "factory")
    if factory is None and node is not None:
        raise fields.fail(f"factory: expected one of {', '.join(_FACTORIES)} or a pickled one")
    if factory is not None and not callable(factory):
        raise fields.fail(f"factory: a {type(factory).__name__} cannot be called")
    found: defaultdict[Any, Any] = defaultdict(factory)
    _read_pairs(reader, fields, found)
    return found


WRITERS: Final[dict[type, Write]] = {
    list: _write_list,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_set,
    dict: _write_dict,
    OrderedDict: _write_ordered,
    defaultdict: _write_default,
}
READERS: Final[dict[str, Read]] = {
    "tuple": _read_tuple,
    "set": _read_set,
    "frozenset": _read_frozenset,
    "dict": _read_dict,
    "odict": _read_ordered,
    "defaultdict": _read_default,
}
