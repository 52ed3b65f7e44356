"""Nodes of tensors that torch keeps in parts: sparse, nested, jagged and quantized.

Each part is a tensor with a node of its own; what ties them together is in the node of
the whole. Torch checks the parts against each other when they are put together again,
and its refusal is a `FormatError` that names the path.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from s4core.errors import FormatError, StateError
from s4core.tree import paths
from s4core.tree.geometry import typed
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.writing import Node, Writer

__all__ = [
    "READERS",
    "SHARED",
    "assemble",
    "parts_of",
    "write_jagged",
    "write_nested",
    "write_quantized",
    "write_sparse",
]

SHARED: Final = frozenset({"sparse", "nested", "jagged", "quantized"})

# The parts of each layout: methods of the tensor.
_SPARSE_PARTS: Final = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_LAYOUTS: Final = {str(layout).removeprefix("torch."): layout for layout in _SPARSE_PARTS}
# Elements of a table of indices, beyond which each must really be stored.
_MAX_REPEATED: Final = 1 << 20
_NESTED_TABLES: Final = (
    "_nested_tensor_size",
    "_nested_tensor_strides",
    "_nested_tensor_storage_offsets",
)
# What the integers of a quantized tensor are, and how many lie in one of them.
_INTEGERS: Final = {
    torch.qint8: (torch.int8, 1),
    torch.quint8: (torch.uint8, 1),
    torch.qint32: (torch.int32, 1),
    torch.quint4x2: (torch.uint8, 2),
    torch.quint2x4: (torch.uint8, 4),
}
_QUANTIZED: Final = {str(dtype).removeprefix("torch."): dtype for dtype in _INTEGERS}
_PER_CHANNEL: Final = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)


def parts_of(writer: Writer, parts: dict[str, Tensor], path: str) -> dict[str, Node]:
    """The nodes of the parts of a tensor, by name."""
    return {
        name: writer.node(part.detach(), paths.below(path, name.lstrip("_")))
        for name, part in parts.items()
    }


def assemble(fields: Fields, make: Callable[[], Tensor]) -> Tensor:
    """Put a tensor together from parts that may not fit; set `grad`.

    Raises:
        FormatError: torch refused.
    """
    try:
        made = make()
        return made.requires_grad_() if fields.flag("grad") else made
    except FormatError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        raise fields.fail(f"torch refused its parts: {error}") from None


def _check_table(*tables: Tensor) -> None:
    """Refuse tables of indices that repeat a few stored elements without end.

    Raises:
        ValueError: they do.
    """
    for table in tables:
        if table.numel() <= _MAX_REPEATED or table.layout is not torch.strided:
            continue
        if table.numel() * table.element_size() > table.untyped_storage().nbytes():
            raise ValueError(f"a part repeats its elements to {table.numel()} of them")


def _checked_for_save(path: str, check: Callable[[], None]) -> None:
    """Run the check that loading will make: what would not load is never stored.

    Raises:
        StateError: it would not load.
    """
    try:
        check()
    except (RuntimeError, ValueError) as error:
        raise StateError(
            f"{paths.shown(path)}: this tensor breaks its layout's rules, and could not be "
            f"loaded: {error}; rebuild it (coalesce() or sort its indices), or store its parts"
        ) from None


def _grad(value: Tensor) -> dict[str, Node]:
    return {"grad": True} if value.requires_grad else {}


def _part(reader: Reader, fields: Fields, key: str) -> Tensor:
    value = reader.child(fields, key)
    if not isinstance(value, Tensor):
        raise fields.fail(f"{key}: expected a tensor, found a {type(value).__name__}")
    return value


def write_sparse(writer: Writer, value: Tensor, path: str) -> Node:
    """The node of a sparse tensor of any layout."""
    plain = value.detach()
    parts = {name: getattr(plain, name)() for name in _SPARSE_PARTS[value.layout]}
    coalesced = value.layout is torch.sparse_coo and value.is_coalesced()
    _checked_for_save(
        path,
        lambda: _check_sparse(value.layout, list(value.shape), [*parts.values()], coalesced),
    )
    node = {
        "$": "sparse",
        "layout": str(value.layout).removeprefix("torch."),
        "size": list(value.shape),
        "parts": list(parts_of(writer, parts, path).values()),
    }
    return node | ({"coalesced": True} if coalesced else {}) | _grad(value)


def _read_sparse(reader: Reader, fields: Fields) -> Tensor:
    layout = _LAYOUTS.get(fields.text("layout"))
    size, parts = fields.sizes("size"), reader.children(fields, "parts")
    coalesced = fields.flag("coalesced")
    if layout is None or len(parts) != len(_SPARSE_PARTS[layout]):
        raise fields.fail("expected a sparse layout and its parts")
    if not all(isinstance(part, Tensor) for part in parts):
        raise fields.fail("parts: expected tensors")

    return assemble(fields, lambda: _make_sparse(layout, size, parts, coalesced))


def _check_sparse(
    layout: torch.layout, size: list[int], parts: list[Tensor], coalesced: bool
) -> None:
    _make_sparse(layout, size, parts, coalesced)


def _make_sparse(
    layout: torch.layout, size: list[int], parts: list[Tensor], coalesced: bool
) -> Tensor:
    _check_table(*parts[:-1])
    if layout is torch.sparse_coo:
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, size, check_invariants=True, is_coalesced=coalesced
        )
    outer, inner, values = parts
    return torch.sparse_compressed_tensor(
        outer, inner, values, size, layout=layout, check_invariants=True
    )


def write_nested(writer: Writer, value: Tensor, path: str) -> Node:
    """The node of a nested tensor of the strided layout."""
    plain = value.detach()
    tables = {name: getattr(plain, name)() for name in _NESTED_TABLES}
    _checked_for_save(path, lambda: _check_nested(plain.values(), *tables.values()))
    parts = [writer.node(plain.values(), paths.below(path, "values"))]
    for name, table in tables.items():
        # Torch wants these on the CPU wherever the values are.
        number = writer.leaf(table, paths.below(path, name.lstrip("_")), host=True)
        parts.append({"$": "tensor", "t": number})
    return {"$": "nested", "parts": parts} | _grad(value)


def _read_nested(reader: Reader, fields: Fields) -> Tensor:
    parts = reader.children(fields, "parts")
    if len(parts) != 4 or not all(isinstance(part, Tensor) for part in parts):
        raise fields.fail("parts: expected four tensors")

    def make() -> Tensor:
        _check_nested(*parts)
        return torch._nested_view_from_buffer(*parts)

    return assemble(fields, make)


def _check_nested(buffer: Tensor, sizes: Tensor, strides: Tensor, offsets: Tensor) -> None:
    """Torch trusts these numbers with its memory: check that they stay in the buffer."""
    _check_table(sizes, strides, offsets)
    tables = (sizes, strides, offsets)
    plain = all(t.dtype is torch.int64 and t.device.type == "cpu" for t in tables)
    fits = sizes.shape == strides.shape and offsets.shape == sizes.shape[:1]
    if not plain or not fits or buffer.dim() != 1 or sizes.dim() not in (1, 2):
        raise ValueError("its tables of sizes, strides and offsets do not match")
    rows = zip(sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True)
    for size, stride, offset in rows if sizes.dim() == 2 else ():
        if min([*size, *stride, offset]) < 0:
            raise ValueError("a size, stride or offset is negative")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if 0 not in size and last >= buffer.numel():
            raise ValueError(f"a part reaches element {last} of {buffer.numel()}")


def write_jagged(writer: Writer, value: Any, path: str) -> Node:
    """The node of a nested tensor of the jagged layout."""
    parts = {"values": value._values, "offsets": value._offsets}
    if value._lengths is not None:
        parts["lengths"] = value._lengths
    _checked_for_save(
        path,
        lambda: _check_jagged(value._values, value._offsets, value._lengths, value._ragged_idx),
    )
    node = {"$": "jagged", "dim": value._ragged_idx} | parts_of(writer, parts, path)
    if value._min_seqlen_tensor is not None:
        node["min"] = value._get_min_seqlen()
    if value._max_seqlen_tensor is not None:
        node["max"] = value._get_max_seqlen()
    return node | _grad(value)


def _read_jagged(reader: Reader, fields: Fields) -> Tensor:
    values, offsets = (_part(reader, fields, key) for key in ("values", "offsets"))
    lengths = _part(reader, fields, "lengths") if fields.has("lengths") else None
    low, high = (fields.integer(key) if fields.has(key) else None for key in ("min", "max"))
    dim = fields.integer("dim")

    def make() -> Tensor:
        _check_jagged(values, offsets, lengths, dim)
        return torch.nested.nested_tensor_from_jagged(values, offsets, lengths, dim, low, high)

    return assemble(fields, make)


def _check_jagged(values: Tensor, offsets: Tensor, lengths: Tensor | None, dim: int) -> None:
    """Torch's constructor believes the offsets; operators then read wherever they point."""
    tables = [offsets] if lengths is None else [offsets, lengths]
    _check_table(*tables)
    integers = all(t.dtype in (torch.int32, torch.int64) and t.dim() == 1 for t in tables)
    if not integers or len(offsets) < 1 or not 1 <= dim <= values.dim():
        raise ValueError("its values, offsets and dim do not match")
    starts = offsets.tolist()
    steps = [b - a for a, b in itertools.pairwise(starts)]
    lasting = steps if lengths is None else lengths.tolist()
    inside = starts[0] >= 0 and starts[-1] <= values.shape[dim - 1]
    if not inside or min(steps, default=0) < 0 or len(lasting) < len(steps):
        raise ValueError("its offsets do not ascend within its values")
    rows = zip(starts, lasting, strict=False)
    if any(n < 0 or start + n > values.shape[dim - 1] for start, n in rows):
        raise ValueError("its lengths reach beyond its values")


