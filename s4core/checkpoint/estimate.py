"""What a state would cost, whole and as a delta: encoded for real, and thrown away.

Every byte is counted: blobs, index, manifest. A *class* is what stands for the same thing
in a state: the slot of an optimizer (`exp_avg`), else the first word of the path, and the dtype.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from s4core.checkpoint.single import Target, load
from s4core.checkpoint.snapshot import Snapshot, take_snapshot
from s4core.checkpoint.writer import Previous, Writer
from s4core.format import ARRAY_BYTES, BLOB_DTYPE
from s4core.manifest import Manifest, ShardEntry, TensorEntry, dump

__all__ = ["ClassCost", "Cost", "Estimate", "class_of", "estimate"]

_SLOT: Final = re.compile(r"(?:^|/)state/[^/]+/(.+)$")
# Below this, compression is hardly worth its time.
_POOR: Final = 1.1


@dataclass(frozen=True)
class Cost:
    """What something costs.

    Attributes:
        bytes: stored, blobs and index.
        how: number of arrays by how they are stored: `whole`, `whole under another`, `xor`,
            `zigzag`, `same`, `copy`, `rne`, `inline`.
    """

    bytes: int
    how: Mapping[str, int]


@dataclass(frozen=True)
class ClassCost:
    """One class of tensors.

    Attributes:
        name: of the class.
        dtype: torch's name.
        elements: how many.
        raw_bytes: of them.
        whole: cost in a base.
        delta: cost against the other state, if there is one.
    """

    name: str
    dtype: str
    elements: int
    raw_bytes: int
    whole: Cost
    delta: Cost | None


@dataclass(frozen=True)
class Estimate:
    """What a state would cost.

    Attributes:
        raw_bytes: of all tensors.
        whole_bytes: of a self-contained checkpoint, everything counted.
        delta_bytes: of a delta against the other state, everything counted; None: no other.
        classes: by class of tensor, the largest first.
        whole_seconds, delta_seconds: to encode, with verification, on this machine.
    """

    raw_bytes: int
    whole_bytes: int
    delta_bytes: int | None
    classes: tuple[ClassCost, ...]
    whole_seconds: float
    delta_seconds: float | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Where it does not help, in sentences."""
        found = [_poor(cost) for cost in self.classes if cost.raw_bytes < _POOR * cost.whole.bytes]
        return (*found, *self._far_apart(), *self._wide())

    def _far_apart(self) -> list[str]:
        if self.delta_bytes is None or self.delta_bytes < 0.9 * self.whole_bytes:
            return []
        saved = 100 * (1 - self.delta_bytes / self.whole_bytes)
        return [
            f"a delta against the other state saves {saved:.0f} % of a whole checkpoint: they are "
            "too far apart; save more often, or let every checkpoint be a base (max_depth=0), "
            "which loads faster"
        ]

    def _wide(self) -> list[str]:
        wide = sum(c.raw_bytes for c in self.classes if c.dtype in ("float32", "float64"))
        best = min(self.whole_bytes, self.delta_bytes or self.whole_bytes)
        if wide < self.raw_bytes / 2 or self.raw_bytes > 1.5 * best:
            return []
        return [
            f"{100 * wide / self.raw_bytes:.0f} % of the bytes are float32 or wider, whose "
            "mantissas are random: states like this compress little, with any lossless method"
        ]


def _poor(c: ClassCost) -> str:
    gain = c.raw_bytes / max(1, c.whole.bytes)
    return f"{c.name} ({c.dtype}): {gain:.2f}x whole: hardly compressible"


def class_of(tensor: TensorEntry) -> str:
    """Return the class of a tensor, by its path."""
    slot = _SLOT.search(tensor.path)
    if slot:
        return slot.group(1)
    return re.split(r"[/.]", tensor.path, maxsplit=1)[0] or "(tensor)"


