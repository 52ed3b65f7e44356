"""Compare tensors and states by their bits: the only comparisons tests may use.

`torch.equal` is False for two equal NaNs and True for 0.0 and -0.0. Here two
tensors are the same iff type, dtype, shape, device type, flags and every bit of
every element agree, and two states iff all their leaves and all their types do.
"""

from __future__ import annotations

import dataclasses
import struct
from collections import OrderedDict, defaultdict
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["assert_same_bits", "assert_same_state", "raw_bytes"]

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a strided tensor's elements in row-major order: uint8, 1-D, CPU.

    Goes through integers all the way: a copy of a bool tensor turns byte 2 into 1.
    """
    plain = tensor.detach()
    plain = plain.conj() if plain.is_conj() else plain
    plain = torch._neg_view(plain) if plain.is_neg() else plain
    if plain.dtype is torch.complex128:
        plain = torch.view_as_real(plain)
    words = plain.view(_WORDS[plain.element_size()])
    # A fresh tensor: a "contiguous" one of fewer than two elements may have any stride.
    flat = torch.empty(words.numel(), dtype=words.dtype).copy_(words.reshape(-1))
    return flat.view(torch.uint8)


def assert_same_bits(a: Tensor, b: Tensor, *, stride: bool = False, where: str = "") -> None:
    """Assert that two tensors agree in every bit.

    Args:
        a: expected; any layout, dtype or class.
        b: found.
        stride: whether strides must agree too.
        where: prefix of the message, such as a path.
    """
    for name in ("__class__", "dtype", "layout", "requires_grad", "is_nested"):
        _same(getattr(a, name), getattr(b, name), f"{where}.{name}")
    if not a.is_nested:
        _same(a.shape, b.shape, f"{where}.shape")
    _same(a.device.type, b.device.type, f"{where}.device.type")
    if a.layout is torch.sparse_coo:
        _same(a.is_coalesced(), b.is_coalesced(), f"{where}.is_coalesced")
    parts = _parts(a)
    if parts is None:
        return _same_dense(a, b, stride, where)
    others = _parts(b)
    assert others is not None, f"{where}: expected parts {list(parts)}, found a plain tensor"
    return assert_same_state(parts, others, stride=stride, where=where)


def _parts(tensor: Tensor) -> dict[str, Any] | None:
    """The plain tensors and numbers that make up a tensor that is no plain one."""
    if tensor.layout is torch.sparse_coo:
        return {"indices": tensor._indices(), "values": tensor._values()}
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        names = ("crow_indices", "col_indices", "values")
        return {name: getattr(tensor, name)() for name in names}
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        names = ("ccol_indices", "row_indices", "values")
        return {name: getattr(tensor, name)() for name in names}
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        inner, context = flatten()
        return {"context": context, **{name: getattr(tensor, name) for name in inner}}
    if tensor.is_nested:
        sizes = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
        return {"values": tensor.values()} | {name: getattr(tensor, name)() for name in sizes}
    return _quantized_parts(tensor) if tensor.is_quantized else None


def _quantized_parts(tensor: Tensor) -> dict[str, Any]:
    parts: dict[str, Any] = {"ints": tensor.int_repr(), "qscheme": tensor.qscheme()}
    if tensor.qscheme() is torch.per_tensor_affine:
        return parts | {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return parts | {
        "axis": tensor.q_per_channel_axis(),
        "scales": tensor.q_per_channel_scales(),
        "zero_points": tensor.q_per_channel_zero_points(),
    }


def _same_dense(a: Tensor, b: Tensor, stride: bool, where: str) -> None:
    _same((a.is_conj(), a.is_neg()), (b.is_conj(), b.is_neg()), f"{where}: conj and neg bits")
    if stride:
        _same(a.stride(), b.stride(), f"{where}.stride()")
    if a.is_meta or torch.equal(raw_bytes(a), raw_bytes(b)):
        return
    size = a.element_size()
    x, y = raw_bytes(a).view(-1, size), raw_bytes(b).view(-1, size)
    differing = (x != y).any(dim=1).nonzero().view(-1)
    first = int(differing[0])
    raise AssertionError(
        f"{where}: {len(differing)} of {len(x)} elements of {a.dtype} differ, first at {first}: "
        f"expected {x[first].numpy()[::-1].tobytes().hex()}, "
        f"found {y[first].numpy()[::-1].tobytes().hex()}"
    )


def assert_same_state(
    a: object, b: object, *, aliasing: bool = False, stride: bool = True, where: str = ""
) -> None:
    """Assert that two nested states agree: types exactly, order, every bit.

    Args:
        a: expected.
        b: found.
        aliasing: whether tensors that are one object, or share memory, must do so in both.
        stride: whether tensors must agree in strides too.
        where: prefix of the message.
    """
    walk = _Walk(stride)
    walk.compare(a, b, where)
    if aliasing:
        walk.compare_aliasing()


class _Walk:
    """One comparison of two states; remembers the pairs of tensors met on the way."""

    def __init__(self, stride: bool) -> None:
        self.stride = stride
        self.pairs: list[tuple[str, Tensor, Tensor]] = []

    def compare(self, a: Any, b: Any, where: str) -> None:
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            # Without leave to import its class a namedtuple comes back as a fresh one.
            _same((type(a).__name__, a._fields), (type(b).__name__, b._fields), where)
            return self.items(a, b, where)
        _same(type(a), type(b), f"{where}: type")
        if isinstance(a, Tensor):
            self.pairs.append((where, a, b))
            return assert_same_bits(a, b, stride=self.stride, where=where)
        if isinstance(a, dict):
            return self.mapping(a, b, where)
        if isinstance(a, (list, tuple)):
            return self.items(a, b, where)
        if isinstance(a, (set, frozenset)):
            return self.items(sorted(a, key=repr), sorted(b, key=repr), where)
        if dataclasses.is_dataclass(a):
            return self.mapping(vars(a), vars(b), where)
        return _same_scalar(a, b, where)

    def items(self, a: Any, b: Any, where: str) -> None:
        _same(len(a), len(b), f"{where}: length")
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            self.compare(x, y, f"{where}/{index}")

    def mapping(self, a: dict[Any, Any], b: dict[Any, Any], where: str) -> None:
        _same(len(a), len(b), f"{where}: number of keys of {list(a)!r} and {list(b)!r}")
        for x, y in zip(a, b, strict=True):
            self.compare(x, y, f"{where}: key {x!r}")
        for (key, x), y in zip(a.items(), b.values(), strict=True):
            self.compare(x, y, f"{where}/{key}")
        if isinstance(a, OrderedDict):
            self.compare(vars(a), vars(b), f"{where}: attributes")
        if isinstance(a, defaultdict) and isinstance(b, defaultdict):
            _same(a.default_factory, b.default_factory, f"{where}: default_factory")

    def compare_aliasing(self) -> None:
        for (where, a, b), (other, c, d) in combinations(self.pairs, 2):
            _same(a is c, b is d, f"{where} is {other}")
            _same(_distance(a, c), _distance(b, d), f"{where} and {other}: bytes between them")


def _distance(a: Tensor, b: Tensor) -> int | None:
    """Bytes from a's first element to b's, None when they share no memory."""
    spans = [_span(a), _span(b)]
    if None in spans:
        return None
    (a_start, a_stop), (b_start, b_stop) = spans  # type: ignore[misc]
    return b_start - a_start if a_start < b_stop and b_start < a_stop else None


def _span(tensor: Tensor) -> tuple[int, int] | None:
    """First and last address of a plain tensor's elements."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta
    if not plain or tensor.numel() == 0 or hasattr(tensor, "__tensor_flatten__"):
        return None
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _same_scalar(a: Any, b: Any, where: str) -> None:
    if isinstance(a, np.ndarray):
        _same((a.dtype, a.shape), (b.dtype, b.shape), f"{where}: dtype and shape")
        if a.dtype.hasobject:
            return _same(a.tolist(), b.tolist(), where)
        return _same(a.tobytes().hex(), b.tobytes().hex(), where)
    if isinstance(a, np.generic):
        return _same((a.dtype, a.tobytes()), (b.dtype, b.tobytes()), where)
    if isinstance(a, float):
        return _same(struct.pack(">d", a).hex(), struct.pack(">d", b).hex(), where)
    if isinstance(a, complex):
        _same_scalar(a.real, b.real, f"{where}.real")
        return _same_scalar(a.imag, b.imag, f"{where}.imag")
    return _same(a, b, where)


def _same(expected: object, found: object, where: str) -> None:
    assert expected == found, f"{where}: expected {expected!r}, found {found!r}"
