"""`rans.ctx` and `rans.grid` in numpy: rANS with one table for each bucket (FORMAT.md, 4.6, 4.7).

The oracle of csrc/context.c and csrc/grid.c, and what serves without a native extension.
rANS and its lanes: see `rans_reference`. Coding deltas under the exponent of the older
word, and second moments under the mean exponents of their row and column, is ours.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.bitpack_reference import bitpack_length
from s4core.codecs.choice import cost_table, estimate, exact_histogram
from s4core.codecs.context_blob import (
    BUCKETS,
    HEAD_BYTES,
    Body,
    BodyReader,
    Head,
    Lanes,
    pack_body,
    pack_tables,
    parse_body,
)
from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, pad16
from s4core.codecs.rans_blob import LANES, STATE_LOW
from s4core.codecs.rans_reference import (
    active_steps,
    cut_rows,
    from_steps,
    lengths_of,
    to_steps,
)

__all__ = [
    "K",
    "bucket_body",
    "decode_context",
    "encode_context",
    "plain_bytes",
    "uncode_body",
]

Plane = NDArray[np.uint8]
Table = NDArray[np.int64]

# Eight tables of 2^11 entries fit the shared memory of a GPU; 12 bits gain 0.03 %.
K: Final = 11
_M: Final = 1 << K
_COST: Final = cost_table()
_CODEC: Final = CodecId.RANS_CTX
_WORD_MASK: Final = 0xFFFF
# The highest bucket starts where at least one context byte in 32 has been reached.
_TOP_SHARE: Final = 32


def thresholds_of(context: Plane) -> list[int]:
    """The 0 to 7 thresholds that a writer chooses: the top exponent and those below it."""
    above = np.cumsum(exact_histogram(context)[::-1])[::-1]
    top = int(np.flatnonzero(above * _TOP_SHARE >= context.size)[-1])
    return [t for t in range(top - BUCKETS + 2, top + 1) if t > 0]


def buckets_of(context: Plane, thresholds: list[int]) -> Plane:
    """The bucket of each context byte: the number of thresholds that it reaches."""
    return np.searchsorted(np.array(thresholds), context, side="right").astype(np.uint8)


def plain_bytes(plane: Plane, sub_blocks: int) -> int:
    """What the codecs of 4.4 make of a plane, estimated from its exact histogram."""
    n = plane.size
    seen = estimate(exact_histogram(plane))
    if seen.symbols == 1:
        return 0
    rans = 48 + 2 * seen.symbols + 144 * sub_blocks + n * seen.bits // (8 * 65536)
    return min(pad16(n), rans, bitpack_length(seen.mask, n))


def _scaled(counts: Table) -> Table:
    """Frequencies of one bucket, sum 2^11, rounded; an empty bucket holds symbol 0 alone."""
    if not counts.any():
        return np.array([_M] + [0] * 255, dtype=np.int64)
    total = int(counts.sum())
    frequency: Table = np.where(
        counts > 0, np.maximum(1, (2 * _M * counts + total) // (2 * total)), 0
    )
    left = _M - int(frequency.sum())
    frequency[int(np.argmax(counts))] += max(0, left)
    for _ in range(-left):
        frequency[int(np.argmax(frequency))] -= 1
    return frequency


def bucket_body(
    symbols: Plane, buckets: Plane, tables: int, sub_block: int, fixed: int, plain: int
) -> tuple[Head, bytes] | None:
    """Code symbols under their buckets.

    Args:
        symbols: uint8, shape (n,).
        buckets: uint8, shape (n,), below `tables`.
        tables: number of tables.
        sub_block: symbols in a sub-block.
        fixed: bytes of the blob before the tables.
        plain: what the blob must be estimated to undercut.

    Returns:
        The first header and what follows the side information; None if the estimate is
        not below `plain`, or the blob would not be shorter than the padded plane.
    """
    n = symbols.size
    joint = np.bincount(buckets.astype(np.int64) * 256 + symbols, minlength=tables * 256)
    counts = joint.reshape(tables, 256).astype(np.int64)
    frequency = np.stack([_scaled(row) for row in counts])
    packed = pack_tables(frequency)
    lengths = lengths_of(n, sub_block)
    bits = int((counts * _COST[2 * frequency]).sum())
    expected = fixed + len(packed) + 144 * len(lengths) + bits // (8 * 65536)
    if expected >= plain:
        return None
    body = pack_body(packed, _code(symbols, buckets, frequency, lengths))
    if fixed + len(body) >= pad16(n):
        return None
    return Head(K, len(lengths), tables, n, sub_block, len(packed)), body


def _code(symbols: Plane, buckets: Plane, frequency: Table, lengths: list[int]) -> list[Lanes]:
    """Run the encoder: all sub-blocks and lanes together, one array operation a step."""
    cumulative = np.cumsum(frequency, axis=1) - frequency
    active = active_steps(lengths)
    symbol_steps = to_steps(cut_rows(symbols, lengths, 0))
    bucket_steps = to_steps(cut_rows(buckets, lengths, 0))
    states = np.full(active.shape[1:], STATE_LOW, dtype=np.int64)
    words = np.zeros(active.shape, dtype=np.uint16)
    emitted = np.zeros(active.shape, dtype=np.bool_)
    for step in range(len(active)):
        at = bucket_steps[step], symbol_steps[step]
        f = np.where(active[step], frequency[at], 1)
        emit = active[step] & (states >= f << (31 - K))
        words[step] = (states & _WORD_MASK).astype(np.uint16)
        emitted[step] = emit
        x = np.where(emit, states >> 16, states)
        states = np.where(active[step], ((x // f) << K) + x % f + cumulative[at], states)
    return [
        Lanes(states[b].astype(np.uint32), words[:, b][emitted[:, b]]) for b in range(len(lengths))
    ]


def uncode_body(
    codec: CodecId, body: Body, buckets: Plane, n: int, sub_block: int, k: int
) -> Plane:
    """Undo `bucket_body`; uint8, shape (n,).

    Raises:
        FormatError: the words do not lead back to the starting states.
    """
    lengths = lengths_of(n, sub_block)
    active = active_steps(lengths)
    steps, faulty = _uncode(body, active, to_steps(cut_rows(buckets, lengths, 0)), k)
    for number, lanes in enumerate(faulty):
        if lanes:
            raise_fault(codec, Fault.END, body.offsets[number], 0, int(lanes))
    rows = from_steps(steps)
    return np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)])


def _uncode(
    body: Body, active: NDArray[np.bool_], buckets: Plane, k: int
) -> tuple[Plane, NDArray[np.int64]]:
    every = np.arange(256, dtype=np.uint8)
    symbol_of = np.stack([np.repeat(every, row) for row in body.frequency])
    cumulative = np.cumsum(body.frequency, axis=1) - body.frequency
    left = np.array([block.words.size for block in body.blocks], dtype=np.int64)
    starts = np.cumsum(left) - left + 1
    # A stream that runs out reads the spare word in front; it is refused at the end.
    pool = np.concatenate([np.zeros(1, np.uint16), *(b.words for b in body.blocks)])
    states = np.stack([block.states for block in body.blocks]).astype(np.int64)
    symbols = np.zeros(active.shape, dtype=np.uint8)
    for step in range(active.shape[0] - 1, -1, -1):
        slot = states & ((1 << k) - 1)
        symbol = symbol_of[buckets[step], slot]
        symbols[step] = symbol
        at = buckets[step], symbol
        x = body.frequency[at] * (states >> k) + slot - cumulative[at]
        need = active[step] & (x < STATE_LOW)
        rank = np.cumsum(need[:, ::-1], axis=1)[:, ::-1]
        index = np.where(need & (rank <= left[:, None]), starts[:, None] + left[:, None] - rank, 0)
        x = np.where(need, x << 16 | pool.astype(np.int64)[index], x)
        left -= rank[:, 0]
        states = np.where(active[step], x, states)
    faulty = (states != STATE_LOW).sum(axis=1)
    return symbols, np.where(left != 0, LANES, faulty)


def encode_context(plane: Plane, context: Plane, sub_block: int) -> bytes | None:
    """Encode a plane under a context byte for each symbol.

    Args:
        plane: uint8, shape (n,), 1 <= n <= 2^24.
        context: uint8, shape (n,).
        sub_block: symbols in a sub-block.

    Returns:
        The blob, or None where 4.4 is estimated to do as well.
    """
    thresholds = thresholds_of(context)
    plain = plain_bytes(plane, len(lengths_of(plane.size, sub_block)))
    coded = bucket_body(
        plane, buckets_of(context, thresholds), 1 + len(thresholds), sub_block, HEAD_BYTES, plain
    )
    if coded is None:
        return None
    head, body = coded
    return head.pack() + bytes(thresholds).ljust(HEAD_BYTES - 16, b"\0") + body


def decode_context(blob: Plane, context: Plane) -> Plane:
    """Undo `encode_context`; uint8, the shape of `context`.

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.6.
    """
    reader = BodyReader(_CODEC, blob, context.size)
    head = reader.head()
    if not 1 <= head.tables <= BUCKETS:
        reader.fault(Fault.CONTEXTS, 3, BUCKETS, head.tables)
    thresholds = _read_thresholds(reader, head.tables - 1)
    body = parse_body(reader, head)
    buckets = buckets_of(context, thresholds)
    return uncode_body(_CODEC, body, buckets, head.n, head.sub_block, head.k)


def _read_thresholds(reader: BodyReader, count: int) -> list[int]:
    stored = [int(value) for value in reader.blob[16 : 16 + count]]
    before = 0
    for index, value in enumerate(stored):
        if value <= before:
            reader.fault(Fault.THRESHOLD, 16 + index, before + 1, value)
        before = value
    reader.at = 16 + count
    reader.skip_padding(HEAD_BYTES)
    return stored
