"""Nodes of what Python's own library holds in one value: numbers, text, bytes, paths, times."""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import pathlib
import re
import struct
from collections.abc import Callable
from typing import Any, Final

import torch

from s4core.tree import paths
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.writing import Node, Write, Writer

__all__ = ["READERS", "WRITERS", "from_base64", "to_base64"]

# Longer bytes are stored as tensors: compressed, checked and out of the manifest.
_MAX_INLINE_BYTES: Final = 1024
_HEX_INTEGER: Final = re.compile(r"-?[1-9a-f][0-9a-f]*")
_HEX_DOUBLE: Final = re.compile(r"[0-9a-f]{16}")


def to_base64(data: bytes | bytearray) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode("ascii")


def from_base64(fields: Fields, key: str) -> bytes:
    """The bytes under `key`."""
    try:
        return base64.b64decode(fields.text(key), validate=True)
    except (binascii.Error, ValueError):
        raise fields.fail(f"{key}: expected base64") from None


def _write_int(_: Writer, value: int, __: str) -> Node:
    if value.bit_length() <= paths.MAX_DECIMAL_BITS:
        return value
    return {"$": "int", "hex": f"{value:x}"}


def _read_int(_: Reader, fields: Fields) -> int:
    text = fields.text("hex")
    if not _HEX_INTEGER.fullmatch(text):
        raise fields.fail("hex: expected a hexadecimal integer")
    return int(text, 16)


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _double(fields: Fields, text: object) -> float:
    if type(text) is not str or not _HEX_DOUBLE.fullmatch(text):
        raise fields.fail("expected the bits of a float as 16 hex digits")
    (value,) = struct.unpack(">d", bytes.fromhex(text))
    return float(value)


def _write_float(_: Writer, value: float, __: str) -> Node:
    return value if math.isfinite(value) else {"$": "float", "bits": _bits(value)}


def _read_float(_: Reader, fields: Fields) -> float:
    return _double(fields, fields.raw("bits"))


def _write_complex(_: Writer, value: complex, __: str) -> Node:
    return {"$": "complex", "bits": [_bits(value.real), _bits(value.imag)]}


def _read_complex(_: Reader, fields: Fields) -> complex:
    parts = fields.items("bits")
    if len(parts) != 2:
        raise fields.fail("bits: expected two floats")
    return complex(_double(fields, parts[0]), _double(fields, parts[1]))


def _write_str(_: Writer, value: str, __: str) -> Node:
    if not paths.SURROGATE.search(value):
        return value
    return {"$": "str", "utf8": to_base64(value.encode("utf-8", "surrogatepass"))}


def _read_str(_: Reader, fields: Fields) -> str:
    try:
        return from_base64(fields, "utf8").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise fields.fail("utf8: expected UTF-8") from None


def _write_bytes(writer: Writer, value: bytes | bytearray, path: str) -> Node:
    kind = type(value).__name__
    if len(value) <= _MAX_INLINE_BYTES:
        return {"$": kind, "data": to_base64(value)}
    return writer.once(value, path, lambda: {"$": kind, "t": _put_bytes(writer, value, path)})


def _put_bytes(writer: Writer, value: bytes | bytearray, path: str) -> int:
    # A copy: torch accepts no memory that may not be written to.
    return writer.leaf(torch.frombuffer(bytearray(value), dtype=torch.uint8), path, host=True)


def _read_bytes(reader: Reader, fields: Fields) -> bytes:
    if not fields.has("t"):
        return from_base64(fields, "data")
    tensor = reader.tensor(fields)
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1 or tensor.device.type != "cpu":
        raise fields.fail(f"expected a tensor of bytes, found {tensor.dtype} on {tensor.device}")
    if not tensor.is_contiguous():
        raise fields.fail("expected bytes one after the other, found gaps or repetitions")
    return bytes(tensor.numpy().data)


def _read_bytearray(reader: Reader, fields: Fields) -> bytearray:
    return bytearray(_read_bytes(reader, fields))


def _write_range(writer: Writer, value: range, path: str) -> Node:
    bounds = (value.start, value.stop, value.step)
    return {"$": "range", "args": [writer.node(bound, path) for bound in bounds]}


def _read_range(reader: Reader, fields: Fields) -> range:
    found: range = _call(fields, range, _three(fields, reader.children(fields, "args")))
    return found


def _write_slice(writer: Writer, value: slice, path: str) -> Node:
    bounds = zip(("start", "stop", "step"), (value.start, value.stop, value.step), strict=True)
    nodes = [writer.node(bound, paths.attribute(path, name)) for name, bound in bounds]
    return {"$": "slice", "args": nodes}


def _read_slice(reader: Reader, fields: Fields) -> slice:
    return slice(*_three(fields, reader.children(fields, "args")))


