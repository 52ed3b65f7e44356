"""What the GPU codec promises: the CPU codec's bytes, every bit back, errors instead of crashes."""

from __future__ import annotations

from dataclasses import replace

import gpu_cases as cases
import numpy as np
import pytest
import torch
from bits import assert_same_bits

from s4core import digests, kernels
from s4core.errors import ChecksumError, CodecError, FormatError

RANS = 4


def assert_cpu_bytes(items: list[kernels.DeviceItem], done: list[kernels.EncodedItem]) -> None:
    for item, encoded in zip(items, done, strict=True):
        rows, payload, digest = cases.oracle(item)
        assert cases.rows_of(encoded.rows) == rows, item.name
        assert encoded.payload.tobytes() == payload, item.name
        assert encoded.digest == digest, item.name


def assert_back(items: list[kernels.DeviceItem], done: list[kernels.EncodedItem]) -> None:
    outs = [cases.poisoned(item.words) for item in items]
    kernels.decode([cases.undo(i, d, o) for i, d, o in zip(items, done, outs, strict=True)])
    for item, out in zip(items, outs, strict=True):
        assert_same_bits(item.words, out)


@pytest.mark.parametrize("dtype", cases.FLOATS, ids=str)
def test_patterns_give_the_cpu_codecs_bytes_and_come_back(dtype: torch.dtype) -> None:
    items = [cases.item(name, words) for name, words in cases.patterns(dtype)]
    done = kernels.encode(items)
    assert_cpu_bytes(items, done)
    assert_back(items, done)


@pytest.mark.parametrize("kind", ["xor", "zigzag"])
@pytest.mark.parametrize("dtype", cases.FLOATS, ids=str)
def test_deltas_give_the_cpu_codecs_bytes_and_come_back(dtype: torch.dtype, kind: str) -> None:
    base = cases.weights(150_001, dtype, seed=5)
    near = (base.double() * (1 + 1e-3 * cases.weights(150_001, torch.float64, seed=6))).to(dtype)
    items = [cases.item("near", near, base, kind), cases.item("equal", base, base.clone(), kind)]
    for name, words in cases.patterns(dtype):
        items.append(cases.item(name, words, base[: len(words)], kind))
    done = kernels.encode(items)
    assert_cpu_bytes(items, done)
    assert_back(items, done)


def test_sizes_around_every_boundary() -> None:
    items = [cases.item(str(n), cases.weights(n, torch.bfloat16)) for n in cases.SIZES]
    items += [cases.item(f"fp32 {n}", cases.weights(n, torch.float32)) for n in cases.SIZES]
    done = kernels.encode(items)
    assert_cpu_bytes(items, done)
    assert_back(items, done)


def test_all_16_bit_words() -> None:
    items = [cases.item(name, words) for name, words in cases.ALL_16]
    items += [cases.item(f"{n} bytes", w, w.flip(0), "zigzag") for n, w in cases.ALL_16]
    done = kernels.encode(items)
    assert_cpu_bytes(items, done)
    assert_back(items, done)


def test_other_dtypes_and_small_chunks() -> None:
    rng = torch.Generator().manual_seed(3)
    ints = torch.randint(-500, 500, (40_000,), generator=rng)
    items = [
        cases.item(str(t), ints.to(t)) for t in (torch.int8, torch.int16, torch.int32, torch.int64)
    ]
    items.append(cases.item("complex", torch.view_as_complex(torch.randn(20_000, 2))))
    items.append(cases.item("delta of integers", ints, ints.roll(1), "zigzag"))
    for n in (1000, 10_000):
        words = cases.weights(n, torch.bfloat16)
        items.append(cases.item(f"small chunks {n}", words, sizes=(1024, 128)))
    done = kernels.encode(items)
    assert_cpu_bytes(items, done)
    assert_back(items, done)


def test_small_batches_give_the_same_bytes() -> None:
    items = [cases.item(name, words) for name, words in cases.patterns(torch.bfloat16, 600_000)]
    whole, cut = kernels.encode(items), kernels.encode(items, scratch_bytes=1 << 20)
    again = kernels.encode(items)
    for a, b, c in zip(whole, cut, again, strict=True):
        assert a.payload.tobytes() == b.payload.tobytes() == c.payload.tobytes()
        assert a.digest == b.digest
    outs = [cases.poisoned(item.words) for item in items]
    kernels.decode(
        [cases.undo(i, d, o) for i, d, o in zip(items, whole, outs, strict=True)],
        scratch_bytes=100_000,
    )
    for item, out in zip(items, outs, strict=True):
        assert_same_bits(item.words, out)


def test_payload_in_ordinary_memory_and_in_parts() -> None:
    item = cases.item("w", cases.weights(300_000, torch.float32))
    (done,) = kernels.encode([item])
    data = done.payload.tobytes()
    for payload in (data, bytearray(data), [data[:1000], data[1000:5000], b"", data[5000:]]):
        out = cases.poisoned(item.words)
        kernels.decode([replace(cases.undo(item, done, out), payload=payload)])
        assert_same_bits(item.words, out)


