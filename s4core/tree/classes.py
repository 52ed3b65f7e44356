"""Nodes that name a class: namedtuples, enums, dataclasses, and pickled leaves.

A checkpoint is data. With `weights_only=True` nothing it names is imported: a
namedtuple comes back as a fresh one with the same name and fields (a tuple, without
the methods of the original), and enums, dataclasses and pickled leaves are refused.
With `weights_only=False` the classes are imported by their names, and pickles run.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import keyword
import operator
import pickle
import sys
import unicodedata
from collections import namedtuple
from enum import Enum
from typing import Any, Final

from s4core.errors import StateError
from s4core.tree import paths
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.writing import Node, Writer

__all__ = [
    "READERS",
    "checked_reference",
    "imported",
    "is_namedtuple",
    "is_plain_dataclass",
    "reference",
    "write_dataclass",
    "write_enum",
    "write_foreign",
    "write_namedtuple",
]

# Fixed, so that the same state gives the same bytes on every Python.
_PICKLE_PROTOCOL: Final = 4
# Python compiles code of a namedtuple's fields: thousands of them cost megabytes.
_MAX_FIELDS: Final = 1 << 12


def reference(cls: type) -> str:
    """How a node names a class: `module:Qualified.name`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _named(name: str, *, load: bool) -> Any:
    """The object of that name, None if there is none.

    Args:
        name: as `reference` makes it.
        load: import its module, rather than look among those already imported.
    """
    module_name, _, qualified = name.partition(":")
    try:
        module = importlib.import_module(module_name) if load else sys.modules.get(module_name)
        return operator.attrgetter(qualified)(module)
    except (ImportError, AttributeError, ValueError, TypeError):
        return None


def imported(fields: Fields, expected: type, *, load: bool = True) -> Any:
    """The class named under `class`, which must be an `expected`.

    Raises:
        StateError: it is not here, or is something else.
    """
    name = fields.text("class")
    found = _named(name, load=load)
    if isinstance(found, type) and issubclass(found, expected):
        return found
    raise StateError(
        f"{paths.shown(fields.path)}: class {name} is needed and "
        + ("could not be imported" if found is None else f"is no {expected.__name__}")
        + ("; install or import what defines it" if load else "; import its module first")
    )


def checked_reference(cls: type, path: str) -> str:
    """The class's name for a node.

    Raises:
        StateError: the class cannot be found again by that name.
    """
    name = reference(cls)
    if _named(name, load=False) is not cls:
        raise StateError(
            f"{paths.shown(path)}: class {name} cannot be found again by that name: define it at "
            "the top of a module"
        )
    return name


def is_namedtuple(value: object) -> bool:
    """Whether a value is a namedtuple and nothing more (it may have methods, no attributes)."""
    # By the real class, and what lies in the tuple: an object may tell anything of itself.
    if not issubclass(type(value), tuple) or not isinstance(value, tuple):
        return False
    names = getattr(type(value), "_fields", None)
    return (
        type(names) is tuple
        and len(names) == tuple.__len__(value)
        and all(type(name) is str for name in names)
        and not getattr(value, "__dict__", None)
    )


def write_namedtuple(writer: Writer, value: Any, path: str) -> Node:
    """The node of a namedtuple."""
    names = type(value)._fields
    if not _are_fields(names):
        return write_foreign(writer, value, path, f"{reference(type(value))} with fields {names!r}")
    # What lies in the tuple, whatever its class makes of iteration.
    values = zip(names, tuple.__iter__(value), strict=True)
    items = [writer.node(item, paths.below(path, name)) for name, item in values]
    return {
        "$": "namedtuple",
        "class": reference(type(value)),
        "fields": list(names),
        "items": items,
    }


def _read_namedtuple(reader: Reader, fields: Fields) -> Any:
    names, items = tuple(fields.names("fields")), reader.children(fields, "items")
    if len(names) != len(items):
        raise fields.fail(f"{len(items)} items for the fields {_some(names)}")
    if not _are_fields(names):
        raise fields.fail(f"fields: expected names, found {_some(names)}")
    cls: Any = None if reader.weights_only else _named(fields.text("class"), load=True)
    suits = isinstance(cls, type) and issubclass(cls, tuple)
    if not suits or getattr(cls, "_fields", None) != names:
        cls = _fresh(fields.text("class"), names)
    return tuple.__new__(cls, items)


def _are_fields(names: tuple[str, ...]) -> bool:
    """Whether `namedtuple` takes these names; `rename=True` makes `_0`, `_1`, ... of others."""
    # Python compares identifiers by this form.
    forms = {unicodedata.normalize("NFKC", name) for name in names}
    return len(forms) == len(names) <= _MAX_FIELDS and all(
        name == f"_{number}" or _is_field(name) for number, name in enumerate(names)
    )


