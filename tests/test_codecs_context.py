"""`rans.ctx` and `rans.grid`: what is known beside a plane makes it smaller and never wrong."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s4core import dtypes
from s4core.codecs import (
    CodecId,
    Side,
    context_bytes,
    context_reference,
    decode_plane,
    decode_words,
    encode_words,
    grid_reference,
    native,
)
from s4core.codecs.ids import pad16
from s4core.dtypes import Layout
from s4core.errors import CodecError, FormatError, S4Error

needs_native = pytest.mark.skipif(not native.available, reason="the native codecs are not built")


def drifting(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A plane of small numbers and context bytes that say how small."""
    rng = np.random.default_rng(seed)
    context = rng.integers(108, 124, n).astype(np.uint8)
    plane = rng.geometric(1 / (1 + np.exp2((118.0 - context) / 2))) - 1
    return plane.clip(0, 255).astype(np.uint8), context


def exponents(n: int, columns: int, first: int, seed: int = 0) -> np.ndarray:
    """Exponents of a matrix whose rows and columns have scales of their own."""
    rng = np.random.default_rng(seed)
    at = np.arange(first, first + n)
    rows, cols = 3 * rng.normal(size=at[-1] // columns + 1), 4 * rng.normal(size=columns)
    return (90 + rows[at // columns] + cols[at % columns] + rng.normal(0, 0.7, n)).astype(np.uint8)


planes = st.one_of(
    st.binary(min_size=1, max_size=600).map(lambda data: np.frombuffer(data, np.uint8)),
    st.builds(lambda n, s: drifting(n, s)[0], st.integers(1, 3000), st.integers(0, 9)),
)


@given(planes, st.integers(0, 99), st.sampled_from([128, 256, 4096]))
@settings(max_examples=60, deadline=None)
def test_any_plane_comes_back_under_any_context(plane: np.ndarray, seed: int, sub: int) -> None:
    rng = np.random.default_rng(seed)
    context = rng.integers(0, rng.integers(1, 257), plane.size).astype(np.uint8)
    blob = context_reference.encode_context(plane, context, sub)
    if native.available:
        assert native.encode_context(plane, context, sub) == blob
    if blob is not None:
        assert len(blob) % 16 == 0
        assert len(blob) < pad16(plane.size)
        back = decode_plane(CodecId.RANS_CTX, 0, blob, plane.size, context=context)
        np.testing.assert_array_equal(plane, back)
        np.testing.assert_array_equal(
            plane, context_reference.decode_context(np.frombuffer(blob, np.uint8), context)
        )


@given(st.integers(1, 4000), st.integers(1, 500), st.integers(0, 99), st.sampled_from([256, 8192]))
@settings(max_examples=60, deadline=None)
def test_any_grid_comes_back(n: int, columns: int, seed: int, sub_block: int) -> None:
    first = seed % columns
    plane = exponents(n, columns, first, seed) if seed % 5 else drifting(n, seed)[0]
    blob = grid_reference.encode_grid(plane, columns, first, sub_block)
    if native.available:
        assert native.encode_grid(plane, columns, first, sub_block) == blob
    if blob is not None:
        assert len(blob) < pad16(n)
        np.testing.assert_array_equal(plane, decode_plane(CodecId.RANS_GRID, 0, blob, n))
        np.testing.assert_array_equal(
            plane, grid_reference.decode_grid(np.frombuffer(blob, np.uint8), n)
        )


@needs_native
@pytest.mark.parametrize("n", [65_536, 100_003, 262_144])
def test_native_and_reference_write_the_same_large_blobs(n: int) -> None:
    plane, context = drifting(n)
    blob = native.encode_context(plane, context, 32768)
    assert blob is not None
    assert context_reference.encode_context(plane, context, 32768) == blob
    matrix = exponents(n, 700, 123)
    blob = native.encode_grid(matrix, 700, 123, 32768)
    assert blob is not None
    assert grid_reference.encode_grid(matrix, 700, 123, 32768) == blob


def test_a_context_saves_what_it_says() -> None:
    plane, context = drifting(100_000)
    blob = context_reference.encode_context(plane, context, 32768)
    assert blob is not None
    counts = np.zeros((256, 256))
    np.add.at(counts, (context, plane), 1)
    p = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    bound = -(counts * np.log2(p, where=p > 0, out=np.zeros_like(p))).sum() / 8
    plain = context_reference.plain_bytes(plane, 4)
    # Eight buckets for sixteen contexts: within a tenth of what sixteen tables could do.
    assert len(blob) < 1.1 * bound < 0.95 * plain


def test_a_grid_takes_the_scale_of_rows_and_columns_out() -> None:
    plane = exponents(262_144, 512, 0)
    blob = grid_reference.encode_grid(plane, 512, 0, 65536)
    assert blob is not None
    assert len(blob) < 0.5 * context_reference.plain_bytes(plane, 4)


def test_noise_and_constants_are_left_to_the_other_codecs() -> None:
    rng = np.random.default_rng(1)
    noise, context = rng.integers(0, 256, (2, 20_000)).astype(np.uint8)
    for plane in (noise, np.full(20_000, 7, np.uint8)):
        assert context_reference.encode_context(plane, context, 8192) is None
        assert grid_reference.encode_grid(plane, 100, 0, 8192) is None


def test_a_bucket_without_symbols_and_one_with_a_single_symbol() -> None:
    context = np.repeat(np.array([100, 103], np.uint8), 5000)
    plane = np.where(context == 100, np.arange(10_000) % 3, 9).astype(np.uint8)
    blob = context_reference.encode_context(plane, context, 4096)
    assert blob is not None
    np.testing.assert_array_equal(
        plane, decode_plane(CodecId.RANS_CTX, 0, blob, plane.size, context=context)
    )


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "float8_e5m2"])
def test_context_bytes_are_the_exponent(name: str) -> None:
    dtype = dtypes.lookup(name)
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, 1000 * dtype.word_bytes, dtype=np.uint8)
    words = raw.view(f"<u{dtype.word_bytes}").astype(object)
    mantissa = 8 * dtype.word_bytes - 1 - dtype.exponent_bits
    exponent = np.array([int(w) >> mantissa & (1 << dtype.exponent_bits) - 1 for w in words])
    if name == "float64":
        exponent = np.clip(exponent - 896, 0, 255)
    np.testing.assert_array_equal(exponent, context_bytes(raw, dtype))


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
@pytest.mark.parametrize("delta", ["xor", "zigzag"])
def test_words_against_a_base_come_back_and_are_smaller_with_its_exponents(
    name: str, delta: str
) -> None:
    dtype = dtypes.lookup(name)
    rng = np.random.default_rng(3)
    old = rng.normal(0, 0.02, 60_000).astype(np.float32)
    pair = [old, old + rng.normal(0, 1e-5, old.size).astype(np.float32)]
    cut = [w.view(np.uint32) >> (32 - 8 * dtype.word_bytes) for w in pair]
    base, words = (w.astype(f"<u{dtype.word_bytes}").view(np.uint8) for w in cut)
    layout = Layout.FLOAT if delta == "xor" else Layout.BYTES
    context = context_bytes(base, dtype)
    sizes = []
    for beside in (Side(), Side(context=context)):
        coded = encode_words(
            words, dtype.word_bytes, layout, 65536, base=base, delta=delta, side=beside
        )
        out = np.empty_like(words)
        stored = [(plane.codec, plane.param, plane.data) for plane in coded]
        decode_words(stored, dtype.word_bytes, layout, out, base=base, delta=delta, context=context)
        np.testing.assert_array_equal(words, out)
        sizes.append(sum(len(plane.data) for plane in coded))
    assert sizes[1] < 0.99 * sizes[0]


