"""How the words of an array are coded: width, layout, delta (FORMAT.md, sections 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from s4core.dtypes import Layout
from s4core.errors import CodecError, CodecUnavailableError

__all__ = ["Buffer", "Delta", "DeltaKind", "WordCoding", "as_bytes", "make_coding"]

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
        delta: what is done with the base first.
        base: uint8, as many bytes as the words, or None for `Delta.WHOLE`.
    """

    word_bytes: int
    layout: Layout
    delta: Delta
    base: NDArray[np.uint8] | None

    @property
    def planes(self) -> int:
        """Number of planes."""
        return 1 if self.layout is Layout.WORDS else self.word_bytes

    def plane_bytes(self, words: int) -> int:
        """Bytes of one plane of that many words."""
        return words * self.word_bytes // self.planes


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


def make_coding(
    size: int,
    word_bytes: int,
    layout: int,
    base: Buffer | None,
    delta: DeltaKind | None,
    is_float: bool,
) -> WordCoding:
    """Check one way of coding `size` bytes of words.

    Raises:
        CodecError: a combination that FORMAT.md does not know, or a base of another size.
        CodecUnavailableError: layout `fields`.
    """
    known = Layout(layout)
    _check_layout(word_bytes, known)
    if size % word_bytes:
        raise CodecError(f"{size} bytes of words: expected a multiple of {word_bytes}")
    kind = _delta_of(delta, is_float)
    if (base is None) != (kind is Delta.WHOLE):
        raise CodecError(
            f"delta {delta!r} and {'no base' if base is None else 'a base'}: "
            "expected both or neither"
        )
    against = None if base is None else as_bytes(base)
    if against is not None and against.size != size:
        raise CodecError(f"base of {against.size} bytes: expected {size}, as many as the words")
    return WordCoding(word_bytes, known, kind, against)
