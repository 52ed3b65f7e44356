"""The CUDA kernels, emulated on the host: the bytes of the CPU codec, and every bit back."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch
import xxhash
from emulated_kernels import Emulated, aligned, piece_hashes, why_not
from gpu_cases import WORDS, patterns, weights
from numpy.typing import NDArray

from s4core import codecs, delta, digests, planes
from s4core.dtypes import Layout
from s4core.kernels.faults import Fault
from s4core.kernels.tables import Shape

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

BF16, FP32_XOR, BF16_ZIGZAG, FP64 = Shape(2, 1, 0), Shape(4, 1, 1), Shape(2, 2, 2), Shape(8, 1, 0)
DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
RANS = 4


def array(shape: Shape, words: torch.Tensor, chunk: int, sub: int) -> Emulated:
    data = aligned(words.numel() * words.element_size())
    data[:] = words.view(torch.uint8).numpy()
    base = None
    if shape.delta:
        under = weights(words.numel(), words.dtype, seed=9).view(torch.uint8).numpy()
        base = aligned(data.size)
        base[:] = under
    return Emulated(shape, data, chunk, sub, base)


def expected(of: Emulated) -> tuple[list[tuple[int, int, int]], bytes]:
    """Codecs, params and lengths, and the blobs, as the CPU codec makes them."""
    words = torch.from_numpy(of.words).view(WORDS[of.shape.word_bytes])
    if of.base is not None:
        under = torch.from_numpy(of.base).view(words.dtype)
        words = delta.apply("xor" if of.shape.delta == 1 else "zigzag", words, under, True)
    rows, blobs = [], []
    for start in range(0, len(words), of.chunk_words):
        cut = planes.split(words[start : start + of.chunk_words], Layout(of.shape.layout), 8)
        for plane in cut.numpy():
            blob = codecs.encode_plane(plane.view(np.uint8), of.sub_block)
            rows.append((int(blob.codec), blob.param, len(blob.data)))
            blobs.append(bytes(blob.data))
    return rows, b"".join(blobs)


def assert_round_trip(of: Emulated) -> None:
    rows, payload = of.encode()
    found = [(int(r["codec"]), int(r["param"]), int(r["length"])) for r in rows]
    assert (found, payload.tobytes()) == expected(of)
    at = 0
    for row in rows:
        blob = payload[at : at + int(row["length"])].tobytes()
        assert int(row["checksum"]) == xxhash.xxh3_64_intdigest(blob)
        at += len(blob)
    assert not of.verify(rows, payload).any()
    back, status = of.decode(rows, payload)
    assert not status.any()
    assert np.array_equal(back, of.words)


@pytest.mark.parametrize("shape", [BF16, FP32_XOR, BF16_ZIGZAG, FP64], ids=str)
def test_patterns_give_the_cpu_codecs_bytes_and_come_back(shape: Shape) -> None:
    for _, words in patterns(DTYPES[shape.word_bytes], 72_005):
        assert_round_trip(array(shape, words, 1 << 17, 16384))


def test_sizes_around_every_boundary() -> None:
    for n in (1, 7, 8, 31, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4095, 4097):
        assert_round_trip(array(BF16, weights(n, torch.bfloat16), 1024, 128))


def test_hashes_are_xxh3() -> None:
    rng = np.random.default_rng(0)
    for n in (*range(1, 260, 3), 512, 1024, 1025, 1088, 1089, 2049, 65535, 65536, 65537, 200_000):
        data = rng.integers(0, 256, n, dtype=np.uint8).tobytes()
        assert piece_hashes(data) == digests.pieces(data)


def guarded(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy that ends where memory ends: reading beyond it ends the process."""
    page = mmap.PAGESIZE
    pages = -(-data.size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    end = ctypes.c_void_p(whole.ctypes.data + pages * page)
    assert libc.mprotect(end, ctypes.c_size_t(page), 0) == 0
    whole[pages * page - data.size : pages * page] = data
    return whole[pages * page - data.size : pages * page]


def test_a_changed_word_is_found_by_verification() -> None:
    of = array(BF16, weights(9000, torch.bfloat16), 4096, 512)
    rows, payload = of.encode()
    of.words[2 * 5000] ^= 1
    assert of.verify(rows, payload).tolist() == [0, int(Fault.MISMATCH), 0]


def test_every_flipped_byte_is_caught_by_its_checksum() -> None:
    of = array(BF16, weights(500, torch.bfloat16), 512, 128)
    rows, payload = of.encode()
    for at in range(payload.size):
        bad = payload.copy()
        bad = guarded(bad)
        bad[at] ^= 1 << at % 8
        _, status = of.decode(rows, bad)
        assert int(status[0]) & 0xFF == Fault.CHECKSUM


def test_blobs_that_lie_are_refused_without_an_access_out_of_bounds() -> None:
    # No checksum: only the decoder's own checks are left. A fault would end the process.
    of = array(BF16, weights(3000, torch.bfloat16), 4096, 512)
    rows, payload = of.encode()
    assert rows["codec"][0] == RANS
    length, refused, rng = int(rows["length"][0]), 0, np.random.default_rng(1)
    flips = [*range(192), *rng.integers(0, length, 200)]
    for at in flips:
        bad = guarded(payload)
        bad[at] ^= int(rng.integers(1, 256))
        refused += int(of.decode(rows, bad, check=False)[1].any())
    assert refused > 0.95 * len(flips)


def test_words_in_nowhere_need_no_more_scratch_than_planned() -> None:
    # Symbols that all cost 12 bits: what a rans blob can grow to at most before it is given up.
    worst = np.zeros(70_000, np.uint8)
    worst[:8192:256] = 1
    rng = np.random.default_rng(3)
    worst[32_768:] = rng.integers(0, 256, 70_000 - 32_768)
    assert_round_trip(Emulated(Shape(1, 2, 0), _copy(worst), 1 << 17, 16384))


def _copy(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    out = aligned(data.size)
    out[:] = data
    return out
