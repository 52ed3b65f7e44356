"""Request bodies over buffers that stay where they are, and the cutting of parts."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from s4core.stores.s3_options import MAX_PARTS

__all__ = ["Body", "cut_parts", "first_part_bytes"]

# Without a hint of the total size, parts grow by their first size after so many of them:
# 10,000 parts of 32 MiB and more hold 1.7 TiB, and the first 31 GiB stay in equal parts,
# as some S3-compatible servers want them.
PARTS_OF_ONE_SIZE = 1000


class Body:
    """The bytes of several buffers, end to end, read without holding them twice.

    The HTTP stack and the signer need `read`, `seek`, `tell` and the length.

    Args:
        views: Flat, of bytes.
    """

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = views
        self._size = sum(len(view) for view in views)
        self._rewind()

    def _rewind(self) -> None:
        self._position = self._index = self._offset = 0

    def __len__(self) -> int:
        return self._size

    def tell(self) -> int:
        """Position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an absolute position in bytes, or relative to the end or here."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        target = min(max(start + offset, 0), self._size)
        self._rewind()
        while self._position < target:
            self._take(target - self._position)
        return self._position

    def read(self, size: int = -1) -> bytes | memoryview:
        """The next `size` bytes, fewer at the end; all that are left if `size` is negative.

        What lies in one buffer is given as a view of it, unless everything was asked for.
        """
        wanted = self._size if size < 0 else size
        pieces: list[memoryview] = []
        while wanted > 0 and self._index < len(self._views):
            pieces.append(self._take(wanted))
            wanted -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 and size >= 0 else b"".join(pieces)

    def _take(self, limit: int) -> memoryview:
        view = self._views[self._index]
        piece = view[self._offset : self._offset + limit]
        self._position += len(piece)
        self._offset += len(piece)
        if self._offset == len(view):
            self._index, self._offset = self._index + 1, 0
        return piece


def first_part_bytes(part_bytes: int, size_hint: int | None) -> int:
    """`part_bytes`, or what it takes for `size_hint` bytes in 10,000 parts."""
    return max(part_bytes, -(-(size_hint or 0) // MAX_PARTS))


def cut_parts(views: Iterator[memoryview], part_bytes: int) -> Iterator[list[memoryview]]:
    """`views` regrouped into parts, without a copy.

    Args:
        views: Flat, of bytes, not empty.
        part_bytes: Size of the first parts; later ones grow, see `PARTS_OF_ONE_SIZE`.

    Yields:
        Lists of views: a full part each, but for the last.
    """
    part: list[memoryview] = []
    number, missing = 1, part_bytes
    for view in views:
        rest = view
        while len(rest) >= missing:
            yield [*part, rest[:missing]]
            rest = rest[missing:]
            number += 1
            part, missing = [], part_bytes * (1 + (number - 1) // PARTS_OF_ONE_SIZE)
        if rest:
            part.append(rest)
            missing -= len(rest)
    if part:
        yield part
