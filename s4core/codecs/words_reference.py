"""Words to planes and back, and deltas, in numpy (FORMAT.md, sections 2 and 3).

The oracle of csrc/words_loops.h, and what serves without a native extension.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from s4core.codecs.word_coding import Delta, WordCoding
from s4core.dtypes import Layout

__all__ = ["join_planes", "split_words"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


def _to_words(data: Bytes, word_bytes: int) -> Words:
    """Widen: every width is calculated in 64 bits."""
    words: Words = np.frombuffer(data.tobytes(), dtype=f"<u{word_bytes}").astype(np.uint64)
    return words


def _to_bytes(words: Words, word_bytes: int) -> Bytes:
    return np.frombuffer(words.astype(f"<u{word_bytes}").tobytes(), dtype=np.uint8)


def _order(words: Words, bits: int) -> Words:
    """Map floats, by their bits, to unsigned integers of the same order."""
    top = np.uint64(1 << bits - 1)
    every = np.uint64((1 << bits) - 1)
    ordered: Words = np.where(words & top, ~words & every, words | top)
    return ordered


def _unorder(words: Words, bits: int) -> Words:
    top = np.uint64(1 << bits - 1)
    every = np.uint64((1 << bits) - 1)
    original: Words = np.where(words & top, words ^ top, ~words & every)
    return original


def _apply(words: Words, base: Words, delta: Delta, bits: int) -> Words:
    if delta is Delta.XOR:
        return np.bitwise_xor(words, base)
    if delta is Delta.ZIGZAG_FLOAT:
        words, base = _order(words, bits), _order(base, bits)
    every = np.uint64((1 << bits) - 1)
    difference = (words - base) & every
    sign = difference >> np.uint64(bits - 1)
    coded: Words = (difference << np.uint64(1) ^ (np.uint64(0) - sign)) & every
    return coded


def _undo(coded: Words, base: Words, delta: Delta, bits: int) -> Words:
    if delta is Delta.XOR:
        return np.bitwise_xor(coded, base)
    every = np.uint64((1 << bits) - 1)
    difference = coded >> np.uint64(1) ^ (np.uint64(0) - (coded & np.uint64(1)))
    if delta is Delta.ZIGZAG_FLOAT:
        return _unorder((_order(base, bits) + difference) & every, bits)
    words: Words = (base + difference) & every
    return words


def _shift(words: Words, by: int) -> Bytes:
    plane: Bytes = (words >> np.uint64(by)).astype(np.uint8)
    return plane


def _float_planes(words: Words, word_bytes: int) -> list[Bytes]:
    bits = 8 * word_bytes
    sign = _shift(words, bits - 8) & np.uint8(0x80)
    planes = [_shift(words, bits - 9), sign | _shift(words, bits - 16) & np.uint8(0x7F)]
    return planes + [_shift(words, bits - 8 - 8 * k) for k in range(2, word_bytes)]


def split_words(coding: WordCoding, data: Bytes, base: Bytes | None) -> list[Bytes]:
    """Split words to planes, after the delta; each uint8, shape (words,)."""
    words = _to_words(data, coding.word_bytes)
    if base is not None:
        against = _to_words(base, coding.word_bytes)
        words = _apply(words, against, coding.delta, 8 * coding.word_bytes)
    if coding.layout is Layout.WORDS:
        return [_to_bytes(words, coding.word_bytes)]
    if coding.layout is Layout.FLOAT:
        return _float_planes(words, coding.word_bytes)
    return [_shift(words, 8 * k) for k in range(coding.word_bytes - 1, -1, -1)]


def _from_float(planes: list[Words], word_bytes: int) -> Words:
    bits = 8 * word_bytes
    sign = (planes[1] >> np.uint64(7)) << np.uint64(bits - 1)
    words: Words = sign | planes[0] << np.uint64(bits - 9)
    words |= (planes[1] & np.uint64(0x7F)) << np.uint64(bits - 16)
    for k in range(2, word_bytes):
        words |= planes[k] << np.uint64(bits - 8 - 8 * k)
    return words


def join_planes(coding: WordCoding, planes: list[Bytes], base: Bytes | None) -> Bytes:
    """Undo `split_words`; the bytes of the words, uint8."""
    if coding.layout is Layout.WORDS:
        words = _to_words(planes[0], coding.word_bytes)
    elif coding.layout is Layout.FLOAT:
        words = _from_float([plane.astype(np.uint64) for plane in planes], coding.word_bytes)
    else:
        words = np.zeros(planes[0].size, dtype=np.uint64)
        for plane in planes:
            words = words << np.uint64(8) | plane
    if base is not None:
        against = _to_words(base, coding.word_bytes)
        words = _undo(words, against, coding.delta, 8 * coding.word_bytes)
    return _to_bytes(words, coding.word_bytes)