def _is_field(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _some(names: tuple[str, ...]) -> str:
    shown = repr(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


@functools.lru_cache(maxsize=256)
def _fresh(name: str, fields: tuple[str, ...]) -> Any:
    """A new namedtuple class of that name: the same one for every node that asks."""
    module, _, qualified = name.partition(":")
    short = qualified.rpartition(".")[2]
    # `rename` lets the names through that it made; all others suit it as they are.
    return namedtuple(short if _is_field(short) else "Tuple", fields, module=module, rename=True)


def write_enum(writer: Writer, value: Enum, path: str) -> Node:
    """The node of a member of an enum."""
    if not writer.allow_classes:
        return write_foreign(writer, value, path)
    node: Node = {"$": "enum", "class": checked_reference(type(value), path)}
    if type(value).__members__.get(value.name or "") is value:
        return node | {"name": value.name}
    return node | {"value": writer.node(value.value, path)}  # flags joined by |


def _read_enum(reader: Reader, fields: Fields) -> Any:
    reader.need_trust(fields, f"the enum {fields.text('class')}")
    cls = imported(fields, Enum)
    try:
        if fields.has("name"):
            return cls[fields.text("name")]
        return cls(reader.child(fields, "value"))
    except (KeyError, ValueError, TypeError) as error:
        raise StateError(
            f"{paths.shown(fields.path)}: {fields.text('class')} has no such member any more: "
            f"{error}"
        ) from error


def is_plain_dataclass(value: object) -> bool:
    """Whether a value is a dataclass that holds its fields and nothing else."""
    cls = type(value)
    if not _has(cls, "__dataclass_fields__"):
        return False
    return cls.__new__ is object.__new__ and cls.__reduce_ex__ is object.__reduce_ex__


def write_dataclass(writer: Writer, value: Any, path: str) -> Node:
    """The node of a dataclass: its fields, and attributes that are no fields."""
    if not writer.allow_classes:
        return write_foreign(writer, value, path)
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    found = {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})
    return {
        "$": "dataclass",
        "class": checked_reference(type(value), path),
        "fields": {
            name: writer.node(item, paths.below(path, name)) for name, item in found.items()
        },
    }


def _read_dataclass(reader: Reader, fields: Fields) -> Any:
    name = fields.text("class")
    reader.need_trust(fields, f"the dataclass {name}")
    cls: Any = imported(fields, object)
    values = reader.named(fields, "fields")
    if not hasattr(cls, "__dataclass_fields__") or cls.__new__ is not object.__new__:
        raise StateError(f"{paths.shown(fields.path)}: class {name} is no dataclass any more")
    found: Any = object.__new__(cls)
    for key, value in values.items():
        try:
            # As unpickling does: no __init__, and frozen ones too.
            object.__setattr__(found, key, value)
        except AttributeError as error:
            raise StateError(f"{paths.shown(fields.path)}: {name}: {error}") from error
    return found


def write_foreign(writer: Writer, value: Any, path: str, what: str = "") -> Node:
    """The node of a leaf of any other class: pickled, if the caller allows it.

    Args:
        writer: of this state.
        value: the leaf.
        path: where it sits.
        what: its class in words, where the class's name alone would mislead.

    Raises:
        StateError: it is not allowed, or cannot be pickled.
    """
    name = reference(type(value))
    if not writer.allow_pickle:
        raise StateError(
            f"{paths.shown(path)}: a {what or name} cannot be stored: {_advice(value)}"
        )
    try:
        data = pickle.dumps(value, protocol=_PICKLE_PROTOCOL)
    except Exception as error:
        raise StateError(
            f"{paths.shown(path)}: a {name} cannot be pickled: {error}; {_advice(value)}"
        ) from error
    return {"$": "pickle", "class": name, "data": writer.node(data, path)}


def _advice(value: object) -> str:
    if issubclass(type(value), Enum) or _has(type(value), "__dataclass_fields__"):
        return "pass allow_classes=True (it then loads only with weights_only=False)"
    for method in ("state_dict", "get_state"):
        if _has(type(value), method):
            return f"store its {method}() instead"
    return (
        "store tensors, numbers, strings and containers of them instead, or pass "
        "allow_pickle=True (it then loads only with weights_only=False)"
    )


def _has(cls: type, name: str) -> bool:
    """Whether instances have it by their class, without running any code of theirs."""
    return any(name in vars(base) for base in cls.__mro__)


def _read_pickle(reader: Reader, fields: Fields) -> Any:
    name = fields.text("class")
    reader.need_trust(fields, f"a pickled {name}")
    data = reader.child(fields, "data")
    if type(data) is not bytes:
        raise fields.fail("data: expected bytes")
    try:
        return pickle.loads(data)
    except Exception as error:
        raise StateError(
            f"{paths.shown(fields.path)}: a pickled {name} cannot be restored here: "
            f"{type(error).__name__}: {error}"
        ) from error


READERS: Final[dict[str, Read]] = {
    "namedtuple": _read_namedtuple,
    "enum": _read_enum,
    "dataclass": _read_dataclass,
    "pickle": _read_pickle,
}
