"""Profile `nvcomp` on the device: every bit back, the same bytes twice, damage is an error."""

from __future__ import annotations

from dataclasses import replace

import gpu_cases as cases
import numpy as np
import pytest
import torch
from bits import assert_same_bits

from s4core import digests, kernels
from s4core.dtypes import Layout
from s4core.errors import ChecksumError
from s4core.kernels import nvcomp

pytestmark = pytest.mark.skipif(bool(nvcomp.why_unavailable()), reason=nvcomp.why_unavailable())

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def items_of(dtype: torch.dtype) -> list[kernels.DeviceItem]:
    items = [cases.item(n, w, profile="nvcomp") for n, w in cases.patterns(dtype)]
    base = cases.weights(150_001, dtype, seed=8)
    for name, words in cases.patterns(dtype):
        items.append(cases.item(name, words, base[: len(words)], "xor", profile="nvcomp"))
    return items + [
        cases.item(str(n), cases.weights(n, dtype), profile="nvcomp") for n in cases.SIZES
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_comes_back_and_twice_the_same_bytes(dtype: torch.dtype) -> None:
    items = items_of(dtype)
    done, again = kernels.encode(items), kernels.encode(items, scratch_bytes=1 << 22)
    outs = [cases.poisoned(item.words) for item in items]
    kernels.decode([cases.undo(i, d, o) for i, d, o in zip(items, done, outs, strict=True)])
    for item, out, a, b in zip(items, outs, done, again, strict=True):
        assert_same_bits(item.words, out)
        assert a.payload.tobytes() == b.payload.tobytes(), item.name
        assert a.digest == digests.digest(item.words.cpu().view(torch.uint8).numpy())


def test_codecs_are_those_of_the_profile() -> None:
    item = cases.item("w", cases.weights(300_000, torch.float16), profile="nvcomp")
    assert item.layout is Layout.FIELDS
    (done,) = kernels.encode([item])
    sign, exponent, *mantissa = done.rows["codec"][:4]
    assert (sign, exponent) == (3, 7)
    assert set(mantissa) <= {1, 2, 3, 6}


def test_flipped_bytes_are_errors() -> None:
    item = cases.item("w", cases.weights(3000, torch.bfloat16), profile="nvcomp")
    (done,) = kernels.encode([item])
    good = done.payload.tobytes()
    for at in np.random.default_rng(0).integers(0, len(good), 200):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(ChecksumError, match="is damaged"):
            kernels.decode([replace(cases.undo(item, done, item.words.clone()), payload=bad)])
