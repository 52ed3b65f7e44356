"""The CPU codec beside its peers: GB/s of tensor bytes, sizes, peak memory.

    python bench/cpu_codec.py [--mb 256] [--rounds 5] [--corpus DIR] [--json OUT]

Every round runs every peer once, in one process and one order, so that a slow minute of a
shared machine falls on all of them; medians are over rounds, and so are the ratios to ZipNN,
each taken within its round. Every output is decoded and compared bit for bit in the round
that is timed. Destinations are allocated within the timed call, for all peers alike: by
default from memory that the process keeps, because what a system takes to hand out fresh
pages is not the codec's; `--memory fresh` leaves malloc as users have it. A first round,
which is not timed, measures the peaks of memory. `--clock cpu` counts processor time instead
of wall time for the peers of one thread: use it where others take the processors away.

Weights are normal with a scale for each row; with --corpus they are the tensors in the
safetensors files of DIR, repeated up to the size. S4 codes each tensor on its own, the others
get all of them as one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray

from s4core.codecs import native
from s4core.codecs.word_coding import WordCoding, coding_of
from s4core.dtypes import Layout, chunking, layout_of, lookup

Bytes = NDArray[np.uint8]

ROW = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
SAFETENSORS = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}


# Data


@dataclass
class Data:
    """The bytes of some arrays of one dtype, one after the other.

    Attributes:
        lengths: bytes of each array.
    """

    bytes: Bytes
    dtype: str
    lengths: list[int]


def synthetic(words: int, dtype: str) -> Data:
    """One array of normal weights, each row with a scale of its own."""
    rng = np.random.default_rng(0)
    rows = -(-words // ROW)
    scale = np.exp(rng.normal(-4, 0.4, size=(rows, 1))).astype(np.float32)
    data = (rng.standard_normal((rows, ROW), dtype=np.float32) * scale).reshape(-1)[:words]
    array = to_bytes(torch.from_numpy(data).to(DTYPES[dtype]))
    return Data(array, dtype, [array.size])


def to_bytes(tensor: torch.Tensor) -> Bytes:
    return tensor.contiguous().view(torch.uint8).numpy()


def tensors_of(path: Path) -> Iterator[torch.Tensor]:
    """The floating point tensors of a safetensors file, flat."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__" or entry["dtype"] not in SAFETENSORS:
            continue
        first, last = (start + offset for offset in entry["data_offsets"])
        if last > first:
            raw = torch.frombuffer(bytearray(data[first:last]), dtype=torch.uint8)
            yield raw.view(SAFETENSORS[entry["dtype"]])


def from_corpus(directory: Path, words: int, dtype: str) -> Data:
    """Real tensors of that dtype (float16: made from float32), repeated up to the size."""
    source = torch.float32 if dtype == "float16" else DTYPES[dtype]
    files = sorted(directory.glob("*.safetensors"))
    found = [t for path in files for t in tensors_of(path) if t.dtype is source]
    if not found:
        raise SystemExit(f"{directory}: no safetensors file holds {source}")
    arrays = [to_bytes(tensor.to(DTYPES[dtype])) for tensor in found]
    times = -(-words * DTYPES[dtype].itemsize // sum(array.size for array in arrays))
    return Data(np.concatenate(arrays * times), dtype, [array.size for array in arrays] * times)


# Peers


@dataclass
class Peer:
    """One way of encoding the bytes of an array and getting them back.

    Attributes:
        prepare: makes what `encode` may use up, untimed.
        size: bytes of what `encode` returned.
    """

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Bytes]
    size: Callable[[Any], int]
    prepare: Callable[[], Any]


