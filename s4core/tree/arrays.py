"""Nodes of numpy: arrays, scalars and dtypes.

An array whose dtype torch has too becomes a tensor that shares its memory; any other
(big-endian, dates, text, records) becomes a tensor of its bytes beside a description
of its dtype. Arrays of Python objects are no data: they are pickled or refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from s4core.errors import StateError
from s4core.tree import paths
from s4core.tree.classes import write_foreign
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.scalars import from_base64, to_base64
from s4core.tree.writing import Node, Writer

__all__ = ["READERS", "SHARED", "write_array", "write_dtype", "write_scalar"]

SHARED: Final = frozenset({"ndarray"})
# What torch and numpy both have, under one name.
_TORCHS: Final = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_SIMPLE: Final = re.compile(r"[<>|][biufcSUVmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")


def write_array(writer: Writer, value: np.ndarray[Any, Any], path: str) -> Node:
    """The node of an array that is exactly an `ndarray`."""
    if _describe(value.dtype) is None:
        return write_foreign(writer, value, path, f"numpy array of {value.dtype}")
    return writer.once(value, path, lambda: _write_array(writer, value, path))


def _write_array(writer: Writer, value: np.ndarray[Any, Any], path: str) -> Node:
    if _is_torchs(value.dtype):
        return {"$": "ndarray", "t": writer.leaf(_lend(value), path, host=True)}
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    data = bytearray((value.T if fortran else value).tobytes())
    raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    node = {"$": "ndarray", "t": writer.leaf(raw, path, host=True)}
    node |= {"dtype": _describe(value.dtype), "shape": list(value.shape)}
    return node | ({"fortran": True} if fortran else {})


def _is_torchs(dtype: np.dtype[Any]) -> bool:
    return dtype.names is None and dtype.isnative and dtype.name in _TORCHS


def _lend(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over an array's memory, or over a copy where torch cannot use it."""
    steps = [step % array.itemsize for step in array.strides if step >= 0]
    usable = len(steps) == array.ndim and not any(steps)
    if not (usable and array.flags.writeable and array.flags.aligned):
        array = array.copy(order="K")
    return torch.from_numpy(array)


def _read_array(reader: Reader, fields: Fields) -> np.ndarray[Any, Any]:
    tensor = reader.tensor(fields)
    raw = fields.has("dtype")
    name = str(tensor.dtype).removeprefix("torch.")
    known = name == "uint8" if raw else name in _TORCHS
    if not known or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise fields.fail(f"a tensor of {tensor.dtype} on {tensor.device} is no array of numpy")
    if not raw:
        array: np.ndarray[Any, Any] = tensor.numpy()
        return array
    return _from_bytes(fields, tensor)


def _from_bytes(fields: Fields, tensor: Tensor) -> np.ndarray[Any, Any]:
    dtype, shape = _read_description(fields, fields.raw("dtype")), fields.sizes("shape")
    fortran = fields.flag("fortran")
    expected = math.prod(shape) * dtype.itemsize
    if tensor.dim() != 1 or tensor.numel() != expected or not tensor.is_contiguous():
        raise fields.fail(f"expected {expected} bytes, found shape {tuple(tensor.shape)}")
    try:
        array: np.ndarray[Any, Any] = np.ndarray(
            shape, dtype, buffer=tensor.numpy(), order="F" if fortran else "C"
        )
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise fields.fail(f"numpy refused shape {shape} of {dtype}: {error}") from None
    return array


def write_scalar(writer: Writer, value: np.generic, path: str) -> Node:
    """The node of one of numpy's scalars."""
    described = _describe(value.dtype)
    if described is None:
        return write_foreign(writer, value, path)
    return {"$": "npscalar", "dtype": described, "data": to_base64(_scalar_bytes(value))}


