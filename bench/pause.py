"""How long a training waits for a save, and how long until it is durable, beside what users have.

    python bench/pause.py [--device cuda] [--params 500e6] [--dir DIR] [--json FILE] [--repeat N]

One mixed-precision state (bf16 weights, fp32 master, m and v: 14 bytes a parameter), every
saver in the same process, one after the other, in rounds; medians. `pause`: until the call
returns and the state may be mutated. `durable`: until the checkpoint is committed on disk.
Each S4 save is loaded back once and compared bit for bit before any figure is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from machine import describe

import s4weights

Save = Callable[[dict[str, Any], Path], Callable[[], object]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--params", type=float, default=10e6)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="s4-pause-", dir=args.dir))
    try:
        results = measure(make_state(int(args.params), args.device), root, args.repeat)
    finally:
        shutil.rmtree(root)
    raw = results.pop("raw_bytes")
    print(f"{raw / 1e9:.2f} GB of state on {args.device}; seconds, median of {args.repeat}")
    print(f"{'saver':<28}{'pause':>9}{'durable':>9}{'stored GB':>11}")
    for name, line in results.items():
        stored = f"{line['bytes'] / 1e9:.2f}" if line["bytes"] else "-"
        print(f"{name:<28}{line['pause']:>9.3f}{line['durable']:>9.3f}{stored:>11}")
    if args.json:
        document = {"machine": describe(), "device": args.device, "raw_bytes": raw}
        args.json.write_text(json.dumps({**document, "savers": results}, indent=1))
    return 0


def make_state(params: int, device: str) -> dict[str, Any]:
    """Tensors of many sizes, as a model has them."""
    random = torch.Generator(device=device).manual_seed(0)
    state: dict[str, Any] = {"w": {}, "master": {}, "m": {}, "v": {}}
    sizes = [params // 64] * 56 + [params // 512] * 60
    for number, size in enumerate(sizes):
        master = 0.02 * torch.randn(size, device=device, generator=random)
        state["master"][str(number)] = master
        state["w"][str(number)] = master.bfloat16()
        state["m"][str(number)] = 1e-4 * torch.randn(size, device=device, generator=random)
        state["v"][str(number)] = (1e-4 * torch.randn(size, device=device, generator=random)) ** 2
    return state


def measure(state: dict[str, Any], root: Path, repeat: int) -> dict[str, Any]:
    savers = {
        "s4, wait=False": S4(root / "behind", wait=False),
        "s4, wait=True": S4(root / "waiting", wait=True),
        "torch.save": torch_save,
        "DCP async_save": dcp_async_save,
        "clone + torch.save thread": clone_then_save,
    }
    if next(iter(state["w"].values())).is_cuda:
        savers["raw pinned copy"] = PinnedCopy(state)
    lines: dict[str, list[tuple[float, float, int]]] = {name: [] for name in savers}
    for number in range(repeat):
        for name, save in savers.items():
            lines[name].append(time_one(save, state, root / f"{number}"))
    check(state, root)
    results: dict[str, Any] = {
        name: {
            "pause": statistics.median(line[0] for line in found),
            "durable": statistics.median(line[1] for line in found),
            "bytes": found[-1][2],
        }
        for name, found in lines.items()
    }
    results["raw_bytes"] = sum(
        tensor.numel() * tensor.element_size()
        for part in state.values()
        for tensor in part.values()
    )
    return results


def time_one(save: Save, state: dict[str, Any], path: Path) -> tuple[float, float, int]:
    synchronize()
    started = time.perf_counter()
    finish = save(state, path)
    synchronize()
    paused = time.perf_counter() - started
    finish()
    durable = time.perf_counter() - started
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if path.exists():
        shutil.rmtree(path)
    return paused, durable, size


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class S4:
    """A base every time: a new run in a new directory."""

    def __init__(self, keep: Path, *, wait: bool) -> None:
        self.keep, self.wait = keep, wait

    def __call__(self, state: dict[str, Any], path: Path) -> Callable[[], object]:
        run = s4weights.open(path, host_bytes=1 << 40)
        handle = run.save(state, 1, wait=self.wait)
        return handle.result


def torch_save(state: dict[str, Any], path: Path) -> Callable[[], object]:
    path.mkdir()
    with open(path / "x.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return lambda: None


def dcp_async_save(state: dict[str, Any], path: Path) -> Callable[[], object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP says that there is one process
        return dcp.async_save(state, checkpoint_id=path).result


def clone_then_save(state: dict[str, Any], path: Path) -> Callable[[], object]:
    """What Lightning's AsyncCheckpointIO does."""
    copy = {
        part: {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for part, tensors in state.items()
    }
    pool = ThreadPoolExecutor(1)
    return pool.submit(torch_save, copy, path).result


class PinnedCopy:
    """The floor: all words to page-locked memory, nothing else."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.into = {
            part: {
                name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                for name, tensor in tensors.items()
            }
            for part, tensors in state.items()
        }

    def __call__(self, state: dict[str, Any], path: Path) -> Callable[[], object]:
        for part, tensors in state.items():
            for name, tensor in tensors.items():
                self.into[part][name].copy_(tensor, non_blocking=True)
        return lambda: None


def check(state: dict[str, Any], root: Path) -> None:
    s4weights.save_checkpoint(state, root / "check", step=1)
    found = s4weights.load_checkpoint(root / "check")
    for part, tensors in state.items():
        for name, tensor in tensors.items():
            same = (found[part][name].view(torch.uint8) == tensor.view(torch.uint8)).all()
            if not bool(same):
                raise SystemExit(f"{part}/{name} did not come back bit for bit")


if __name__ == "__main__":
    raise SystemExit(main())
