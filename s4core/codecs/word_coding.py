"""How the words of an array are coded: width, layout, delta (FORMAT.md, sections 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from s4core.dtypes import Layout
from s4core.errors import CodecError, CodecUnavailableError

__all__ = ["Buffer", "Delta", "DeltaKind", "WordCoding", "as_bytes", "check_base", "coding_of"]

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]
DeltaKind = Literal["xor", "zigzag"]


class Delta(IntEnum):
    """Numbered as in csrc/words.h."""

    WHOLE = 0
    XOR = 1
    ZIGZAG = 2
    ZIGZAG_FLOAT = 3


@dataclass(frozen=True)
class WordCoding:
    """One way of coding words, checked.

    Attributes:
        word_bytes: 1, 2, 4 or 8.
        layout: WORDS, FLOAT or BYTES.
        delta: what is done with a base first.
        planes: how many planes the layout has.
    """

    word_bytes: int
    layout: Layout
    delta: Delta
    planes: int

    def plane_bytes(self, size: int) -> int:
        """Bytes of one plane of `size` bytes of words."""
        return size // self.planes


def as_bytes(buffer: Buffer) -> NDArray[np.uint8]:
    """View a contiguous buffer as uint8, shape (bytes,), without copying."""
    return np.frombuffer(buffer, dtype=np.uint8)


def _delta_of(delta: DeltaKind | None, is_float: bool) -> Delta:
    if delta is None:
        return Delta.WHOLE
    if delta == "xor":
        return Delta.XOR
    if delta == "zigzag":
        return Delta.ZIGZAG_FLOAT if is_float else Delta.ZIGZAG
    raise CodecError(f"delta {delta!r}: expected 'xor', 'zigzag' or None")


def _check_layout(word_bytes: int, layout: Layout) -> None:
    if layout is Layout.FIELDS:
        raise CodecUnavailableError(
            "layout fields belongs to profile nvcomp and is coded on NVIDIA GPUs only: load this "
            "checkpoint on a host that has one, or convert it there with `s4weights export`"
        )
    if word_bytes not in (1, 2, 4, 8) or (layout is Layout.FLOAT and word_bytes == 1):
        raise CodecError(
            f"words of {word_bytes} bytes in layout {layout.name.lower()}: "
            "expected 1, 2, 4 or 8 bytes, and at least 2 for float"
        )


@cache
def coding_of(
    word_bytes: int, layout: int, delta: DeltaKind | None = None, is_float: bool = True
) -> WordCoding:
    """Check one way of coding words.

    Raises:
        CodecError: a combination that FORMAT.md does not know.
        CodecUnavailableError: layout `fields`.
    """
    known = Layout(layout)
    _check_layout(word_bytes, known)
    planes = 1 if known is Layout.WORDS else word_bytes
    return WordCoding(word_bytes, known, _delta_of(delta, is_float), planes)


def check_base(coding: WordCoding, size: int, base: Buffer | None) -> NDArray[np.uint8] | None:
    """Check that `size` bytes are words, and that a base is given iff the delta needs one.

    Raises:
        CodecError: it is not so, or the base has another size.
    """
    if size % coding.word_bytes:
        raise CodecError(f"{size} bytes of words: expected a multiple of {coding.word_bytes}")
    if (base is None) != (coding.delta is Delta.WHOLE):
        raise CodecError(
            f"delta {coding.delta.name.lower()} and {'no base' if base is None else 'a base'}: "
            "expected both or neither"
        )
    if base is None:
        return None
    against = as_bytes(base)
    if against.size != size:
        raise CodecError(f"base of {against.size} bytes: expected {size}, as many as the words")
    return against
