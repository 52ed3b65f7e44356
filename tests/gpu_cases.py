"""Arrays that codecs get wrong, and what the CPU codec makes of them: the GPU codec's oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from strategies import all_patterns_16, special_words
from torch import Tensor

from s4core import codecs, delta, digests, dtypes, kernels, planes
from s4core.dtypes import Layout

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Both sides of a lane, a group, a unit, the exact histogram's limit, a chunk.
SIZES = (
    *(0, 1, 31, 33, 127, 128, 129, 255, 256, 257, 511, 512, 513, 4095),
    *(65535, 65536, 65537, 262143, 262144, 262145, 524289),
)


def weights(count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return (torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


def _specials(dtype: torch.dtype, count: int) -> Tensor:
    words = np.array(special_words(dtype), dtype=np.uint64)
    kind = f"<u{dtype.itemsize}"
    pick = np.random.default_rng(1).integers(0, len(words), count)
    return torch.from_numpy(words[pick].astype(kind).view(np.uint8).copy()).view(dtype)


def patterns(dtype: torch.dtype, count: int = 150_001) -> Iterator[tuple[str, Tensor]]:
    """Yield arrays of one dtype that hold every kind of data, by name."""
    rng = np.random.default_rng(2)
    noise = torch.from_numpy(rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8))
    plausible = weights(count, dtype)
    bits = plausible.view(WORDS[dtype.itemsize])
    sparse = torch.zeros(count, dtype=dtype)
    sparse[::1000] = 1.5
    rare = bits.clone()
    rare[count // 2 : count // 2 + 300] = noise.view(WORDS[dtype.itemsize])[:300]
    yield "weights", plausible
    yield "noise", noise.view(dtype)
    yield "specials", _specials(dtype, count)
    yield "constant", torch.full((count,), 3.25, dtype=dtype)
    yield "zeros", torch.zeros(count, dtype=dtype)
    yield "sorted", plausible.float().sort()[0].to(dtype)
    yield "sparse", sparse
    yield (
        "half constant",
        torch.cat([torch.zeros(count // 2, dtype=dtype), plausible[: count // 2]]),
    )
    yield "rare symbols", rare.view(dtype)
    yield "few low bits", (bits & ~0x3F).view(dtype)
    yield "positive", plausible.abs()


def item(
    name: str,
    words: Tensor,
    base: Tensor | None = None,
    kind: str | None = None,
    *,
    profile: str = "open",
    device: str = "cuda",
    sizes: tuple[int, int] | None = None,
) -> kernels.DeviceItem:
    """Return an item as the pipeline would make it; `sizes`: of chunk and sub-block."""
    dtype = dtypes.lookup(str(words.dtype))
    count = words.numel() * dtype.words_per_element
    layout = dtypes.layout_of(dtype, count, profile=profile)
    if kind == "zigzag" and layout is not Layout.WORDS:
        layout = Layout.BYTES
    chosen = dtypes.chunking(count)
    chunk, sub = sizes or (chosen.chunk_words, chosen.sub_block)
    on = None if base is None else base.to(device)
    return kernels.DeviceItem(name, words.to(device), dtype, layout, chunk, sub, on, kind)


def _bits(tensor: Tensor, word_bytes: int) -> Tensor:
    return tensor.cpu().view(torch.uint8).view(WORDS[word_bytes])


def oracle(of: kernels.DeviceItem) -> tuple[list[tuple[int, int, int, int]], bytes, bytes]:
    """Return rows, payload and digest as the CPU codec makes them."""
    width = of.dtype.word_bytes
    words = _bits(of.words, width)
    rows, payload = [], []
    for start in range(0, len(words), of.chunk_words):
        part = slice(start, start + of.chunk_words)
        coded = words[part]
        if of.delta and of.base is not None:
            coded = delta.apply(of.delta, coded, _bits(of.base, width)[part], of.dtype.is_float)
        for plane in planes.split(coded, of.layout, of.dtype.exponent_bits).numpy():
            blob = codecs.encode_plane(plane.view(np.uint8), of.sub_block)
            data = bytes(blob.data)
            rows.append((digests.checksum(data), len(data), int(blob.codec), blob.param))
            payload.append(data)
    return rows, b"".join(payload), digests.digest(words.view(torch.uint8).numpy())


def rows_of(rows: NDArray[np.void]) -> list[tuple[int, int, int, int]]:
    names = ("checksum", "length", "codec", "param")
    return [tuple(int(row[name]) for name in names) for row in rows]  # type: ignore[misc]


def undo(of: kernels.DeviceItem, done: kernels.EncodedItem, out: Tensor) -> kernels.DecodeItem:
    """Return the item that decodes what was encoded into `out`."""
    return kernels.DecodeItem(
        of.name,
        done.rows,
        done.payload,
        out,
        of.dtype,
        of.layout,
        of.chunk_words,
        of.base,
        of.delta,
    )


def poisoned(words: Tensor) -> Tensor:
    out = torch.empty_like(words)
    out.view(torch.uint8).fill_(0x5A)
    return out


ALL_16 = [(str(dtype), all_patterns_16(dtype)) for dtype in (torch.bfloat16, torch.float16)]
