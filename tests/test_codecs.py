"""decode(encode(p)) == p, the same bytes from every implementation, and never longer."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_strategies import CODERS, KINDS, LARGE_SIZES, NATIVE, REFERENCE, Coder, blob_of, planes

from s4core.codecs import CodecId, decode_plane, encode_plane, native
from s4core.codecs.ids import pad16
from s4core.errors import CodecError, CodecUnavailableError, FormatError, VersionError

SUB_BLOCKS = (128, 256, 1024, 4096, 32768, 65536)

needs_native = pytest.mark.skipif(not NATIVE, reason="no native extension: make native")


def assert_same_bytes(expected: np.ndarray, found: np.ndarray) -> None:
    assert expected.dtype == found.dtype == np.uint8
    assert expected.tobytes() == found.tobytes()


@given(planes(), st.sampled_from(SUB_BLOCKS))
@settings(max_examples=150)
def test_every_coder_writes_the_same_bytes_and_reads_them_back(plane, sub_block):
    before = plane.copy()
    expected = REFERENCE.encode(plane, sub_block)
    for coder in CODERS:
        found = coder.encode(plane, sub_block)
        assert (found.codec, found.param) == (expected.codec, expected.param), coder.name
        assert bytes(found.data) == bytes(expected.data), coder.name
        decoded = coder.decode(found.codec, found.param, blob_of(found), plane.size)
        assert_same_bytes(plane, decoded)
    assert_same_bytes(before, plane)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("n", LARGE_SIZES)
def test_large_planes_agree_too(kind, n):
    plane = KINDS[kind](np.random.default_rng(n), n)
    expected = REFERENCE.encode(plane, 32768)
    for coder in NATIVE:
        found = coder.encode(plane, 32768)
        assert (found.codec, found.param) == (expected.codec, expected.param), coder.name
        assert bytes(found.data) == bytes(expected.data), coder.name
    for coder in CODERS:
        decoded = coder.decode(expected.codec, expected.param, blob_of(expected), n)
        assert_same_bytes(plane, decoded)


@given(planes(), st.sampled_from(SUB_BLOCKS), st.booleans())
@settings(max_examples=100)
def test_a_blob_is_padded_and_never_longer_than_the_plane(plane, sub_block, zstd):
    encoded = encode_plane(plane, sub_block, zstd=zstd)
    assert len(encoded.data) % 16 == 0
    assert len(encoded.data) <= pad16(plane.size)
    decoded = decode_plane(encoded.codec, encoded.param, encoded.data, plane.size)
    assert_same_bytes(plane, decoded)


def _lcg(n: int, bits: int, mask: int) -> np.ndarray:
    """A plane that no library version can change: `bits` top bits of a product, masked."""
    state, out = 12345, bytearray()
    for _ in range(n):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append((state >> 16 & 0xFF) * (state >> 8 & 0xFF) >> 8 >> (8 - bits))
    return np.frombuffer(bytes(out), dtype=np.uint8) & np.uint8(mask)


# Written once. A change here means files that an earlier release wrote are read otherwise.
FIXED = [
    (1000, 8, 0xFF, 128, CodecId.RAW, "8439f9d2c3ba0458"),
    (5000, 5, 0xFF, 1024, CodecId.RANS, "3a225a57769f1382"),
    (5000, 1, 0xFF, 1024, CodecId.RANS, "e899f9b5040e756a"),
    (5000, 8, 0x11, 1024, CodecId.BITPACK, "f9f28333051ec23f"),
    (70000, 8, 0xFF, 32768, CodecId.RANS, "99b8b7bf7139e2ab"),
    (70000, 6, 0xFF, 32768, CodecId.RANS, "981a6b5f1461ec00"),
    (70000, 6, 0xFF, 65536, CodecId.RANS, "cda5070e85a0f591"),
    (70001, 2, 0xFF, 4096, CodecId.RANS, "5f80a1bb8ea27c20"),
    (70001, 8, 0x15, 32768, CodecId.BITPACK, "1e6a6ce955572e69"),
    (70001, 7, 0xFF, 32768, CodecId.RANS, "f18ea4e5fb7135c6"),
    (300, 1, 0x00, 128, CodecId.CONST, "2d06800538d394c2"),
]


@pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.name)
@pytest.mark.parametrize(("n", "bits", "mask", "sub_block", "codec", "checksum"), FIXED)
def test_the_bytes_never_change(coder: Coder, n, bits, mask, sub_block, codec, checksum):
    encoded = coder.encode(_lcg(n, bits, mask), sub_block)
    assert encoded.codec is codec
    assert xxhash.xxh3_64_hexdigest(bytes(encoded.data)) == checksum


def test_each_rule_of_the_choice_is_reached():
    rng = np.random.default_rng(1)
    big = 1 << 18

    def codec_of(plane: np.ndarray) -> CodecId:
        return encode_plane(plane, 32768).codec

    assert codec_of(np.full(big, 9, dtype=np.uint8)) is CodecId.CONST
    assert codec_of(KINDS["one bit"](rng, big)) is CodecId.BITPACK
    assert codec_of(KINDS["random"](rng, big)) is CodecId.RAW
    assert codec_of(KINDS["exponents"](rng, big)) is CodecId.RANS
    # The sample sees one symbol, the plane has two.
    lone = np.full(big, 9, dtype=np.uint8)
    lone[300] = 8
    assert codec_of(lone) is CodecId.RANS
    # The sample sees one varying bit, the plane has two.
    packed = KINDS["one bit"](rng, big)
    packed[300] ^= 0x80
    assert codec_of(packed) is CodecId.RANS
    # The sample promises much, the blob would be longer than the plane.
    hidden = KINDS["random"](rng, big)
    hidden.reshape(-1, 256)[::16] = KINDS["exponents"](rng, 256)
    assert codec_of(hidden) is CodecId.RAW
    # A header that outweighs what packing saves.
    turns = np.tile(np.array([3, 7], dtype=np.uint8), 20)
    assert codec_of(turns[:32]) is CodecId.RAW
    assert codec_of(turns[:34]) is CodecId.BITPACK


def test_symbols_that_the_sample_missed_are_patched():
    plane = np.tile(np.arange(100, 108, dtype=np.uint8), 8192 * 2)
    plane[np.random.default_rng(0).random(plane.size) < 0.8] = 100
    plane[400] = 200
    encoded = encode_plane(plane, 32768)
    assert encoded.codec is CodecId.RANS
    table_size = int(np.unpackbits(blob_of(encoded)[16:48]).sum())
    assert table_size == 8
    assert blob_of(encoded)[48 + 16 + 3] == 1  # one patch in the first directory entry
    decoded = decode_plane(encoded.codec, encoded.param, encoded.data, plane.size)
    assert_same_bytes(plane, decoded)


def test_more_than_128_missed_symbols_ask_for_the_exact_histogram():
    plane = np.tile(np.arange(100, 108, dtype=np.uint8), 8192 * 2)
    plane[np.random.default_rng(0).random(plane.size) < 0.8] = 100
    plane[256:2048:8] = 200
    encoded = encode_plane(plane, 32768)
    assert encoded.codec is CodecId.RANS
    assert int(np.unpackbits(blob_of(encoded)[16:48]).sum()) == 9


def test_zstd_is_taken_only_where_it_is_smaller():
    pattern = np.tile(np.arange(256, dtype=np.uint8), 64)
    assert encode_plane(pattern, 4096).codec is CodecId.RAW
    encoded = encode_plane(pattern, 4096, zstd=True)
    assert encoded.codec is CodecId.ZSTD
    assert len(encoded.data) % 16 == 0
    assert_same_bytes(pattern, decode_plane(5, encoded.param, encoded.data, pattern.size))
    noise = KINDS["random"](np.random.default_rng(0), 4096)
    assert encode_plane(noise, 4096, zstd=True).codec is CodecId.RAW


@pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.name)
@pytest.mark.parametrize("shift", [0, 1, 3, 7])
def test_read_only_buffers_at_any_alignment_will_do(coder: Coder, shift):
    plane = KINDS["exponents"](np.random.default_rng(5), 5000)
    memory = np.zeros(plane.size + shift, dtype=np.uint8)
    memory[shift:] = plane
    memory.flags.writeable = False
    encoded = coder.encode(memory[shift:], 1024)
    assert encoded.codec is CodecId.RANS
    blob = np.zeros(len(encoded.data) + shift, dtype=np.uint8)
    blob[shift:] = blob_of(encoded)
    decoded = coder.decode(encoded.codec, encoded.param, blob[shift:], plane.size)
    assert_same_bytes(plane, decoded)


def test_decoding_fills_the_array_that_is_given():
    plane = KINDS["exponents"](np.random.default_rng(5), 5000)
    encoded = encode_plane(plane, 1024)
    out = np.zeros(plane.size, dtype=np.uint8)
    assert decode_plane(encoded.codec, encoded.param, encoded.data, plane.size, out) is out
    assert_same_bytes(plane, out)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros(4, dtype=np.uint8), r"out is uint8 of shape \(4,\): expected uint8 of shape \(8"),
        (np.zeros(8, dtype=np.int8), "out is int8"),
        (np.zeros(16, dtype=np.uint8)[::2], "contiguous and writable"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(out, message):
    with pytest.raises(CodecError, match=message):
        decode_plane(CodecId.RAW, 0, bytes(16), 8, out)


@pytest.mark.parametrize(
    ("n", "sub_block", "message"),
    [
        (0, 128, "a plane of 0 bytes has no blob: expected 1 to 16777216"),
        (5, 0, "sub-blocks of 0 symbols: expected a multiple of 128"),
        (5, 100, "sub-blocks of 100 symbols: expected a multiple of 128"),
        (5, 1 << 21, "sub-blocks of 2097152 symbols"),
        (255 * 128 + 1, 128, "expected at most 255 sub-blocks; use smaller chunks"),
    ],
)
def test_sizes_that_no_blob_can_have_are_refused(n, sub_block, message):
    with pytest.raises(CodecError, match=message):
        encode_plane(np.zeros(n, dtype=np.uint8), sub_block)


@pytest.mark.parametrize("codec", [0, 10, 255])
def test_an_unknown_codec_asks_for_an_upgrade(codec):
    with pytest.raises(VersionError, match=rf"codec {codec} is unknown.*upgrade s4weights"):
        decode_plane(codec, 0, bytes(16), 5)


@pytest.mark.parametrize("codec", [CodecId.GDEFLATE, CodecId.NVCOMP_ANS])
def test_a_gpu_codec_names_the_way_out(codec):
    with pytest.raises(CodecUnavailableError, match=r"runs on NVIDIA GPUs only.*s4weights export"):
        decode_plane(codec, 0, bytes(16), 5)


def test_without_zstandard_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CodecUnavailableError, match="pip install zstandard"):
        decode_plane(CodecId.ZSTD, 0, bytes(16), 5)


_PROBE = """
import sys
from s4core.codecs import encode_plane, native
import numpy as np
plane = np.arange(5000, dtype=np.uint64).astype(np.uint8) % 5
encoded = encode_plane(plane, 1024)
print(native.available, bytes(encoded.data).hex())
"""


@needs_native
def test_the_environment_turns_the_extension_off_and_nothing_changes(tmp_path):
    def probe(**variables: str) -> list[str]:
        environment = {**os.environ, **variables}
        run = [sys.executable, "-c", _PROBE]
        return subprocess.run(
            run, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.split()

    on, off, portable = probe(), probe(S4_NATIVE="off"), probe(S4_NATIVE="portable")
    assert (on[0], off[0], portable[0]) == ("True", "False", "True")
    assert on[1] == off[1] == portable[1]


@needs_native
def test_a_path_that_the_machine_lacks_is_named():
    with pytest.raises(CodecError, match="S4_NATIVE=mmx: expected off or one of .*portable"):
        native.encode_plane(np.zeros(5, dtype=np.uint8), 128, path="mmx")


@needs_native
def test_the_histogram_counts_every_symbol():
    plane = KINDS["wide"](np.random.default_rng(2), 100003)
    assert native.histogram(plane).tolist() == np.bincount(plane, minlength=256).tolist()


def test_a_zstd_frame_must_be_one_of_the_right_size_and_nothing_more():
    plane = np.tile(np.arange(256, dtype=np.uint8), 64)
    encoded = encode_plane(plane, 4096, zstd=True)
    n, param, blob = plane.size, encoded.param, bytes(encoded.data)
    with pytest.raises(FormatError, match=r"zstd blob, byte 0: number of symbols: expected 5, fo"):
        decode_plane(5, param, blob, 5)
    with pytest.raises(FormatError, match="zstd blob, byte 0: param byte: expected 15, found 16"):
        decode_plane(5, 16, blob, n)
    with pytest.raises(FormatError, match="zstd blob"):
        decode_plane(5, 0, blob + bytes(16), n)
    with pytest.raises(FormatError, match="zstd blob, byte .*: padding: expected 0, found 1"):
        decode_plane(5, 16 - 1, blob + bytes(15) + b"\1", n)
    with pytest.raises(FormatError, match="zstd blob"):
        decode_plane(5, param, blob[:16], n)
    with pytest.raises(FormatError, match="zstd blob, byte 0: blob length, at least"):
        decode_plane(5, 3, b"", n)
