"""Shapes and strides over memory: what they cover, and views of any dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from s4core import dtypes
from s4core.errors import StateError

__all__ = ["OPAQUE", "Geometry", "covers_storage", "empty", "torch_dtype", "typed"]

# Elements as something that torch copies without looking at them.
OPAQUE: Final = {
    1: torch.int8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}


@dataclass(frozen=True)
class Geometry:
    """Shape and strides, and what they say about memory; all in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        """The geometry of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()))

    @property
    def span(self) -> int:
        """Elements from the first to the last, both included."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * step for size, step in steps)

    @property
    def distinct_shape(self) -> tuple[int, ...]:
        """The shape with repeated dimensions (stride 0) reduced to 1."""
        steps = zip(self.shape, self.stride, strict=True)
        return tuple(size if step else min(size, 1) for size, step in steps)

    @property
    def covered(self) -> int:
        """Number of distinct elements, if none overlap."""
        return math.prod(self.distinct_shape)

    @property
    def order(self) -> list[int]:
        """Dimensions in storage order: largest stride first."""
        return sorted(range(len(self.stride)), key=lambda dim: -self.stride[dim])

    @property
    def overlaps_itself(self) -> bool:
        """Whether two different indices may reach one element (repeats aside)."""
        reach = 0
        for dim in reversed(self.order):
            size, step = self.distinct_shape[dim], self.stride[dim]
            if size > 1 and step <= reach:
                return True
            reach += (size - 1) * step
        return False

    @property
    def has_gaps(self) -> bool:
        """Whether its elements leave some of the span unused, and none overlap."""
        return self.covered < self.span and not self.overlaps_itself


def covers_storage(tensor: Tensor) -> bool:
    """Whether a tensor's storage really holds all its elements (freed ones do not)."""
    last = tensor.storage_offset() + Geometry.of(tensor).span
    return last * tensor.element_size() <= tensor.untyped_storage().nbytes() or not tensor.numel()


def typed(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """A view of a storage; offset and strides in elements, which must lie inside it."""
    # Through an opaque dtype: torch warns at the birth of a complex32 tensor.
    words = torch.empty(0, dtype=OPAQUE[dtype.itemsize], device=storage.device)
    words.set_(storage, offset, tuple(shape), tuple(stride))
    return words.view(dtype)


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of that name.

    Raises:
        StateError: S4 does not store it, or this torch has none of that name.
    """
    found = getattr(torch, dtypes.lookup(name).name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"dtype {name!r} is unknown to torch {torch.__version__}; upgrade torch")
    return found


def empty(dtype: str, numel: int, device: torch.device | str) -> Tensor:
    """Return memory for an array: 1-D, `numel` elements of `dtype`, not initialised.

    Raises:
        StateError: there is not so much memory.
    """
    wanted = torch_dtype(dtype)
    try:
        return torch.empty(numel, dtype=OPAQUE[wanted.itemsize], device=device).view(wanted)
    except RuntimeError as error:
        raise StateError(
            f"an array of {numel * wanted.itemsize} bytes cannot be allocated on {device}: {error}"
        ) from error
