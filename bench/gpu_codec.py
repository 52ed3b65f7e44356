"""The codec on one GPU: GB/s of tensor bytes for each stage, beside the floor of the machine.

    python bench/gpu_codec.py [--elements 268435456] [--repeat 10] [--json results.json]

Every figure is of output that was verified in the same run: blobs are decoded again and
compared with the words, bit for bit, before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from s4core import dtypes, kernels
from s4core.dtypes import Layout
from s4core.kernels import batches, nvcomp, staging, tables
from s4core.kernels.fields import FieldsBatch
from s4core.kernels.runtime import kernel

STAGES = (
    *("choose", "encode", "offset", "seal", "compact"),
    *("verify", "check", "decode", "digest"),
)
GPU = torch.device("cuda", 0)


def weights(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Weight-like values: normal, scale 0.02."""
    generator = torch.Generator(GPU).manual_seed(seed)
    out = torch.empty(count, dtype=dtype, device=GPU)
    for start in range(0, count, 1 << 26):
        part = torch.randn(min(1 << 26, count - start), device=GPU, generator=generator)
        out[start : start + len(part)] = (part * 0.02).to(dtype)
    return out


def raw_mantissa_base(words: torch.Tensor) -> torch.Tensor:
    """A base whose XOR with bfloat16 `words` has an incompressible mantissa and few exponents."""
    generator = torch.Generator(GPU).manual_seed(7)
    bits = words.view(torch.int16)
    noise = torch.randint(
        -32768, 32768, bits.shape, dtype=torch.int16, device=GPU, generator=generator
    )
    moved = torch.rand(bits.shape, device=GPU, generator=generator) < 0.3
    return (bits ^ (noise & -32641) ^ (moved.short() << 7)).view(torch.bfloat16)


def state_tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    """400 tensors of 4 KB to 64 MB, sizes spread evenly in the logarithm: about 2.5 GB."""
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.uniform(np.log(4096), np.log(64 << 20), 400)) / dtype.itemsize
    return [weights(int(size), dtype, seed) for seed, size in enumerate(sizes)]


def item_of(
    words: torch.Tensor, base: torch.Tensor | None = None, delta: str | None = None
) -> kernels.DeviceItem:
    dtype = dtypes.lookup(str(words.dtype))
    count = words.numel() * dtype.words_per_element
    layout = Layout.BYTES if delta == "zigzag" else dtypes.layout_of(dtype, count)
    cut = dtypes.chunking(count)
    return kernels.DeviceItem(
        "t", words, dtype, layout, cut.chunk_words, cut.sub_block, base, delta
    )


def median_ms(call: Callable[[], object], repeat: int, inner: int = 5) -> float:
    """Median over `repeat` of the time of a call, `inner` calls back to back."""
    call()
    times = []
    for _ in range(repeat):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)  # so that launches wait for nothing but the device
        start.record()
        for _ in range(inner):
            call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / inner)
    return float(np.median(times))


