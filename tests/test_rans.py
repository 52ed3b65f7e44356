"""The rANS stream of FORMAT.md, section 4.2: made by hand, read by every coder, or refused."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from plane_strategies import CODERS, KINDS, Coder
from rans_by_the_book import Block, encode, encode_block, pack

from s4core.codecs import CodecId, encode_plane
from s4core.errors import FormatError, TruncatedError

every_coder = pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.name)

SYMBOLS = random.Random(5).choices([3, 9, 200], [4, 3, 1], k=320)
TABLE = {3: 2048, 9: 1500, 200: 548}


def as_blob(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def decode(coder: Coder, data: bytes, n: int) -> list[int]:
    return coder.decode(CodecId.RANS, 0, as_blob(data), n).tolist()


def test_the_book_and_the_encoder_write_the_same_bytes():
    plane = KINDS["exponents"](np.random.default_rng(0), 5000)
    encoded = encode_plane(plane, 1024)
    blob = as_blob(bytes(encoded.data))
    present = np.flatnonzero(np.unpackbits(blob[16:48], bitorder="little"))
    values = blob[48 : 48 + 2 * present.size].view("<u2")
    table = dict(zip(present.tolist(), values.tolist(), strict=True))
    assert encode(plane.tolist(), 1024, 12, table) == bytes(encoded.data)


@every_coder
@pytest.mark.parametrize("k", [8, 9, 10, 11, 12])
@pytest.mark.parametrize("n", [1, 31, 127, 128, 129, 320, 512, 513])
def test_every_probability_width_is_read(coder, k, n):
    table = {symbol: f >> (12 - k) for symbol, f in {3: 2048, 9: 1536, 200: 512}.items()}
    symbols = (SYMBOLS * 2)[:n]
    assert decode(coder, encode(symbols, 256, k, table), n) == symbols


@every_coder
@pytest.mark.parametrize("k", [8, 12])
@pytest.mark.parametrize("rare", [1, 2, 3])
def test_the_extreme_frequencies_divide_exactly(coder, k, rare):
    """f = 1 has a reciprocal of its own; f near M is where delta planes live."""
    symbols = [7] * 700 + [250] + [7] * 255 + [250, 7]
    table = {7: (1 << k) - rare, 250: rare}
    assert decode(coder, encode(symbols, 512, k, table), len(symbols)) == symbols


@every_coder
def test_all_256_symbols_at_the_smallest_table(coder):
    symbols = list(np.random.default_rng(3).integers(0, 256, size=1000).tolist())
    blob = encode(symbols, 256, 8, dict.fromkeys(range(256), 1))
    assert decode(coder, blob, 1000) == symbols


@every_coder
def test_255_sub_blocks_are_read_and_their_sizes_may_differ(coder):
    symbols = (SYMBOLS * 110)[: 254 * 128 + 5]
    assert decode(coder, encode(symbols, 128, 12, TABLE), len(symbols)) == symbols


@every_coder
def test_patches_overwrite_the_first_and_the_last_symbol(coder):
    block = encode_block(SYMBOLS, TABLE, 12)
    block.patches = [(0, 77), (5, 78), (len(SYMBOLS) - 1, 79)]
    expected = list(SYMBOLS)
    expected[0], expected[5], expected[-1] = 77, 78, 79
    assert decode(coder, pack(len(SYMBOLS), 384, 12, TABLE, [block]), len(SYMBOLS)) == expected


@every_coder
def test_128_patches_are_the_most(coder):
    block = encode_block(SYMBOLS, TABLE, 12)
    block.patches = [(position, 1) for position in range(128)]
    expected = [1] * 128 + SYMBOLS[128:]
    assert decode(coder, pack(len(SYMBOLS), 384, 12, TABLE, [block]), len(SYMBOLS)) == expected


@every_coder
def test_a_sub_block_as_long_as_the_format_allows(coder):
    plane = np.zeros(1 << 20, dtype=np.uint8)
    plane[12345] = 1
    encoded = encode_plane(plane, 1 << 20)
    assert encoded.codec is CodecId.RANS
    assert coder.decode(encoded.codec, 0, as_blob(bytes(encoded.data)), 1 << 20).sum() == 1


def _good() -> bytes:
    block = encode_block(SYMBOLS, TABLE, 12)
    block.patches = [(5, 78), (9, 79)]
    return pack(len(SYMBOLS), 384, 12, TABLE, [block])


DIRECTORY = 48 + 16
STATES = DIRECTORY + 16
WORDS = STATES + 128


def _word_bytes(blob: bytes) -> int:
    return 2 * (int.from_bytes(blob[DIRECTORY : DIRECTORY + 4], "little") & 0xFFFFFF)


def _with(offset: int, layout: str, *values: int) -> bytes:
    blob = bytearray(_good())
    struct.pack_into("<" + layout, blob, offset, *values)
    return bytes(blob)


def _padding_of_words() -> bytes:
    blob = _good()
    size = _word_bytes(blob)
    assert size % 16, "choose symbols whose words need padding"
    return _with(WORDS + size, "B", 5)


def _patches_at() -> int:
    return WORDS + -(-_word_bytes(_good()) // 16) * 16


def _moved_words(delta: int) -> bytes:
    """The directory names one word more or less, within the padding."""
    size = _word_bytes(_good())
    return _with(DIRECTORY, "I", size // 2 + delta | 2 << 24)


def _many_patches(count: int) -> bytes:
    block = encode_block(SYMBOLS, TABLE, 12)
    block.patches = [(position, 1) for position in range(count)]
    return pack(len(SYMBOLS), 384, 12, TABLE, [block])


def _table(table: dict[int, int]) -> bytes:
    """A good stream under another table."""
    return pack(len(SYMBOLS), 384, 12, table, [encode_block(SYMBOLS, TABLE, 12)])


def _short_words() -> bytes:
    block = encode_block(SYMBOLS, TABLE, 12)
    return pack(len(SYMBOLS), 384, 12, TABLE, [Block(block.states, block.words[1:])])


def _no_words() -> bytes:
    block = encode_block(SYMBOLS, TABLE, 12)
    return pack(len(SYMBOLS), 384, 12, TABLE, [Block(block.states, [])])


REFUSED = {
    "not a multiple of 16": (lambda: _good() + bytes(8), "blob length, bytes: expected"),
    "nothing": (lambda: b"", "byte 0: blob length, at least: expected 48, found 0"),
    "half a header": (lambda: _good()[:32], "blob length, at least: expected 48, found 32"),
    "version": (
        lambda: _with(0, "B", 3),
        "byte 0: version of the rANS stream: expected 2, found 3",
    ),
    "k too small": (lambda: _with(1, "B", 7), "byte 1: probability bits, from 8 to: expected 12"),
    "k too large": (
        lambda: _with(1, "B", 13),
        "byte 1: probability bits, .*: expected 12, found 13",
    ),
    "no sub-blocks": (
        lambda: _with(2, "B", 0),
        "byte 2: number of sub-blocks: expected 1, found 0",
    ),
    "sub-blocks": (lambda: _with(2, "B", 2), "byte 2: number of sub-blocks: expected 1, found 2"),
    "reserved byte": (lambda: _with(3, "B", 1), "byte 3: reserved field: expected 0, found 1"),
    "symbols": (lambda: _with(4, "I", 319), "byte 4: number of symbols: expected 320, found 319"),
    "sub-block 0": (lambda: _with(8, "I", 0), "byte 8: symbols per sub-block, .* found 0"),
    "sub-block odd": (lambda: _with(8, "I", 385), "byte 8: symbols per sub-block, .* found 385"),
    "sub-block long": (
        lambda: _with(8, "I", (1 << 20) + 128),
        "byte 8: .*expected 1048576, found 1048",
    ),
    "reserved word": (lambda: _with(12, "I", 9), "byte 12: reserved field: expected 0, found 9"),
    "no table": (
        lambda: _with(16, "32B", *[0] * 32),
        "byte 16: symbols in the table, .*2, found 0",
    ),
    "one symbol": (lambda: _table({3: 4096}), "byte 16: symbols in the table, .*2, found 1"),
    "table cut": (
        lambda: _with(16, "32B", *[255] * 32)[:64],
        "length, at least: expected 576, found",
    ),
    "frequency 0": (lambda: _table({3: 2048, 9: 0, 200: 2048}), "byte 50: frequency, .*found 0"),
    "frequency M": (
        lambda: _table({3: 4096, 9: 1, 200: 1}),
        "byte 48: frequency, .*4095, found 4096",
    ),
    "sum": (
        lambda: _table({3: 2048, 9: 1500, 200: 547}),
        "sum of the freq.* expected 4096, found 4095",
    ),
    "table padding": (lambda: _with(54, "B", 1), "byte 54: padding: expected 0, found 1"),
    "directory padding": (lambda: _with(DIRECTORY + 15, "B", 1), "byte 79: padding"),
    "129 patches": (
        lambda: _many_patches(129),
        "byte 64: patches of a sub-block, .*128, found 129",
    ),
    "words beyond": (lambda: _with(DIRECTORY, "I", 0xFFFFFF), "blob length, at least: expected 3"),
    "words too few": (lambda: _with(DIRECTORY, "I", 0), "blob length, bytes: expected"),
    "bytes left over": (lambda: _good() + bytes(16), "blob length, bytes: expected"),
    "bytes missing": (lambda: _good()[:-16], "blob length, at least: expected"),
    "state small": (lambda: _with(STATES + 8, "I", 32767), "byte 88: lane state, .* found 32767"),
    "state large": (
        lambda: _with(STATES, "I", 1 << 31),
        "byte 80: lane state, .* found 2147483648",
    ),
    "word padding": (_padding_of_words, "padding: expected 0, found 5"),
    "patch beyond": (
        lambda: _with(_patches_at() + 4, "I", 320),
        "patch position, .*319, found 320",
    ),
    "patches equal": (lambda: _with(_patches_at() + 4, "I", 5), "patch position, .* found 5"),
    "patches fall": (lambda: _with(_patches_at() + 4, "I", 4), "patch position, .* found 4"),
    "patch padding": (lambda: _with(_patches_at() + 8, "B", 1), "padding: expected 0, found 1"),
    "a word too many": (lambda: _moved_words(1), "byte 80: faulty lanes at the end of a sub-block"),
    "a word too few": (_short_words, "byte 80: faulty lanes at the end of a sub-block: expected 0"),
    "no words": (
        _no_words,
        "byte 80: faulty lanes at the end of a sub-block: expected 0, found 32",
    ),
    "another state": (lambda: _with(STATES, "I", 77777), "byte 80: faulty lanes at the end"),
    "another word": (lambda: _with(WORDS + 4, "H", 4321), "byte 80: faulty lanes at the end"),
}


@every_coder
def test_the_blob_that_the_refused_ones_are_made_of_is_good(coder):
    expected = list(SYMBOLS)
    expected[5], expected[9] = 78, 79
    assert decode(coder, _good(), len(SYMBOLS)) == expected


@every_coder
@pytest.mark.parametrize("what", sorted(REFUSED))
def test_a_reader_must_reject(coder, what):
    make, message = REFUSED[what]
    with pytest.raises(FormatError, match=f"rans blob, byte .*{message}|rans blob, {message}"):
        decode(coder, make(), len(SYMBOLS))


@every_coder
def test_missing_bytes_are_told_from_wrong_ones(coder):
    with pytest.raises(TruncatedError, match="use another copy"):
        decode(coder, _good()[:-16], len(SYMBOLS))


@every_coder
def test_param_must_be_zero(coder):
    for codec in (CodecId.RAW, CodecId.BITPACK, CodecId.RANS):
        with pytest.raises(FormatError, match=r"param byte: expected 0, found 3"):
            coder.decode(codec, 3, as_blob(_good()), len(SYMBOLS))


def _packed(**changes: int) -> bytes:
    """The bit-packed plane 33, 97, 97 with changes."""
    at = {"mask": 0, "base": 1, "zero": 2, "n": 4, "zeros": 8, "tail": 16, "end": 31}
    blob = bytearray(bytes([0x40, 0x21, 0, 0, 3, 0, 0, 0]) + bytes(8) + b"\6" + bytes(15))
    for name, value in changes.items():
        blob[at[name]] = value
    return bytes(blob)


BAD_PACKS = {
    "short": (b"", "blob length, at least: expected 16, found 0"),
    "mask 0": (_packed(mask=0), "byte 0: varying bits, from 1 to: expected 7, found 0"),
    "mask 255": (_packed(mask=255, base=0), "byte 0: varying bits, .* expected 7, found 8"),
    "base": (_packed(base=0x61), "byte 1: varying bits set in the base: expected 0, found 64"),
    "reserved": (_packed(zero=1), "byte 2: reserved field"),
    "reserved too": (_packed(zeros=1), "byte 8: reserved field"),
    "n": (_packed(n=4), "byte 4: number of symbols: expected 3, found 4"),
    "long": (_packed() + bytes(16), "byte 0: blob length, bytes: expected 32, found 48"),
    "cut": (_packed()[:16], "byte 0: blob length, bytes: expected 32, found 16"),
    "last group": (_packed(tail=0x0E), "byte 16: padding"),
    "padding": (_packed(end=1), "byte 31: padding"),
}


@every_coder
def test_a_packed_plane_is_read(coder):
    found = coder.decode(CodecId.BITPACK, 0, as_blob(_packed()), 3)
    assert found.tolist() == [0x21, 0x61, 0x61]


@every_coder
@pytest.mark.parametrize("what", sorted(BAD_PACKS))
def test_a_reader_must_reject_a_packed_plane(coder, what):
    blob, message = BAD_PACKS[what]
    with pytest.raises(FormatError, match=f"bitpack blob, .*{message}"):
        coder.decode(CodecId.BITPACK, 0, as_blob(blob), 3)


@every_coder
def test_raw_and_const_blobs_have_one_length(coder):
    with pytest.raises(FormatError, match="raw blob, byte 0: blob length, bytes: expected 16, fo"):
        coder.decode(CodecId.RAW, 0, as_blob(bytes(32)), 5)
    with pytest.raises(FormatError, match="raw blob, byte 7: padding: expected 0, found 1"):
        coder.decode(CodecId.RAW, 0, as_blob(bytes(7) + b"\1" + bytes(8)), 5)
    with pytest.raises(FormatError, match="const blob, byte 0: blob length, bytes: expected 0, f"):
        coder.decode(CodecId.CONST, 9, as_blob(bytes(16)), 5)
    assert coder.decode(CodecId.CONST, 9, as_blob(b""), 5).tolist() == [9] * 5
