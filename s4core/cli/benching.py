"""`bench`: what a user's own checkpoint would cost, and where compression does not help."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from s4core.checkpoint.estimate import ClassCost, Cost, Estimate, estimate
from s4core.cli.table import human_bytes, print_table, ratio

__all__ = ["bench"]


def bench(args: argparse.Namespace) -> int:
    """Encode a checkpoint, print what it costs by class of tensor, write nothing."""
    found = estimate(args.url, args.against, weights_only=not args.unsafe)
    if args.json:
        print(json.dumps({**asdict(found), "notes": found.notes}))
        return 0
    _print_classes(found)
    print()
    _print_total("whole", found.raw_bytes, found.whole_bytes, found.whole_seconds)
    if found.delta_bytes is not None:
        _print_total("delta", found.raw_bytes, found.delta_bytes, found.delta_seconds or 0.0)
    for note in found.notes:
        print(f"note: {note}")
    return 0


def _print_total(what: str, raw: int, stored: int, seconds: float) -> None:
    speed = raw / max(seconds, 1e-9) / 1e6
    print(
        f"{what}: {human_bytes(raw)} -> {human_bytes(stored)} ({ratio(raw, stored)}, everything "
        f"counted), encoded and verified at {speed:.0f} MB/s"
    )


def _print_classes(found: Estimate) -> None:
    header = ["class", "dtype", "elements", "raw", "bits whole", "ratio", "stored as"]
    if found.delta_bytes is not None:
        header += ["bits delta", "ratio", "stored as"]
    print_table(header, [_row(line) for line in found.classes])


def _row(line: ClassCost) -> list[str]:
    row = [line.name, line.dtype, str(line.elements), human_bytes(line.raw_bytes)]
    row += _cells(line, line.whole)
    return row + (_cells(line, line.delta) if line.delta is not None else [])


def _cells(line: ClassCost, cost: Cost) -> list[str]:
    bits = 8 * cost.bytes / max(1, line.elements)
    kinds = ", ".join(f"{count} {kind}" for kind, count in cost.how.items())
    return [f"{bits:.2f}", ratio(line.raw_bytes, cost.bytes), kinds]
