"""From a state to a shard and a manifest.

Each array of a `Snapshot` is stored in the cheapest way that is exact: in the
manifest (tiny), as a reference to an equal array of an older checkpoint, as what
follows from another array of the state, as a delta against the array that had its
place in the previous checkpoint, or whole, perhaps under the exponents of another
array. Arrays go through in batches, so that memory is one batch and its blobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from s4core.checkpoint.relations import Array, Kin, columns_of, find_derivations
from s4core.checkpoint.shards import ShardStream
from s4core.checkpoint.snapshot import Snapshot, array_keys
from s4core.errors import CodecError
from s4core.format import CODEC_NAMES
from s4core.manifest import (
    INLINE_BYTES,
    ArrayEntry,
    Json,
    Manifest,
    Need,
    ShardEntry,
)
from s4core.pipeline import (
    Companion,
    Encoded,
    Job,
    array_digests,
    byte_view,
    choose_coding,
    compress,
    knows_more,
)
from s4core.version import __version__

_log = logging.getLogger(__name__)

# Arrays go to the pipeline in batches: large ones keep a GPU busy, and their blobs wait
# in host memory; where every array brings its base along, a batch is smaller.
_BATCH_BYTES: Final = 4 << 30
_BATCH_BYTES_WITH_BASES: Final = 256 << 20

__all__ = ["Previous", "Writer"]


@dataclass(frozen=True)
class Previous:
    """The checkpoint that references and deltas may stand on.

    Attributes:
        manifest: of that checkpoint.
        digest: of that manifest.
        words: gives the words of one of its arrays, on the CPU; None if they are damaged.
        deltas: whether arrays may become deltas; if not, only references to arrays
            that are stored whole are made (a new base).
    """

    manifest: Manifest
    digest: str
    words: Callable[[int], Tensor | None]
    deltas: bool = True

    def owner(self, number: int) -> tuple[Need, int]:
        """Return the checkpoint that stores array `number`, and its number there."""
        entry = self.manifest.arrays[number]
        if entry.same is not None:
            need, array = entry.same
            return self.manifest.needs[need], array
        return Need(self.manifest.id, self.digest), number


@dataclass(frozen=True)
class _Waiting:
    """An array that must be encoded: its number, and that of its predecessor."""

    number: int
    old: int | None


@dataclass
class Writer:
    """Writes one checkpoint: first its shard, then its manifest.

    Attributes:
        snapshot: the state.
        profile: which codecs may be used.
        verify: decode every chunk again before it counts.
        previous: what references and deltas may stand on.
        done_bytes: length of the arrays that are written or need no writing.
    """

    snapshot: Snapshot
    profile: str = "open"
    verify: bool = True
    previous: Previous | None = None
    stream: ShardStream = field(default_factory=ShardStream)
    done_bytes: int = 0
    _entries: dict[int, ArrayEntry] = field(default_factory=dict)
    _needs: dict[Need, int] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)
    _beside: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, str] = field(default_factory=dict)
    _columns: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kin = Kin(self.snapshot.arrays)
        self._columns = columns_of(self.snapshot.tensors, self.snapshot.arrays)
        known = {} if self.previous is None else array_keys(self.previous.manifest)
        suspects: dict[int, int] = {}
        for number, array in enumerate(self.snapshot.arrays):
            old = known.get(array.key)
            if array.bytes <= INLINE_BYTES:
                self._entries[number] = _inline(array)
            elif old is None or not self._fits(array, old):
                self._waiting.append(_Waiting(number, None))
            else:
                suspects[number] = old
        for number, old in suspects.items():
            self._waiting.append(_Waiting(number, old))
        self._refer(suspects)
        self._derive()
        self._waiting = [w for w in self._waiting if w.number not in self._entries]
        self._waiting.sort(key=lambda waiting: waiting.number)

    def _refer(self, suspects: dict[int, int]) -> None:
        """Turn arrays that equal their predecessor into references."""
        usable = {n: old for n, old in suspects.items() if self._may_refer(old)}
        arrays = self.snapshot.arrays
        found = array_digests([arrays[number].gather() for number in usable])
        for (number, old), digest in zip(usable.items(), found, strict=True):
            if digest.hex() == self._old(old).digest:
                self._entries[number] = self._reference(arrays[number], old)

    def _derive(self) -> None:
        """Turn arrays that follow from another array of the state into derived ones."""
        arrays = self.snapshot.arrays
        targets = [w.number for w in self._waiting if w.number not in self._entries]
        found = find_derivations(self._kin, sorted(targets))
        sources = sorted({derivation.of for derivation in found.values()})
        words = [arrays[number].gather() for number in (*found, *sources)]
        digests = [digest.hex() for digest in array_digests(words)]
        for (number, derivation), digest in zip(found.items(), digests, strict=False):
            self._entries[number] = ArrayEntry(
                arrays[number].dtype.name,
                arrays[number].words,
                digest,
                derived=derivation.how,
                of=derivation.of,
                exceptions=derivation.exceptions,
            )
        self._seen |= dict(zip(sources, digests[len(found) :], strict=True))
        self.done_bytes = sum(arrays[number].bytes for number in self._entries)

    @property
    def has_shard(self) -> bool:
        """Whether anything is to be stored outside the manifest."""
        return bool(self._waiting)

    @property
    def digests(self) -> list[str]:
        """The digest of each array that is planned or written, in order."""
        return [self._entries[number].digest for number in sorted(self._entries)]

    def _fits(self, array: Array, old: int) -> bool:
        entry = self._old(old)
        stored = entry.data is None and entry.derived is None
        return stored and (entry.dtype, entry.words) == (array.dtype.name, array.words)

    def _old(self, old: int) -> ArrayEntry:
        assert self.previous is not None
        return self.previous.manifest.arrays[old]

    def _may_refer(self, old: int) -> bool:
        assert self.previous is not None
        return self.previous.deltas or self._old(old).depth == 0

    def _reference(self, array: Array, old: int) -> ArrayEntry:
        entry = self._old(old)
        same = self._owner(old)
        return ArrayEntry(array.dtype.name, array.words, entry.digest, entry.depth, same=same)

    def _owner(self, old: int) -> tuple[int, int]:
        assert self.previous is not None
        need, array = self.previous.owner(old)
        return self._needs.setdefault(need, len(self._needs)), array

    def shard(self, manifest: Callable[[], bytes] | None = None) -> Iterator[bytes | memoryview]:
        """Yield the shard.

        Args:
            manifest: gives the bytes to embed, called when every array is encoded.

        Raises:
            CodecError: a chunk did not decode to the words it came from.
        """
        yield self.stream.begin()
        deltas = self.previous is not None and self.previous.deltas
        limit = _BATCH_BYTES_WITH_BASES if deltas else _BATCH_BYTES
        for batch in _batches(self._waiting, self.snapshot.arrays, limit):
            jobs = [self._job(waiting) for waiting in batch]
            encoded = compress(jobs, profile=self.profile, verify=self.verify)
            for waiting, job, result in zip(batch, jobs, encoded, strict=True):
                yield from self.stream.add(result)
                self._enter(waiting, job, result)
                self.done_bytes += self.snapshot.arrays[waiting.number].bytes
        yield from self.stream.end(b"" if manifest is None else manifest())

    def _job(self, waiting: _Waiting) -> Job:
        array = self.snapshot.arrays[waiting.number]
        words = array.gather()
        base = self._base(waiting, array.key)
        if base is not None:
            try:
                base = base.to(words.device)
            except torch.cuda.OutOfMemoryError as error:
                # A save must never be what runs a training out of memory.
                _log.warning("%s is encoded on the CPU: no room for its base: %s", array.key, error)
                words = words.cpu()
        beside = self._companions(waiting.number) if knows_more(words, array.dtype) else {}
        companions = list(beside.values())
        coding = choose_coding(
            words,
            array.dtype,
            base=base,
            companions=companions,
            columns=self._columns.get(waiting.number, 0),
            profile=self.profile,
        )
        if coding.delta is not None:
            return Job(array.key, words, array.dtype, base, coding.delta)
        if coding.companion is None:
            return Job(array.key, words, array.dtype, columns=coding.columns)
        number, companion = list(beside.items())[coding.companion]
        self._beside[waiting.number] = number
        (digest,) = array_digests([companion.words])
        self._see(number, digest.hex())
        return Job(array.key, words, array.dtype, beside=companion)

    def _companions(self, number: int) -> dict[int, Companion]:
        """Arrays whose exponents may be the context of array `number`."""
        arrays = self.snapshot.arrays
        if not arrays[number].dtype.is_float or number in self._beside.values():
            return {}

        def allowed(other: int) -> bool:
            entry = self._entries.get(other)
            return other not in self._beside and (entry is None or entry.derived is None)

        return {
            other: Companion(arrays[other].gather(), arrays[other].dtype)
            for other in self._kin.companions(number, allowed)
        }

    def _see(self, number: int, digest: str) -> None:
        """Remember what an array was when others were coded with it."""
        if self._seen.setdefault(number, digest) != digest:
            raise self._changed(number)

    def _changed(self, number: int) -> CodecError:
        return CodecError(
            f"{self.snapshot.arrays[number].key}: the tensor was changed while it was being "
            "saved; nothing was written. Do not change a state before its save returns"
        )

    def _base(self, waiting: _Waiting, key: str) -> Tensor | None:
        """The words of a base, if they are the ones its digest was taken of."""
        old = waiting.old
        if old is None or self.previous is None or not self.previous.deltas:
            return None
        words = self.previous.words(old)
        if words is None:
            return None
        (found,) = array_digests([words])
        if found.hex() != self._old(old).digest:
            # Never stand on words that the store does not have: nothing could be loaded.
            _log.warning("%s is stored whole: its base was changed in memory", key)
            return None
        return words

    def _enter(self, waiting: _Waiting, job: Job, result: Encoded) -> None:
        at = (0, len(self.stream.records) - 1)
        words, digest = result.record.words, result.digest.hex()
        if job.delta is None or waiting.old is None:
            beside = self._beside.get(waiting.number)
            entry = ArrayEntry(job.dtype.name, words, digest, at=at, context=beside)
        else:
            old = self._old(waiting.old)
            entry = ArrayEntry(
                job.dtype.name,
                words,
                digest,
                old.depth + 1,
                at=at,
                delta=job.delta,
                base=self._owner(waiting.old),
                base_digest=old.digest,
            )
        self._entries[waiting.number] = entry

    def manifest(
        self,
        *,
        identity: str = "",
        created: str = "",
        step: int | None = None,
        shards: tuple[ShardEntry, ...] = (),
        meta: Mapping[str, Json] | None = None,
    ) -> Manifest:
        """Return the manifest; every array must have been encoded.

        Args:
            identity: the checkpoint's id, "" in a self-contained file.
            created: time, as in `2026-12-01T15:31:00Z`.
            step: of the training.
            shards: where the shard was put.
            meta: for people.
        """
        arrays = self._arrays()
        needs = tuple(self._needs)
        previous = None if self.previous is None else self.previous.manifest.id
        base = next((i for i, need in enumerate(needs) if need.id == previous), None)
        return Manifest(
            requires=self._requires(arrays),
            id=identity,
            created=created,
            writer=f"s4weights {__version__}",
            profile=self.profile,
            step=step,
            base=base,
            depth=max((array.depth for array in arrays), default=0),
            needs=needs,
            shards=shards,
            arrays=arrays,
            tensors=self.snapshot.tensors,
            tree=self.snapshot.tree,
            raw_bytes=self.snapshot.raw_bytes,
            stored_bytes=self.stream.data_bytes,
            meta=dict(meta or {}),
        )

    def _arrays(self) -> tuple[ArrayEntry, ...]:
        """All entries; an array is as deep as the one it is read with."""
        for number, digest in self._seen.items():
            if self._entries[number].digest != digest:
                raise self._changed(number)
        depths = {number: entry.depth for number, entry in self._entries.items()}
        for number in (n for n, e in self._entries.items() if e.context is not None):
            depths[number] = depths[self._entries[number].context or 0]
        for number, entry in self._entries.items():
            if entry.of is not None:
                depths[number] = depths[entry.of]
        count = len(self.snapshot.arrays)
        return tuple(replace(self._entries[n], depth=depths[n]) for n in range(count))

    def _requires(self, arrays: tuple[ArrayEntry, ...]) -> tuple[str, ...]:
        codecs = {f"codec:{CODEC_NAMES[int(codec)]}" for codec in set(self.stream.rows["codec"])}
        layouts = {f"layout:{record.layout.name.lower()}" for record in self.stream.records}
        deltas = {f"delta:{array.delta}" for array in arrays if array.delta}
        derived = {f"derived:{array.derived}" for array in arrays if array.derived}
        contexts = {"context:exponent" for array in arrays if array.context is not None}
        return tuple(sorted(codecs | layouts | deltas | derived | contexts))


def _inline(array: Array) -> ArrayEntry:
    words = array.gather().cpu()
    (digest,) = array_digests([words])
    data = byte_view(words).tobytes()
    return ArrayEntry(array.dtype.name, array.words, digest.hex(), data=data)


def _batches(
    waiting: Sequence[_Waiting], arrays: Sequence[Array], limit_bytes: int
) -> Iterator[list[_Waiting]]:
    batch: list[_Waiting] = []
    size = 0
    for item in waiting:
        if batch and size + arrays[item.number].bytes > limit_bytes:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += arrays[item.number].bytes
    if batch:
        yield batch
