"""Which chunks go through the device together: pure planning, no device.

A *group* is all chunks of one shape, in the order of the items; a *batch* is a run of
them that fits a byte budget. An item larger than the budget spans several batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from s4core.kernels.items import DecodeItem, DeviceItem
from s4core.kernels.tables import CHUNK_DTYPE, Shape, shape_of

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

    def runs(self, part: slice) -> Iterator[tuple[int, slice]]:
        """Yield the members that a batch has chunks of, and which chunks."""
        for member in range(int(self.owner[part.start]), int(self.owner[part.stop - 1]) + 1):
            start, stop = int(self.first[member]), int(self.first[member + 1])
            yield member, slice(max(start, part.start), min(stop, part.stop))

    def whose(self, chunk: int) -> tuple[int, int]:
        """Return the item's number, and the chunk's number within it."""
        member = int(self.owner[chunk])
        return self.members[member], chunk - int(self.first[member])


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    # Addresses fit: device memory lies below 2^63.
    return np.fromiter(values, dtype=np.int64)


def _group(shape: Shape, members: list[int], items: Sequence[DeviceItem | DecodeItem]) -> Group:
    own = [items[number] for number in members]
    words = _column(i.words.numel() * i.words.element_size() for i in own) // shape.word_bytes
    # In layout `words` a chunk holds the same bytes, counted one by one.
    length = _column(i.chunk_words * (i.dtype.word_bytes // shape.word_bytes) for i in own)
    counts = -(-words // length)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    owner = np.repeat(np.arange(len(own)), counts)
    before = (np.arange(len(owner)) - first[owner]) * length[owner]
    chunks = np.zeros(len(owner), CHUNK_DTYPE)
    chunks["n"] = np.minimum(length[owner], words[owner] - before)
    chunks["words"] = _column(i.words.data_ptr() for i in own)[owner] + before * shape.word_bytes
    if shape.delta:
        bases = _column(0 if i.base is None else i.base.data_ptr() for i in own)
        chunks["base"] = bases[owner] + before * shape.word_bytes
    chunks["sub"] = _column(i.sub_block if isinstance(i, DeviceItem) else 0 for i in own)[owner]
    return Group(shape, members, chunks, owner, first)


def groups(items: Sequence[Item]) -> Iterator[Group]:
    """Put the chunks of `items` together by shape; items without words are in none."""
    by_shape: dict[Shape, list[int]] = {}
    for number, item in enumerate(items):
        if item.words.numel():
            shape = shape_of(item.dtype, item.layout, item.delta)
            by_shape.setdefault(shape, []).append(number)
    for shape, members in by_shape.items():
        yield _group(shape, members, items)


def cut(costs: NDArray[np.int64], budget: int, first: int | None = None) -> Iterator[slice]:
    """Cut a run of chunks into batches whose costs add up to `budget` at most, or one chunk.

    Args:
        costs: of each chunk, bytes.
        budget: of a batch, bytes.
        first: budget of the first batch, if it is another.
    """
    upto = np.cumsum(costs)
    start, room = 0, budget if first is None else first
    while start < len(costs):
        before = int(upto[start - 1]) if start else 0
        stop = max(int(np.searchsorted(upto, before + room, side="right")), start + 1)
        yield slice(start, stop)
        start, room = stop, budget
