"""Planes that codecs find hard, and the coders that must agree on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from s4core.codecs import CodecId, EncodedPlane, native, reference

Plane = NDArray[np.uint8]

# Around every boundary of the format: group, unit, sub-block, the exact histogram's limit.
SIZES = (1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 4095, 4096, 4097)
LARGE_SIZES = (32767, 32768, 32769, 65535, 65536, 65537, 8 * 32768 - 1, 8 * 32768, 8 * 32768 + 1)


@dataclass(frozen=True)
class Coder:
    """One implementation of the codecs raw, const, bitpack and rans."""

    name: str
    encode: Callable[[Plane, int], EncodedPlane]
    decode: Callable[[CodecId, int, Plane, int], Plane]


def _native_coder(path: str) -> Coder:
    def decode(codec: CodecId, param: int, blob: Plane, n: int) -> Plane:
        out = np.full(n, 0xA5, dtype=np.uint8)
        native.decode_plane(codec, param, blob, out, path=path)
        return out

    def encode(plane: Plane, sub_block: int) -> EncodedPlane:
        return native.encode_plane(plane, sub_block, path=path)

    return Coder(path, encode, decode)


REFERENCE = Coder("reference", reference.choose_plane, reference.decode_stored)
NATIVE = tuple(_native_coder(path) for path in native.available_paths())
CODERS = (REFERENCE, *NATIVE)


def exponents(rng: np.random.Generator, n: int) -> Plane:
    """The exponents of normal numbers: what most planes that rANS codes look like."""
    bits = rng.normal(scale=0.02, size=n).astype(np.float32).view(np.uint32)
    return (bits >> 23 & 0xFF).astype(np.uint8)


def _spread(rng: np.random.Generator, n: int, width: float) -> Plane:
    return np.clip(rng.standard_t(3, size=n) * width + 100, 0, 255).astype(np.uint8)


def _sparse(rng: np.random.Generator, n: int) -> Plane:
    plane = np.full(n, 7, dtype=np.uint8)
    plane[rng.integers(0, n, size=max(1, n // 300))] = rng.integers(0, 256)
    return plane


def _half(rng: np.random.Generator, n: int) -> Plane:
    plane = rng.integers(0, 256, size=n).astype(np.uint8)
    plane[: n // 2] = 0
    return plane


def _rare(rng: np.random.Generator, n: int) -> Plane:
    """Many rare symbols, which a sampled histogram misses: patches, and too many of them."""
    plane = exponents(rng, n)
    every = int(rng.integers(50, 2000))
    plane[17::every] = rng.integers(0, 256, size=plane[17::every].size)
    return plane


KINDS: dict[str, Callable[[np.random.Generator, int], Plane]] = {
    "equal": lambda rng, n: np.full(n, rng.integers(0, 256), dtype=np.uint8),
    "two values": lambda rng, n: np.where(rng.random(n) < 0.5, 0x5A, 0xA5).astype(np.uint8),
    "one bit": lambda rng, n: (rng.integers(0, 2, size=n) << 6 | 0x21).astype(np.uint8),
    "few bits": lambda rng, n: (rng.integers(0, 256, size=n) & 0x4D | 0x20).astype(np.uint8),
    "random": lambda rng, n: rng.integers(0, 256, size=n).astype(np.uint8),
    "exponents": exponents,
    "narrow": lambda rng, n: _spread(rng, n, 0.4),
    "wide": lambda rng, n: _spread(rng, n, 20.0),
    "skewed": lambda rng, n: (rng.random(n) < 0.02).astype(np.uint8) * 3,
    "sparse": _sparse,
    "half": _half,
    "sorted": lambda rng, n: np.sort(rng.integers(0, 256, size=n).astype(np.uint8)),
    "rare": _rare,
    "nearly random": lambda rng, n: (rng.integers(0, 245, size=n)).astype(np.uint8),
}


@st.composite
def planes(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> Plane:
    """A plane of one of the kinds and one of the sizes."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    n = draw(st.sampled_from(sizes))
    return KINDS[kind](np.random.default_rng(draw(st.integers(0, 2**32 - 1))), n)


def blob_of(encoded: EncodedPlane) -> Plane:
    """The blob as an array of its own size: reading behind it is a fault that tools can see."""
    return np.frombuffer(bytes(encoded.data), dtype=np.uint8)
