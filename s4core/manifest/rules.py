"""What FORMAT.md, section 7, asks of a manifest: run on write and on read."""

from __future__ import annotations

import re
from typing import Final

from s4core import dtypes
from s4core.errors import FormatError, StateError, VersionError
from s4core.manifest.companions import validate_companion
from s4core.manifest.model import DELTAS, INLINE_BYTES, ArrayEntry, Manifest, TensorEntry

__all__ = ["check_id", "validate"]

MAX_DEPTH: Final = 255
MAX_DIMENSIONS: Final = 64  # of any tensor of torch's
_MAX_ARRAY_BYTES: Final = 1 << 62  # as in a shard's index
_TOO_LARGE: Final = 1 << 63
_ID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


def check_id(text: str, where: str) -> None:
    """Raise `FormatError` unless `text` may name a checkpoint."""
    if not _ID.fullmatch(text):
        raise FormatError(f"{where}: id {text!r}: expected 1 to 128 of 0-9 A-Z a-z . _ -")


def _check_digest(text: str, where: str) -> None:
    if not _DIGEST.fullmatch(text):
        raise FormatError(f"{where}: digest {text!r}: expected 32 hex digits")


def validate(m: Manifest, where: str) -> None:
    """Check everything that FORMAT.md, section 7, asks of a manifest by itself.

    Raises:
        VersionError: it holds a dtype or delta that this release does not know.
        FormatError: naming the place, what was expected and what was found.
    """
    if m.id:
        check_id(m.id, where)
    for number, need in enumerate(m.needs):
        check_id(need.id, f"{where}: needs[{number}]")
        _check_digest(need.digest, f"{where}: needs[{number}]")
    if m.step is not None and (type(m.step) is not int or not -_TOO_LARGE <= m.step < _TOO_LARGE):
        raise FormatError(f"{where}: step {m.step!r}: expected an integer of at most 64 bits")
    if m.base is not None and m.base >= len(m.needs):
        raise FormatError(f"{where}: base {m.base}: there are {len(m.needs)} needs")
    for number, shard in enumerate(m.shards):
        _validate_key(shard.key, f"{where}: shards[{number}]")
    for number, array in enumerate(m.arrays):
        _validate_array(array, m, f"{where}: arrays[{number}]")
    for number, array in enumerate(m.arrays):
        validate_companion(array, m, f"{where}: arrays[{number}]")
    depth = max((array.depth for array in m.arrays), default=0)
    if m.depth != depth:
        raise FormatError(f"{where}: depth {m.depth}: the arrays' largest is {depth}")
    for number, tensor in enumerate(m.tensors):
        _validate_tensor(tensor, m, f"{where}: tensors[{number}] ({tensor.path})")


def _validate_key(key: str, where: str) -> None:
    parts = key.split("/") if key else []
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise FormatError(f"{where}: key {key!r}: expected plain names joined by '/'")


def _known_dtype(name: str, where: str) -> dtypes.DType:
    try:
        return dtypes.lookup(name)
    except StateError:
        raise VersionError(
            f"{where}: dtype {name!r} is not known to this release; upgrade s4weights"
        ) from None


def _validate_array(a: ArrayEntry, m: Manifest, where: str) -> None:
    dtype = _known_dtype(a.dtype, where)
    _check_digest(a.digest, where)
    if a.words % dtype.words_per_element:
        raise FormatError(f"{where}: {a.words} words of {a.dtype}: expected whole elements")
    if a.bytes > _MAX_ARRAY_BYTES:
        raise FormatError(f"{where}: {a.words} words: more than any machine holds")
    if a.depth > MAX_DEPTH:
        raise FormatError(f"{where}: depth {a.depth}: at most {MAX_DEPTH}")
    if [a.at, a.same, a.data, a.derived].count(None) != 3:
        raise FormatError(f"{where}: expected exactly one of at, same, data and derived")
    if a.at is not None and a.at[0] >= len(m.shards):
        raise FormatError(f"{where}: at shard {a.at[0]}: there are {len(m.shards)}")
    _validate_delta(a, where)
    for name, target in (("base", a.base), ("same", a.same)):
        if target is not None and target[0] >= len(m.needs):
            raise FormatError(f"{where}: {name} in need {target[0]}: there are {len(m.needs)}")
    if a.data is not None and not len(a.data) == a.bytes <= INLINE_BYTES:
        raise FormatError(
            f"{where}: data of {len(a.data)} bytes: expected {a.bytes}, at most {INLINE_BYTES}"
        )


def _validate_delta(a: ArrayEntry, where: str) -> None:
    if a.delta is None:
        if a.base is not None or a.base_digest is not None:
            raise FormatError(f"{where}: a base without a delta")
        if a.depth and a.same is None and a.companion is None:
            raise FormatError(f"{where}: depth {a.depth} without a delta")
        return
    if a.delta not in DELTAS:
        raise VersionError(f"{where}: delta {a.delta!r} is not known here; upgrade s4weights")
    if a.at is None or a.base is None or a.depth < 1:
        raise FormatError(f"{where}: a delta needs at, base and a depth of at least 1")
    _check_digest(a.base_digest or "", f"{where}: base_digest")


def _validate_tensor(t: TensorEntry, m: Manifest, where: str) -> None:
    dtype = _known_dtype(t.dtype, where)
    if len(t.shape) != len(t.stride):
        raise FormatError(f"{where}: {len(t.shape)} sizes but {len(t.stride)} strides")
    if len(t.shape) > MAX_DIMENSIONS:
        raise FormatError(f"{where}: {len(t.shape)} dimensions: at most {MAX_DIMENSIONS}")
    if t.array is None:
        if t.device != "meta":
            raise FormatError(f"{where}: no array, and its device is {t.device!r}, not meta")
        return
    if t.device.partition(":")[0] == "meta":
        raise FormatError(f"{where}: its device is {t.device!r}, which holds no array")
    if t.array >= len(m.arrays):
        raise FormatError(f"{where}: array {t.array}: there are {len(m.arrays)}")
    _validate_extent(t, m.arrays[t.array].bytes, dtype.itemsize, where)


def _validate_extent(t: TensorEntry, array_bytes: int, itemsize: int, where: str) -> None:
    if 0 in t.shape:
        return
    span = t.span
    covered = 1
    for size, step in zip(t.shape, t.stride, strict=True):
        covered *= size if step else 1
    # A lone strided tensor is stored without its gaps: then the array holds
    # exactly the elements it covers (FORMAT.md, section 8.1).
    compact = t.offset == 0 and covered * itemsize == array_bytes
    if not compact and (t.offset + span) * itemsize > array_bytes:
        raise FormatError(
            f"{where}: reaches element {t.offset + span}: its array holds "
            f"{array_bytes // itemsize} elements"
        )
