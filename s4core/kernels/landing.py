"""Where blobs land in host memory: for each item one run of page-locked bytes, and its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core.kernels.batches import Group
from s4core.kernels.pinned import PinnedArena
from s4core.kernels.tables import BLOB_DTYPE

__all__ = ["Landing"]

_NO_ROWS = np.empty(0, BLOB_DTYPE)


@dataclass
class _Place:
    """Where one item's blobs go; `filled` bytes of `view` are spoken for."""

    view: Tensor
    filled: int


class Landing:
    """Host memory for the blobs of all items of a call."""

    def __init__(self, items: int) -> None:
        self._arena = PinnedArena()
        empty = torch.empty(0, dtype=torch.uint8)
        self._places = [_Place(empty, 0) for _ in range(items)]
        self._rows: list[list[NDArray[np.void]]] = [[] for _ in range(items)]

    def place(
        self, group: Group, part: slice, bound: NDArray[np.int64], rows: NDArray[np.void]
    ) -> list[Tensor]:
        """Return the host memory for a batch's blobs, in order, and keep its rows.

        Args:
            group: whose batch it is.
            part: the batch's chunks.
            bound: the most bytes that the blobs of each chunk of the group can take.
            rows: BLOB_DTYPE, shape (chunks of the batch * planes,).
        """
        planes = group.shape.planes
        lengths = rows["length"].reshape(-1, planes).sum(axis=1, dtype=np.int64)
        views: list[Tensor] = []
        for member, run in group.runs(part):
            first, last = run.start - part.start, run.stop - part.start
            after = int(bound[run.stop : group.first[member + 1]].sum())
            number = group.members[member]
            views.append(self._grow(number, int(lengths[first:last].sum()), after))
            self._rows[number].append(rows[first * planes : last * planes].copy())
        return _merged(views)

    def _grow(self, number: int, size: int, after: int) -> Tensor:
        """Make room for `size` more bytes of an item, of which `after` at most will follow."""
        place = self._places[number]
        if place.filled == 0:
            place.view = self._arena.take(size + after)
        view = place.view[place.filled : place.filled + size]
        place.filled += size
        if not after:
            place.view = self._arena.give_back(place.view, place.filled)
        return view

    def blobs(self) -> list[tuple[NDArray[np.void], NDArray[np.uint8]]]:
        """Return each item's rows and payload; the copies may still be under way."""
        return [
            (
                rows[0] if len(rows) == 1 else np.concatenate((_NO_ROWS, *rows)),
                place.view[: place.filled].numpy(),
            )
            for place, rows in zip(self._places, self._rows, strict=True)
        ]


def _merged(views: list[Tensor]) -> list[Tensor]:
    """Join views that follow each other in one segment: fewer, larger copies."""
    merged: list[Tensor] = []
    for view in views:
        if not view.numel():
            continue
        last = merged[-1] if merged else None
        if last is not None and _follows(last, view):
            merged[-1] = last.as_strided((last.numel() + view.numel(),), (1,))
        else:
            merged.append(view)
    return merged


def _follows(last: Tensor, view: Tensor) -> bool:
    same = last.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    return same and last.data_ptr() + last.numel() == view.data_ptr()
