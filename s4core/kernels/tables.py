"""The records that kernels and host exchange, and how arrays are cut into them.

A *shape* is what one compiled module is made for: bytes of a word, layout, delta.
A *chunk table* has one row for each chunk (struct Chunk of common.cuh), whatever
arrays the chunks belong to, so one launch serves any number of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.dtypes import DType, Layout
from s4core.errors import CodecError

__all__ = [
    "BLOB_DTYPE",
    "CHUNK_DTYPE",
    "OFFSET_THREADS",
    "PIECE_BYTES",
    "SPAN_DTYPE",
    "THREADS",
    "Shape",
    "chunk_lengths",
    "pad16",
    "pad16_all",
    "plane_stride",
    "shape_of",
    "spans",
]

CHUNK_DTYPE: Final = np.dtype(
    [
        ("words", "<u8"),
        ("base", "<u8"),
        ("scratch", "<u8"),
        ("n", "<u4"),
        ("sub", "<u4"),
        ("stride", "<u4"),
        ("reserved", "<u4"),
    ]
)
# A row of a shard's index, FORMAT.md section 6.
BLOB_DTYPE: Final = np.dtype(
    [("checksum", "<u8"), ("length", "<u4"), ("codec", "u1"), ("param", "u1"), ("zero", "<u2")]
)
SPAN_DTYPE: Final = np.dtype([("address", "<u8"), ("bytes", "<u8"), ("first", "<u8")])

PIECE_BYTES: Final = 64 * 1024
# Threads of a block, of every kernel but s4_offsets.
THREADS: Final = 256
OFFSET_THREADS: Final = 1024
# Room of a rans blob in the scratch (common.cuh): its head, and of a sub-block
# 32 states, at most one 16-bit word a symbol, 128 patches.
_HEAD_BYTES: Final = 1600
_SUB_BYTES: Final = 128 + 4 * 128
_GROUP: Final = 128

_DELTA_CODE: Final = {None: 0, "xor": 1, "zigzag": 2}
_ZIGZAG_OF_INTEGERS: Final = 3


@dataclass(frozen=True)
class Shape:
    """What a module is compiled for.

    Attributes:
        word_bytes: 1, 2, 4 or 8; also the number of planes.
        layout: 1 `float`, 2 `bytes`, 3 `fields` with 8 bits of exponent, 4 `fields` with 5.
        delta: 0 none, 1 xor, 2 zigzag of floats, 3 zigzag of integers.
    """

    word_bytes: int
    layout: int
    delta: int

    @property
    def plan_bytes(self) -> int:
        """Bytes of struct Verdicts in choice.cuh: for each plane 5 numbers and 256 frequencies."""
        return self.word_bytes * (5 * 4 + 256 * 2)

    @property
    def planes(self) -> int:
        """Number of planes: one for each byte of a word; of `fields`, sign and odd bits more."""
        if self.layout > int(Layout.BYTES):
            return {(2, 3): 3, (2, 4): 4, (4, 3): 5}[self.word_bytes, self.layout]
        return self.word_bytes


def shape_of(dtype: DType, layout: Layout, delta: str | None) -> Shape:
    """Return the shape of an array's coded words.

    Raises:
        CodecError: the combination has no place in FORMAT.md.
    """
    if layout is Layout.WORDS and delta != "zigzag":
        # One plane of the words' bytes as they lie in memory: bytes of one byte.
        return Shape(1, int(Layout.BYTES), _DELTA_CODE[delta])
    if layout is Layout.BYTES:
        integers = delta == "zigzag" and not dtype.is_float
        code = _ZIGZAG_OF_INTEGERS if integers else _DELTA_CODE[delta]
        return Shape(dtype.word_bytes, int(layout), code)
    if layout is Layout.FIELDS and dtype.exponent_bits in (5, 8) and delta != "zigzag":
        return Shape(dtype.word_bytes, 3 if dtype.exponent_bits == 8 else 4, _DELTA_CODE[delta])
    if layout is Layout.FLOAT and dtype.word_bytes > 1 and delta != "zigzag":
        return Shape(dtype.word_bytes, int(layout), _DELTA_CODE[delta])
    raise CodecError(
        f"layout {layout.name.lower()} of {dtype.name} with delta {delta}: "
        "expected a combination of FORMAT.md, sections 2 and 3"
    )


def pad16(size: int) -> int:
    """Round a number of bytes up to a multiple of 16."""
    return -(-size // 16) * 16


def pad16_all(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round each size up to a multiple of 16."""
    return -(-sizes // 16) * 16


def chunk_lengths(words: int, chunk_words: int) -> NDArray[np.int64]:
    """Return the number of words of each chunk of an array; int64, shape (chunks,)."""
    chunks = -(-words // chunk_words)
    lengths = np.full(chunks, chunk_words, dtype=np.int64)
    if chunks:
        lengths[-1] = words - (chunks - 1) * chunk_words
    return lengths


def plane_stride(n: NDArray[np.int64], sub: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of scratch that one plane of a chunk of `n` words may need."""
    rounded = -(-n // _GROUP) * _GROUP
    stride: NDArray[np.int64] = _HEAD_BYTES + -(-n // sub) * (
        _SUB_BYTES + 2 * np.minimum(sub, rounded)
    )
    return stride


def spans(addresses: list[int], sizes: list[int]) -> tuple[NDArray[np.void], int]:
    """Lay arrays end to end as 64 KiB pieces; the table for `s4_pieces`, and all pieces."""
    table = np.zeros(len(sizes), SPAN_DTYPE)
    size = np.array(sizes, dtype=np.uint64)
    count = (size + np.uint64(PIECE_BYTES - 1)) // np.uint64(PIECE_BYTES)
    table["address"], table["bytes"] = np.array(addresses, dtype=np.uint64), size
    table["first"] = np.cumsum(count, dtype=np.uint64) - count
    return table, int(count.sum())
