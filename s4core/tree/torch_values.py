"""Nodes of torch's own values that are no tensors: sizes, dtypes, layouts, devices."""

from __future__ import annotations

from typing import Any, Final

import torch

from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.writing import Node, Write, Writer

__all__ = ["READERS", "WRITERS"]

_KINDS: Final = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
# By the name that torch prints. A table, because asking the module for an attribute
# that it has not may import something.
_BY_NAME: Final[dict[str, Any]] = {
    str(value).removeprefix("torch."): value
    for value in list(vars(torch).values())
    if isinstance(value, _KINDS)
}


def _write_size(_: Writer, value: torch.Size, __: str) -> Node:
    return {"$": "size", "items": [int(size) for size in value]}


def _read_size(_: Reader, fields: Fields) -> torch.Size:
    return torch.Size(fields.sizes("items"))


def _write_named(_: Writer, value: Any, __: str) -> Node:
    return {"$": "torch", "name": str(value).removeprefix("torch.")}


def _read_named(_: Reader, fields: Fields) -> Any:
    name = fields.text("name")
    if name not in _BY_NAME:
        raise fields.fail(f"this torch ({torch.__version__}) has no dtype or layout {name!r}")
    return _BY_NAME[name]


def _write_device(_: Writer, value: torch.device, __: str) -> Node:
    return {"$": "device", "type": value.type, "index": value.index}


def _read_device(_: Reader, fields: Fields) -> torch.device:
    name = fields.text("type")
    index = None if fields.raw("index") is None else fields.integer("index")
    try:
        found = torch.device(name) if index is None else torch.device(name, index)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise fields.fail(f"torch has no such device: {error}") from None
    if (found.type, found.index) != (name, index):  # torch keeps 8 bits of the number
        raise fields.fail(f"torch has no such device: it makes {found} of {name!r} and {index}")
    return found


WRITERS: Final[dict[type, Write]] = {
    torch.Size: _write_size,
    torch.device: _write_device,
    **dict.fromkeys(_KINDS, _write_named),
}
READERS: Final[dict[str, Read]] = {
    "size": _read_size,
    "torch": _read_named,
    "device": _read_device,
}
