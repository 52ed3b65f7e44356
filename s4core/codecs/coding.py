"""Encode and decode planes, and the words of whole chunks, whoever does the work.

The native extension is used when it was built, the numpy reference otherwise;
their results are the same bytes. One call handles one chunk on one thread;
callers that have many chunks spread them over threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core.codecs import native, reference, words_reference
from s4core.codecs.faults import Fault, raise_fault
from s4core.codecs.ids import CodecId, EncodedPlane, codec_of
from s4core.codecs.side import NO_SIDE, Side, decode_aside, encode_aside
from s4core.codecs.word_coding import (
    Buffer,
    DeltaKind,
    WordCoding,
    as_bytes,
    check_base,
    coding_of,
)
from s4core.codecs.zstd import decode_zstd, encode_zstd
from s4core.errors import CodecError, CodecUnavailableError

__all__ = ["MAX_SYMBOLS", "decode_plane", "decode_words", "encode_plane", "encode_words"]

Plane = NDArray[np.uint8]

# Symbols that one blob can hold (FORMAT.md, section 4.2).
MAX_SYMBOLS: Final = 1 << 24
_GROUP: Final = 128
_MAX_SUB_BLOCK: Final = 1 << 20
_MAX_SUB_BLOCKS: Final = 255
# Codecs that know more than the plane.
_ASIDE: Final = (CodecId.RANS_CTX, CodecId.RANS_GRID)


def _check_sizes(n: int, sub_block: int) -> None:
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


def _encode(plane: Plane, sub_block: int, zstd: bool) -> EncodedPlane:
    encode = native.encode_plane if native.available else reference.choose_plane
    chosen = encode(plane, sub_block)
    if zstd and len(chosen.data):
        other = encode_zstd(plane)
        if len(other.data) < len(chosen.data):
            return other
    return chosen


def encode_plane(plane: Plane, sub_block: int, *, zstd: bool = False) -> EncodedPlane:
    """Encode a plane with the codec that FORMAT.md, section 4.4, chooses.

    Args:
        plane: uint8, shape (n,), contiguous, 1 <= n <= 2^24; not changed.
        sub_block: symbols per rANS sub-block.
        zstd: whether to try zstd too and take it when it is smaller.

    Raises:
        CodecError: sizes that no blob can have.
    """
    _check_sizes(plane.size, sub_block)
    return _encode(as_bytes(plane), sub_block, zstd)


def _readable(codec: int) -> CodecId:
    known = codec_of(codec)
    if known in (CodecId.GDEFLATE, CodecId.NVCOMP_ANS):
        raise CodecUnavailableError(
            f"codec {known.name.lower()} runs on NVIDIA GPUs only: load this checkpoint on a host "
            "that has one, or convert it there with `s4weights export`"
        )
    return known


def decode_plane(
    codec: int,
    param: int,
    blob: Buffer,
    n: int,
    out: Plane | None = None,
    *,
    context: Plane | None = None,
) -> Plane:
    """Decode a blob to the `n` bytes of its plane.

    Args:
        codec: the codec byte of the index record.
        param: the param byte of the index record.
        blob: the blob, padding included; its checksum has been compared already.
        n: bytes of the plane, 1 <= n <= 2^24.
        out: uint8, shape (n,), contiguous, filled and returned when given.
        context: uint8, shape (n,), contiguous: what codec `rans.ctx` was written under.

    Returns:
        uint8, shape (n,); bytes of `out` are undefined when an error is raised.

    Raises:
        FormatError: the blob breaks FORMAT.md, section 4.
        VersionError: no such codec in this release.
        CodecUnavailableError: the codec needs a GPU, or a package that is missing.
        CodecError: sizes that no blob can have, or an `out` that does not fit.
    """
    known = _readable(codec)
    if not 1 <= n <= MAX_SYMBOLS:
        raise CodecError(f"a plane of {n} bytes has no blob: expected 1 to {MAX_SYMBOLS} bytes")
    target = np.empty(n, dtype=np.uint8) if out is None else _check_out(out, n)
    stored = as_bytes(blob)
    if known is CodecId.ZSTD:
        target[:] = decode_zstd(param, stored, n)
    elif known in _ASIDE:
        _check_param(known, param)
        decode_aside(known, stored, context, target)
    elif native.available:
        native.decode_plane(known, param, stored, target)
    else:
        target[:] = reference.decode_stored(known, param, stored, n)
    return target


def _check_param(codec: CodecId, param: int) -> None:
    if param:
        raise_fault(codec, Fault.PARAM, 0, 0, param)


def _check_out(out: Plane, n: int) -> Plane:
    if out.dtype != np.uint8 or out.shape != (n,) or not out.flags.carray:
        raise CodecError(
            f"out is {out.dtype} of shape {out.shape}: "
            f"expected uint8 of shape ({n},), contiguous and writable"
        )
    return out


def encode_words(
    words: Buffer,
    word_bytes: int,
    layout: int,
    sub_block: int,
    *,
    zstd: bool = False,
    base: Buffer | None = None,
    delta: DeltaKind | None = None,
    is_float: bool = True,
    side: Side = NO_SIDE,
) -> list[EncodedPlane]:
    """Delta, split and encode the words of one chunk.

    Args:
        words: the bytes of the words, at any alignment; not changed.
        word_bytes: bytes of a word: 1, 2, 4 or 8.
        layout: `s4core.dtypes.Layout`, of the words or of the coded words.
        sub_block: symbols per rANS sub-block.
        zstd: whether to try zstd too and take it when it is smaller.
        base: as many bytes as `words`, for a delta.
        delta: the kind of delta against `base`.
        is_float: whether the words are floating point, which `zigzag` orders differently.
        side: what is known beside the words, and used where it makes a plane smaller.

    Returns:
        One entry for each plane, plane 0 first; their data may share one buffer.

    Raises:
        CodecError: sizes or combinations that FORMAT.md does not know.
        CodecUnavailableError: layout `fields`.
    """
    data = as_bytes(words)
    coding = coding_of(word_bytes, layout, delta, is_float)
    against = check_base(coding, data.size, base)
    _check_sizes(coding.plane_bytes(data.size), sub_block)
    if native.available and not zstd and not side:
        return native.encode_chunk(coding, data, against, sub_block)
    split = native.split_words if native.available else words_reference.split_words
    return [
        (encode_aside(plane, number, side, sub_block) if side else None)
        or _encode(plane, sub_block, zstd)
        for number, plane in enumerate(split(coding, data, against))
    ]


def _stored_plane(
    plane: tuple[int, int, Buffer], n: int, context: Plane | None
) -> native.StoredPlane:
    """What the native decoder takes: some codecs are decoded here."""
    codec, param, blob = plane
    known = _readable(codec)
    if known is CodecId.ZSTD or known in _ASIDE:
        return native.DECODED, 0, decode_plane(codec, param, blob, n, context=context)
    return known, param, as_bytes(blob)


def _decode_by_reference(
    coding: WordCoding,
    planes: Sequence[tuple[int, int, Buffer]],
    base: Plane | None,
    n: int,
    context: Plane | None,
) -> Plane:
    decoded = [
        decode_plane(codec, param, blob, n, context=context) for codec, param, blob in planes
    ]
    return words_reference.join_planes(coding, decoded, base)


def decode_words(
    planes: Sequence[tuple[int, int, Buffer]],
    word_bytes: int,
    layout: int,
    out: Buffer,
    *,
    base: Buffer | None = None,
    delta: DeltaKind | None = None,
    is_float: bool = True,
    context: Plane | None = None,
) -> None:
    """Undo `encode_words`, straight into `out`.

    Args:
        planes: codec, param and blob of each plane, plane 0 first; checksums compared already.
        word_bytes: bytes of a word.
        layout: `s4core.dtypes.Layout`.
        out: the bytes of the words, writable, at any alignment; may be the memory of `base`.
            Undefined when an error is raised.
        base: as many bytes as `out`, for a delta.
        delta: the kind of delta against `base`.
        is_float: as for `encode_words`.
        context: uint8, shape (words,): the context bytes that `encode_words` had.

    Raises:
        FormatError: a blob breaks FORMAT.md, section 4, or planes are missing.
        VersionError, CodecUnavailableError, CodecError: as for `decode_plane`.
    """
    target = as_bytes(out)
    coding = coding_of(word_bytes, layout, delta, is_float)
    against = check_base(coding, target.size, base)
    n = coding.plane_bytes(target.size)
    if not 1 <= n <= MAX_SYMBOLS or not target.flags.writeable or len(planes) != coding.planes:
        raise CodecError(
            f"{len(planes)} planes of {n} bytes: expected {coding.planes} of 1 to {MAX_SYMBOLS} "
            "bytes, and a writable buffer for the words"
        )
    if native.available:
        stored = [_stored_plane(plane, n, context) for plane in planes]
        native.decode_chunk(coding, stored, against, target)
    else:
        target[:] = _decode_by_reference(coding, planes, against, n, context)
