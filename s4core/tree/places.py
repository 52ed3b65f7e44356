"""Tensors in their places: from an array and a place to the tensor that lies there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from s4core.errors import FormatError
from s4core.tree.geometry import OPAQUE, Geometry, empty, torch_dtype, typed

__all__ = ["meta_tensor", "place"]

_MAX_BYTES: Final = (1 << 63) - 1


def meta_tensor(dtype: str, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return a meta tensor: a shape without memory.

    Raises:
        FormatError: no tensor has such a shape.
    """
    return _strided(torch_dtype(dtype), _checked(shape, stride, 0), torch.device("meta"))


def _strided(dtype: torch.dtype, geometry: Geometry, device: torch.device) -> Tensor:
    opaque = OPAQUE[dtype.itemsize]
    try:
        made = torch.empty_strided(geometry.shape, geometry.stride, dtype=opaque, device=device)
    except RuntimeError as error:
        raise FormatError(
            f"no tensor has shape {geometry.shape} and strides {geometry.stride}: {error}"
        ) from None
    return made.view(dtype)


def place(
    words: Tensor, dtype: str, shape: Sequence[int], stride: Sequence[int], offset: int
) -> Tensor:
    """Return the tensor that lies at a place of an array.

    Tensors placed in one array share its memory; a compact array is spread over memory
    of its own.

    Args:
        words: the array: 1-D, stride 1, any dtype of its bytes, first on its storage.
        dtype: of the tensor.
        shape: of the tensor.
        stride: in elements.
        offset: in elements, from the start of the array.

    Raises:
        FormatError: the tensor does not lie within the array.
        StateError: a compact array cannot be spread for want of memory.
    """
    wanted, geometry = torch_dtype(dtype), _checked(shape, stride, offset)
    array_bytes = words.numel() * words.element_size()
    if not geometry.span:
        return _strided(wanted, geometry, words.device)
    if (offset + geometry.span) * wanted.itemsize <= array_bytes:
        storage = words.untyped_storage()
        return typed(storage, wanted, offset, geometry.shape, geometry.stride)
    compact = offset == 0 and geometry.covered * wanted.itemsize == array_bytes
    if compact and geometry.has_gaps:
        return _spread(words, wanted, geometry)
    raise FormatError(
        f"a tensor of {dtype}, shape {geometry.shape}, strides {geometry.stride} and offset "
        f"{offset} reaches beyond its array of {array_bytes} bytes"
    )


def _spread(words: Tensor, dtype: torch.dtype, geometry: Geometry) -> Tensor:
    """The inverse of `_compacted`."""
    opaque = OPAQUE[dtype.itemsize]
    target = empty(str(opaque), geometry.span, words.device).zero_()
    holes = target.as_strided(geometry.distinct_shape, geometry.stride).permute(geometry.order)
    dense = typed(words.untyped_storage(), opaque, 0, (geometry.covered,), (1,))
    holes.copy_(dense.view(holes.shape))
    return typed(target.untyped_storage(), dtype, 0, geometry.shape, geometry.stride)


def _checked(shape: Sequence[int], stride: Sequence[int], offset: int) -> Geometry:
    geometry = Geometry(tuple(shape), tuple(stride))
    numbers = (*geometry.shape, *geometry.stride, offset)
    sane = len(geometry.shape) == len(geometry.stride) and len(geometry.shape) <= 64
    if not sane or not all(0 <= number <= _MAX_BYTES for number in numbers):
        raise FormatError(
            f"no tensor has shape {geometry.shape}, strides {geometry.stride} and offset {offset}"
        )
    if max(geometry.span + offset, math.prod(geometry.shape)) > _MAX_BYTES // 16:
        raise FormatError(f"a tensor of shape {geometry.shape} is larger than any memory")
    return geometry