def test_unaligned_arrays() -> None:
    store = cases.weights(100_003, torch.bfloat16).cuda()
    words, base = store[1:90_001], store[3:90_003]
    for kind in (None, "xor"):
        item = replace(
            cases.item("u", words.clone(), base.clone() if kind else None, kind), words=words
        )
        (done,) = kernels.encode([item])
        out = torch.zeros(100_003, dtype=torch.bfloat16, device="cuda")
        kernels.decode([cases.undo(item, done, out[5:90_005])])
        assert_same_bits(words, out[5:90_005])
        assert not out[:5].any()
        assert not out[90_005:].any()


def test_source_is_unchanged_and_side_streams_work() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # Made on the side stream just before: encode must wait for it by itself.
        words = torch.full((3_000_000,), 7.0, device="cuda")
        for _ in range(20):
            words.mul_(1.01)
        item = replace(cases.item("s", torch.empty(3_000_000)), words=words)
        (done,) = kernels.encode([item])
        out = torch.empty_like(words)
        kernels.decode([cases.undo(item, done, out)])
    stream.synchronize()
    assert_same_bits(words, out)
    assert done.digest == digests.digest(words.cpu().numpy())


def test_digests_equal_the_cpus() -> None:
    words = [
        cases.weights(n, torch.float32).cuda() for n in (0, 1, 3, 60, 61, 16384, 16385, 100_000)
    ]
    words += [torch.randint(0, 256, (n,), dtype=torch.uint8).cuda() for n in range(0, 300, 7)]
    expected = [digests.digest(w.cpu().view(torch.uint8).numpy()) for w in words]
    assert kernels.digests(words) == expected


def test_every_flipped_byte_is_an_error() -> None:
    item = cases.item("small", cases.weights(700, torch.bfloat16), sizes=(1024, 128))
    (done,) = kernels.encode([item])
    good = done.payload.tobytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        out = cases.poisoned(item.words)
        with pytest.raises(ChecksumError, match="small: chunk 0, plane . is damaged"):
            kernels.decode([replace(cases.undo(item, done, out), payload=bad)])


def test_blobs_that_lie_are_refused_or_decoded_but_never_crash() -> None:
    # With a right checksum over wrong bytes only the decoder's own checks are left.
    item = cases.item("liar", cases.weights(3000, torch.bfloat16), sizes=(4096, 512))
    (done,) = kernels.encode([item])
    assert done.rows["codec"][0] == RANS
    good, ends = done.payload.tobytes(), np.cumsum(done.rows["length"])
    refused = 0
    for at in range(int(ends[0])):
        bad = bytearray(good)
        bad[at] ^= 0xFF
        rows = done.rows.copy()
        rows["checksum"][0] = digests.checksum(bytes(bad[: ends[0]]))
        out = cases.poisoned(item.words)
        try:
            kernels.decode([replace(cases.undo(item, done, out), payload=bad, rows=rows)])
        except FormatError:
            refused += 1
    torch.cuda.synchronize()
    assert refused > int(ends[0]) // 2


def test_words_and_base_that_do_not_fit_are_refused() -> None:
    words = cases.weights(5000, torch.bfloat16)
    with pytest.raises(CodecError, match="w: base of 9998 bytes on cuda:0: expected 10000"):
        kernels.encode([cases.item("w", words, words[1:], "xor")])
    with pytest.raises(CodecError, match="w: words must be 1-D and contiguous"):
        kernels.encode([replace(cases.item("w", words), words=words.cuda()[::2])])


def test_wrong_lengths_and_counts_are_refused() -> None:
    item = cases.item("w", cases.weights(5000, torch.bfloat16))
    (done,) = kernels.encode([item])
    out = cases.poisoned(item.words)
    good = cases.undo(item, done, out)
    with pytest.raises(FormatError, match="the index says"):
        kernels.decode([replace(good, payload=done.payload[:-16])])
    with pytest.raises(FormatError, match="w: 1 blobs: expected 2"):
        kernels.decode([replace(good, rows=done.rows[:1])])


def test_a_tensor_that_changes_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # As when a training step runs during the save: the words differ when they are compared.
    from s4core.kernels import encoder

    item = cases.item("moving", cases.weights(100_000, torch.bfloat16))
    original = encoder.kernel

    def kernel(file: str, name: str, *args: object, verify: bool = False) -> object:
        if verify:
            item.words.view(torch.int16)[77_777] ^= 1
        return original(file, name, *args, verify=verify)  # type: ignore[arg-type]

    monkeypatch.setattr(encoder, "kernel", kernel)
    with pytest.raises(CodecError, match=r"moving: chunk \d does not decode to the words"):
        kernels.encode([item])
