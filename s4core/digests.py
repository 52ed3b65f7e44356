"""The checksums and digests of FORMAT.md, section 5, over host memory.

A checksum (XXH3-64) detects damage of a blob; a digest (XXH3-128 over the
XXH3-64 of every 64 KiB piece) is the identity of an array's words. The second
is made of pieces so that a GPU can compute many at a time.

XXH3 is Yann Collet's; specification: xxHash, doc/xxhash_spec.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from s4core.errors import ChecksumError

__all__ = [
    "DIGEST_BYTES",
    "PIECE_BYTES",
    "Buffer",
    "check",
    "checksum",
    "digest",
    "digest_of_pieces",
    "document_digest",
    "flat",
    "pieces",
]

DIGEST_BYTES: Final = 16
PIECE_BYTES: Final = 64 * 1024

# Contiguous bytes in host memory.
Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]


def checksum(data: Buffer) -> int:
    """Return the XXH3-64 of `data`, an unsigned 64-bit number."""
    return xxhash.xxh3_64_intdigest(flat(data))


def flat(data: Buffer) -> memoryview:
    """Return a view of `data` as bytes, without a copy."""
    view: memoryview = memoryview(data)  # type: ignore[arg-type]  # numpy says so from 3.12 on
    return view.cast("B") if view.nbytes else memoryview(b"")


def check(data: Buffer, expected: int, where: str) -> None:
    """Raise `ChecksumError` unless `data` has the checksum `expected`."""
    found = checksum(data)
    if found != expected:
        raise ChecksumError(
            f"{where} is damaged: expected XXH3-64 {expected:016x}, found {found:016x}; "
            "restore the object from another copy"
        )


def pieces(words: Buffer) -> list[int]:
    """Return the XXH3-64 of every 64 KiB piece of an array's words, in order."""
    view = flat(words)
    return [
        xxhash.xxh3_64_intdigest(view[start : start + PIECE_BYTES])
        for start in range(0, len(view), PIECE_BYTES)
    ]


def digest(words: Buffer) -> bytes:
    """Return the 16-byte digest of an array's words as they lie in memory."""
    return digest_of_pieces(pieces(words))


def digest_of_pieces(pieces: Iterable[int]) -> bytes:
    """Return the digest of an array from the XXH3-64 of each of its pieces, in order."""
    hashes = np.fromiter(pieces, dtype="<u8")
    return xxhash.xxh3_128_digest(hashes.tobytes())


def document_digest(document: bytes) -> str:
    """Return the digest of a manifest's bytes: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(document)
