"""Damaged blobs: a FormatError, or a plane of the right length; never a crash or a hang.

Checksums sit outside the blobs, so damage that still is a valid blob passes here. The native
decoders must take the same decision as the numpy reference, in the same words.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_strategies import CODERS, KINDS, NATIVE, REFERENCE, Coder, blob_of

from s4core.codecs import CodecId, EncodedPlane, decode_plane, encode_plane
from s4core.errors import FormatError

SMALL = {
    "rans": (KINDS["exponents"], 700, 256),
    "sparse": (KINDS["sparse"], 900, 512),
    "bitpack": (KINDS["few bits"], 203, 128),
    "raw": (KINDS["random"], 37, 128),
    "const": (KINDS["equal"], 40, 128),
}


def _small(kind: str) -> tuple[EncodedPlane, int]:
    make, n, sub_block = SMALL[kind]
    return encode_plane(make(np.random.default_rng(1), n), sub_block), n


def verdict(coder: Coder, codec: CodecId, param: int, blob: np.ndarray, n: int) -> str | bytes:
    """The plane, or the sentence of the error."""
    try:
        plane = coder.decode(codec, param, blob, n)
    except FormatError as error:
        return str(error)
    assert plane.shape == (n,)
    return plane.tobytes()


def assert_same_verdict(codec: CodecId, param: int, blob: np.ndarray, n: int) -> str | bytes:
    expected = verdict(REFERENCE, codec, param, blob, n)
    for coder in NATIVE:
        # A copy of exactly its size: tools that watch the heap see any byte too far.
        assert verdict(coder, codec, param, blob.copy(), n) == expected, coder.name
    return expected


@pytest.mark.parametrize("kind", sorted(SMALL))
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_a_small_blob(kind, flip):
    encoded, n = _small(kind)
    for at in range(len(encoded.data)):
        blob = blob_of(encoded).copy()
        blob[at] ^= flip
        assert_same_verdict(encoded.codec, encoded.param, blob, n)


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_every_truncation_is_an_error(kind):
    encoded, n = _small(kind)
    blob = blob_of(encoded)
    for size in range(blob.size):
        assert isinstance(assert_same_verdict(encoded.codec, encoded.param, blob[:size], n), str)


@pytest.mark.parametrize("kind", sorted(SMALL))
@pytest.mark.parametrize("more", [1, 15, 16, 4096])
def test_bytes_left_over_are_an_error(kind, more):
    encoded, n = _small(kind)
    blob = np.concatenate([blob_of(encoded), np.zeros(more, dtype=np.uint8)])
    assert isinstance(assert_same_verdict(encoded.codec, encoded.param, blob, n), str)


@pytest.mark.parametrize("kind", sorted(SMALL))
@pytest.mark.parametrize("off", [-16, -1, 1, 16, 1 << 20])
def test_another_number_of_symbols_is_an_error(kind, off):
    encoded, n = _small(kind)
    if encoded.codec is CodecId.CONST or (encoded.codec is CodecId.RAW and off in (-1, 1)):
        pytest.skip("as long as its padding, or without a length of its own")
    assert isinstance(assert_same_verdict(encoded.codec, 0, blob_of(encoded), n + off), str)


@given(st.sampled_from(["exponents", "rare", "sparse", "wide"]), st.data())
@settings(max_examples=60)
def test_random_damage_of_larger_blobs(kind, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n = data.draw(st.sampled_from([4096, 5000, 9000]))
    encoded = encode_plane(KINDS[kind](rng, n), 2048)
    blob = blob_of(encoded).copy()
    # Half the damage where every byte matters.
    reach = blob.size if data.draw(st.booleans()) else min(blob.size, 200)
    at = rng.integers(0, reach, size=data.draw(st.integers(1, 6)))
    blob[at] = rng.integers(0, 256, size=at.size)
    assert_same_verdict(encoded.codec, encoded.param, blob, n)


@given(st.binary(max_size=800), st.sampled_from(list(CodecId)[:5]), st.integers(1, 2000))
@settings(max_examples=150)
def test_noise_is_no_blob(noise, codec, n):
    try:
        plane = decode_plane(codec, len(noise) % 16, noise, n)
    except FormatError:
        return
    assert plane.shape == (n,)


@pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.name)
def test_a_blob_that_asks_for_much_memory_gets_none(coder):
    """16 MiB of symbols in a hundred bytes: refused by its lengths, before any table."""
    blob = np.zeros(112, dtype=np.uint8)
    blob[:16] = np.frombuffer(b"\2\14\20\0\0\0\0\1\0\0\20\0\0\0\0\0", dtype=np.uint8)
    with pytest.raises(FormatError, match="rans blob, byte 16: symbols in the table"):
        coder.decode(CodecId.RANS, 0, blob, 1 << 24)