def write_quantized(writer: Writer, value: Tensor, path: str) -> Node:
    """The node of a quantized tensor: its integers as they lie in memory, scale, zero point."""
    plain, scheme = value.detach(), value.qscheme()
    node: dict[str, Node] = {
        "$": "quantized",
        "dtype": str(value.dtype).removeprefix("torch."),
        "scheme": str(scheme).removeprefix("torch."),
        "size": list(value.shape),
        "ints": writer.node(_integers_of(plain, path), path),
    }
    if scheme is torch.per_tensor_affine:
        return node | {
            "scale": writer.node(value.q_scale(), path),
            "zero_point": value.q_zero_point(),
        }
    if scheme not in _PER_CHANNEL:
        raise StateError(f"{paths.shown(path)}: scheme {scheme} cannot be stored: dequantize it")
    parts = {
        "scales": plain.q_per_channel_scales(),
        "zero_points": plain.q_per_channel_zero_points(),
    }
    return node | {"axis": value.q_per_channel_axis()} | parts_of(writer, parts, path)


def _integers_of(value: Tensor, path: str) -> Tensor:
    """The integers of a quantized tensor, sharing its memory."""
    dtype, packed = _INTEGERS[value.dtype]
    storage, offset = value.untyped_storage(), int(value.storage_offset())
    if packed == 1:
        return typed(storage, dtype, offset, value.shape, value.stride())
    if offset or not value.is_contiguous():
        raise StateError(
            f"{paths.shown(path)}: a view of a {value.dtype} tensor cannot be stored: clone it"
        )
    return typed(storage, dtype, 0, (_packed_bytes(value.shape, packed),), (1,))


