"""`zstd`: one frame of RFC 8878 and its padding; the one file that imports zstandard."""

from __future__ import annotations

from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import BLOB_ALIGN, CodecId, EncodedPlane, pad16
from s4core.errors import CodecUnavailableError, FormatError

__all__ = ["decode_zstd", "encode_zstd"]

Plane = NDArray[np.uint8]

# zstd's own default: beyond it, planes of integers hardly shrink.
_LEVEL: Final = 3


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise CodecUnavailableError(
            "codec zstd needs the package zstandard, which is not installed: "
            "run `pip install zstandard`"
        ) from error
    return zstandard


def encode_zstd(plane: Plane) -> EncodedPlane:
    """Compress a plane to one frame that states its content size, padded to 16 bytes."""
    frame = _zstandard().ZstdCompressor(level=_LEVEL).compress(plane)
    padding = pad16(len(frame)) - len(frame)
    return EncodedPlane(CodecId.ZSTD, padding, frame + bytes(padding))


def _frame_of(param: int, blob: Plane) -> bytes:
    """Strip the padding, which must be zero."""
    if param >= BLOB_ALIGN:
        raise_fault(CodecId.ZSTD, Fault.PARAM, 0, BLOB_ALIGN - 1, param)
    if blob.size <= param:
        raise_fault(CodecId.ZSTD, Fault.TRUNCATED, 0, param + 1, blob.size)
    end = blob.size - param
    if blob[end:].any():
        raise_fault(CodecId.ZSTD, Fault.PADDING, end, 0, int(blob[end:].max()))
    return blob[:end].tobytes()


def decode_zstd(param: int, blob: Plane, n: int) -> Plane:
    """Undo `encode_zstd`; uint8, shape (n,).

    The size that the frame states is compared with `n` before anything is
    allocated, so that a hostile frame cannot ask for more.

    Raises:
        FormatError: the frame is damaged, of another size, or followed by more bytes.
        CodecUnavailableError: zstandard is not installed.
    """
    zstandard = _zstandard()
    frame = _frame_of(param, blob)
    try:
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated != n:
            raise_fault(CodecId.ZSTD, Fault.SYMBOLS, 0, n, stated)
        data = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(
            f"zstd blob, byte 0: expected one frame of {n} bytes in {len(frame)}, found: {error}; "
            "the stored bytes are damaged: use another copy"
        ) from error
    return np.frombuffer(data, dtype=np.uint8)