@dataclass
class Chunks:
    """Arrays cut as the pipeline cuts them."""

    data: Data
    path: str
    threads: int
    pieces: list[tuple[slice, WordCoding, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = lookup(self.data.dtype)
        start = 0
        for length in self.data.lengths:
            words = length // kind.word_bytes
            coding, cut = coding_of(kind.word_bytes, layout_of(kind, words)), chunking(words)
            step = cut.chunk_words * kind.word_bytes
            for at in range(start, start + length, step):
                piece = slice(at, min(at + step, start + length))
                self.pieces.append((piece, coding, cut.sub_block))
            start += length

    def _map(self, work: Callable[[int], Any]) -> list[Any]:
        if self.threads == 1:
            return [work(index) for index in range(len(self.pieces))]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(work, range(len(self.pieces))))

    def encode(self, _: Any) -> list[Any]:
        def work(index: int) -> Any:
            piece, coding, sub_block = self.pieces[index]
            words = self.data.bytes[piece]
            return native.encode_chunk(coding, words, None, sub_block, path=self.path)

        return self._map(work)

    def decode(self, encoded: list[Any]) -> Bytes:
        out = np.empty(self.data.bytes.size, dtype=np.uint8)

        def work(index: int) -> None:
            piece, coding, _ = self.pieces[index]
            blobs = [
                (int(p.codec), p.param, np.frombuffer(p.data, np.uint8)) for p in encoded[index]
            ]
            native.decode_chunk(coding, blobs, None, out[piece], path=self.path)

        self._map(work)
        return out


def s4_peer(data: Data, path: str, threads: int) -> Peer:
    chunks = Chunks(data, path, threads)

    def size(encoded: list[Any]) -> int:
        return sum(len(plane.data) + 16 for planes in encoded for plane in planes)

    return Peer(f"s4 {path} x{threads}", chunks.encode, chunks.decode, size, lambda: None)


def zipnn_peer(data: Data) -> Peer:
    from zipnn import ZipNN  # type: ignore[import-untyped]

    codec = ZipNN(input_format="torch", threads=1)
    tensor = torch.from_numpy(data.bytes).view(DTYPES[data.dtype])
    # It changes its input: a fresh copy each time.
    return Peer(
        "zipnn x1",
        codec.compress,
        lambda blob: to_bytes(codec.decompress(blob)),
        len,
        tensor.clone,
    )


def zstd_peer(data: Data) -> Peer:
    """zstd level 1 on the planes of the whole array, one thread."""
    coding = coding_of(lookup(data.dtype).word_bytes, Layout.FLOAT)

    def encode(_: Any) -> list[bytes]:
        codec = zstandard.ZstdCompressor(level=1)
        return [
            codec.compress(plane.data) for plane in native.split_words(coding, data.bytes, None)
        ]

    def decode(frames: list[bytes]) -> Bytes:
        planes = [zstandard.ZstdDecompressor().decompress(frame) for frame in frames]
        out = np.empty(data.bytes.size, dtype=np.uint8)
        stored = [(native.DECODED, 0, np.frombuffer(plane, np.uint8)) for plane in planes]
        native.decode_chunk(coding, stored, None, out)
        return out

    return Peer(
        "zstd-1 on planes x1", encode, decode, lambda f: sum(len(x) for x in f), lambda: None
    )


def memcpy_peer(data: Data) -> Peer:
    return Peer("memcpy x1", lambda _: data.bytes.copy(), np.copy, len, lambda: None)


def peers_of(data: Data, threads: int) -> list[Peer]:
    peers = [s4_peer(data, path, 1) for path in native.available_paths()]
    if threads > 1:
        peers.append(s4_peer(data, native.available_paths()[0], threads))
    return [*peers, zipnn_peer(data), zstd_peer(data), memcpy_peer(data)]


# Measurement

# glibc's numbers, of malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_memory() -> None:
    """Let malloc keep what is freed, so that no later call waits for fresh pages."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def peak_rss_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def reset_peak() -> int:
    """Give back what is free and start a new peak; returns where it starts."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_rss_bytes()


@dataclass
class Timing:
    """One peer in all rounds: seconds, and the most memory beyond what was there before."""

    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    bytes: int = 0
    encode_peak: int = 0
    decode_peak: int = 0


def check(peer: Peer, data: Data, decoded: Bytes) -> None:
    if decoded.tobytes() != data.bytes.tobytes():
        raise SystemExit(f"{peer.name}: what was decoded is not what was encoded")


def run_for_memory(peer: Peer, data: Data, timing: Timing) -> None:
    given = peer.prepare()
    before = reset_peak()
    encoded = peer.encode(given)
    timing.encode_peak = peak_rss_bytes() - before
    del given
    timing.bytes = peer.size(encoded)
    before = reset_peak()
    decoded = peer.decode(encoded)
    timing.decode_peak = peak_rss_bytes() - before
    check(peer, data, decoded)


def run_for_time(peer: Peer, data: Data, clock: Callable[[], float], timing: Timing) -> None:
    given = peer.prepare()
    start = clock()
    encoded = peer.encode(given)
    timing.encode.append(clock() - start)
    del given
    start = clock()
    decoded = peer.decode(encoded)
    timing.decode.append(clock() - start)
    check(peer, data, decoded)


def row_of(name: str, timing: Timing, rival: Timing, size: int) -> dict[str, Any]:
    def speed(seconds: list[float]) -> float:
        return size / statistics.median(seconds) / 1e9

    def ratio(ours: list[float], theirs: list[float]) -> float:
        return statistics.median(t / o for o, t in zip(ours, theirs, strict=True))

    return {
        "peer": name,
        "encode_gb_s": round(speed(timing.encode), 3),
        "decode_gb_s": round(speed(timing.decode), 3),
        "encode_to_zipnn": round(ratio(timing.encode, rival.encode), 2),
        "decode_to_zipnn": round(ratio(timing.decode, rival.decode), 2),
        "stored_to_raw": round(timing.bytes / size, 5),
        "encode_peak_mb": round(timing.encode_peak / 1e6, 1),
        "decode_peak_mb": round(timing.decode_peak / 1e6, 1),
    }


def measure(data: Data, options: argparse.Namespace) -> list[dict[str, Any]]:
    peers = peers_of(data, options.threads)
    timings = {peer.name: Timing() for peer in peers}
    for peer in peers:
        run_for_memory(peer, data, timings[peer.name])
    for _ in range(options.rounds):
        for peer in peers:
            cpu = options.clock == "cpu" and peer.name.endswith("x1")
            clock = time.process_time if cpu else time.perf_counter
            run_for_time(peer, data, clock, timings[peer.name])
    rival = timings["zipnn x1"]
    return [row_of(name, timing, rival, data.bytes.size) for name, timing in timings.items()]


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n{'':22}  GB/s of tensor       times ZipNN     stored   peak MB beyond input")
    print(f"{'peer':22}{'encode':>9}{'decode':>9}{'encode':>9}{'decode':>8}{'/ raw':>9}", end="")
    print(f"{'encode':>9}{'decode':>8}")
    for row in rows:
        numbers = list(row.values())[1:]
        print(f"{row['peer']:22}{numbers[0]:9.2f}{numbers[1]:9.2f}{numbers[2]:9.2f}", end="")
        print(f"{numbers[3]:8.2f}{numbers[4]:9.4f}{numbers[5]:9.0f}{numbers[6]:8.0f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=int, default=256, help="size of each array, 10^6 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--memory", choices=["kept", "fresh"], default="kept")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--corpus", type=Path, help="directory of safetensors files")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and write the rows."""
    options = parse_arguments()
    if not native.available:
        raise SystemExit("the native codecs were not built: make native")
    if options.memory == "kept":
        keep_memory()
    results = {}
    for dtype in options.dtypes:
        words = options.mb * 10**6 // DTYPES[dtype].itemsize
        for source in ["synthetic", "corpus"] if options.corpus else ["synthetic"]:
            whole = source == "synthetic"
            data = synthetic(words, dtype) if whole else from_corpus(options.corpus, words, dtype)
            rows = measure(data, options)
            results[f"{dtype} {source}"] = rows
            show(f"{dtype}, {source}, {options.mb} MB, {options.rounds} rounds", rows)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