def estimate(
    state: Any, against: Any = None, *, profile: str = "open", weights_only: bool = True
) -> Estimate:
    """Measure what a state would cost, whole and as a delta, without writing anything.

    Args:
        state: any state, or the path or URL of a checkpoint: S4, `.pt`, `.safetensors`.
        against: the state before it, or its path, for the cost of a delta.
        profile: which codecs may be used.
        weights_only: refuse whatever would run code of a file's choosing.

    Raises:
        StateError: a state that cannot be stored.
        KeyNotFoundError, FormatError: no such file, or not one that S4 reads.
    """
    snapshot = _snapshot(state, weights_only)
    whole, whole_seconds = _encode(snapshot, profile, None)
    if against is None:
        return _estimate(snapshot, whole, None, whole_seconds, None)
    old = _snapshot(against, weights_only)
    manifest = _encode(old, profile, None)[0].manifest
    previous = Previous(manifest, "0" * 32, lambda number: old.arrays[number].gather().cpu())
    delta, delta_seconds = _encode(snapshot, profile, previous)
    return _estimate(snapshot, whole, delta, whole_seconds, delta_seconds)


def _snapshot(state: Any, weights_only: bool) -> Snapshot:
    if isinstance(state, str | os.PathLike):
        source: Target = state
        state = load(source, map_location="cpu", weights_only=weights_only)
    return take_snapshot(state)


@dataclass
class _Encoded:
    """A checkpoint that was encoded and thrown away."""

    manifest: Manifest
    total_bytes: int
    arrays: list[int] = field(default_factory=list)


def _encode(snapshot: Snapshot, profile: str, previous: Previous | None) -> tuple[_Encoded, float]:
    started = time.perf_counter()
    writer = Writer(snapshot, profile=profile, previous=previous)
    size = sum(memoryview(part).nbytes for part in writer.shard()) if writer.has_shard else 0
    shards = (ShardEntry("estimate/0-0.s4", size),) if writer.has_shard else ()
    manifest = writer.manifest(identity="estimate", shards=shards)
    seconds = time.perf_counter() - started
    ends = np.concatenate(([0], np.cumsum(writer.stream.rows["length"], dtype=np.int64)))
    costs, first = [], 0
    for record in writer.stream.records:
        blobs = int(ends[first + record.blobs] - ends[first])
        costs.append(blobs + ARRAY_BYTES + BLOB_DTYPE.itemsize * record.blobs)
        first += record.blobs
    return _Encoded(manifest, size + len(dump(manifest)), costs), seconds


def _cost(encoded: _Encoded, numbers: list[int]) -> Cost:
    total, how = 0, Counter[str]()
    for number in numbers:
        entry = encoded.manifest.arrays[number]
        kind = entry.delta or entry.derived or ("same" if entry.same else "inline")
        if entry.at is not None:
            total += encoded.arrays[entry.at[1]]
            whole = "whole" if entry.context is None else "whole under another"
            kind = entry.delta or whole
        total += len(entry.data or b"") + len(entry.exceptions)
        how[kind] += 1
    return Cost(total, dict(sorted(how.items())))


def _estimate(
    snapshot: Snapshot,
    whole: _Encoded,
    delta: _Encoded | None,
    whole_seconds: float,
    delta_seconds: float | None,
) -> Estimate:
    classes: dict[tuple[str, str], list[int]] = defaultdict(list)
    seen: set[int] = set()
    for tensor in snapshot.tensors:
        if tensor.array is not None and tensor.array not in seen:
            seen.add(tensor.array)
            name = class_of(tensor), snapshot.arrays[tensor.array].dtype.name
            classes[name].append(tensor.array)
    costs = [
        ClassCost(
            name,
            dtype,
            sum(snapshot.arrays[n].words for n in numbers),
            sum(snapshot.arrays[n].bytes for n in numbers),
            _cost(whole, numbers),
            None if delta is None else _cost(delta, numbers),
        )
        for (name, dtype), numbers in classes.items()
    ]
    return Estimate(
        snapshot.raw_bytes,
        whole.total_bytes,
        None if delta is None else delta.total_bytes,
        tuple(sorted(costs, key=lambda cost: -cost.raw_bytes)),
        whole_seconds,
        delta_seconds,
    )
