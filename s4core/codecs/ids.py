"""The codecs' names on disk, and what an encoder hands back.

An id names a bitstream, never an implementation: C, numpy and CUDA share an id
because each decodes what the others write (FORMAT.md, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from s4core.errors import VersionError

__all__ = ["BLOB_ALIGN", "CodecId", "EncodedPlane", "codec_of", "pad16"]

# Every blob is a multiple of this many bytes long.
BLOB_ALIGN: Final = 16


class CodecId(IntEnum):
    """The codec byte of an index record (FORMAT.md, section 4)."""

    RAW = 1
    CONST = 2
    BITPACK = 3
    RANS = 4
    ZSTD = 5
    GDEFLATE = 6
    NVCOMP_ANS = 7
    RANS_CTX = 8
    RANS_GRID = 9


# Looking an enum up by value costs a microsecond, and chunks are many.
_BY_NUMBER: Final = {codec.value: codec for codec in CodecId}


@dataclass(frozen=True)
class EncodedPlane:
    """One plane of one chunk, encoded.

    Attributes:
        codec: which bitstream `data` is.
        param: the byte that the index record keeps beside it.
        data: the blob, a multiple of 16 bytes; a view may share its buffer with
            the other planes of its chunk.
    """

    codec: CodecId
    param: int
    data: bytes | memoryview


def codec_of(number: int) -> CodecId:
    """Return the codec with that id.

    Raises:
        VersionError: this release knows no such codec.
    """
    codec = _BY_NUMBER.get(number)
    if codec is None:
        raise VersionError(
            f"codec {number} is unknown: expected one of "
            f"{', '.join(f'{c.value} ({c.name.lower()})' for c in CodecId)}; "
            "the file is damaged or a newer s4weights wrote it: upgrade s4weights"
        )
    return codec


def pad16(size: int) -> int:
    """Round `size` up to a multiple of 16."""
    return -(-size // BLOB_ALIGN) * BLOB_ALIGN