def _packed_bytes(size: Any, packed: int) -> int:
    return -(-int(math.prod(size)) // packed)


def _read_quantized(reader: Reader, fields: Fields) -> Tensor:
    dtype = _QUANTIZED.get(fields.text("dtype"))
    size, ints = fields.sizes("size"), _part(reader, fields, "ints")
    if dtype is None or ints.dtype is not _INTEGERS[dtype][0]:
        raise fields.fail(f"a quantized dtype was expected, whose integers are {ints.dtype}")
    packed = _INTEGERS[dtype][1]
    expected = size if packed == 1 else [_packed_bytes(size, packed)]
    if list(ints.shape) != expected:
        raise fields.fail(f"ints: expected shape {expected}, found {tuple(ints.shape)}")
    made = _empty_quantized(reader, fields, dtype, size, ints.device)

    def make() -> Tensor:
        stride = ints.stride() if packed == 1 else torch.empty(size, device="meta").stride()
        with torch.no_grad():
            made.set_(ints.untyped_storage(), ints.storage_offset(), tuple(size), stride)
        return made

    return assemble(fields, make)


def _empty_quantized(
    reader: Reader, fields: Fields, dtype: torch.dtype, size: list[int], device: torch.device
) -> Tensor:
    """A quantized tensor without elements, with the scales of the node."""
    scheme = fields.text("scheme")
    if scheme == "per_tensor_affine":
        scale, zero_point = reader.child(fields, "scale"), fields.integer("zero_point")
        if type(scale) is not float:
            raise fields.fail("scale: expected a float")
        return assemble(
            fields,
            lambda: torch._empty_affine_quantized(
                [0], scale=scale, zero_point=zero_point, dtype=dtype, device=device
            ),
        )
    if scheme not in [str(known).removeprefix("torch.") for known in _PER_CHANNEL]:
        raise fields.fail(f"scheme {scheme!r} is not known")
    axis = fields.integer("axis")
    scales, zeros = (_part(reader, fields, key) for key in ("scales", "zero_points"))
    if not 0 <= axis < len(size) or not list(scales.shape) == list(zeros.shape) == [size[axis]]:
        raise fields.fail("axis, scales and zero points do not match its size")
    # No elements, but as many channels as there are scales.
    hollow = [n if dim == axis else 0 for dim, n in enumerate(size)]

    def make() -> Tensor:
        _check_table(scales, zeros)
        return torch._empty_per_channel_affine_quantized(
            hollow, scales=scales, zero_points=zeros, axis=axis, dtype=dtype, device=device
        )

    return assemble(fields, make)


READERS: Final[dict[str, Read]] = {
    "sparse": _read_sparse,
    "nested": _read_nested,
    "jagged": _read_jagged,
    "quantized": _read_quantized,
}
