"""The codecs in numpy: slow, plain, and the oracle of the native and CUDA code.

It also serves where no native extension was built. The choice it makes is
FORMAT.md, section 4.4, followed line by line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.bitpack_reference import bitpack_length, decode_bitpack, encode_bitpack
from s4core.codecs.choice import (
    EXACT_BELOW,
    RAW_BITS,
    estimate,
    exact_histogram,
    sampled_histogram,
    varying_bits,
)
from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, EncodedPlane, pad16
from s4core.codecs.rans_reference import decode_rans, encode_rans

__all__ = ["choose_plane", "decode_stored"]

Plane = NDArray[np.uint8]


def _raw(plane: Plane) -> EncodedPlane:
    return EncodedPlane(CodecId.RAW, 0, plane.tobytes().ljust(pad16(plane.size), b"\0"))


def _try(plane: Plane, counts: NDArray[np.int64], sub_block: int) -> EncodedPlane | None:
    """Rules 1 to 4 with one histogram; None asks for the exact one, or for raw."""
    seen = estimate(counts)
    if seen.symbols == 1:
        constant = varying_bits(plane) == 0
        return EncodedPlane(CodecId.CONST, int(plane[0]), b"") if constant else None
    width = seen.mask.bit_count()
    packs = width <= 7 and width * 65536 <= seen.bits + seen.bits // 64
    if packs and bitpack_length(seen.mask, plane.size) < pad16(plane.size):
        mask = varying_bits(plane)
        if mask.bit_count() != width:
            return None
        return EncodedPlane(CodecId.BITPACK, 0, encode_bitpack(plane, mask))
    if seen.bits >= RAW_BITS:
        return _raw(plane)
    blob = encode_rans(plane, seen.frequency, int(np.argmax(counts)), sub_block)
    return None if blob is None else EncodedPlane(CodecId.RANS, 0, blob)


def choose_plane(plane: Plane, sub_block: int) -> EncodedPlane:
    """Encode a plane by FORMAT.md, section 4.4, without `zstd`.

    Args:
        plane: uint8, shape (n,), contiguous, n >= 1.
        sub_block: symbols per sub-block.
    """
    if plane.size >= EXACT_BELOW:
        sampled = _try(plane, sampled_histogram(plane, sub_block), sub_block)
        if sampled is not None:
            return sampled
    return _try(plane, exact_histogram(plane), sub_block) or _raw(plane)


def decode_stored(codec: CodecId, param: int, blob: Plane, n: int) -> Plane:
    """Decode a blob of codec raw, const, bitpack or rans; uint8, shape (n,).

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.
    """
    if codec is CodecId.CONST:
        if blob.size:
            raise_fault(codec, Fault.LENGTH, 0, 0, blob.size)
        return np.full(n, param, dtype=np.uint8)
    if param:
        raise_fault(codec, Fault.PARAM, 0, 0, param)
    if codec is CodecId.BITPACK:
        return decode_bitpack(blob, n)
    if codec is CodecId.RANS:
        return decode_rans(blob, n)
    if blob.size != pad16(n):
        raise_fault(codec, Fault.LENGTH, 0, pad16(n), blob.size)
    if blob[n:].any():
        found = n + int(np.argmax(blob[n:] != 0))
        raise_fault(codec, Fault.PADDING, found, 0, int(blob[found]))
    return np.array(blob[:n])
