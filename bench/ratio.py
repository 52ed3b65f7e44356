"""Bits per element and whole ratios on the corpus, beside the goals; every byte counted.

    python bench/ratio.py [--corpus DIR] [--out bench/results/ratio] [FILE [--against FILE]]

Each state is saved, loaded back and compared bit for bit before its size is printed. A class's
bits are its blobs and index records; a whole state also has manifest, header and footer. `w of
B_mixed` are the bfloat16 weights alone, saved without the float32 master that they follow from.
The times are processor seconds of this process: with everything on, and with the codecs of
section 4.4 alone (no derived arrays, no contexts, no grids).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from machine import describe
from safetensors.torch import load_file

import s4weights
from s4core.checkpoint import Estimate
from s4core.checkpoint.estimate import estimate

HERE = Path(__file__).resolve()
DEFAULT_CORPUS = HERE.parents[2] / "shared" / "corpus"
State = dict[str, torch.Tensor]
_number = itertools.count()


@dataclass(frozen=True)
class Line:
    """One figure beside its goal: at most so many bits or bytes, or at least that ratio."""

    what: str
    found: float
    goal: float | None
    unit: str

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.found >= self.goal if self.unit == "x" else self.found <= self.goal


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="measure this checkpoint instead of the corpus")
    parser.add_argument("--against", help="the checkpoint before it")
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    if args.file:
        lines = whole_lines(args.file, estimate(args.file, args.against))
        times: list[dict[str, object]] = []
    elif not args.corpus.is_dir():
        print(f"no corpus in {args.corpus}: pass --corpus DIR or a file", file=sys.stderr)
        return 2
    else:
        lines, times = corpus_lines(args.corpus), corpus_times(args.corpus)
    table = markdown(lines, times)
    print(table)
    if args.out:
        document = {
            "machine": describe(),
            "lines": [{**asdict(line), "reached": line.reached} for line in lines],
            "times": times,
        }
        args.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(table)
    return 1 if any(line.reached is False for line in lines) else 0


def whole_lines(name: str, found: Estimate) -> list[Line]:
    lines = [Line(f"{name}, whole", found.raw_bytes / found.whole_bytes, None, "x")]
    if found.delta_bytes is not None:
        lines.append(Line(f"{name}, delta", found.raw_bytes / found.delta_bytes, None, "x"))
    for cost in found.classes:
        bits = 8 * cost.whole.bytes / max(1, cost.elements)
        lines.append(Line(f"{name}: {cost.name} {cost.dtype}, whole", bits, None, "bits"))
    return lines


def corpus_lines(corpus: Path) -> list[Line]:
    def state(name: str) -> State:
        return load_file(corpus / f"{name}.safetensors")

    mixed, pure = state("B_mixed_s0600"), state("B_bf16_s0600")
    after, later, pure_later = (
        state(name) for name in ("B_mixed_s0610", "B_mixed_s0700", "B_bf16_s0700")
    )
    published = state("A_resemblyzer_full_ckpt_fp32_adam")
    only, only_after = weights_of(mixed), weights_of(after)
    base, base_pure, base_published = whole(mixed), whole(pure), whole(published)
    weights, weights_delta = whole(only), delta(only, only_after)
    unchanged = same_again(mixed)
    return [
        Line("bf16 weights (w of B_mixed s0600 alone), base", bits(weights, "w"), 10.60, "bits"),
        Line("bf16 weights (w of B_bf16 s0600), base", bits(base_pure, "w"), 10.60, "bits"),
        Line("fp32 weights (master of B_mixed s0600), base", bits(base, "master"), 26.60, "bits"),
        Line("14 B/param mixed state (B_mixed s0600), base", ratio(base), 1.43, "x"),
        Line("pure bf16 state (B_bf16 s0600), base", ratio(base_pure), 1.60, "x"),
        Line("B_mixed s0600 -> s0610, delta", ratio(delta(mixed, after), True), 1.62, "x"),
        Line("B_mixed s0600 -> s0700, delta", ratio(delta(mixed, later), True), 1.54, "x"),
        Line("B_bf16 s0600 -> s0700, delta", ratio(delta(pure, pure_later), True), 2.22, "x"),
        Line("w of B_mixed s0600 -> s0610, delta", bits(weights_delta, "w", True), 2.80, "bits"),
        Line("the same with manifest and footer", all_bits(weights_delta), None, "bits"),
        Line("m of B_mixed s0600, base", bits(base, "m"), None, "bits"),
        Line("v of B_mixed s0600, base", bits(base, "v"), None, "bits"),
        Line("Resemblyzer, v", bits(base_published, "v"), 24.70, "bits"),
        Line("Resemblyzer, m", bits(base_published, "m"), None, "bits"),
        Line("Resemblyzer, w", bits(base_published, "w"), None, "bits"),
        Line("Resemblyzer, fp32 + Adam, base", ratio(base_published), 1.22, "x"),
        Line("unchanged: bytes of shards", unchanged["shards"], 0, "bytes"),
        Line("unchanged: bytes of manifest", unchanged["manifest"], None, "bytes"),
    ]


def weights_of(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith("w.")}


def whole(state: State) -> Estimate:
    check(state, None)
    return estimate(state)


def delta(old: State, new: State) -> Estimate:
    check(new, old)
    return estimate(new, old)


def fresh_run() -> s4weights.Run:
    """A run in memory that nobody has saved to."""
    return s4weights.open(f"memory://ratio-{next(_number)}")


def check(state: State, old: State | None) -> None:
    """Save for real, load, compare bits."""
    run = fresh_run()
    if old is not None:
        run.save(old, 1)
    run.save(state, 2)
    found = run.load(2)
    for name, tensor in state.items():
        if not torch.equal(tensor.view(torch.uint8), found[name].view(torch.uint8)):
            raise SystemExit(f"{name} did not come back bit for bit")


def same_again(state: State) -> dict[str, int]:
    run = fresh_run()
    run.save(state, 1)
    info = run.save({**state, "note": "again"}, 2).result()
    shards = sum(shard.bytes for shard in run.reader(2).manifest.shards)
    return {"shards": shards, "manifest": info.stored_bytes - shards}


def bits(found: Estimate, name: str, of_delta: bool = False) -> float:
    cost = next(cost for cost in found.classes if cost.name == name)
    stored = cost.delta if of_delta else cost.whole
    return 8 * stored.bytes / cost.elements if stored else float("nan")


def all_bits(found: Estimate) -> float:
    return 8 * (found.delta_bytes or 0) / sum(cost.elements for cost in found.classes)


def ratio(found: Estimate, of_delta: bool = False) -> float:
    stored = found.delta_bytes if of_delta else found.whole_bytes
    return found.raw_bytes / (stored or found.raw_bytes)


def corpus_times(corpus: Path) -> list[dict[str, object]]:
    pairs = [
        ("A_resemblyzer_full_ckpt_fp32_adam", None),
        ("B_mixed_s0600", None),
        ("B_bf16_s0600", None),
        ("B_mixed_s0610", "B_mixed_s0600"),
        ("B_bf16_s0700", "B_bf16_s0600"),
    ]
    found = []
    for name, before in pairs:
        state = load_file(corpus / f"{name}.safetensors")
        old = load_file(corpus / f"{before}.safetensors") if before else None
        raw = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        everything = best(state, old)
        with plain():
            alone = best(state, old)
        found.append(
            {
                "state": f"{before} -> {name}" if before else name,
                "MBps": raw / everything / 1e6,
                "MBps_plain": raw / alone / 1e6,
                "factor": everything / alone,
            }
        )
    return found


def best(state: State, old: State | None, rounds: int = 5) -> float:
    """Processor seconds of the quickest save."""
    taken = []
    for _ in range(rounds):
        run = fresh_run()
        if old is not None:
            run.save(old, 1)
        started = time.process_time()
        run.save(state, 2)
        taken.append(time.process_time() - started)
    return min(taken)


@contextmanager
def plain() -> Iterator[None]:
    """Save as before: deltas without contexts, nothing derived, no grids."""
    with (
        patch("s4core.pipeline.choose.knows_more", return_value=False),
        patch("s4core.pipeline.encode.knows_more", return_value=False),
        patch("s4core.checkpoint.writer.knows_more", return_value=False),
        patch("s4core.checkpoint.writer.find_derivations", return_value={}),
    ):
        yield


def markdown(lines: list[Line], times: list[dict[str, object]]) -> str:
    machine = describe()
    told = ", ".join(f"{key} {value}" for key, value in machine.items())
    out = [
        "# Ratios, lossless, every byte counted",
        "",
        "`python bench/ratio.py` on the corpus; " + told + ".",
        "",
        "| what | found | goal | reached |",
        "|---|---|---|---|",
    ]
    for line in lines:
        number = f"{line.found:.3f}" if line.unit != "bytes" else f"{line.found:.0f}"
        unit = "" if line.unit == "x" else f" {line.unit}"
        number = f"{number}x" if line.unit == "x" else number + unit
        sign = ">=" if line.unit == "x" else "<="
        goal = "" if line.goal is None else f"{sign} {line.goal:g}"
        reached = {None: "", True: "yes", False: "no"}[line.reached]
        out.append(f"| {line.what} | {number} | {goal} | {reached} |")
    if times:
        out += ["", "Processor time of a save, everything on, against the codecs alone:", ""]
        out += ["| state | MB/s | codecs alone, MB/s | factor |", "|---|---|---|---|"]
        for t in times:
            out.append(
                f"| {t['state']} | {t['MBps']:.0f} | {t['MBps_plain']:.0f} | {t['factor']:.2f} |"
            )
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
