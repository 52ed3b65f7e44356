"""Page-locked host memory, handed out front to back from large segments.

Page-locking is slow (about a second for 4 GB), so segments come from torch's caching
host allocator, which keeps them for the next save. Segments are a power of two
long because that allocator rounds up to one.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["SEGMENT_BYTES", "PinnedArena"]

SEGMENT_BYTES: Final = 128 << 20


class PinnedArena:
    """Hands out page-locked memory; a segment lives as long as a view of it."""

    def __init__(self) -> None:
        self._segment: Tensor | None = None
        self._used = 0

    def take(self, size: int) -> Tensor:
        """Return `size` bytes: uint8, shape (size,), next to the last ones where possible."""
        if size > SEGMENT_BYTES:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        if self._segment is None or self._used + size > self._segment.numel():
            self._segment = torch.empty(SEGMENT_BYTES, dtype=torch.uint8, pin_memory=True)
            self._used = 0
        view = self._segment[self._used : self._used + size]
        self._used += size
        return view

    def give_back(self, view: Tensor, kept: int) -> Tensor:
        """Keep the first `kept` bytes of the last view taken; the rest is free again."""
        if self._segment is not None and self._ends_at_cursor(view):
            self._used -= view.numel() - kept
        return view[:kept]

    def _ends_at_cursor(self, view: Tensor) -> bool:
        assert self._segment is not None
        return view.data_ptr() + view.numel() == self._segment.data_ptr() + self._used
