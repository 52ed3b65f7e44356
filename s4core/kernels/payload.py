"""Blobs in host memory, wherever they are, as one run of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Payload"]


_Given: TypeAlias = "Buffer | NDArray[np.uint8] | Sequence[Buffer]"


class Payload:
    """Buffers laid end to end.

    Attributes:
        pinned: whether all of them are page-locked, so that they can cross the link as they are.
    """

    def __init__(self, payloads: Sequence[_Given]) -> None:
        flat: list[NDArray[np.uint8]] = []
        for payload in payloads:
            views = [memoryview(part).cast("B") for part in _buffers(payload)]
            flat += [np.frombuffer(view, np.uint8) for view in views if view.nbytes]
        self._parts = flat
        self._ends = np.cumsum([0, *(len(part) for part in flat)])
        self.pinned = all(_is_pinned(part) for part in flat)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _slices(self, start: int, size: int) -> Iterator[NDArray[np.uint8]]:
        number = int(np.searchsorted(self._ends, start, side="right")) - 1
        while size > 0:
            at = start - int(self._ends[number])
            piece = self._parts[number][at : at + size]
            yield piece
            start, size, number = start + len(piece), size - len(piece), number + 1

    def copy_to(self, out: NDArray[np.uint8], start: int, size: int) -> None:
        """Copy `size` bytes from `start` on to the front of `out`."""
        at = 0
        for piece in self._slices(start, size):
            out[at : at + len(piece)] = piece
            at += len(piece)

    def views(self, start: int, size: int) -> list[Tensor]:
        """Return the same bytes as tensors that share the memory; only of pinned payloads."""
        return [torch.from_numpy(piece) for piece in self._slices(start, size)]


def _buffers(payload: _Given) -> Sequence[Buffer]:
    return payload if isinstance(payload, (list, tuple)) else [cast("Buffer", payload)]


def _is_pinned(part: NDArray[np.uint8]) -> bool:
    # Memory that torch cannot write to was not page-locked by it.
    return bool(part.flags.writeable and torch.from_numpy(part).is_pinned())
