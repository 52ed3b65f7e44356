"""`bitpack` in numpy: planes whose symbols differ in few bits (FORMAT.md, 4.1)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, pad16

__all__ = ["bitpack_length", "decode_bitpack", "encode_bitpack"]

Plane = NDArray[np.uint8]

HEADER_BYTES: Final = 16


def bitpack_length(mask: int, n: int) -> int:
    """Length of the blob of `n` symbols that differ in the bits of `mask`."""
    return pad16(HEADER_BYTES + mask.bit_count() * -(-n // 8))


def _bits_of(mask: int) -> list[int]:
    return [bit for bit in range(8) if mask >> bit & 1]


def encode_bitpack(plane: Plane, mask: int) -> bytes:
    """Pack the bits of `mask` of each symbol; the others must be constant."""
    n = plane.size
    base = int(plane[0]) & ~mask & 0xFF
    padded = np.zeros(-(-n // 8) * 8, dtype=np.uint8)
    padded[:n] = plane
    bits = np.stack([padded >> bit & 1 for bit in _bits_of(mask)], axis=1)
    body = np.packbits(bits.reshape(-1), bitorder="little").tobytes()
    header = bytes([mask, base, 0, 0]) + n.to_bytes(4, "little") + bytes(8)
    return (header + body).ljust(bitpack_length(mask, n), b"\0")


def _check(blob: Plane, n: int) -> None:
    def fault(kind: Fault, offset: int, expected: int, found: int) -> None:
        raise_fault(CodecId.BITPACK, kind, offset, expected, found)

    if blob.size < HEADER_BYTES:
        fault(Fault.TRUNCATED, 0, HEADER_BYTES, blob.size)
    mask, base = int(blob[0]), int(blob[1])
    if not 1 <= mask.bit_count() <= 7:
        fault(Fault.MASK, 0, 7, mask.bit_count())
    if base & mask:
        fault(Fault.BASE, 1, 0, base & mask)
    if blob[2:4].any() or blob[8:16].any():
        fault(Fault.RESERVED, 2 if blob[2:4].any() else 8, 0, 1)
    stored = int.from_bytes(blob[4:8].tobytes(), "little")
    if stored != n:
        fault(Fault.SYMBOLS, 4, n, stored)
    if blob.size != bitpack_length(mask, n):
        fault(Fault.LENGTH, 0, bitpack_length(mask, n), blob.size)


def decode_bitpack(blob: Plane, n: int) -> Plane:
    """Undo `encode_bitpack`; uint8, shape (n,).

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.1.
    """
    _check(blob, n)
    mask = int(blob[0])
    kept = _bits_of(mask)
    bits = np.unpackbits(blob[HEADER_BYTES:], bitorder="little")
    rest = bits[n * len(kept) :]
    if rest.any():
        at = n * len(kept) + int(np.argmax(rest))
        raise_fault(CodecId.BITPACK, Fault.PADDING, HEADER_BYTES + at // 8, 0, 1)
    plane = np.full(n, blob[1], dtype=np.uint8)
    columns = bits[: n * len(kept)].reshape(n, len(kept))
    for column, bit in enumerate(kept):
        plane |= columns[:, column] << np.uint8(bit)
    return plane
