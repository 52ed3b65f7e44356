"""What goes into the GPU codec and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from s4core.dtypes import DType, Layout
from s4core.errors import CodecError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DecodeItem", "DeviceItem", "EncodedItem", "check_arrays"]


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
    payload: Buffer | NDArray[np.uint8] | Sequence[Buffer]
    words: Tensor
    dtype: DType
    layout: Layout
    chunk_words: int
    base: Tensor | None = None
    delta: str | None = None


def check_arrays(item: DeviceItem | DecodeItem) -> None:
    """Refuse words and base that kernels must not be given addresses of.

    Raises:
        CodecError: they are not what `DeviceItem` and `DecodeItem` say.
    """
    words, base = item.words, item.base
    for one in (words, base):
        if one is not None and (one.dim() != 1 or not one.is_contiguous()):
            raise CodecError(f"{item.name}: words must be 1-D and contiguous: found {one.shape}")
    size = words.numel() * words.element_size()
    if size % item.dtype.word_bytes:
        raise CodecError(
            f"{item.name}: {size} bytes are no whole number of {item.dtype.name} words"
        )
    if (base is None) != (item.delta is None):
        raise CodecError(f"{item.name}: delta {item.delta}: a delta needs a base, and only a delta")
    if base is not None:
        found = base.numel() * base.element_size()
        if found != size or base.device != words.device:
            raise CodecError(
                f"{item.name}: base of {found} bytes on {base.device}: "
                f"expected {size} on {words.device}"
            )
