"""Words to blobs and back: split, delta and codecs in one call, the same from C and numpy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_strategies import NATIVE

from s4core.codecs import (
    CodecId,
    decode_words,
    encode_plane,
    encode_words,
    native,
    words_reference,
)
from s4core.codecs.word_coding import coding_of
from s4core.dtypes import Layout
from s4core.errors import CodecError, CodecUnavailableError, FormatError, VersionError

CODINGS = [
    (word_bytes, layout)
    for layout in (Layout.WORDS, Layout.FLOAT, Layout.BYTES)
    for word_bytes in (1, 2, 4, 8)
    if not (layout is Layout.FLOAT and word_bytes == 1)
]
DELTAS = [(None, True), ("xor", True), ("zigzag", True), ("zigzag", False)]

needs_native = pytest.mark.skipif(not NATIVE, reason="no native extension: make native")


def weights(rng: np.random.Generator, count: int, word_bytes: int) -> np.ndarray:
    """The bytes of normal numbers of that width; uint8."""
    wide = rng.normal(scale=0.02, size=count)
    if word_bytes == 8:
        return wide.view(np.uint8)
    words = wide.astype(np.float32).view(np.uint32) >> np.uint32(32 - 8 * word_bytes)
    return words.astype(f"<u{word_bytes}").view(np.uint8)


@st.composite
def arrays(draw: st.DrawFn, word_bytes: int) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([1, 3, 31, 33, 1000, 4097, 9000]))
    if draw(st.booleans()):
        return weights(rng, count, word_bytes)
    return rng.integers(0, 256, size=count * word_bytes).astype(np.uint8)


def neighbour(words: np.ndarray) -> np.ndarray:
    """Another state of the same words: most change little."""
    base = words.copy()
    base[:: max(1, words.size // 50)] ^= 0x81
    return base


@pytest.mark.parametrize(("word_bytes", "layout"), CODINGS)
@pytest.mark.parametrize(("delta", "is_float"), DELTAS)
@given(data=st.data())
@settings(max_examples=12)
def test_words_come_back_and_every_path_writes_the_same_bytes(
    word_bytes, layout, delta, is_float, data
):
    words = data.draw(arrays(word_bytes))
    base = neighbour(words) if delta else None
    before = words.copy()
    coding = coding_of(word_bytes, layout, delta, is_float)
    planes = words_reference.split_words(coding, words, base)
    expected = [encode_plane(plane, 1024) for plane in planes]
    assert words_reference.join_planes(coding, planes, base).tobytes() == words.tobytes()
    for coder in NATIVE:
        found = native.encode_chunk(coding, words, base, 1024, path=coder.name)
        assert [bytes(f.data) for f in found] == [bytes(e.data) for e in expected]
        assert [(f.codec, f.param) for f in found] == [(e.codec, e.param) for e in expected]
        split = native.split_words(coding, words, base, path=coder.name)
        assert [s.tobytes() for s in split] == [p.tobytes() for p in planes]
        stored = [(f.codec, f.param, np.frombuffer(f.data, dtype=np.uint8)) for f in found]
        out = np.full(words.size, 0xA5, dtype=np.uint8)
        native.decode_chunk(coding, stored, base, out, path=coder.name)
        assert out.tobytes() == words.tobytes()
    assert words.tobytes() == before.tobytes()


@pytest.mark.parametrize("zstd", [False, True])
@pytest.mark.parametrize(("word_bytes", "layout"), CODINGS)
def test_the_public_pair_is_the_identity(word_bytes, layout, zstd):
    words = weights(np.random.default_rng(3), 20000, word_bytes)
    planes = encode_words(words, word_bytes, layout, 4096, zstd=zstd)
    out = bytearray(words.size)
    decode_words([(p.codec, p.param, p.data) for p in planes], word_bytes, layout, out)
    assert bytes(out) == words.tobytes()


def test_integers_take_zstd_where_it_is_smaller():
    words = np.tile(np.arange(256, dtype=np.int64), 100).view(np.uint8)
    planes = encode_words(words, 8, Layout.BYTES, 4096, zstd=True)
    assert [p.codec for p in planes] == [CodecId.CONST] * 7 + [CodecId.ZSTD]
    out = bytearray(words.size)
    decode_words([(p.codec, p.param, p.data) for p in planes], 8, Layout.BYTES, out)
    assert bytes(out) == words.tobytes()


@pytest.mark.parametrize("pattern", ["bfloat16", "float16"])
@pytest.mark.parametrize(("delta", "is_float"), DELTAS)
def test_every_pattern_of_16_bits_survives(pattern, delta, is_float):
    words = np.arange(65536, dtype=np.uint16)
    base = np.random.default_rng(0).permutation(words) if delta else None
    kind = {"base": base.view(np.uint8), "delta": delta, "is_float": is_float} if delta else {}
    layout = Layout.BYTES if delta == "zigzag" else Layout.FLOAT
    planes = encode_words(words.view(np.uint8), 2, layout, 32768, **kind)
    out = np.zeros(65536, dtype=np.uint16)
    stored = [(p.codec, p.param, p.data) for p in planes]
    decode_words(stored, 2, layout, out.view(np.uint8), **kind)
    assert out.tobytes() == words.tobytes()


@pytest.mark.parametrize(("delta", "is_float"), DELTAS[1:])
def test_a_delta_is_undone_in_the_memory_of_its_base(delta, is_float):
    words = weights(np.random.default_rng(4), 10000, 4)
    base = neighbour(words)
    kind = {"delta": delta, "is_float": is_float}
    planes = encode_words(words, 4, Layout.BYTES, 4096, base=base, **kind)
    stored = [(p.codec, p.param, p.data) for p in planes]
    decode_words(stored, 4, Layout.BYTES, base, base=base, **kind)
    assert base.tobytes() == words.tobytes()


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_words_and_blobs_may_lie_at_any_address(shift):
    words = weights(np.random.default_rng(5), 5000, 4)
    memory = np.zeros(words.size + shift, dtype=np.uint8)
    memory[shift:] = words
    memory.flags.writeable = False
    planes = encode_words(memory[shift:], 4, Layout.FLOAT, 1024)
    moved = [(p.codec, p.param, memoryview(bytes(shift) + bytes(p.data))[shift:]) for p in planes]
    out = np.zeros(words.size + shift, dtype=np.uint8)
    decode_words(moved, 4, Layout.FLOAT, out[shift:])
    assert out[shift:].tobytes() == words.tobytes()


def test_known_words_give_known_planes():
    words = np.array([0xC0490FDB, 0x00000001], dtype=np.uint32)  # -pi, the least subnormal
    split = words_reference.split_words(coding_of(4, Layout.FLOAT), words.view(np.uint8), None)
    planes = [plane.tolist() for plane in split]
    assert planes == [[0x80, 0], [0xC9, 0], [0x0F, 0], [0xDB, 1]]


def test_known_words_give_known_deltas():
    x = np.array([0x3F80, 0xBF80, 0x0000], dtype=np.uint16)  # 1, -1, 0 in bfloat16
    b = np.array([0x3F7F, 0xBF7F, 0x8000], dtype=np.uint16)  # just below 1, just above -1, -0
    coding = coding_of(2, Layout.BYTES, "zigzag", True)
    high, low = words_reference.split_words(coding, x.view(np.uint8), b.view(np.uint8))
    assert (high.tolist(), low.tolist()) == ([0, 0, 0], [2, 1, 2])


def test_fp32_mantissas_are_stored_as_they_are():
    words = weights(np.random.default_rng(6), 1 << 18, 4)
    planes = encode_words(words, 4, Layout.FLOAT, 32768)
    assert [p.codec for p in planes] == [CodecId.RANS] + [CodecId.RAW] * 3


def test_fp32_born_in_bfloat16_keeps_two_planes():
    words = weights(np.random.default_rng(6), 1 << 18, 4).view(np.uint32) & np.uint32(0xFFFF0000)
    planes = encode_words(words.view(np.uint8), 4, Layout.FLOAT, 32768)
    assert [p.codec for p in planes] == [CodecId.RANS, CodecId.RAW, CodecId.CONST, CodecId.CONST]


@needs_native
def test_blobs_of_a_chunk_share_a_buffer_that_is_no_larger_than_they_are():
    words = weights(np.random.default_rng(6), 1 << 18, 2)
    planes = encode_words(words, 2, Layout.FLOAT, 32768)
    owners = {id(plane.data.obj) for plane in planes}
    assert len(owners) == 1
    assert planes[0].data.obj.size == sum(len(plane.data) for plane in planes)


@needs_native
def test_threads_may_encode_and_decode_at_once():
    words = [weights(np.random.default_rng(seed), 50000 + 7 * seed, 2) for seed in range(8)]
    results: dict[int, bytes] = {}

    def work(index: int) -> None:
        for _ in range(5):
            planes = encode_words(words[index], 2, Layout.FLOAT, 4096)
            out = bytearray(words[index].size)
            stored = [(p.codec, p.param, p.data) for p in planes]
            decode_words(stored, 2, Layout.FLOAT, out)
        results[index] = bytes(out)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {index: array.tobytes() for index, array in enumerate(words)}


BYTES = np.zeros(16, dtype=np.uint8)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((BYTES, 3, Layout.BYTES, 128), {}, "words of 3 bytes in layout bytes: expected 1, 2, 4"),
        ((BYTES, 1, Layout.FLOAT, 128), {}, "words of 1 bytes in layout float"),
        ((BYTES[:15], 2, Layout.FLOAT, 128), {}, "15 bytes of words: expected a multiple of 2"),
        ((BYTES, 2, Layout.FLOAT, 128), {"delta": "xor"}, "delta xor and no base"),
        ((BYTES, 2, Layout.FLOAT, 128), {"base": BYTES}, "delta whole and a base"),
        (
            (BYTES, 2, Layout.FLOAT, 128),
            {"base": BYTES[:8], "delta": "xor"},
            "base of 8 bytes: expected 16",
        ),
        (
            (BYTES, 2, Layout.FLOAT, 128),
            {"base": BYTES, "delta": "sum"},
            "delta 'sum': expected 'xor', 'zigzag' or None",
        ),
        ((BYTES[:0], 2, Layout.FLOAT, 128), {}, "a plane of 0 bytes has no blob"),
    ],
)
def test_codings_that_the_format_does_not_know_are_refused(arguments, options, message):
    with pytest.raises(CodecError, match=message):
        encode_words(*arguments, **options)


def test_the_layout_of_the_gpu_profile_names_the_way_out():
    with pytest.raises(CodecUnavailableError, match=r"layout fields.*s4weights export"):
        encode_words(BYTES, 2, Layout.FIELDS, 128)


def test_decoding_refuses_what_does_not_fit():
    planes = [(p.codec, p.param, p.data) for p in encode_words(BYTES, 2, Layout.FLOAT, 128)]
    with pytest.raises(CodecError, match="1 planes of 8 bytes: expected 2 of 1 to 16777216"):
        decode_words(planes[:1], 2, Layout.FLOAT, bytearray(16))
    with pytest.raises(CodecError, match="and a writable buffer for the words"):
        decode_words(planes, 2, Layout.FLOAT, bytes(16))
    with pytest.raises(VersionError, match="codec 10 is unknown"):
        decode_words([(10, 0, b""), planes[1]], 2, Layout.FLOAT, bytearray(16))
    with pytest.raises(CodecUnavailableError, match="codec gdeflate runs on NVIDIA GPUs only"):
        decode_words([(6, 0, b""), planes[1]], 2, Layout.FLOAT, bytearray(16))
    with pytest.raises(FormatError, match="const blob, byte 0: blob length, bytes: expected 0, f"):
        decode_words([(2, 0, bytes(16)), planes[1]], 2, Layout.FLOAT, bytearray(16))
