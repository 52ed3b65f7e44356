"""Encode and decode one plane of one chunk, whoever does the work.

The native extension is used when it was built, the numpy reference otherwise;
their results are the same bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs import reference
from s4core.codecs.ids import CodecId, EncodedPlane, codec_of
from s4core.codecs.zstd import decode_zstd, encode_zstd
from s4core.errors import CodecError, CodecUnavailableError

__all__ = ["MAX_SYMBOLS", "decode_plane", "encode_plane"]

Plane = NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]

# Symbols that one blob can hold (FORMAT.md, section 4.2).
MAX_SYMBOLS: Final = 1 << 24
_GROUP: Final = 128
_MAX_SUB_BLOCK: Final = 1 << 20
_MAX_SUB_BLOCKS: Final = 255


def check_sizes(n: int, sub_block: int) -> None:
    """Refuse sizes that no blob can have.

    Raises:
        CodecError: the caller cut its chunks wrongly.
    """
    if not 1 <= n <= MAX_SYMBOLS:
        raise CodecError(f"a plane of {n} bytes has no blob: expected 1 to {MAX_SYMBOLS} bytes")
    if sub_block % _GROUP or not _GROUP <= sub_block <= _MAX_SUB_BLOCK:
        raise CodecError(
            f"sub-blocks of {sub_block} symbols: expected a multiple of {_GROUP}, "
            f"{_GROUP} to {_MAX_SUB_BLOCK}"
        )
    if n > _MAX_SUB_BLOCKS * sub_block:
        raise CodecError(
            f"a plane of {n} bytes in sub-blocks of {sub_block}: "
            f"expected at most {_MAX_SUB_BLOCKS} sub-blocks; use smaller chunks"
        )


def encode_plane(plane: Plane, sub_block: int, *, zstd: bool = False) -> EncodedPlane:
    """Encode a plane with the codec that FORMAT.md, section 4.4, chooses.

    Args:
        plane: uint8, shape (n,), contiguous, 1 <= n <= 2^24; not changed.
        sub_block: symbols per rANS sub-block.
        zstd: whether to try zstd too and take it when it is smaller.

    Raises:
        CodecError: sizes that no blob can have.
    """
    check_sizes(plane.size, sub_block)
    chosen = reference.choose_plane(plane, sub_block)
    if zstd and len(chosen.data):
        other = encode_zstd(plane)
        if len(other.data) < len(chosen.data):
            return other
    return chosen


def _unavailable(codec: CodecId) -> CodecUnavailableError:
    return CodecUnavailableError(
        f"codec {codec.name.lower()} runs on NVIDIA GPUs only: load this checkpoint on a host "
        "that has one, or convert it there with `s4weights export`"
    )


def decode_plane(codec: int, param: int, blob: Buffer, n: int, out: Plane | None = None) -> Plane:
    """Decode a blob to the `n` bytes of its plane.

    Args:
        codec: the codec byte of the index record.
        param: the param byte of the index record.
        blob: the blob, padding included; its checksum has been compared already.
        n: bytes of the plane.
        out: uint8, shape (n,), contiguous, filled and returned when given.

    Returns:
        uint8, shape (n,); bytes of `out` are undefined when an error is raised.

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.
        VersionError: no such codec in this release.
        CodecUnavailableError: the codec needs a GPU, or a package that is missing.
    """
    known = codec_of(codec)
    if known in (CodecId.GDEFLATE, CodecId.NVCOMP_ANS):
        raise _unavailable(known)
    stored = np.frombuffer(blob, dtype=np.uint8)
    if known is CodecId.ZSTD:
        plane = decode_zstd(param, stored, n)
    else:
        plane = reference.decode_stored(known, param, stored, n)
    if out is None:
        return plane
    out[:] = plane
    return out
