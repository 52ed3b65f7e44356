"""Which chunks go through the device together: pure planning, no device.

A *group* is all chunks of one shape, in the order of the items; a *batch* is a run of
them that fits a byte budget. An item larger than the budget spans several batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from s4core.kernels.items import DecodeItem, DeviceItem
from s4core.kernels.tables import CHUNK_DTYPE, Shape, chunk_lengths, shape_of

__all__ = ["Group", "cut", "groups"]

Item = TypeVar("Item", DeviceItem, DecodeItem)


@dataclass(frozen=True)
class Group:
    """All chunks of one shape.

    Attributes:
        shape: of their words.
        members: numbers of their items, ascending.
        chunks: CHUNK_DTYPE, shape (chunks,); scratch is filled in by the encoder.
        owner: int64, shape (chunks,): position in `members`.
        first: int64, shape (members + 1,): first chunk of each member.
    """

    shape: Shape
    members: list[int]
    chunks: NDArray[np.void]
    owner: NDArray[np.int64]
    first: NDArray[np.int64]

    def whose(self, chunk: int) -> tuple[int, int]:
        """Return the item's number, and the chunk's number within it."""
        member = int(self.owner[chunk])
        return self.members[member], chunk - int(self.first[member])


def _words_of(item: DeviceItem | DecodeItem, shape: Shape) -> int:
    return item.words.numel() * item.words.element_size() // shape.word_bytes


def _rows(item: DeviceItem | DecodeItem, shape: Shape) -> NDArray[np.void]:
    """Return the chunk table of one item."""
    # In layout `words` a chunk holds the same bytes, counted one by one.
    chunk_words = item.chunk_words * (item.dtype.word_bytes // shape.word_bytes)
    lengths = chunk_lengths(_words_of(item, shape), chunk_words)
    rows = np.zeros(len(lengths), CHUNK_DTYPE)
    offset = np.arange(len(lengths), dtype=np.uint64) * np.uint64(chunk_words * shape.word_bytes)
    rows["words"] = np.uint64(item.words.data_ptr()) + offset
    if item.base is not None:
        rows["base"] = np.uint64(item.base.data_ptr()) + offset
    rows["n"] = lengths
    if isinstance(item, DeviceItem):
        rows["sub"] = item.sub_block
    return rows


def groups(items: Sequence[Item]) -> Iterator[Group]:
    """Put the chunks of `items` together by shape."""
    by_shape: dict[Shape, list[int]] = {}
    for number, item in enumerate(items):
        by_shape.setdefault(shape_of(item.dtype, item.layout, item.delta), []).append(number)
    for shape, members in by_shape.items():
        tables = [_rows(items[number], shape) for number in members]
        counts = np.array([len(table) for table in tables], dtype=np.int64)
        yield Group(
            shape=shape,
            members=members,
            chunks=np.concatenate(tables),
            owner=np.repeat(np.arange(len(members)), counts),
            first=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        )


def cut(costs: NDArray[np.int64], budget: int) -> Iterator[slice]:
    """Cut a run of chunks into batches whose costs add up to `budget` at most, or one chunk."""
    upto = np.cumsum(costs)
    start = 0
    while start < len(costs):
        before = int(upto[start - 1]) if start else 0
        stop = int(np.searchsorted(upto, before + budget, side="right"))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop
