"""`rans` in numpy: the open interleaved rANS (FORMAT.md, section 4.2).

rANS is Jarek Duda's range variant of asymmetric numeral systems (arXiv 1311.2540);
interleaving states in lanes, each renormalised by 16-bit words of one shared
stream, follows Fabian Giesen (arXiv 1402.3392). This is the oracle of the native
and of the CUDA code: all sub-blocks and lanes of a blob move together, one array
operation a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.choice import PROBABILITY_BITS
from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, pad16
from s4core.codecs.rans_blob import (
    GROUP,
    LANES,
    MAX_PATCHES,
    STATE_LOW,
    SubBlock,
    pack_blob,
    parse_blob,
)

__all__ = [
    "active_steps",
    "cut_rows",
    "decode_rans",
    "encode_rans",
    "from_steps",
    "lengths_of",
    "to_steps",
]

Plane = NDArray[np.uint8]
Table = NDArray[np.int64]
_T = TypeVar("_T", np.uint8, np.bool_)

_STEPS_PER_GROUP: Final = 4
_WORD_MASK: Final = 0xFFFF


@dataclass(frozen=True)
class _Steps:
    """The symbols of a plane in coding order.

    Attributes:
        symbols: uint8, shape (steps, sub-blocks, 32).
        active: bool, same shape; False where a lane sits the step out.
    """

    symbols: Plane
    active: NDArray[np.bool_]


def lengths_of(n: int, sub_block: int) -> list[int]:
    """Symbols of each sub-block."""
    return [min(sub_block, n - start) for start in range(0, n, sub_block)]


def to_steps(grid: NDArray[_T]) -> NDArray[_T]:
    """(sub-blocks, groups * 128) in memory order to (steps, sub-blocks, 32)."""
    blocks = grid.shape[0]
    lanes = grid.reshape(blocks, -1, LANES, _STEPS_PER_GROUP)
    return np.ascontiguousarray(lanes.transpose(1, 3, 0, 2)).reshape(-1, blocks, LANES)


def from_steps(steps: Plane) -> Plane:
    """(steps, sub-blocks, 32) to (sub-blocks, groups * 128) in memory order."""
    blocks = steps.shape[1]
    groups = steps.reshape(-1, _STEPS_PER_GROUP, blocks, LANES)
    return np.ascontiguousarray(groups.transpose(2, 0, 3, 1)).reshape(blocks, -1)


def active_steps(lengths: list[int]) -> NDArray[np.bool_]:
    """False where a lane sits a step out; bool, shape (steps, sub-blocks, 32)."""
    width = _pad_group(max(lengths))
    inside = np.arange(width)[None, :] < np.array(lengths)[:, None]
    return to_steps(inside)


def _pad_group(length: int) -> int:
    """Round a sub-block's length up to whole groups of 128 symbols."""
    return -(-length // GROUP) * GROUP


def cut_rows(plane: Plane, lengths: list[int], fill: int) -> Plane:
    """One row for each sub-block, filled up to whole groups."""
    grid = np.full((len(lengths), _pad_group(max(lengths))), fill, dtype=np.uint8)
    start = 0
    for row, length in enumerate(lengths):
        grid[row, :length] = plane[start : start + length]
        start += length
    return grid


def _patches(plane: Plane, frequency: Table, lengths: list[int]) -> list[NDArray[np.uint32]] | None:
    """List the symbols that have no frequency, or None if a sub-block has too many."""
    patches = []
    start = 0
    for length in lengths:
        part = plane[start : start + length]
        at = np.flatnonzero(frequency[part] == 0)
        if at.size > MAX_PATCHES:
            return None
        patches.append(at.astype(np.uint32) | part[at].astype(np.uint32) << np.uint32(24))
        start += length
    return patches


def _code(steps: _Steps, frequency: Table) -> tuple[Table, NDArray[np.uint16], NDArray[np.bool_]]:
    """Run the encoder; final states, low words of each step, and which were emitted."""
    cumulative = np.cumsum(frequency) - frequency
    states = np.full(steps.symbols.shape[1:], STATE_LOW, dtype=np.int64)
    words = np.zeros(steps.symbols.shape, dtype=np.uint16)
    emitted = np.zeros(steps.symbols.shape, dtype=np.bool_)
    for step, (symbol, active) in enumerate(zip(steps.symbols, steps.active, strict=True)):
        f = frequency[symbol]
        emit = active & (states >= f << (31 - PROBABILITY_BITS))
        words[step] = (states & _WORD_MASK).astype(np.uint16)
        emitted[step] = emit
        x = np.where(emit, states >> 16, states)
        coded = ((x // f) << PROBABILITY_BITS) + x % f + cumulative[symbol]
        states = np.where(active, coded, states)
    return states, words, emitted


def encode_rans(plane: Plane, frequency: Table, most: int, sub_block: int) -> bytes | None:
    """Encode a plane with one table.

    Args:
        plane: uint8, shape (n,), 1 <= n <= 2^24.
        frequency: int64, shape (256,), sum 4096; 0 for symbols to be patched.
        most: the most frequent symbol, coded in place of patched ones.
        sub_block: symbols per sub-block.

    Returns:
        The blob, or None when a sub-block would need more than 128 patches or
        the blob would not be shorter than the padded plane.
    """
    lengths = lengths_of(plane.size, sub_block)
    patches = _patches(plane, frequency, lengths)
    if patches is None:
        return None
    known = np.where(frequency[plane] == 0, np.uint8(most), plane)
    grid = cut_rows(known, lengths, most)
    steps = _Steps(to_steps(grid), active_steps(lengths))
    states, words, emitted = _code(steps, frequency)
    blocks = [
        SubBlock(states[b].astype(np.uint32), words[:, b][emitted[:, b]], patches[b])
        for b in range(len(lengths))
    ]
    blob = pack_blob(plane.size, sub_block, PROBABILITY_BITS, frequency, blocks)
    return blob if len(blob) < pad16(plane.size) else None


def _word_pool(blocks: list[SubBlock]) -> tuple[NDArray[np.int64], Table]:
    """All words one after the other behind one spare, and where each sub-block starts."""
    counts = np.array([block.words.size for block in blocks], dtype=np.int64)
    starts = np.cumsum(counts) - counts + 1
    pool = np.concatenate([np.zeros(1, dtype=np.uint16), *(block.words for block in blocks)])
    return pool.astype(np.int64), starts


def _uncode(
    blocks: list[SubBlock], active: NDArray[np.bool_], frequency: Table, k: int
) -> tuple[Plane, NDArray[np.int64]]:
    """Run the decoder; the symbols, and the number of faulty lanes of each sub-block."""
    symbol_of = np.repeat(np.arange(256, dtype=np.uint8), frequency)
    cumulative = np.cumsum(frequency) - frequency
    pool, starts = _word_pool(blocks)
    left = np.array([block.words.size for block in blocks], dtype=np.int64)
    states = np.stack([block.states for block in blocks]).astype(np.int64)
    symbols = np.zeros(active.shape, dtype=np.uint8)
    for step in range(active.shape[0] - 1, -1, -1):
        slot = states & ((1 << k) - 1)
        symbol = symbol_of[slot]
        symbols[step] = symbol
        x = frequency[symbol] * (states >> k) + slot - cumulative[symbol]
        need = active[step] & (x < STATE_LOW)
        rank = np.cumsum(need[:, ::-1], axis=1)[:, ::-1]
        # A stream that runs out reads the spare word; it is refused at the end.
        index = np.where(rank <= left[:, None], starts[:, None] + left[:, None] - rank, 0)
        x = np.where(need, x << 16 | pool[np.where(need, index, 0)], x)
        left -= rank[:, 0]
        states = np.where(active[step], x, states)
    faulty = (states != STATE_LOW).sum(axis=1)
    return symbols, np.where(left != 0, LANES, faulty)


def decode_rans(blob: Plane, n: int) -> Plane:
    """Undo `encode_rans`; uint8, shape (n,).

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.2, or its words do not
            lead back to the starting states.
    """
    parsed = parse_blob(blob, n)
    lengths = lengths_of(n, parsed.sub_block)
    steps, faulty = _uncode(parsed.blocks, active_steps(lengths), parsed.frequency, parsed.k)
    for number, lanes in enumerate(faulty):
        if lanes:
            raise_fault(CodecId.RANS, Fault.END, parsed.offsets[number], 0, int(lanes))
    rows = from_steps(steps)
    for row, block in zip(rows, parsed.blocks, strict=True):
        row[block.patches & np.uint32(0xFFFFFF)] = (block.patches >> np.uint32(24)).astype(np.uint8)
    return np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)])
