"""What the writer of profile `open` chooses for a plane (FORMAT.md, 4.4 and 4.5).

The numpy form of the rule. It is normative for writers: C and CUDA take the same
branch for the same plane, because both use these integers and no floating point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EXACT_BELOW",
    "PROBABILITY_BITS",
    "RAW_BITS",
    "UNIT",
    "Estimate",
    "cost_table",
    "estimate",
    "exact_histogram",
    "normalise",
    "sampled_histogram",
    "varying_bits",
]

Plane = NDArray[np.uint8]
Counts = NDArray[np.int64]

PROBABILITY_BITS: Final = 12
_M: Final = 1 << PROBABILITY_BITS
# Planes of fewer symbols are counted whole.
EXACT_BELOW: Final = 65536
# One unit of this many symbols in 16 is counted otherwise: exact counting costs
# 20-30 % of the encoder and gains nothing in size.
UNIT: Final = 256
_SAMPLE_EVERY: Final = 16
# 7.84 bits a symbol in 1/65536 bit: beyond, rANS saves less than its header costs.
RAW_BITS: Final = 513802


def exact_histogram(plane: Plane) -> Counts:
    """Count every symbol; int64, shape (256,)."""
    return np.bincount(plane, minlength=256).astype(np.int64)


def sampled_histogram(plane: Plane, sub_block: int) -> Counts:
    """Count every 16th unit of 256 symbols of each sub-block; int64, shape (256,)."""
    position = np.arange(plane.size, dtype=np.int64) % sub_block
    counted = (position // UNIT) % _SAMPLE_EVERY == 0
    return exact_histogram(plane[counted])


def cost_table() -> NDArray[np.int64]:
    """Return cost(f) for f = 0..4096 in 1/65536 bit; entry 0 is unused and 0."""
    frequency = np.arange(1, _M + 1, dtype=np.uint64)
    exponent = np.zeros(_M, dtype=np.uint64)
    for bit in range(1, PROBABILITY_BITS + 1):
        exponent[frequency >= (1 << bit)] = bit
    mantissa = frequency << (np.uint64(30) - exponent)
    fraction = np.zeros(_M, dtype=np.uint64)
    for _ in range(16):
        mantissa = (mantissa * mantissa) >> np.uint64(30)
        carry = (mantissa >> np.uint64(31)).astype(np.uint64)
        fraction = fraction << np.uint64(1) | carry
        mantissa = mantissa >> carry
    cost = (PROBABILITY_BITS - exponent.astype(np.int64)) * 65536 - fraction.astype(np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), cost])


_COST: Final = cost_table()


def normalise(counts: Counts) -> NDArray[np.int64]:
    """Scale counts to frequencies that sum to 4096; int64, shape (256,)."""
    present = counts > 0
    symbols = int(present.sum())
    share = counts * (_M - symbols) // int(counts.sum())
    frequency = np.where(present, 1 + share, 0)
    frequency[int(np.argmax(counts))] += _M - int(frequency.sum())
    return frequency


@dataclass(frozen=True)
class Estimate:
    """What a histogram says about its plane.

    Attributes:
        frequency: int64, shape (256,), sum 4096.
        symbols: how many are present.
        mask: bits in which present symbols differ.
        bits: cost of a symbol in 1/65536 bit.
    """

    frequency: NDArray[np.int64]
    symbols: int
    mask: int
    bits: int


def estimate(counts: Counts) -> Estimate:
    """Estimate what rANS and bit packing would make of a plane with these counts."""
    frequency = normalise(counts)
    present = np.flatnonzero(counts)
    mask = int(np.bitwise_or.reduce(present ^ present[0]))
    bits = int((counts * _COST[frequency]).sum()) // int(counts.sum())
    return Estimate(frequency, present.size, mask, bits)


def varying_bits(plane: Plane) -> int:
    """Return the mask of the bits in which the symbols of `plane` differ."""
    return int(np.bitwise_or.reduce(plane ^ plane[0]))
