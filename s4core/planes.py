"""Split words into planes, and join them back bit for bit: the reference in torch.

A word is one element's bits read as an integer; a plane is one part of every
word, one byte a word (FORMAT.md, section 2)::

    float     bfloat16   eeeeeeee smmmmmmm
              float16    eeeeemmm smmmmmmm          the 5 exponent bits, then 3 + 7 of mantissa
              float32    eeeeeeee smmmmmmm mmmmmmmm mmmmmmmm
              float64    eeeeeeee seeemmmm mmmmmmmm ... (8 planes)
    bytes     the word's bytes, most significant first
    fields    s | exponent | mantissa, its odd top bits first
    words     one plane: the bytes as they lie in memory

Nothing here looks at a value: NaN payloads, signed zeros and subnormals are bits
like any other. Tensors stay on their device. Native and GPU code do the same much
faster and are held against this.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from s4core import dtypes
from s4core.dtypes import Layout
from s4core.errors import CodecError, StateError

__all__ = ["WORD_DTYPE", "join", "split", "words"]

# Words are signed: torch has no >> for uint16, uint32 and uint64 on every device.
# An arithmetic shift drags copies of the sign in from the left, so each shift here
# is masked to the bits that are meant.
WORD_DTYPE: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def words(tensor: Tensor) -> Tensor:
    """Return the words of a contiguous tensor, sharing its memory.

    Args:
        tensor: contiguous, any shape, device and storable dtype. Quantized tensors
            give the words of their integers, which is a copy.

    Returns:
        int8, int16, int32 or int64 by the word size; shape (number of words,), stride 1.

    Raises:
        StateError: the tensor is not contiguous, its dtype cannot be stored, or its bits
            do not say what it means (conjugate and negative views).
    """
    dtype = dtypes.lookup(str(tensor.dtype))
    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.int_repr()
    if plain.is_conj() or plain.is_neg():
        raise StateError(
            "words of a conjugate or negative view: its bits are those of another tensor; "
            "call resolve_conj() or resolve_neg() first"
        )
    if not plain.is_contiguous():
        raise StateError(
            f"words of a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}: "
            "expected a contiguous one; call contiguous() first"
        )
    # as_strided, because a contiguous tensor of one element may have any stride and
    # a view of another width needs stride 1.
    return plain.as_strided((plain.numel(),), (1,)).view(WORD_DTYPE[dtype.word_bytes])


def split(words: Tensor, layout: Layout, exponent_bits: int = 0) -> Tensor:
    """Cut words into planes.

    Args:
        words: int8, int16, int32 or int64, shape (n,), contiguous.
        layout: how to cut; `float` and `fields` want words of 2 bytes or more.
        exponent_bits: width of the exponent, for `fields`.

    Returns:
        uint8, shape (planes, n), on the words' device; `words`: shape (1, n * W), a view.

    Raises:
        CodecError: the layout does not fit words of this size.
    """
    if _is_memory(layout, words.element_size()):
        return words.view(torch.uint8).view(1, -1)
    cuts = _cuts(layout, words.element_size(), exponent_bits)
    planes = torch.empty((len(cuts), words.numel()), dtype=torch.uint8, device=words.device)
    for plane, parts in zip(planes, cuts, strict=True):
        plane.copy_(_gather(words, parts))
    return planes


def join(planes: Tensor, layout: Layout, word_bytes: int, exponent_bits: int = 0) -> Tensor:
    """Put words together from their planes: the inverse of `split`.

    Args:
        planes: uint8, shape (planes, n); `words`: (1, n * word_bytes), contiguous.
        layout: how they were cut.
        word_bytes: W: 1, 2, 4 or 8.
        exponent_bits: width of the exponent, for `fields`.

    Returns:
        int8, int16, int32 or int64 by `word_bytes`, shape (n,), contiguous.

    Raises:
        CodecError: the layout does not fit words of this size, or the number of planes.
    """
    if _is_memory(layout, word_bytes):
        return planes.reshape(-1).view(WORD_DTYPE[word_bytes])
    cuts = _cuts(layout, word_bytes, exponent_bits)
    if planes.dim() != 2 or len(planes) != len(cuts):
        raise CodecError(
            f"layout {layout.name.lower()} of {word_bytes}-byte words has {len(cuts)} planes: "
            f"found shape {tuple(planes.shape)}"
        )
    joined = torch.zeros(planes.shape[1], dtype=WORD_DTYPE[word_bytes], device=planes.device)
    for plane, parts in zip(planes, cuts, strict=True):
        joined |= _scatter(plane.to(joined.dtype), parts)
    return joined


# A plane as the fields of the word that it holds: (lowest bit in the word, number of
# bits, lowest bit in the plane's byte).
_Part = tuple[int, int, int]


def _is_memory(layout: Layout, word_bytes: int) -> bool:
    """Whether the one plane is the words as they lie in memory."""
    return layout is Layout.WORDS or (layout is Layout.BYTES and word_bytes == 1)


def _cuts(layout: Layout, word_bytes: int, exponent_bits: int) -> list[list[_Part]]:
    """The parts of each plane of a layout."""
    bits = 8 * word_bytes
    below = [[(low, 8, 0)] for low in range(bits - 24, -1, -8)]
    if layout is Layout.BYTES:
        return [[(low, 8, 0)] for low in range(bits - 8, -1, -8)]
    if layout is Layout.FLOAT and word_bytes > 1:
        return [[(bits - 9, 8, 0)], [(bits - 1, 1, 7), (bits - 16, 7, 0)], *below]
    if layout is Layout.FIELDS and (word_bytes, exponent_bits) in ((2, 8), (2, 5), (4, 8)):
        mantissa = bits - 1 - exponent_bits
        whole = [[(low, 8, 0)] for low in range(mantissa // 8 * 8 - 8, -1, -8)]
        top = [(mantissa // 8 * 8, mantissa % 8, 0)]
        return [[(bits - 1, 1, 0)], [(mantissa, exponent_bits, 0)], top, *whole]
    raise CodecError(
        f"layout {layout.name.lower()} does not fit words of {word_bytes} bytes with "
        f"{exponent_bits} bits of exponent"
    )


def _gather(words: Tensor, parts: list[_Part]) -> Tensor:
    """The byte of one plane for each word, as 0..255 in the words' dtype."""
    low, bits, to = parts[0]
    plane = ((words >> low) & ((1 << bits) - 1)) << to
    for low, bits, to in parts[1:]:
        plane |= ((words >> low) & ((1 << bits) - 1)) << to
    return plane


def _scatter(plane: Tensor, parts: list[_Part]) -> Tensor:
    """The bits of one plane, 0..255 in the words' dtype, at their places in the words."""
    low, bits, to = parts[0]
    words = ((plane >> to) & ((1 << bits) - 1)) << low
    for low, bits, to in parts[1:]:
        words |= ((plane >> to) & ((1 << bits) - 1)) << low
    return words