def test_a_blob_without_its_context_is_refused() -> None:
    plane, context = drifting(5000)
    blob = context_reference.encode_context(plane, context, 4096)
    assert blob is not None
    for wrong in (None, context[:-1]):
        with pytest.raises(
            FormatError, match="expected a context byte for each, found (none|4999)"
        ):
            decode_plane(CodecId.RANS_CTX, 0, blob, plane.size, context=wrong)
    with pytest.raises(CodecError, match="4999 context bytes for a plane of 5000"):
        encode_words(plane, 1, Layout.BYTES, 4096, side=Side(context=context[:-1]))


def outcome(codec: CodecId, blob: bytes, context: np.ndarray, by_reference: bool) -> str:
    """What decoding a damaged blob gives: the message, or the symbols."""
    data = np.frombuffer(blob, np.uint8)
    out = np.empty(context.size, np.uint8)
    try:
        if by_reference and codec is CodecId.RANS_CTX:
            out = context_reference.decode_context(data, context)
        elif by_reference:
            out = grid_reference.decode_grid(data, context.size)
        elif codec is CodecId.RANS_CTX:
            native.decode_context(data, context, out)
        else:
            native.decode_grid(data, out)
    except S4Error as error:
        return str(error)
    return out.tobytes().hex()


@needs_native
@pytest.mark.parametrize("codec", [CodecId.RANS_CTX, CodecId.RANS_GRID])
def test_damage_is_an_error_or_data_and_the_same_for_native_and_reference(codec: CodecId) -> None:
    n = 1500
    plane, context = drifting(n)
    if codec is CodecId.RANS_CTX:
        blob = context_reference.encode_context(plane, context, 512)
    else:
        blob = grid_reference.encode_grid(exponents(n, 30, 7), 30, 7, 512)
    assert blob is not None
    rng = random.Random(4)
    refused = 0
    for trial in range(500):
        bad = bytearray(blob)
        head = rng.randrange(2)
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(160 if head else len(bad))
            bad[at] = rng.choice([bad[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255])
        if trial % 10 == 0:
            bad = bad[: rng.randrange(len(bad))]
        found = [
            outcome(codec, bytes(bad), context, by_reference) for by_reference in (True, False)
        ]
        assert found[0] == found[1], f"trial {trial}"
        refused += "blob, byte" in found[0]
    assert refused > 250


def test_each_rule_of_the_format_has_a_sentence() -> None:
    plane, context = drifting(1500)
    blob = context_reference.encode_context(plane, context, 512)
    grid = grid_reference.encode_grid(exponents(1500, 30, 7), 30, 7, 512)
    assert blob is not None
    assert grid is not None

    def broken(data: bytes, at: int, value: int) -> bytes:
        return data[:at] + bytes([value]) + data[at + 1 :]

    cases = [
        (CodecId.RANS_CTX, broken(blob, 0, 2), "version of the rANS stream: expected 1, found 2"),
        (CodecId.RANS_CTX, broken(blob, 1, 12), "probability bits, from 8 to: expected 11"),
        (CodecId.RANS_CTX, broken(blob, 3, 9), "number of tables, up to: expected 8, found 9"),
        (CodecId.RANS_CTX, broken(blob, 17, 0), "thresholds, each above the one before"),
        (CodecId.RANS_CTX, broken(blob, 12, 0), "tables, bytes"),
        (CodecId.RANS_CTX, broken(blob, 33, 0) if blob[32] else blob[:48], "byte 0: blob length"),
        (CodecId.RANS_GRID, broken(grid, 3, 7), "number of tables, up to: expected 8, found 7"),
        (CodecId.RANS_GRID, broken(grid, 20, 30), "columns of the grid and where it starts"),
        (CodecId.RANS_GRID, broken(grid, 19, 9), "columns of the grid and where it starts"),
        (CodecId.RANS_GRID, broken(grid, 28, 1), "row and column values, bytes"),
        (CodecId.RANS_GRID, broken(grid, 40, 1), "padding: expected 0, found 1"),
    ]
    for codec, data, sentence in cases:
        for by_reference in (True, False) if native.available else (True,):
            assert sentence in outcome(codec, data, context, by_reference), (sentence, by_reference)
    with pytest.raises(FormatError, match="param byte: expected 0, found 3"):
        decode_plane(CodecId.RANS_GRID, 3, grid, 1500)
