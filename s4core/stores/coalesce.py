"""Which requests serve a set of ranges best. Pure: no input or output happens here.

*Ranges* are what a caller wants, *fetches* are what is asked of the store; both are
``(offset, length)`` in bytes. Near ranges share a fetch, large ones are cut into several.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["MAX_FETCH_BYTES", "MAX_GAP_BYTES", "coalesce", "cut_out"]

# A request costs about 30 ms to its first byte and then runs at about 85 MB/s (AWS's
# performance guide), so a request less is worth reading 2.5 MB more. Half of that, as
# requests overlap in time and bytes do not.
MAX_GAP_BYTES = 1 << 20

# Large enough that the first byte is a small part of the time, small enough that a few
# hundred MB keep a wide link busy with many requests (AWS's guide: 8 to 16 MiB).
MAX_FETCH_BYTES = 16 << 20


def coalesce(
    ranges: Sequence[tuple[int, int]],
    max_gap_bytes: int = MAX_GAP_BYTES,
    max_fetch_bytes: int = MAX_FETCH_BYTES,
) -> list[tuple[int, int]]:
    """Fetches that hold every byte of `ranges` once.

    Args:
        ranges: In any order; they may overlap. Each length is at least 1.
        max_gap_bytes: Bytes nobody wants that a fetch may read between two ranges.
        max_fetch_bytes: Longest fetch.

    Returns:
        Sorted and disjoint. None starts or ends with bytes that nobody wants.
    """
    fetches: list[tuple[int, int]] = []
    start = end = 0  # the fetch under way
    for offset, length in sorted(ranges):
        stop = offset + length
        if stop <= end:
            continue
        begin = max(offset, end)
        near = begin - end <= max_gap_bytes and stop - start <= max_fetch_bytes
        if end == start or not near:
            fetches += _split(start, end, max_fetch_bytes)
            start = begin
        end = stop
    return fetches + _split(start, end, max_fetch_bytes)


def _split(start: int, end: int, max_fetch_bytes: int) -> list[tuple[int, int]]:
    return [
        (offset, min(max_fetch_bytes, end - offset))
        for offset in range(start, end, max_fetch_bytes)
    ]


def cut_out(
    wanted: tuple[int, int], fetches: Sequence[tuple[int, int]], found: Sequence[bytes]
) -> bytes:
    """The bytes of one range, out of what `coalesce`'s `fetches` brought.

    Copies only where a fetch and the range differ.
    """
    offset, length = wanted
    index = bisect_right(fetches, offset, key=lambda fetch: fetch[0]) - 1
    pieces: list[memoryview | bytes] = []
    missing = length
    while missing:
        begin = offset + length - missing - fetches[index][0]
        piece = memoryview(found[index])[begin : begin + missing]
        pieces.append(found[index] if len(piece) == len(found[index]) else piece)
        missing -= len(piece)
        index += 1
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    return b"".join(pieces)
