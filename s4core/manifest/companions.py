"""Rules for arrays that are read with another array of the same manifest (FORMAT.md, 7.1, 7.2).

An array is derived from, or coded under the exponents of, its *companion*. Companions are
at most two steps deep (derived, then with a context, then on its own), so that nothing can
go round in circles.
"""

from __future__ import annotations

import struct

from s4core import dtypes
from s4core.errors import FormatError, VersionError
from s4core.manifest.model import DERIVATIONS, ArrayEntry, Manifest

__all__ = ["validate_companion"]

_POSITION_BYTES = 8


def validate_companion(a: ArrayEntry, m: Manifest, where: str) -> None:
    """Check everything about the companion of an array.

    Raises:
        VersionError: a derivation that this release does not know.
        FormatError: naming the place, what was expected and what was found.
    """
    if (a.derived is None) != (a.of is None):
        raise FormatError(f"{where}: derived and of: expected both or neither")
    if a.derived is None and a.exceptions:
        raise FormatError(f"{where}: exceptions of an array that is not derived")
    if a.context is not None and (a.at is None or a.delta is not None):
        raise FormatError(f"{where}: a context needs at and no delta")
    if a.companion is None:
        return
    if a.companion >= len(m.arrays):
        raise FormatError(f"{where}: stands on array {a.companion}: there are {len(m.arrays)}")
    other = m.arrays[a.companion]
    name = f"{where}: array {a.companion}, which it is read with,"
    if other.derived is not None or (a.context is not None and other.context is not None):
        raise FormatError(f"{name} is itself read with another one")
    if other.data is not None or other.words != a.words:
        raise FormatError(
            f"{name} has {other.words} words: expected {a.words}, not in the manifest"
        )
    if other.depth != a.depth:
        raise FormatError(f"{name} has depth {other.depth}: expected {a.depth}, its own")
    if a.context is not None:
        _validate_context(a, other, name)
    else:
        _validate_derived(a, other, name)


def _validate_context(a: ArrayEntry, other: ArrayEntry, name: str) -> None:
    if not (dtypes.lookup(a.dtype).is_float and dtypes.lookup(other.dtype).is_float):
        raise FormatError(f"{name} is {other.dtype} for {a.dtype}: expected floating point")


def _validate_derived(a: ArrayEntry, other: ArrayEntry, name: str) -> None:
    if a.derived not in DERIVATIONS:
        raise VersionError(f"{name}: derivation {a.derived!r} is not known; upgrade s4weights")
    pair = (other.dtype, a.dtype)
    rounds = pair in (("float32", "bfloat16"), ("float32", "float16"))
    if not (rounds if a.derived == "rne" else other.dtype == a.dtype):
        raise FormatError(
            f"{name} is {other.dtype}: no {a.dtype} is derived from it by {a.derived}"
        )
    size = _POSITION_BYTES + dtypes.lookup(a.dtype).word_bytes
    if len(a.exceptions) % size or len(a.exceptions) // size > a.words:
        raise FormatError(
            f"{name}: exceptions of {len(a.exceptions)} bytes: expected at most {a.words} "
            f"of {size} bytes"
        )
    before = -1
    for at in range(0, len(a.exceptions), size):
        (position,) = struct.unpack_from("<Q", a.exceptions, at)
        if not before < position < a.words:
            raise FormatError(
                f"{name}: exception at word {position}: expected rising positions below {a.words}"
            )
        before = position
