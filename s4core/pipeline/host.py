"""One chunk on the host: words to encoded planes and back, by the fastest way there is.

With the native extension a chunk is cut, delta-coded and encoded in one call;
without it, by the reference in numpy and torch. Both write the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from s4core import codecs, delta, planes
from s4core.codecs import CodecId, EncodedPlane, native
from s4core.digests import Buffer
from s4core.dtypes import DType, Layout

__all__ = ["decode_chunk", "encode_chunk"]

_Bytes = NDArray[np.uint8]


def encode_chunk(
    words: _Bytes,
    dtype: DType,
    layout: Layout,
    sub_block: int,
    *,
    base: _Bytes | None = None,
    kind: str | None = None,
) -> list[EncodedPlane]:
    """Encode one chunk.

    Args:
        words: uint8, shape (bytes of the chunk,); not changed.
        dtype: of the words.
        layout: of the coded words.
        sub_block: symbols in a rANS sub-block.
        base: the base's bytes, same shape, for a delta.
        kind: `xor` or `zigzag`, for a delta.

    Returns:
        One encoded plane for each plane of the layout.
    """
    if native.available:
        return native.encode_words(
            words,
            dtype.word_bytes,
            layout,
            sub_block,
            zstd=not dtype.is_float,
            base=base,
            delta=kind,
            is_float=dtype.is_float,
        )
    coded = _as_words(words, dtype)
    if kind is not None and base is not None:
        coded = delta.apply(kind, coded, _as_words(base, dtype), dtype.is_float)
    cut = planes.split(coded, layout, dtype.exponent_bits).numpy()
    return [codecs.encode_plane(plane, sub_block, zstd=not dtype.is_float) for plane in cut]


def decode_chunk(
    encoded: Sequence[tuple[CodecId, int, Buffer]],
    dtype: DType,
    layout: Layout,
    out: _Bytes,
    *,
    base: _Bytes | None = None,
    kind: str | None = None,
) -> None:
    """Decode one chunk into `out`, uint8, shape (bytes of the chunk,).

    The blobs' checksums must have been checked.

    Raises:
        FormatError: a blob is not what its codec writes.
        CodecUnavailableError: a codec that needs a GPU.
    """
    if native.available and layout is not Layout.FIELDS:
        native.decode_words(
            encoded,
            dtype.word_bytes,
            layout,
            out,
            base=base,
            delta=kind,
            is_float=dtype.is_float,
        )
        return
    n = len(out) if layout is Layout.WORDS else len(out) // dtype.word_bytes
    cut = np.stack([codecs.decode_plane(codec, param, blob, n) for codec, param, blob in encoded])
    coded = planes.join(torch.from_numpy(cut), layout, dtype.word_bytes, dtype.exponent_bits)
    if kind is not None and base is not None:
        coded = delta.undo(kind, coded, _as_words(base, dtype), dtype.is_float)
    out[:] = coded.view(torch.uint8).numpy()


def _as_words(data: _Bytes, dtype: DType) -> torch.Tensor:
    # A copy where memory is read-only or unaligned: torch accepts neither.
    writable = np.require(data, requirements=("C", "A", "W"))
    if writable.ctypes.data % dtype.word_bytes:
        writable = writable.copy()
    return torch.from_numpy(writable).view(planes.WORD_DTYPE[dtype.word_bytes])
