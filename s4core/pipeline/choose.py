"""How an array is coded smallest: measured, not guessed, and not by its name.

A few slices of the array are encoded whole and as each delta by the very codec that will
be used, and the smallest total wins; ties go to the simpler one. What a context or a grid
would save is measured on the exponents alone, the only plane that gains. FACTS: exp_avg
loses by a delta beyond a gap of about one step, weights gain, second moments gain by a
grid, and no name tells which is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from s4core import dtypes
from s4core.codecs import Side, context_bytes, encode_plane
from s4core.codecs.side import encode_aside
from s4core.dtypes import DType, Layout
from s4core.pipeline.host import encode_chunk
from s4core.pipeline.where import knows_more
from s4core.pipeline.words import byte_view, words_of

__all__ = ["Coding", "Companion", "choose_coding"]

_SAMPLE_WORDS: Final = 32 * 1024
_SAMPLES: Final = 2
# What one table and the values of rows and columns serve, as in `dtypes.chunking`.
_GRID_WORDS: Final = 256 * 1024
# Bits a word that a context must save: below, arrays are better off on their own. What a
# grid saves beyond the other bound, no context does.
_LEAST_GAIN: Final = 0.05
_GREAT_GAIN: Final = 0.5


@dataclass(frozen=True)
class Companion:
    """Another array of the state, of as many words, whose exponents may be a context."""

    words: Tensor
    dtype: DType


@dataclass(frozen=True)
class Coding:
    """How an array is coded.

    Attributes:
        delta: `xor` or `zigzag` against the base, None: whole.
        companion: which of the companions gives the context, None: none of them.
        columns: width of the matrix for `rans.grid`, 0: not tried.
    """

    delta: str | None = None
    companion: int | None = None
    columns: int = 0


@dataclass(frozen=True)
class _Slice:
    """A run of words, on the host: where it starts, and its bytes."""

    start: int
    data: NDArray[np.uint8]

    def of(self, other: Tensor, dtype: DType, word_bytes: int) -> NDArray[np.uint8]:
        """The same words of another array."""
        per = other.element_size() // dtype.word_bytes
        first = self.start // per
        count = len(self.data) // word_bytes // per
        return byte_view(other[first : first + count].cpu())


def choose_coding(
    words: Tensor,
    dtype: DType,
    *,
    base: Tensor | None = None,
    companions: Sequence[Companion] = (),
    columns: int = 0,
    profile: str = "open",
) -> Coding:
    """Choose how an array is coded.

    Args:
        words: 1-D, contiguous, any device.
        dtype: of the elements.
        base: the words it may be a delta against, same size, same device.
        companions: arrays whose exponents may be its context, sources of equal size.
        columns: width of the matrix that it is, 0: it is none.
        profile: which codecs may be used.
    """
    layout = dtypes.layout_of(dtype, words_of(words, dtype), profile=profile)
    aside = knows_more(words, dtype) and layout is Layout.FLOAT
    if base is None and not aside:
        return Coding()
    samples = _samples(words, dtype)
    costs: dict[Coding, float] = {}
    if base is not None:
        costs[Coding()] = _bits(samples, dtype, layout)
        costs |= _delta_costs(samples, dtype, layout, base, aside)
    whole = costs.setdefault(Coding(), 0.0)
    if aside:
        costs |= _grid_costs(words, dtype, columns, whole)
        if min(costs.values()) > whole - _GREAT_GAIN:
            costs |= _companion_costs(samples[len(samples) // 2], dtype, companions, whole)
    return min(costs, key=lambda coding: costs[coding])


def _samples(words: Tensor, dtype: DType) -> list[_Slice]:
    per = words.element_size() // dtype.word_bytes
    size, total = _SAMPLE_WORDS // per, words.numel()
    if total <= size * _SAMPLES:
        return [_Slice(0, byte_view(words.cpu()))]
    starts = np.linspace(0, total - size, _SAMPLES + 2, dtype=np.int64)[1:-1].tolist()
    return [_Slice(start * per, byte_view(words[start : start + size].cpu())) for start in starts]


def _bits(
    samples: Sequence[_Slice],
    dtype: DType,
    layout: Layout,
    base: Tensor | None = None,
    kind: str | None = None,
    aside: bool = False,
) -> float:
    """Stored bits a word of the samples."""
    stored = size = 0
    for sample in samples:
        under = None if base is None else sample.of(base, dtype, dtype.word_bytes)
        side = Side(context=context_bytes(under, dtype)) if aside and under is not None else Side()
        coded = encode_chunk(
            sample.data, dtype, layout, _SAMPLE_WORDS, base=under, kind=kind, side=side
        )
        stored += sum(len(plane.data) for plane in coded)
        size += len(sample.data)
    return 8 * stored * dtype.word_bytes / max(1, size)


def _delta_costs(
    samples: Sequence[_Slice], dtype: DType, layout: Layout, base: Tensor, aside: bool
) -> dict[Coding, float]:
    folded = Layout.WORDS if layout is Layout.WORDS else Layout.BYTES
    return {
        Coding("xor"): _bits(samples, dtype, layout, base, "xor", aside),
        Coding("zigzag"): _bits(samples, dtype, folded, base, "zigzag", aside),
    }


def _gain(exponents: NDArray[np.uint8], side: Side, sub_block: int) -> float:
    """Bits a word that coding exponents with `side` saves."""
    coded = encode_aside(exponents, 0, side, sub_block)
    if coded is None:
        return 0.0
    plain = encode_plane(exponents, sub_block)
    return 8 * (len(plain.data) - len(coded.data)) / exponents.size


def _grid_costs(words: Tensor, dtype: DType, columns: int, whole: float) -> dict[Coding, float]:
    """For matrices of numbers that are never negative: second moments."""
    per = words.element_size() // dtype.word_bytes
    if columns < 2 or per != 1 or words.numel() < 2 * columns:
        return {}
    first = (words.numel() - min(words.numel(), _GRID_WORDS)) // 2 // columns * columns
    data = byte_view(words[first : first + _GRID_WORDS].cpu())
    if (data[dtype.word_bytes - 1 :: dtype.word_bytes] & 0x80).any():
        return {}
    gain = _gain(context_bytes(data, dtype), Side(columns=columns), _SAMPLE_WORDS)
    return {Coding(columns=columns): whole - gain} if gain > 0 else {}


def _companion_costs(
    sample: _Slice, dtype: DType, companions: Sequence[Companion], whole: float
) -> dict[Coding, float]:
    exponents = context_bytes(sample.data, dtype)
    costs = {}
    for number, companion in enumerate(companions):
        beside = sample.of(companion.words, companion.dtype, dtype.word_bytes)
        side = Side(context=context_bytes(beside, companion.dtype))
        gain = _gain(exponents, side, _SAMPLE_WORDS)
        if gain >= _LEAST_GAIN:
            costs[Coding(companion=number)] = whole - gain
    return costs
