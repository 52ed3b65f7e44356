"""What a coder of planes may know beside the plane itself (FORMAT.md, 4.6 and 4.7).

A context byte for each word, which the decoder has before it decodes (the exponent of the
base's word, or of the same word of another array), or the width of the matrix whose
exponents plane 0 are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from s4core.codecs import context_reference, grid_reference, native
from s4core.codecs.ids import CodecId, EncodedPlane
from s4core.codecs.word_coding import Buffer, as_bytes
from s4core.dtypes import DType
from s4core.errors import CodecError, FormatError

__all__ = ["NO_SIDE", "Side", "context_bytes", "decode_aside", "encode_aside"]

Plane = NDArray[np.uint8]

_FLOAT64_BIAS = 896  # lowest exponent of float64 that float32 has too


@dataclass(frozen=True)
class Side:
    """What is known beside a chunk's planes; by default nothing.

    Attributes:
        context: uint8, shape (words of the chunk,); serves every plane.
        columns: of the matrix, 0: none; serves plane 0, where there is no context.
        first: column of the chunk's first word.
    """

    context: Plane | None = None
    columns: int = 0
    first: int = 0

    def __bool__(self) -> bool:
        return self.context is not None or self.columns > 0


NO_SIDE = Side()


def context_bytes(words: Buffer, dtype: DType) -> Plane:
    """Return the context byte of each word: its exponent (FORMAT.md, section 4.6).

    Args:
        words: the bytes of floating point words.
        dtype: of the words.

    Returns:
        uint8, shape (words,).
    """
    whole = as_bytes(words)
    if dtype.exponent_bits == 8:
        # The exponent lies across the two highest bytes.
        step = dtype.word_bytes
        high, low = whole[step - 1 :: step], whole[step - 2 :: step]
        found: Plane = (high << np.uint8(1)) | (low >> np.uint8(7))
        return found
    unsigned = whole.view(f"<u{dtype.word_bytes}")
    mantissa = 8 * dtype.word_bytes - 1 - dtype.exponent_bits
    exponent = (unsigned >> mantissa).astype(np.int64) & ((1 << dtype.exponent_bits) - 1)
    if dtype.exponent_bits > 8:
        exponent = (exponent - _FLOAT64_BIAS).clip(0, 255)
    return exponent.astype(np.uint8)


def encode_aside(plane: Plane, number: int, side: Side, sub_block: int) -> EncodedPlane | None:
    """Encode plane `number` with what is known beside it; None where that does not pay."""
    if side.context is not None:
        if side.context.shape != plane.shape:
            raise CodecError(
                f"{side.context.size} context bytes for a plane of {plane.size}: expected as many"
            )
        encode = native.encode_context if native.available else context_reference.encode_context
        blob = encode(plane, side.context, sub_block)
        return None if blob is None else EncodedPlane(CodecId.RANS_CTX, 0, blob)
    if not side.columns or number:
        return None
    encode_grid = native.encode_grid if native.available else grid_reference.encode_grid
    blob = encode_grid(plane, side.columns, side.first, sub_block)
    return None if blob is None else EncodedPlane(CodecId.RANS_GRID, 0, blob)


def decode_aside(codec: CodecId, blob: Plane, context: Plane | None, out: Plane) -> None:
    """Decode a blob of `rans.ctx` or `rans.grid` into `out`, uint8, shape (n,).

    Raises:
        FormatError: the blob breaks FORMAT.md, or needs context bytes where there are none.
    """
    if codec is CodecId.RANS_GRID:
        if native.available:
            native.decode_grid(blob, out)
        else:
            out[:] = grid_reference.decode_grid(blob, out.size)
        return
    if context is None or context.shape != out.shape:
        raise FormatError(
            f"rans_ctx blob of {out.size} symbols: expected a context byte for each, found "
            f"{'none' if context is None else context.size}; its array is neither a delta nor "
            "coded beside another one: the file is damaged"
        )
    if native.available:
        native.decode_context(blob, context, out)
    else:
        out[:] = context_reference.decode_context(blob, context)
