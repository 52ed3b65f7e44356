"""Bits per element of real checkpoints, by class of tensor, beside peers and the order-0 bound.

    python bench/corpus.py [--corpus DIR] [--json FILE] [FILE.safetensors ...]

Everything S4 stores is counted: blobs with their padding, index records, and for the whole
file also manifest, header and footer. Each file is loaded back and compared bit for bit
before its size is printed. The bound is the sum over the byte planes of the order-0 entropy
of each tensor's plane, with no cost for tables (FORMAT.md, section 2, says what a plane is).
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import zstandard
from machine import describe
from safetensors.torch import load_file

import s4weights
from s4core import dtypes, planes
from s4core.checkpoint.shards import Shard
from s4core.format import ARRAY_BYTES, BLOB_DTYPE
from s4core.manifest import parse
from s4core.stores import MemoryStore

DEFAULT_CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS, help="directory of files")
    parser.add_argument("--json", type=Path, help="write all figures there")
    args = parser.parse_args()
    files = args.files or sorted(args.corpus.glob("*.safetensors"))
    if not files:
        print(
            f"no .safetensors files in {args.corpus}: pass --corpus DIR or files", file=sys.stderr
        )
        return 2
    reports = [measure(path) for path in files]
    for report in reports:
        show(report)
    if args.json:
        args.json.write_text(json.dumps({"machine": describe(), "files": reports}, indent=1))
    return 0


def measure(path: Path) -> dict:
    state = load_file(path)
    out = io.BytesIO()
    started = time.perf_counter()
    s4weights.save(state, out)
    saved = time.perf_counter()
    again = s4weights.load(io.BytesIO(out.getvalue()))
    loaded = time.perf_counter()
    for name, tensor in state.items():
        same = (
            tensor.view(torch.uint8).numpy().tobytes()
            == again[name].view(torch.uint8).numpy().tobytes()
        )
        if not same:
            raise SystemExit(f"{path.name}: {name} did not come back bit for bit")
    raw = sum(t.numel() * t.element_size() for t in state.values())
    return {
        "file": path.name,
        "raw_bytes": raw,
        "s4_bytes": len(out.getvalue()),
        "zstd_bytes": len(zstandard.compress(path.read_bytes(), 3)),
        "save_MBps": raw / (saved - started) / 1e6,
        "load_MBps": raw / (loaded - saved) / 1e6,
        "classes": classes(state, out.getvalue()),
    }


def classes(state: dict[str, torch.Tensor], stored: bytes) -> dict:
    """Bits per element by (class, dtype): the class is what stands before the first dot."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    s4 = s4_bits(stored)
    for name, tensor in state.items():
        line = totals[f"{name.split('.')[0]} {str(tensor.dtype).removeprefix('torch.')}"]
        line["elements"] += tensor.numel()
        line["raw"] += tensor.numel() * tensor.element_size() * 8
        line["bound"] += bound_bits(tensor)
        line["s4"] += s4[name]
        line["zstd planes"] += zstd_plane_bits(tensor)
        line["zipnn"] += zipnn_bits(tensor)
    return {
        name: {
            key: value if key == "elements" else value / line["elements"]
            for key, value in line.items()
        }
        for name, line in totals.items()
    }


def s4_bits(stored: bytes) -> dict[str, float]:
    store = MemoryStore("bench-corpus")
    store.put("f", stored, replace=True)
    shard = Shard(store, "f")
    footer = shard.footer
    (document,) = store.get_ranges("f", [(footer.manifest_offset, footer.manifest_length)])
    manifest = parse(document, "f")
    bits = {}
    for tensor in manifest.tensors:
        entry = manifest.arrays[tensor.array]
        if entry.at is None:
            bits[tensor.path] = 8.0 * len(entry.data or b"")
            continue
        span = shard.span(entry.at[1])
        bits[tensor.path] = 8.0 * (span.length + ARRAY_BYTES + BLOB_DTYPE.itemsize * span.count)
    return bits


def cut(tensor: torch.Tensor) -> np.ndarray:
    dtype = dtypes.lookup(str(tensor.dtype))
    layout = dtypes.Layout.FLOAT if dtype.is_float else dtypes.Layout.BYTES
    words = planes.words(tensor.contiguous())
    return planes.split(words, layout, dtype.exponent_bits).numpy()


def bound_bits(tensor: torch.Tensor) -> float:
    total = 0.0
    for plane in cut(tensor):
        counts = np.bincount(plane, minlength=256)
        p = counts[counts > 0] / max(1, plane.size)
        total += float(-(p * np.log2(p)).sum() * plane.size)
    return total


def zstd_plane_bits(tensor: torch.Tensor) -> float:
    return 8.0 * sum(len(zstandard.compress(plane.tobytes(), 3)) for plane in cut(tensor))


def zipnn_bits(tensor: torch.Tensor) -> float:
    try:
        from zipnn import ZipNN
    except ImportError:
        return float("nan")
    # ZipNN changes its input buffer: it gets a copy.
    return 8.0 * len(ZipNN(input_format="torch", threads=1).compress(tensor.clone()))


def show(report: dict) -> None:
    raw, s4, zstd = report["raw_bytes"], report["s4_bytes"], report["zstd_bytes"]
    print(
        f"\n{report['file']}: {raw / 1e6:.2f} MB raw, s4 {raw / s4:.4f}x (everything counted), "
        f"zstd -3 {raw / zstd:.4f}x, save {report['save_MBps']:.0f} MB/s, "
        f"load {report['load_MBps']:.0f} MB/s"
    )
    header = ("class", "elements", "raw", "bound", "s4", "over bound", "zipnn", "zstd planes")
    print("".join(f"{cell:>14}" for cell in header))
    for name, line in report["classes"].items():
        over = 100 * (line["s4"] / line["bound"] - 1)
        cells = (
            name,
            f"{line['elements']:.0f}",
            f"{line['raw']:.0f}",
            f"{line['bound']:.3f}",
            f"{line['s4']:.3f}",
        )
        rest = (f"{over:+.2f} %", f"{line['zipnn']:.3f}", f"{line['zstd planes']:.3f}")
        print("".join(f"{cell:>14}" for cell in (*cells, *rest)))


if __name__ == "__main__":
    raise SystemExit(main())