def _scalar_bytes(value: np.generic) -> bytes:
    # str(value) and an array of it would lose trailing NULs; joining its characters does not.
    if isinstance(value, np.str_):
        return "".join([*value]).encode("utf-32-le", "surrogatepass")
    return bytes(value) if isinstance(value, np.bytes_) else value.tobytes()


def _read_scalar(_: Reader, fields: Fields) -> np.generic:
    dtype, data = _read_description(fields, fields.raw("dtype")), from_base64(fields, "data")
    try:
        found = _scalar(dtype, data)
    except (TypeError, ValueError, OverflowError) as error:
        raise fields.fail(f"numpy refused the bytes of a {dtype}: {error}") from None
    if len(data) != dtype.itemsize and dtype.kind not in "SU":
        raise fields.fail(f"expected {dtype.itemsize} bytes of a {dtype}, found {len(data)}")
    return found


def _scalar(dtype: np.dtype[Any], data: bytes) -> np.generic:
    found: np.generic
    if dtype.kind == "U":
        found = np.str_(data.decode("utf-32-le", "surrogatepass"))
    elif dtype.kind == "S":
        found = np.bytes_(data)
    else:
        found = np.ndarray((1,), dtype, buffer=bytearray(data))[0]
    return found


def write_dtype(_: Writer, value: np.dtype[Any], path: str) -> Node:
    """The node of one of numpy's dtypes."""
    described = _describe(value)
    if described is None:
        raise StateError(
            f"{paths.shown(path)}: numpy's dtype {value} cannot be stored: expected one without "
            "Python objects, titles or another package's types"
        )
    return {"$": "npdtype", "dtype": described}


def _read_dtype(_: Reader, fields: Fields) -> np.dtype[Any]:
    return _read_description(fields, fields.raw("dtype"))


def _describe(dtype: np.dtype[Any]) -> Node | None:
    """JSON that says all about a dtype, None where none would."""
    if dtype.hasobject:
        return None
    described = _description(dtype)
    try:
        same = _from_description(described) == dtype
    except (TypeError, ValueError):
        return None
    # A scalar of a type of another package (ml_dtypes' bfloat16) looks like plain bytes.
    return described if same else None


def _description(dtype: np.dtype[Any]) -> Node:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _description(base), "shape": list(shape)}
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names] if dtype.fields else []
    return {
        "names": list(dtype.names),
        "formats": [_description(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "itemsize": dtype.itemsize,
    }


def _from_description(node: Node) -> np.dtype[Any]:
    """The dtype that was described.

    Raises:
        ValueError, TypeError: nothing that `_description` writes.
    """
    if type(node) is str and _SIMPLE.fullmatch(node):
        return np.dtype(node)
    if type(node) is not dict:
        raise ValueError("expected a description of a dtype")
    if set(node) == {"base", "shape"}:
        return np.dtype((_from_description(node["base"]), _integers(node["shape"])))
    if (
        set(node) != {"names", "formats", "offsets", "itemsize"}
        or type(node["formats"]) is not list
    ):
        raise ValueError("expected names, formats, offsets and itemsize")
    return np.dtype(
        {
            "names": node["names"],
            "formats": [_from_description(part) for part in node["formats"]],
            "offsets": list(_integers(node["offsets"])),
            "itemsize": _integers([node["itemsize"]])[0],
        }
    )


def _integers(node: Node) -> tuple[int, ...]:
    if type(node) is not list or not all(type(n) is int and 0 <= n < 1 << 31 for n in node):
        raise ValueError("expected small integers")
    return tuple(node)


def _read_description(fields: Fields, node: Node) -> np.dtype[Any]:
    try:
        dtype = _from_description(node)
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise fields.fail(f"dtype: {error}") from None
    if dtype.hasobject:
        raise fields.fail("dtype: Python objects cannot be read from bytes")
    return dtype


READERS: Final[dict[str, Read]] = {
    "ndarray": _read_array,
    "npscalar": _read_scalar,
    "npdtype": _read_dtype,
}
