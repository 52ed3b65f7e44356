"""The parts of a `rans` blob, packed and parsed (FORMAT.md, section 4.2).

`parse_blob` checks everything that can be checked before a table is filled; the
native decoder makes the same checks in the same order.
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

__all__ = [
    "GROUP",
    "LANES",
    "MAX_PATCHES",
    "MAX_SUB_BLOCK",
    "STATE_LOW",
    "ParsedBlob",
    "SubBlock",
    "pack_blob",
    "parse_blob",
]

Plane = NDArray[np.uint8]

VERSION: Final = 2
LANES: Final = 32
# Symbols that 32 lanes take in four steps.
GROUP: Final = 128
STATE_LOW: Final = 1 << 15
_STATE_HIGH: Final = 1 << 31
MAX_PATCHES: Final = 128
MAX_SUB_BLOCK: Final = 1 << 20
_MIN_K: Final = 8
_MAX_K: Final = 12
_TABLE_AT: Final = 48  # 16 bytes of header, 32 of bitmap
_HEADER: Final = struct.Struct("<BBBBIII")


@dataclass(frozen=True)
class SubBlock:
    """One sub-block as stored.

    Attributes:
        states: uint32, shape (32,), final encoder states by lane.
        words: uint16, in order of emission.
        patches: uint32, position | symbol << 24, ascending.
    """

    states: NDArray[np.uint32]
    words: NDArray[np.uint16]
    patches: NDArray[np.uint32]


@dataclass(frozen=True)
class ParsedBlob:
    """A blob whose every length, count and frequency has been checked.

    Attributes:
        k: probability bits.
        sub_block: symbols per sub-block.
        frequency: int64, shape (256,), sum 2^k.
        blocks: the sub-blocks.
        offsets: where each starts in the blob, bytes.
    """

    k: int
    sub_block: int
    frequency: NDArray[np.int64]
    blocks: list[SubBlock]
    offsets: list[int]


def _padded(array: NDArray[np.generic]) -> bytes:
    data = array.tobytes()
    return data.ljust(pad16(len(data)), b"\0")


def pack_blob(
    n: int, sub_block: int, k: int, frequency: NDArray[np.int64], blocks: Sequence[SubBlock]
) -> bytes:
    """Lay out a blob; the inverse of `parse_blob`."""
    present = np.flatnonzero(frequency)
    bitmap = np.packbits(frequency > 0, bitorder="little")
    directory = np.array(
        [block.words.size | block.patches.size << 24 for block in blocks], dtype="<u4"
    )
    parts = [
        _HEADER.pack(VERSION, k, len(blocks), 0, n, sub_block, 0),
        bitmap.tobytes(),
        _padded(frequency[present].astype("<u2")),
        _padded(directory),
    ]
    for block in blocks:
        parts += [
            block.states.astype("<u4").tobytes(),
            _padded(block.words.astype("<u2")),
            _padded(block.patches.astype("<u4")),
        ]
    return b"".join(parts)


class _Reader:
    """Takes padded arrays off a blob, front to back."""

    def __init__(self, blob: Plane, n: int) -> None:
        self.blob = blob
        self.n = n
        self.at = 0

    def fault(self, kind: Fault, offset: int, expected: int, found: int) -> None:
        raise_fault(CodecId.RANS, kind, offset, expected, found)

    def need(self, end: int) -> None:
        if self.blob.size < end:
            self.fault(Fault.TRUNCATED, 0, end, self.blob.size)

    def take(self, dtype: str, count: int) -> NDArray[np.int64]:
        """Read `count` numbers and their padding, which must be zero."""
        size = count * np.dtype(dtype).itemsize
        raw = self.blob[self.at : self.at + size]
        padding = self.blob[self.at + size : self.at + pad16(size)]
        if padding.any():
            found = int(np.flatnonzero(padding)[0])
            self.fault(Fault.PADDING, self.at + size + found, 0, int(padding[found]))
        self.at += pad16(size)
        return np.frombuffer(raw.tobytes(), dtype=dtype).astype(np.int64)


def _read_header(reader: _Reader) -> tuple[int, int, int]:
    """Check the 16 bytes of header; k, number of sub-blocks, symbols per sub-block."""
    if reader.blob.size % 16:
        reader.fault(Fault.LENGTH, 0, pad16(reader.blob.size), reader.blob.size)
    reader.need(_TABLE_AT)
    version, k, count, zero, n, sub_block, zeros = _HEADER.unpack(reader.blob[:16].tobytes())
    if version != VERSION:
        reader.fault(Fault.VERSION, 0, VERSION, version)
    if not _MIN_K <= k <= _MAX_K:
        reader.fault(Fault.PROBABILITY_BITS, 1, _MAX_K, k)
    if zero:
        reader.fault(Fault.RESERVED, 3, 0, zero)
    if n != reader.n:
        reader.fault(Fault.SYMBOLS, 4, reader.n, n)
    if sub_block % GROUP or not GROUP <= sub_block <= MAX_SUB_BLOCK:
        reader.fault(Fault.SUB_BLOCK_SIZE, 8, MAX_SUB_BLOCK, sub_block)
    if zeros:
        reader.fault(Fault.RESERVED, 12, 0, zeros)
    if count != -(-n // sub_block):
        reader.fault(Fault.SUB_BLOCKS, 2, -(-n // sub_block), count)
    return k, count, sub_block


def _read_table(reader: _Reader, k: int, sub_blocks: int) -> NDArray[np.int64]:
    present = np.flatnonzero(np.unpackbits(reader.blob[16:_TABLE_AT], bitorder="little"))
    if present.size < 2:
        reader.fault(Fault.TABLE_SIZE, 16, 2, present.size)
    reader.need(_TABLE_AT + pad16(2 * present.size) + pad16(4 * sub_blocks))
    reader.at = _TABLE_AT
    values = reader.take("<u2", present.size)
    for index, value in enumerate(values):
        if not 1 <= value < 1 << k:
            reader.fault(Fault.FREQUENCY, _TABLE_AT + 2 * index, (1 << k) - 1, int(value))
    if values.sum() != 1 << k:
        reader.fault(Fault.FREQUENCY_SUM, _TABLE_AT, 1 << k, int(values.sum()))
    frequency = np.zeros(256, dtype=np.int64)
    frequency[present] = values
    return frequency


def _read_directory(reader: _Reader, sub_blocks: int) -> list[tuple[int, int]]:
    """Number of words and of patches of each sub-block; together they fill the blob."""
    at = reader.at
    entries = [(int(e) & 0xFFFFFF, int(e) >> 24) for e in reader.take("<u4", sub_blocks)]
    total = reader.at
    for index, (words, patches) in enumerate(entries):
        if patches > MAX_PATCHES:
            reader.fault(Fault.PATCH_COUNT, at + 4 * index, MAX_PATCHES, patches)
        total += 4 * LANES + pad16(2 * words) + pad16(4 * patches)
    if total != reader.blob.size:
        kind = Fault.TRUNCATED if total > reader.blob.size else Fault.LENGTH
        reader.fault(kind, 0, total, reader.blob.size)
    return entries


def _read_block(reader: _Reader, words: int, patches: int, length: int) -> SubBlock:
    at = reader.at
    states = reader.take("<u4", LANES)
    for lane, state in enumerate(states):
        if not STATE_LOW <= state < _STATE_HIGH:
            reader.fault(Fault.STATE, at + 4 * lane, _STATE_HIGH - 1, int(state))
    word = reader.take("<u2", words)
    at = reader.at
    patch = reader.take("<u4", patches)
    before = -1
    for index, position in enumerate(patch & 0xFFFFFF):
        if not before < position < length:
            reader.fault(Fault.PATCH_POSITION, at + 4 * index, length - 1, int(position))
        before = int(position)
    return SubBlock(states.astype(np.uint32), word.astype(np.uint16), patch.astype(np.uint32))


def parse_blob(blob: Plane, n: int) -> ParsedBlob:
    """Check a blob of `n` symbols and take it apart.

    Raises:
        FormatError: anything that FORMAT.md, section 4.2, says a reader rejects.
    """
    reader = _Reader(blob, n)
    k, count, sub_block = _read_header(reader)
    frequency = _read_table(reader, k, count)
    blocks, offsets = [], []
    for index, (words, patches) in enumerate(_read_directory(reader, count)):
        offsets.append(reader.at)
        length = min(sub_block, n - index * sub_block)
        blocks.append(_read_block(reader, words, patches, length))
    return ParsedBlob(k, sub_block, frequency, blocks, offsets)
