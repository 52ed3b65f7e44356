"""What goes into the GPU codec and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from s4core.dtypes import DType, Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DecodeItem", "DeviceItem", "EncodedItem"]


@dataclass(frozen=True)
class DeviceItem:
    """One array to encode.

    Attributes:
        name: for messages.
        words: 1-D, contiguous, on a CUDA device, of any dtype of the right size; not changed.
        dtype: of the words.
        layout: of the coded words.
        chunk_words: words in a chunk, a multiple of 8.
        sub_block: symbols in a rANS sub-block, a multiple of 128.
        base: words of the base, same size, same device; None: stored whole.
        delta: `xor` or `zigzag` with a base.
    """

    name: str
    words: Tensor
    dtype: DType
    layout: Layout
    chunk_words: int
    sub_block: int
    base: Tensor | None = None
    delta: str | None = None


@dataclass(frozen=True)
class EncodedItem:
    """One encoded array.

    Attributes:
        rows: structured, shape (blobs,): its rows of the shard's index (FORMAT.md, section 6).
        payload: uint8, its blobs in the order of the rows, in page-locked host memory.
        digest: 16 bytes, of the original words.
    """

    rows: NDArray[np.void]
    payload: NDArray[np.uint8]
    digest: bytes


@dataclass(frozen=True)
class DecodeItem:
    """One array to decode.

    Attributes:
        name: for messages.
        rows: its rows of the index, as in `EncodedItem`.
        payload: its blobs in order: one buffer, or several that follow each other.
        words: where the words go: 1-D, contiguous, on a CUDA device; its memory must not
            overlap that of `base`.
        dtype, layout, chunk_words, base, delta: as in `DeviceItem`.
    """

    name: str
    rows: NDArray[np.void]
    payload: Buffer | Sequence[Buffer]
    words: Tensor
    dtype: DType
    layout: Layout
    chunk_words: int
    base: Tensor | None = None
    delta: str | None = None
