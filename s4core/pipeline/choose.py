"""Which delta, if any, makes an array smallest: measured, not guessed.

A few slices of the array are encoded whole and as each delta by the very codec
that will be used, and the smallest total wins; ties go to the simpler one. Small
arrays are measured wholly. FACTS: exp_avg loses by a delta beyond a gap of about
one step, weights gain, and no name tells which is which.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from s4core import dtypes
from s4core.dtypes import DType, Layout
from s4core.pipeline.host import encode_chunk
from s4core.pipeline.words import byte_view, words_of

__all__ = ["choose_delta"]

_SAMPLE_WORDS: Final = 32 * 1024
_SAMPLES: Final = 4


def choose_delta(words: Tensor, base: Tensor, dtype: DType, *, profile: str = "open") -> str | None:
    """Return `xor`, `zigzag` or None (store it whole) for an array and its base.

    Args:
        words: 1-D, contiguous, any device.
        base: the base's words, same size.
        dtype: of the elements.
        profile: which codecs may be used.
    """
    layout = dtypes.layout_of(dtype, words_of(words, dtype), profile=profile)
    pairs = [
        (byte_view(part.cpu()), byte_view(base[where].cpu()))
        for where, part in _samples(words, dtype)
    ]
    zigzag_layout = Layout.WORDS if layout is Layout.WORDS else Layout.BYTES
    costs: dict[str | None, int] = {
        None: sum(_cost(part, dtype, layout) for part, _ in pairs),
        "xor": sum(_cost(part, dtype, layout, under, "xor") for part, under in pairs),
        "zigzag": sum(_cost(part, dtype, zigzag_layout, under, "zigzag") for part, under in pairs),
    }
    return min(costs, key=lambda kind: costs[kind])


def _samples(words: Tensor, dtype: DType) -> list[tuple[slice, Tensor]]:
    size = max(1, _SAMPLE_WORDS // max(1, words.element_size() // dtype.word_bytes))
    total = words.numel()
    if total <= size * _SAMPLES:
        return [(slice(0, total), words)]
    starts = np.linspace(0, total - size, _SAMPLES, dtype=np.int64).tolist()
    return [(slice(start, start + size), words[start : start + size]) for start in starts]


def _cost(
    words: NDArray[np.uint8],
    dtype: DType,
    layout: Layout,
    base: NDArray[np.uint8] | None = None,
    kind: str | None = None,
) -> int:
    encoded = encode_chunk(words, dtype, layout, _SAMPLE_WORDS, base=base, kind=kind)
    return sum(len(plane.data) for plane in encoded)
