"""The parts that `rans.ctx` and `rans.grid` have in common, packed and parsed (FORMAT.md, 4.6).

A *bucket* is the number of the table, 0 to 7, that codes a symbol. Frequencies are *short
numbers*: one byte below 128, else two, the first with its top bit set.

`parse_body` checks everything that can be checked before a table is filled; the native
decoder makes the same checks in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, pad16
from s4core.codecs.rans_blob import GROUP, LANES, MAX_SUB_BLOCK, STATE_LOW

__all__ = [
    "BUCKETS",
    "HEAD_BYTES",
    "Body",
    "BodyReader",
    "Head",
    "Lanes",
    "pack_body",
    "pack_short",
    "pack_tables",
    "padded",
    "parse_body",
]

Plane = NDArray[np.uint8]

BUCKETS: Final = 8
HEAD_BYTES: Final = 32
_VERSION: Final = 1
_MIN_K: Final = 8
_MAX_K: Final = 11
_STATE_HIGH: Final = 1 << 31
_HEAD: Final = struct.Struct("<BBBBIII")


@dataclass(frozen=True)
class Head:
    """The first 16 bytes.

    Attributes:
        k: probability bits.
        sub_blocks: how many there are.
        tables: number of tables.
        n: symbols.
        sub_block: symbols in a sub-block.
        tables_bytes: length of the tables.
    """

    k: int
    sub_blocks: int
    tables: int
    n: int
    sub_block: int
    tables_bytes: int

    def pack(self) -> bytes:
        """Return the bytes."""
        return _HEAD.pack(
            _VERSION,
            self.k,
            self.sub_blocks,
            self.tables,
            self.n,
            self.sub_block,
            self.tables_bytes,
        )


@dataclass(frozen=True)
class Lanes:
    """One sub-block as stored: uint32 final states, shape (32,), and uint16 words."""

    states: NDArray[np.uint32]
    words: NDArray[np.uint16]


@dataclass(frozen=True)
class Body:
    """Tables and sub-blocks, every length, count and frequency checked.

    Attributes:
        frequency: int64, shape (tables, 256), each row with sum 2^k.
        blocks: the sub-blocks.
        offsets: where each starts in the blob, bytes.
    """

    frequency: NDArray[np.int64]
    blocks: list[Lanes]
    offsets: list[int]


def pack_short(values: Sequence[int] | NDArray[np.int64]) -> bytes:
    """Write numbers of 0 to 32767 in one or two bytes each."""
    out = bytearray()
    for value in values:
        out += bytes([value]) if value < 128 else bytes([0x80 | int(value) >> 8, int(value) & 0xFF])
    return bytes(out)


def pack_tables(frequency: NDArray[np.int64]) -> bytes:
    """Write tables: first symbol, last symbol, and the frequencies from one to the other."""
    parts = []
    for row in frequency:
        present = np.flatnonzero(row)
        first, last = int(present[0]), int(present[-1])
        parts.append(bytes([first, last]) + pack_short(row[first : last + 1].tolist()))
    return b"".join(parts)


def padded(data: bytes) -> bytes:
    """`data` and zeros up to a multiple of 16."""
    return data.ljust(pad16(len(data)), b"\0")


def pack_body(tables: bytes, blocks: Sequence[Lanes]) -> bytes:
    """Lay out tables, directory and sub-blocks; the inverse of `parse_body`."""
    directory = np.array([block.words.size for block in blocks], dtype="<u4")
    parts = [padded(tables), padded(directory.tobytes())]
    for block in blocks:
        parts += [block.states.astype("<u4").tobytes(), padded(block.words.astype("<u2").tobytes())]
    return b"".join(parts)


class BodyReader:
    """Takes the parts off a blob, front to back.

    Args:
        codec: of the blob, for messages.
        blob: uint8, shape (bytes,).
        n: symbols that it must hold.
    """

    def __init__(self, codec: CodecId, blob: Plane, n: int) -> None:
        self.codec, self.blob, self.n = codec, blob, n
        self.at = 0

    def fault(self, kind: Fault, offset: int, expected: int, found: int) -> None:
        """Raise the `FormatError` for one fault."""
        raise_fault(self.codec, kind, offset, expected, found)

    def need(self, size: int) -> None:
        """Check that `size` more bytes are there."""
        if self.at + size > self.blob.size:
            self.fault(Fault.TRUNCATED, 0, self.at + size, self.blob.size)

    def skip_padding(self, end: int) -> None:
        """Go to `end`, over bytes that must be zero."""
        rest = self.blob[self.at : end]
        if rest.any():
            found = self.at + int(np.flatnonzero(rest)[0])
            self.fault(Fault.PADDING, found, 0, int(self.blob[found]))
        self.at = end

    def numbers(self, dtype: str, count: int) -> NDArray[np.int64]:
        """Read `count` numbers and the padding behind them."""
        size = count * np.dtype(dtype).itemsize
        raw = self.blob[self.at : self.at + size]
        end = self.at + pad16(size)
        self.at += size
        self.skip_padding(end)
        return np.frombuffer(raw.tobytes(), dtype=dtype).astype(np.int64)

    def short(self, end: int, kind: Fault) -> int:
        """Read a short number that must end before `end`; `kind` is what is wrong otherwise."""
        if self.at >= end:
            self.fault(kind, self.at, end, self.at)
        value = int(self.blob[self.at])
        self.at += 1
        if value < 0x80:
            return value
        if self.at >= end:
            self.fault(kind, self.at, end, self.at)
        value = (value & 0x7F) << 8 | int(self.blob[self.at])
        self.at += 1
        if value < 0x80:
            self.fault(kind, self.at - 2, 0x80, value)
        return value

    def head(self) -> Head:
        """Read and check the first 16 bytes; the number of tables is left to the caller."""
        if self.blob.size % 16:
            self.fault(Fault.LENGTH, 0, pad16(self.blob.size), self.blob.size)
        self.need(HEAD_BYTES)
        version, k, blocks, tables, n, sub_block, size = _HEAD.unpack(self.blob[:16].tobytes())
        if version != _VERSION:
            self.fault(Fault.VERSION, 0, _VERSION, version)
        if not _MIN_K <= k <= _MAX_K:
            self.fault(Fault.PROBABILITY_BITS, 1, _MAX_K, k)
        if n != self.n:
            self.fault(Fault.SYMBOLS, 4, self.n, n)
        if sub_block % GROUP or not GROUP <= sub_block <= MAX_SUB_BLOCK:
            self.fault(Fault.SUB_BLOCK_SIZE, 8, MAX_SUB_BLOCK, sub_block)
        if blocks != -(-n // sub_block):
            self.fault(Fault.SUB_BLOCKS, 2, -(-n // sub_block), blocks)
        return Head(k, blocks, tables, n, sub_block, size)


def parse_body(reader: BodyReader, head: Head) -> Body:
    """Check and take apart what follows the header, from `reader.at` to the blob's end.

    Raises:
        FormatError: anything that FORMAT.md, section 4.6, says a reader rejects.
    """
    frequency = _read_tables(reader, head)
    counts = _read_directory(reader, head)
    blocks, offsets = [], []
    for count in counts:
        offsets.append(reader.at)
        blocks.append(_read_block(reader, count))
    return Body(frequency, blocks, offsets)


def _read_tables(reader: BodyReader, head: Head) -> NDArray[np.int64]:
    start, end = reader.at, reader.at + head.tables_bytes
    reader.need(pad16(head.tables_bytes) + pad16(4 * head.sub_blocks))
    frequency = np.zeros((head.tables, 256), dtype=np.int64)
    for row in frequency:
        _read_table(reader, row, end, head.k)
    if reader.at != end:
        reader.fault(Fault.TABLES, 12, reader.at - start, head.tables_bytes)
    reader.skip_padding(start + pad16(head.tables_bytes))
    return frequency


def _read_table(reader: BodyReader, row: NDArray[np.int64], end: int, k: int) -> None:
    at = reader.at
    if at + 2 > end:
        reader.fault(Fault.TABLES, at, end, at)
    first, last = (int(symbol) for symbol in reader.blob[at : at + 2])
    if last < first:
        reader.fault(Fault.TABLE_RANGE, at + 1, first, last)
    reader.at += 2
    for symbol in range(first, last + 1):
        row[symbol] = reader.short(end, Fault.TABLES)
    if row.sum() != 1 << k:
        reader.fault(Fault.FREQUENCY_SUM, at, 1 << k, int(row.sum()))


def _read_directory(reader: BodyReader, head: Head) -> list[int]:
    """Number of words of each sub-block; together the sub-blocks fill the blob."""
    counts = [int(count) for count in reader.numbers("<u4", head.sub_blocks)]
    total = reader.at + sum(4 * LANES + pad16(2 * count) for count in counts)
    if total != reader.blob.size:
        kind = Fault.TRUNCATED if total > reader.blob.size else Fault.LENGTH
        reader.fault(kind, 0, total, reader.blob.size)
    return counts


def _read_block(reader: BodyReader, count: int) -> Lanes:
    at = reader.at
    states = reader.numbers("<u4", LANES)
    for lane, state in enumerate(states):
        if not STATE_LOW <= state < _STATE_HIGH:
            reader.fault(Fault.STATE, at + 4 * lane, _STATE_HIGH - 1, int(state))
    words = reader.numbers("<u2", count)
    return Lanes(states.astype(np.uint32), words.astype(np.uint16))