@dataclass
class Stages:
    """All chunks of some items of one shape in device memory at once, stage by stage."""

    items: list[kernels.DeviceItem]

    def __post_init__(self) -> None:
        (self.group,) = batches.groups(self.items)
        chunks, planes = self.group.chunks, self.group.shape.planes
        n = chunks["n"].astype(np.int64)
        stride = -(-tables.plane_stride(n, chunks["sub"].astype(np.int64)) // 16) * 16
        self.count, self.blob_count = len(chunks), len(chunks) * planes
        self.scratch = staging.device_bytes(int((stride * planes).sum()), GPU)
        ends = np.cumsum(stride * planes)
        chunks["stride"] = stride // 16
        chunks["scratch"] = np.uint64(self.scratch.data_ptr()) + (ends - stride * planes).astype(
            np.uint64
        )
        self.out = staging.device_bytes(int((-(-n // 16) * 16).sum()) * planes, GPU)
        self.chunks = staging.to_device(chunks, GPU)
        self.blobs = staging.device_bytes(16 * self.blob_count, GPU)
        self.offsets = staging.device_bytes(8 * (self.blob_count + 1), GPU)
        self.plans = staging.device_bytes(self.count * self.group.shape.plan_bytes, GPU)
        self.status = torch.zeros(self.count, dtype=torch.int32, device=GPU)
        self.back = [torch.empty_like(item.words) for item in self.items]
        back = self._target_table()
        self.targets = staging.to_device(back, GPU)
        self.raw = sum(i.words.numel() * i.words.element_size() for i in self.items)

    def _target_table(self) -> np.ndarray[Any, Any]:
        table = self.group.chunks.copy()
        for member, number in enumerate(self.group.members):
            own = slice(self.group.first[member], self.group.first[member + 1])
            move = self.back[number].data_ptr() - self.items[number].words.data_ptr()
            table["words"][own] += np.uint64(move % 2**64)
        return table

    def _run(
        self, file: str, name: str, shaped: bool, blocks: int, *args: Any, verify: bool = False
    ) -> None:
        shape = self.group.shape if shaped else None
        at = [np.uint64(a.data_ptr()) if torch.is_tensor(a) else np.uint32(a) for a in args]
        threads = tables.OFFSET_THREADS if name == "s4_offsets" else tables.THREADS
        run = kernel(file, name, shape, 0, verify=verify)
        run(blocks, threads, torch.cuda.current_stream(), *at)

    def choose(self) -> None:
        self._run("encode.cu", "s4_choose", True, self.count, self.chunks, self.plans)

    def encode(self) -> None:
        self.choose()
        for name in ("s4_encode_plain", "s4_encode"):
            self._run("encode.cu", name, True, self.count, self.chunks, self.plans, self.blobs)

    def offset(self) -> None:
        args = (self.blobs, self.offsets, self.blob_count)
        self._run("seal.cu", "s4_offsets", False, 1, *args)

    def seal(self) -> None:
        args = (self.chunks, self.blobs, self.offsets, self.out, self.group.shape.planes)
        self._run("seal.cu", "s4_seal", False, self.blob_count, *args)

    def compact(self) -> None:
        self.encode()
        self.offset()
        self.seal()

    def _decode(self, chunks: torch.Tensor, verify: bool) -> None:
        args = (chunks, self.blobs, self.offsets, self.out, self.status)
        for name in ("s4_decode_plain", "s4_decode"):
            self._run("decode.cu", name, True, self.count, *args, verify=verify)

    def verify(self) -> None:
        self._decode(self.chunks, True)

    def check(self) -> None:
        args = (self.blobs, self.offsets, self.out, self.status, self.group.shape.planes)
        self._run("seal.cu", "s4_check", False, self.blob_count, *args, 11)

    def decode(self) -> None:
        self._decode(self.targets, False)

    def digest(self) -> None:
        kernels.hashes.PieceHashes([i.words for i in self.items], torch.cuda.current_stream())

    def stored(self) -> int:
        return int(self.offsets.view(torch.int64)[self.blob_count].item())

    def prove(self) -> None:
        """Encode, check, verify, decode; every word must come back."""
        self.out.fill_(0xA5)
        self.compact()
        self.verify()
        self.check()
        for back in self.back:
            back.view(torch.uint8).fill_(0x5A)
        self.decode()
        torch.cuda.synchronize()
        if self.status.any():
            raise SystemExit(f"NOT VERIFIED: status {self.status[self.status != 0][:4].tolist()}")
        for item, back in zip(self.items, self.back, strict=True):
            if not torch.equal(item.words.view(torch.uint8), back.view(torch.uint8)):
                raise SystemExit("NOT VERIFIED: other bytes came back")


def bench_stages(name: str, items: list[kernels.DeviceItem], repeat: int) -> dict[str, Any]:
    stages = Stages(items)
    stages.prove()
    ms = {
        stage: median_ms(getattr(stages, stage), repeat)
        for stage in (
            "choose",
            "encode",
            "offset",
            "seal",
            "compact",
            "verify",
            "check",
            "decode",
            "digest",
        )
    }
    row: dict[str, Any] = {"case": name, "bytes": stages.raw, "ratio": stages.stored() / stages.raw}
    row["ms"] = {stage: round(t, 4) for stage, t in ms.items()}
    row["GB/s"] = {stage: round(stages.raw / t / 1e6) for stage, t in ms.items()}
    stages.prove()
    print(f"{name:28s} ratio {row['ratio']:.4f}", *(f"{k} {v}" for k, v in row["GB/s"].items()))
    print(" " * 28, "ms", *(f"{k} {v:.3f}" for k, v in ms.items()), flush=True)
    return row


def mixed_state(parameters: int) -> list[kernels.DeviceItem]:
    """bf16 weights, fp32 master, first and second moments: 14 bytes a parameter."""
    rng = np.random.default_rng(2)
    items = []
    left = parameters
    while left > 0:
        size = min(left, int(rng.choice([1024, 4096, 1 << 20, 4 << 20, 16 << 20])))
        master = weights(size, torch.float32, left)
        moment = weights(size, torch.float32, left + 1) * 1e-3
        second = moment * moment
        items += [item_of(t) for t in (master.to(torch.bfloat16), master, moment, second)]
        left -= size
    return items


def bench_end_to_end(parameters: int, repeat: int) -> dict[str, Any]:
    items = mixed_state(parameters)
    raw = sum(i.words.numel() * i.words.element_size() for i in items)
    flat = torch.empty(256 << 20, dtype=torch.uint8, device=GPU)
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    copy_ms = median_ms(lambda: host.copy_(flat, non_blocking=True), repeat)
    times: dict[str, list[float]] = {"verify": [], "no verify": [], "decode": []}
    done: list[kernels.EncodedItem] = []
    backs = [torch.empty_like(i.words) for i in items]
    back: list[kernels.DecodeItem] = []
    for _ in range(repeat):
        for mode, verify in (("verify", True), ("no verify", False)):
            # Page-locked memory comes back to the pool when nothing refers to it.
            done, back = [], []
            torch.cuda.synchronize()
            start = time.perf_counter()
            done = kernels.encode(items, verify=verify)
            times[mode].append(time.perf_counter() - start)
        back = [
            kernels.DecodeItem(i.name, d.rows, d.payload, b, i.dtype, i.layout, i.chunk_words)
            for i, d, b in zip(items, done, backs, strict=True)
        ]
        start = time.perf_counter()
        kernels.decode(back)
        times["decode"].append(time.perf_counter() - start)
    for item, b in zip(items, backs, strict=True):
        if not torch.equal(item.words.view(torch.uint8), b.view(torch.uint8)):
            raise SystemExit("NOT VERIFIED: other bytes came back")
    stored = sum(len(d.payload) for d in done)
    row = {
        "case": "mixed state to pinned memory",
        "bytes": raw,
        "tensors": len(items),
        "ratio": stored / raw,
        "raw pinned copy s": round(raw / (256 << 20) * copy_ms / 1e3, 4),
        "link GB/s": round((256 << 20) / copy_ms / 1e6, 1),
        "seconds": {k: [round(t, 4) for t in v] for k, v in times.items()},
    }
    print(json.dumps(row), flush=True)
    return row


def timed(call: Callable[[], object], repeat: int) -> float:
    """Median wall time of a call in ms, the device waited for."""
    times = []
    for number in range(repeat + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number:
            times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def raw_ans(words: torch.Tensor, kind: int, repeat: int) -> dict[str, Any]:
    """nvCOMP's ANS over whole words, chunks of 256 KiB; kind 10 is FLOAT16, 11 FLOAT32."""
    codec = nvcomp.Batched("ANS", nvcomp._options(0, kind), nvcomp._options(2, 0xFF))
    size, total = 1 << 18, words.numel() * words.element_size()
    count, room = total // size, -(-codec.max_output(size) // 16) * 16
    out = torch.zeros(count * room, dtype=torch.uint8, device=GPU)
    back = torch.empty_like(words)
    step = torch.arange(count, device=GPU)
    sizes = torch.full_like(step, size)
    inputs = nvcomp.Streams(words.data_ptr() + step * size, sizes, size, total)
    outputs = nvcomp.Streams(back.data_ptr() + step * size, sizes, size, total)
    stream = torch.cuda.current_stream()
    made, _ = codec.compress(inputs, out.data_ptr() + step * room, stream)
    packed = nvcomp.Streams(out.data_ptr() + step * room, made, room, count * room)
    codec.decompress(packed, outputs, stream)
    if not torch.equal(back.view(torch.uint8), words.view(torch.uint8)):
        raise SystemExit("NOT VERIFIED: nvCOMP returned other bytes")
    encode = median_ms(lambda: codec.compress(inputs, out.data_ptr() + step * room, stream), repeat)
    decode = median_ms(lambda: codec.decompress(packed, outputs, stream), repeat)
    rate = {"encode": round(total / encode / 1e6), "decode": round(total / decode / 1e6)}
    return {"ratio": float(made.sum()) / total, "GB/s": rate}


def python_codec(plane: torch.Tensor, algorithm: str, repeat: int) -> dict[str, Any]:
    """nvCOMP's Python `Codec` over one plane."""
    from nvidia import nvcomp as library

    codec = library.Codec(algorithm=algorithm)
    array = library.as_array(plane)
    encoded = codec.encode(array)
    encode = timed(lambda: codec.encode(array), repeat)
    decode = timed(lambda: codec.decode(encoded), repeat)
    total = plane.numel()
    rate = {"encode": round(total / encode / 1e6), "decode": round(total / decode / 1e6)}
    return {"ratio": encoded.buffer_size / total, "GB/s": rate}


def batched_plane(plane: torch.Tensor, codec: nvcomp.Batched, repeat: int) -> dict[str, Any]:
    """The same plane through the batched interface, as profile `nvcomp` uses it."""
    size, total = 1 << 18, plane.numel()
    count, room = total // size, -(-codec.max_output(size) // 16) * 16
    out = torch.zeros(count * room, dtype=torch.uint8, device=GPU)
    back = torch.empty_like(plane)
    step = torch.arange(count, device=GPU)
    sizes = torch.full_like(step, size)
    inputs = nvcomp.Streams(plane.data_ptr() + step * size, sizes, size, total)
    outputs = nvcomp.Streams(back.data_ptr() + step * size, sizes, size, total)
    stream = torch.cuda.current_stream()
    places = out.data_ptr() + step * room
    made, _ = codec.compress(inputs, places, stream)
    packed = nvcomp.Streams(places, made, room, count * room)
    codec.decompress(packed, outputs, stream)
    if not torch.equal(back, plane):
        raise SystemExit("NOT VERIFIED: nvCOMP returned other bytes")
    encode = timed(lambda: codec.compress(inputs, places, stream), repeat)
    decode = timed(lambda: codec.decompress(packed, outputs, stream), repeat)
    rate = {"encode": round(total / encode / 1e6), "decode": round(total / decode / 1e6)}
    return {"ratio": float(made.sum()) / total, "GB/s": rate}


def bench_nvcomp(dtype: torch.dtype, elements: int, repeat: int) -> list[dict[str, Any]]:
    words = weights(elements, dtype)
    name = str(dtype).removeprefix("torch.")
    kind = 11 if dtype is torch.float32 else 10
    rows = [{"case": f"nvCOMP ANS, {name} mode", **raw_ans(words, kind, repeat)}]
    found = dtypes.lookup(name)
    cut = dtypes.chunking(elements)
    item = kernels.DeviceItem("t", words, found, Layout.FIELDS, cut.chunk_words, cut.sub_block)
    (group,) = batches.groups([item])
    batch = FieldsBatch(group, slice(0, len(group.chunks)), GPU, torch.cuda.current_stream())
    blobs, out = batch.encode()
    if batch.decode(blobs, out, verify=True).any():
        raise SystemExit("NOT VERIFIED: profile nvcomp")
    total = words.numel() * words.element_size()
    encode = timed(batch.encode, repeat)
    decode = timed(lambda: batch.decode(blobs, out, verify=True), repeat)
    rate = {"encode": round(total / encode / 1e6), "verify": round(total / decode / 1e6)}
    ratio = float(blobs["length"].sum(dtype=np.int64)) / total
    codecs = np.unique(blobs["codec"], return_counts=True)
    used = {int(c): int(k) for c, k in zip(*codecs, strict=True)}
    rows.append({"case": f"profile nvcomp, {name}", "ratio": ratio, "GB/s": rate, "codecs": used})
    if dtype is torch.bfloat16:
        bits = words.view(torch.int16)
        planes = {"ANS": (bits >> 7 & 255).byte(), "GDeflate": (bits & 127).byte()}
        for algorithm, plane in planes.items():
            codec = nvcomp.ANS if algorithm == "ANS" else nvcomp.GDEFLATE
            own = batched_plane(plane, codec, repeat)
            rows.append({"case": f"{algorithm} plane, batched", **own})
            rows.append(
                {"case": f"{algorithm} plane, Codec", **python_codec(plane, algorithm, repeat)}
            )
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    import cupy

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cupy": cupy.__version__,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "python": platform.python_version(),
    }


def bench_copy(repeat: int) -> dict[str, Any]:
    a = torch.empty(1 << 30, dtype=torch.uint8, device=GPU)
    b = torch.empty_like(a)
    ms = median_ms(lambda: b.copy_(a), repeat)
    row = {"case": "device copy", "GB/s read+write": round(2 * (1 << 30) / ms / 1e6)}
    print(row, flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=256 << 20)
    parser.add_argument("--parameters", type=int, default=500_000_000)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--nvcomp", action="store_true", help="also profile nvcomp and nvCOMP")
    parser.add_argument("--only-end-to-end", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = [machine(), bench_copy(args.repeat)]
    n = args.elements
    for dtype in () if args.only_end_to_end else (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        words = weights(n, dtype)
        rows.append(bench_stages(f"{name}, {n >> 20} Mi", [item_of(words)], args.repeat))
        if dtype is torch.bfloat16:
            item = item_of(words, raw_mantissa_base(words), "xor")
            rows.append(bench_stages(f"{name}, xor, raw mantissa", [item], args.repeat))
            del item
        if dtype is not torch.float16:
            # A small step leaves every plane to rANS, a large one only the first.
            for gap, step in (("near", 0.01), ("far", 1.0)):
                base = words + weights(n, dtype, 9) * step
                for delta in ("xor", "zigzag"):
                    item = item_of(words, base, delta)
                    rows.append(bench_stages(f"{name}, {delta} {gap}", [item], args.repeat))
                del base
        del words
        torch.cuda.empty_cache()
        if dtype is not torch.float16:
            items = [item_of(t) for t in state_tensors(dtype)]
            rows.append(bench_stages(f"{name}, 400 tensors", items, args.repeat))
            del items
        torch.cuda.empty_cache()
    for dtype in (torch.bfloat16, torch.float16, torch.float32) if args.nvcomp else ():
        rows += bench_nvcomp(dtype, n, args.repeat)
        torch.cuda.empty_cache()
    if args.parameters:
        rows.append(bench_end_to_end(args.parameters, 8))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
