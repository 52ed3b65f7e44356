"""The native extension, when one was built: buffers in, checked, addresses out.

`_native` takes integer addresses; this file is the one that makes them, and holds
each buffer alive and large enough while C uses it. C releases the GIL, so threads
that encode different chunks run side by side.

The environment variable S4_NATIVE chooses among `available_paths()` (`avx512`, `avx2`,
`portable`), or turns the extension off (`off`).
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, EncodedPlane, codec_of, pad16
from s4core.codecs.word_coding import WordCoding
from s4core.errors import CodecError

__all__ = [
    "available",
    "available_paths",
    "decode_chunk",
    "decode_context",
    "decode_grid",
    "decode_plane",
    "encode_chunk",
    "encode_context",
    "encode_grid",
    "encode_plane",
    "histogram",
    "split_words",
]

Bytes = NDArray[np.uint8]
# A plane to be decoded: codec, param, blob. Codec 0: the blob is the plane itself.
StoredPlane = tuple[int, int, Bytes]

DECODED: Final = 0


def _load() -> ModuleType | None:
    if os.environ.get("S4_NATIVE") == "off":
        return None
    try:
        return importlib.import_module("s4core.codecs._native")
    except ImportError:
        # No compiler when s4weights was installed: the numpy reference serves.
        return None


_module: Final = _load()
available: Final = _module is not None


def _native() -> ModuleType:
    if _module is None:
        raise CodecError(
            "the native codecs were not built, or S4_NATIVE=off: reinstall s4weights "
            "where a C compiler is found"
        )
    return _module


def available_paths() -> tuple[str, ...]:
    """Instruction sets that this machine runs, best first; empty without the extension."""
    names: tuple[str, ...] = _native().paths() if available else ()
    return names


def _path_index(name: str | None) -> int:
    if name is None:
        return 0
    names = available_paths()
    if name not in names:
        raise CodecError(f"S4_NATIVE={name}: expected off or one of {', '.join(names)}")
    return names.index(name)


_CHOSEN: Final = os.environ.get("S4_NATIVE") or None


def _index(path: str | None) -> int:
    return _path_index(path or _CHOSEN)


def _address(array: Bytes) -> int:
    """Where the bytes of a contiguous array are."""
    address: int = _native().address(array)
    return address


class _Scratch(threading.local):
    """Memory of this thread that is used again by every chunk."""

    buffer: Bytes = np.empty(0, dtype=np.uint8)
    address: int = 0

    def take(self, size: int) -> tuple[int, int]:
        """Address and size of at least `size` bytes."""
        if self.buffer.size < size:
            self.buffer = np.empty(size, dtype=np.uint8)
            self.address = _address(self.buffer)
        return self.address, self.buffer.size


_scratch: Final = _Scratch()


def _raise(fault: tuple[int, int, int, int, int]) -> None:
    kind, codec, offset, expected, found = fault
    raise_fault(CodecId(codec), Fault(kind), offset, expected, found)


def histogram(plane: Bytes) -> NDArray[np.uint32]:
    """Count every symbol; uint32, shape (256,)."""
    counts = np.zeros(256, dtype=np.uint32)
    native = _native()
    native.histogram(_address(plane), plane.size, native.address(counts))
    return counts


def encode_plane(plane: Bytes, sub_block: int, *, path: str | None = None) -> EncodedPlane:
    """`reference.choose_plane` in C; the sizes have been checked."""
    room = pad16(plane.size) + _native().SLACK
    out = np.empty(room, dtype=np.uint8)
    codec, param, length = _native().encode_plane(
        _index(path), _address(plane), plane.size, sub_block, _address(out), room
    )
    return EncodedPlane(codec_of(codec), param, _shrink(out, length)[:length])


def decode_plane(
    codec: CodecId, param: int, blob: Bytes, out: Bytes, *, path: str | None = None
) -> None:
    """`reference.decode_stored` in C, into `out`.

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.
    """
    fault = _native().decode_plane(
        _index(path), codec, param, _address(blob), blob.size, _address(out), out.size
    )
    if fault is not None:
        _raise(fault)


def _shrink(out: Bytes, used: int) -> memoryview:
    """Give back the memory of `out` beyond what is used."""
    out.resize(max(used, 1), refcheck=False)
    return out.data


def encode_chunk(
    coding: WordCoding,
    words: Bytes,
    base: Bytes | None,
    sub_block: int,
    *,
    path: str | None = None,
) -> list[EncodedPlane]:
    """Delta, split and encode the words of one chunk; their blobs share one buffer."""
    native = _native()
    padded = pad16(coding.plane_bytes(words.size)) + native.SLACK
    out = np.empty(coding.planes * padded, dtype=np.uint8)
    used, blobs = native.encode_chunk(
        _index(path), coding.word_bytes, coding.layout, coding.delta,
        0 if base is None else _address(base), _address(words), words.size // coding.word_bytes,
        sub_block, _address(out), out.size, *_scratch.take(2 * padded),
    )  # fmt: skip
    data = _shrink(out, used)
    return [
        EncodedPlane(codec_of(codec), param, data[offset : offset + length])
        for codec, param, offset, length in blobs
    ]


def decode_chunk(
    coding: WordCoding,
    planes: Sequence[StoredPlane],
    base: Bytes | None,
    out: Bytes,
    *,
    path: str | None = None,
) -> None:
    """Decode, join and undo the delta of one chunk, into `out`.

    Raises:
        FormatError: a blob breaks FORMAT.md, section 4.
    """
    scratch = _scratch.take(coding.planes * pad16(coding.plane_bytes(out.size)))
    stored = [(codec, param, _address(blob), blob.size) for codec, param, blob in planes]
    fault = _native().decode_chunk(
        _index(path), coding.word_bytes, coding.layout, coding.delta,
        0 if base is None else _address(base), stored,
        _address(out), out.size // coding.word_bytes, *scratch,
    )  # fmt: skip
    if fault is not None:
        _raise(fault)


def split_words(
    coding: WordCoding, words: Bytes, base: Bytes | None, *, path: str | None = None
) -> list[Bytes]:
    """`words_reference.split_words` in C; each plane uint8, shape (words,)."""
    planes = np.empty((coding.planes, coding.plane_bytes(words.size)), dtype=np.uint8)
    _native().split(
        _index(path), coding.word_bytes, coding.layout, coding.delta,
        0 if base is None else _address(base), _address(words), words.size // coding.word_bytes,
        _address(planes),
    )  # fmt: skip
    return list(planes)


def encode_context(plane: Bytes, context: Bytes, sub_block: int) -> bytes | None:
    """`context_reference.encode_context` in C; sizes and `context` have been checked."""
    out = np.empty(pad16(plane.size) + _native().SLACK, dtype=np.uint8)
    length = _native().context_encode(
        _address(plane), _address(context), plane.size, sub_block, _address(out), out.size,
        *_scratch.take(plane.size),
    )  # fmt: skip
    return out[:length].tobytes() if length else None


def decode_context(blob: Bytes, context: Bytes, out: Bytes) -> None:
    """`context_reference.decode_context` in C, into `out`, of the size of `context`.

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.6.
    """
    fault = _native().context_decode(
        _address(blob), blob.size, _address(context), _address(out), out.size,
        *_scratch.take(out.size),
    )  # fmt: skip
    if fault is not None:
        _raise(fault)


def encode_grid(plane: Bytes, columns: int, first: int, sub_block: int) -> bytes | None:
    """`grid_reference.encode_grid` in C; the sizes have been checked."""
    out = np.empty(pad16(plane.size) + _native().SLACK, dtype=np.uint8)
    values = np.empty(4 * (-(-(first + plane.size) // columns) + columns), dtype=np.uint8)
    length = _native().grid_encode(
        _address(plane), plane.size, columns, first, sub_block, _address(out), out.size,
        *_scratch.take(2 * plane.size), _address(values), values.size,
    )  # fmt: skip
    return out[:length].tobytes() if length else None


def decode_grid(blob: Bytes, out: Bytes) -> None:
    """`grid_reference.decode_grid` in C, into `out`.

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.7.
    """
    values = np.empty(4 * blob.size, dtype=np.uint8)
    fault = _native().grid_decode(
        _address(blob), blob.size, _address(out), out.size, *_scratch.take(out.size),
        _address(values), values.size,
    )  # fmt: skip
    if fault is not None:
        _raise(fault)
