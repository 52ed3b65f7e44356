"""The element types S4 stores, and how each is cut into words and planes.

A word is one element's bits read as an integer; a complex element is two
words. Nothing here needs torch: dtypes go by torch's own names, without the
`torch.` in front, because those names are what a manifest holds.

Layouts and their ids are FORMAT.md, section 2; `chunking` is section 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from s4core.errors import StateError

__all__ = [
    "BY_NAME",
    "MIN_SPLIT_BYTES",
    "Chunking",
    "DType",
    "Layout",
    "chunking",
    "layout_of",
    "lookup",
    "plane_count",
]

# Below this many bytes an array is stored as it lies in memory (layout `words`):
# cutting it into planes would cost more in index records than it could save.
MIN_SPLIT_BYTES: Final = 1024


class Layout(IntEnum):
    """How a word is cut into planes (FORMAT.md, section 2)."""

    WORDS = 0
    FLOAT = 1
    BYTES = 2
    FIELDS = 3


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes:
        name: torch's name without `torch.`, as in `bfloat16`.
        itemsize: bytes of an element.
        word_bytes: bytes of a word: 1, 2, 4 or 8; half of itemsize for complex.
        is_float: whether words are IEEE-like floating point with the sign on top.
        exponent_bits: width of the exponent field, 0 when there is none.
    """

    name: str
    itemsize: int
    word_bytes: int
    is_float: bool
    exponent_bits: int = 0

    @property
    def words_per_element(self) -> int:
        """1, or 2 for complex elements."""
        return self.itemsize // self.word_bytes


def _float(name: str, itemsize: int, exponent_bits: int, words: int = 1) -> DType:
    return DType(name, itemsize, itemsize // words, is_float=True, exponent_bits=exponent_bits)


def _plain(name: str, itemsize: int) -> DType:
    return DType(name, itemsize, itemsize, is_float=False)


_ALL: Final = (
    _float("float64", 8, 11),
    _float("float32", 4, 8),
    _float("float16", 2, 5),
    _float("bfloat16", 2, 8),
    _float("complex128", 16, 11, words=2),
    _float("complex64", 8, 8, words=2),
    _float("complex32", 4, 5, words=2),
    _float("float8_e4m3fn", 1, 4),
    _float("float8_e4m3fnuz", 1, 4),
    _float("float8_e5m2", 1, 5),
    _float("float8_e5m2fnuz", 1, 5),
    _plain("float8_e8m0fnu", 1),  # exponent only, no sign: a byte like any other
    _plain("float4_e2m1fn_x2", 1),  # two values in a byte
    _plain("uint8", 1),
    _plain("int8", 1),
    _plain("uint16", 2),
    _plain("int16", 2),
    _plain("uint32", 4),
    _plain("int32", 4),
    _plain("uint64", 8),
    _plain("int64", 8),
    _plain("bool", 1),
    # Bits that torch gives no meaning.
    _plain("bits8", 1),
    _plain("bits16", 2),
    _plain("bits1x8", 1),
    _plain("bits2x4", 1),
    _plain("bits4x2", 1),
    # Quantized tensors are stored through their integers; the last two pack
    # several into a byte, and the byte is the word.
    _plain("qint8", 1),
    _plain("quint8", 1),
    _plain("qint32", 4),
    _plain("quint4x2", 1),
    _plain("quint2x4", 1),
)

BY_NAME: Final[dict[str, DType]] = {dtype.name: dtype for dtype in _ALL}


def lookup(name: str) -> DType:
    """Return the dtype called `name` (torch's name, with or without `torch.`).

    Raises:
        StateError: S4 does not store that dtype.
    """
    found = BY_NAME.get(name.removeprefix("torch."))
    if found is None:
        raise StateError(
            f"dtype {name!r} cannot be stored: expected one of {', '.join(sorted(BY_NAME))}; "
            "convert the tensor, or view it as uint8"
        )
    return found


def layout_of(dtype: DType, words: int, *, profile: str = "open") -> Layout:
    """Choose the layout of an array of `words` words of `dtype` stored whole or as XOR."""
    if words * dtype.word_bytes < MIN_SPLIT_BYTES:
        return Layout.WORDS
    if not dtype.is_float or dtype.word_bytes == 1:
        return Layout.BYTES
    if profile == "nvcomp" and dtype.name in ("bfloat16", "float16", "float32"):
        return Layout.FIELDS
    return Layout.FLOAT


def plane_count(layout: Layout, word_bytes: int, exponent_bits: int = 0) -> int:
    """Number of planes of a layout: 1, the bytes of a word, or one more for `fields`."""
    if layout is Layout.WORDS:
        return 1
    if layout is Layout.FIELDS:
        # sign, exponent, then the mantissa in whole bytes, its top bits alone
        return {(2, 8): 3, (2, 5): 4, (4, 8): 5}[word_bytes, exponent_bits]
    return word_bytes


@dataclass(frozen=True)
class Chunking:
    """Sizes for one array.

    Attributes:
        chunk_words: words in a chunk.
        sub_block: symbols in a rANS sub-block; 1 to 8 of them fill a chunk.
    """

    chunk_words: int
    sub_block: int


def chunking(words: int, *, contexts: bool = False) -> Chunking:
    """Choose chunk and sub-block for an array of `words` words.

    With contexts or a grid a chunk has eight tables, which fit its words better and cost
    more: chunks are large.

    A sub-block costs 132 bytes and a chunk its table (about 100), but a chunk's table
    fits its own words only. Measured on the corpus (bench/corpus.py), total MB of
    Resemblyzer / mixed GPT / bf16 GPT: 256K words in 8 sub-blocks 14.297 / 10.313 /
    3.563, 128K in 4 14.241 / 10.295 / 3.541, 64K in 1 14.123 / 10.293 / 3.540. Large
    arrays take large chunks, which keep more of a GPU busy with one table.
    """
    if contexts and words <= 1 << 20:
        return Chunking(chunk_words=256 * 1024, sub_block=128 * 1024)
    if words <= 1 << 20:
        return Chunking(chunk_words=64 * 1024, sub_block=64 * 1024)
    sub_block = 64 * 1024 if words > 16 << 20 else 32 * 1024
    return Chunking(chunk_words=8 * sub_block, sub_block=sub_block)
