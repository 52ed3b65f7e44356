"""One chunk on the host: words to encoded planes and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from s4core import codecs, delta, planes
from s4core.codecs import NO_SIDE, EncodedPlane, Side
from s4core.digests import Buffer
from s4core.dtypes import DType, Layout

__all__ = ["decode_chunk", "encode_chunk"]

_Bytes = NDArray[np.uint8]
_Kind = Literal["xor", "zigzag"]


def encode_chunk(
    words: _Bytes,
    dtype: DType,
    layout: Layout,
    sub_block: int,
    *,
    base: _Bytes | None = None,
    kind: str | None = None,
    side: Side = NO_SIDE,
) -> list[EncodedPlane]:
    """Encode one chunk.

    Args:
        words: uint8, shape (bytes of the chunk,); not changed.
        dtype: of the words.
        layout: of the coded words; not `fields`, which GPUs write.
        sub_block: symbols in a rANS sub-block.
        base: the base's bytes, same shape, for a delta.
        kind: `xor` or `zigzag`, for a delta.
        side: what is known beside the words.

    Returns:
        One encoded plane for each plane of the layout.
    """
    return codecs.encode_words(
        words,
        dtype.word_bytes,
        layout,
        sub_block,
        zstd=not dtype.is_float,
        base=base,
        delta=cast(_Kind | None, kind),
        is_float=dtype.is_float,
        side=side,
    )


def decode_chunk(
    encoded: Sequence[tuple[int, int, Buffer]],
    dtype: DType,
    layout: Layout,
    out: _Bytes,
    *,
    base: _Bytes | None = None,
    kind: str | None = None,
    context: _Bytes | None = None,
) -> None:
    """Decode one chunk into `out`, uint8, shape (bytes of the chunk,).

    `context` holds the context byte of each word, where the array has them. The blobs'
    checksums must have been checked.

    Raises:
        FormatError: a blob is not what its codec writes.
        CodecUnavailableError: a codec that needs a GPU.
    """
    if layout is Layout.FIELDS:
        _decode_fields(encoded, dtype, out, base, kind)
        return
    codecs.decode_words(
        encoded,
        dtype.word_bytes,
        layout,
        out,
        base=base,
        delta=cast(_Kind | None, kind),
        is_float=dtype.is_float,
        context=context,
    )


def _decode_fields(
    encoded: Sequence[tuple[int, int, Buffer]],
    dtype: DType,
    out: _Bytes,
    base: _Bytes | None,
    kind: str | None,
) -> None:
    # Written on GPUs only; read here as far as its codecs have a CPU decoder.
    n = len(out) // dtype.word_bytes
    cut = np.stack([codecs.decode_plane(codec, param, blob, n) for codec, param, blob in encoded])
    coded = planes.join(torch.from_numpy(cut), Layout.FIELDS, dtype.word_bytes, dtype.exponent_bits)
    if kind is not None and base is not None:
        under = torch.from_numpy(base.copy()).view(coded.dtype)
        coded = delta.undo(kind, coded, under, dtype.is_float)
    out[:] = coded.view(torch.uint8).numpy()
