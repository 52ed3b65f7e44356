"""`rans.grid` in numpy: a plane coded as what its rows and columns leave (FORMAT.md, 4.7).

The plane is the exponents of a matrix, cut anywhere. Each row and each column has a value
in eighths of an exponent; their sum predicts a symbol, its fraction chooses the table.
Integers only. The oracle of csrc/grid.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.context_blob import BUCKETS, BodyReader, pack_short, padded, parse_body
from s4core.codecs.context_reference import bucket_body, plain_bytes, uncode_body
from s4core.codecs.faults import Fault
from s4core.codecs.ids import CodecId, pad16
from s4core.codecs.rans_reference import lengths_of

__all__ = ["MAX_COLUMNS", "decode_grid", "encode_grid"]

Plane = NDArray[np.uint8]
Values = NDArray[np.int64]

MAX_COLUMNS: Final = 1 << 24
_HEAD_BYTES: Final = 48
_CODEC: Final = CodecId.RANS_GRID
# Columns, column of the first symbol, least row and column value, bytes of all values.
_SHAPE: Final = struct.Struct("<IIhhI")


@dataclass(frozen=True)
class _Grid:
    """Where the symbols of a chunk lie: row and column of each; int64, shape (n,)."""

    rows: Values
    columns: Values

    @classmethod
    def of(cls, n: int, columns: int, first: int) -> _Grid:
        """The grid of `n` symbols, the first in column `first`."""
        at = np.arange(first, first + n, dtype=np.int64)
        return cls(at // columns, at % columns)

    def mean(self, index: Values, count: int, values: Values) -> Values:
        """Rounded mean of `values` by `index`; 0 where there are none; halves go up."""
        size = np.bincount(index, minlength=count).astype(np.int64)
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, index, values)
        found: Values = (2 * total + size) // np.maximum(2 * size, 1)
        return found


def _fit(plane: Plane, grid: _Grid, rows: int, columns: int) -> tuple[Values, Values]:
    eighths = 8 * plane.astype(np.int64)
    row = grid.mean(grid.rows, rows, eighths)
    return row, grid.mean(grid.columns, columns, eighths - row[grid.rows])


def _predict(row: Values, column: Values, grid: _Grid) -> tuple[Plane, Plane]:
    """What is added to the residual, modulo 256, and the bucket, of each symbol."""
    sums = row[grid.rows] + column[grid.columns]
    return ((sums >> 3) - 128).astype(np.uint8), (sums & 7).astype(np.uint8)


def encode_grid(plane: Plane, columns: int, first: int, sub_block: int) -> bytes | None:
    """Encode a plane as a grid.

    Args:
        plane: uint8, shape (n,), 1 <= n <= 2^24.
        columns: of the matrix, 1 to 2^24.
        first: column of the first symbol.
        sub_block: symbols in a sub-block.

    Returns:
        The blob, or None where 4.4 is estimated to do as well.
    """
    n = plane.size
    grid, rows = _Grid.of(n, columns, first), -(-(first + n) // columns)
    row, column = _fit(plane, grid, rows, columns)
    least = int(row.min()), int(column.min())
    offset, buckets = _predict(row, column, grid)
    values = pack_short((row - least[0]).tolist()) + pack_short((column - least[1]).tolist())
    fixed = _HEAD_BYTES + pad16(len(values))
    plain = plain_bytes(plane, len(lengths_of(n, sub_block)))
    coded = bucket_body(plane - offset, buckets, BUCKETS, sub_block, fixed, plain)
    if coded is None:
        return None
    head, body = coded
    shape = _SHAPE.pack(columns, first, *least, len(values))
    return (head.pack() + shape).ljust(_HEAD_BYTES, b"\0") + padded(values) + body


def decode_grid(blob: Plane, n: int) -> Plane:
    """Undo `encode_grid`; uint8, shape (n,).

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.7.
    """
    reader = BodyReader(_CODEC, blob, n)
    head = reader.head()
    if head.tables != BUCKETS:
        reader.fault(Fault.CONTEXTS, 3, BUCKETS, head.tables)
    reader.need(_HEAD_BYTES)
    columns, first, *least, size = _SHAPE.unpack(blob[16:32].tobytes())
    if not 1 <= columns <= MAX_COLUMNS:
        reader.fault(Fault.COLUMNS, 16, MAX_COLUMNS, columns)
    if first >= columns:
        reader.fault(Fault.COLUMNS, 20, columns - 1, first)
    reader.at = 32
    reader.skip_padding(_HEAD_BYTES)
    row, column = _read_values(reader, -(-(first + n) // columns), columns, size)
    body = parse_body(reader, head)
    offset, buckets = _predict(row + least[0], column + least[1], _Grid.of(n, columns, first))
    return uncode_body(_CODEC, body, buckets, n, head.sub_block, head.k) + offset


def _read_values(reader: BodyReader, rows: int, columns: int, size: int) -> tuple[Values, Values]:
    reader.need(pad16(size))
    # Each value takes a byte or more: what is allocated is bounded by what is there.
    if rows + columns > size:
        reader.fault(Fault.SIDE, 28, rows + columns, size)
    start, end = reader.at, reader.at + size
    values = [reader.short(end, Fault.SIDE) for _ in range(rows + columns)]
    if reader.at != end:
        reader.fault(Fault.SIDE, 28, reader.at - start, size)
    reader.skip_padding(start + pad16(size))
    found = np.array(values, dtype=np.int64)
    return found[:rows], found[rows:]