def _three(fields: Fields, args: list[Any]) -> list[Any]:
    if len(args) != 3:
        raise fields.fail(f"args: expected 3, found {len(args)}")
    return args


def _call(fields: Fields, make: Callable[..., Any], args: list[Any], **more: Any) -> Any:
    """Call one of Python's own classes with values that may not suit it."""
    try:
        return make(*args, **more)
    except (TypeError, ValueError, OverflowError) as error:
        raise fields.fail(f"{make.__name__} refused its arguments: {error}") from None


_PATHS: Final[dict[str, tuple[type[pathlib.PurePath], type[pathlib.PurePath]]]] = {
    # Name: the class, and the one that stands in for it on the other kind of system.
    "PosixPath": (pathlib.PosixPath, pathlib.PurePosixPath),
    "WindowsPath": (pathlib.WindowsPath, pathlib.PureWindowsPath),
    "PurePosixPath": (pathlib.PurePosixPath, pathlib.PurePosixPath),
    "PureWindowsPath": (pathlib.PureWindowsPath, pathlib.PureWindowsPath),
}


def _write_path(writer: Writer, value: pathlib.PurePath, path: str) -> Node:
    return {"$": "path", "class": type(value).__name__, "value": writer.node(str(value), path)}


def _read_path(reader: Reader, fields: Fields) -> pathlib.PurePath:
    found = _PATHS.get(fields.text("class"))
    text = reader.child(fields, "value")
    if found is None or type(text) is not str:
        raise fields.fail("expected a class of pathlib and a string")
    try:
        return found[0](text)
    except NotImplementedError:
        return found[1](text)


def _zone(writer: Writer, value: datetime.datetime | datetime.time, path: str) -> Node:
    """What date and time have in common: fold and time zone, where they say anything."""
    node: dict[str, Node] = {"fold": True} if value.fold else {}
    if value.tzinfo is not None:
        node["tz"] = writer.node(value.tzinfo, paths.attribute(path, "tzinfo"))
    return node


def _write_datetime(writer: Writer, value: datetime.datetime, path: str) -> Node:
    day = [value.year, value.month, value.day]
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return {"$": "datetime", "args": day + clock} | _zone(writer, value, path)


def _write_time(writer: Writer, value: datetime.time, path: str) -> Node:
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return {"$": "time", "args": clock} | _zone(writer, value, path)


def _reader_of_clock(make: Callable[..., Any]) -> Read:
    def read(reader: Reader, fields: Fields) -> Any:
        zone = reader.child(fields, "tz") if fields.has("tz") else None
        fold = int(fields.flag("fold"))
        return _call(fields, make, fields.integers("args"), tzinfo=zone, fold=fold)

    return read


def _write_date(_: Writer, value: datetime.date, __: str) -> Node:
    return {"$": "date", "args": [value.year, value.month, value.day]}


def _read_date(_: Reader, fields: Fields) -> datetime.date:
    found: datetime.date = _call(fields, datetime.date, fields.integers("args"))
    return found


def _delta(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _write_timedelta(_: Writer, value: datetime.timedelta, __: str) -> Node:
    return {"$": "timedelta", "args": _delta(value)}


def _read_timedelta(_: Reader, fields: Fields) -> datetime.timedelta:
    args: list[Any] = _three(fields, fields.integers("args"))
    found: datetime.timedelta = _call(fields, datetime.timedelta, args)
    return found


def _write_timezone(writer: Writer, value: datetime.timezone, path: str) -> Node:
    # Its pickled form is its constructor's arguments; only there is an explicit name told
    # from one made up from the offset.
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
    node: Node = {"$": "timezone", "args": _delta(offset)}
    return node | ({"name": writer.node(name[0], path)} if name else {})


def _read_timezone(reader: Reader, fields: Fields) -> datetime.timezone:
    args: list[Any] = [_read_timedelta(reader, fields)]
    if fields.has("name"):
        args.append(reader.child(fields, "name"))
    found: datetime.timezone = _call(fields, datetime.timezone, args)
    return found


WRITERS: Final[dict[type, Write]] = {
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    range: _write_range,
    slice: _write_slice,
    **{found[0]: _write_path for found in _PATHS.values()},
    datetime.datetime: _write_datetime,
    datetime.date: _write_date,
    datetime.time: _write_time,
    datetime.timedelta: _write_timedelta,
    datetime.timezone: _write_timezone,
}
READERS: Final[dict[str, Read]] = {
    "int": _read_int,
    "float": _read_float,
    "complex": _read_complex,
    "str": _read_str,
    "bytes": _read_bytes,
    "bytearray": _read_bytearray,
    "range": _read_range,
    "slice": _read_slice,
    "path": _read_path,
    "datetime": _reader_of_clock(datetime.datetime),
    "date": _read_date,
    "time": _reader_of_clock(datetime.time),
    "timedelta": _read_timedelta,
    "timezone": _read_timezone,
}
