"""From a state to a shard and a manifest.

The state is flattened once into a `Snapshot`. Each array is then stored in the
cheapest way that is exact: in the manifest (tiny), as a reference to an equal
array of an older checkpoint, as a delta against the array that had its place
in the previous checkpoint, or whole. Arrays go through one at a time, so that
memory is one array and its blobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from s4core import dtypes, tree
from s4core.checkpoint.reader import Reader
from s4core.checkpoint.shards import ShardStream
from s4core.format import CODEC_NAMES
from s4core.manifest import (
    INLINE_BYTES,
    ArrayEntry,
    Json,
    Manifest,
    Need,
    ShardEntry,
    TensorEntry,
)
from s4core.pipeline import Encoded, Job, array_digests, byte_view, choose_delta, compress
from s4core.version import __version__

_log = logging.getLogger(__name__)

# Arrays go to the pipeline in batches: large ones keep a GPU busy, and their blobs wait
# in host memory; where every array brings its base along, a batch is smaller.
_BATCH_BYTES: Final = 4 << 30
_BATCH_BYTES_WITH_BASES: Final = 256 << 20

__all__ = ["Previous", "Snapshot", "Writer", "array_keys", "snapshot_of", "take_snapshot"]


@dataclass(frozen=True)
class Array:
    """One array of a snapshot: its key (the path of its first tensor) and its words."""

    key: str
    dtype: dtypes.DType
    words: int
    gather: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """Length of its words."""
        return self.words * self.dtype.word_bytes


@dataclass(frozen=True)
class Snapshot:
    """A state, flattened.

    Attributes:
        tree: its typed tree.
        tensors: its tensors' places.
        arrays: its arrays.
        frozen: whether the words are copies in host memory that nobody else changes;
            otherwise they are the caller's.
    """

    tree: Json
    tensors: tuple[TensorEntry, ...]
    arrays: tuple[Array, ...]
    frozen: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether any of its words lie on a GPU."""
        return any(tensor.device.startswith("cuda") for tensor in self.tensors)

    @property
    def raw_bytes(self) -> int:
        """Length of all arrays."""
        return sum(array.bytes for array in self.arrays)


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


def take_snapshot(
    state: Any, *, allow_pickle: bool = False, allow_classes: bool = False
) -> Snapshot:
    """Flatten `state`.

    Raises:
        StateError: it holds something S4 cannot store; the message names its path.
    """
    flat = tree.flatten(state, allow_pickle=allow_pickle, allow_classes=allow_classes)
    grouped = tree.group_storages(flat.leaves)
    arrays = []
    for group in grouped.arrays:
        dtype = dtypes.lookup(group.dtype)
        arrays.append(Array(group.key, dtype, group.numel * dtype.words_per_element, group.gather))
    tensors = tuple(
        TensorEntry(
            path=leaf.path,
            dtype=place.dtype,
            shape=place.shape,
            stride=place.stride,
            array=place.array,
            offset=place.offset,
            device="host" if leaf.host else str(leaf.tensor.device),
            also=tuple(leaf.also),
        )
        for leaf, place in zip(flat.leaves, grouped.places, strict=True)
    )
    return Snapshot(flat.tree, tensors, tuple(arrays))


def snapshot_of(reader: Reader) -> Snapshot:
    """Return a stored checkpoint as a snapshot, its arrays decoded when they are gathered."""
    manifest = reader.manifest
    keys = {number: key for key, number in array_keys(manifest).items()}
    arrays = tuple(
        Array(keys[number], dtypes.lookup(entry.dtype), entry.words, partial(reader.array, number))
        for number, entry in enumerate(manifest.arrays)
    )
    return Snapshot(manifest.tree, manifest.tensors, arrays)


def array_keys(manifest: Manifest) -> dict[str, int]:
    """Return the number of each array of `manifest` by its key."""
    keys: dict[int, str] = {}
    for tensor in manifest.tensors:
        if tensor.array is not None:
            keys.setdefault(tensor.array, tensor.path)
    return {key: number for number, key in keys.items()}


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

    def __post_init__(self) -> None:
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

    def _refer(self, suspects: dict[int, int]) -> None:
        """Turn arrays that equal their predecessor into references."""
        usable = {n: old for n, old in suspects.items() if self._may_refer(old)}
        arrays = self.snapshot.arrays
        found = array_digests([arrays[number].gather() for number in usable])
        for (number, old), digest in zip(usable.items(), found, strict=True):
            if digest.hex() == self._old(old).digest:
                self._entries[number] = self._reference(arrays[number], old)
        self._waiting = [w for w in self._waiting if w.number not in self._entries]
        self._waiting.sort(key=lambda waiting: waiting.number)
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
        return entry.data is None and (entry.dtype, entry.words) == (array.dtype.name, array.words)

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
        whole = Job(array.key, words, array.dtype)
        if waiting.old is None or self.previous is None or not self.previous.deltas:
            return whole
        stored = self._base(waiting.old, array.key)
        if stored is None:
            return whole
        try:
            base = stored.to(words.device)
        except torch.cuda.OutOfMemoryError as error:
            # A save must never be what runs a training out of memory.
            _log.warning("%s is encoded on the CPU: no room for its base: %s", array.key, error)
            words, base = words.cpu(), stored
        delta = choose_delta(words, base, array.dtype, profile=self.profile)
        if delta is None:
            return whole
        return Job(array.key, words, array.dtype, base, delta)

    def _base(self, old: int, key: str) -> Tensor | None:
        """The words of a base, if they are the ones its digest was taken of."""
        assert self.previous is not None
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
            entry = ArrayEntry(job.dtype.name, words, digest, at=at)
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
        arrays = tuple(self._entries[number] for number in range(len(self.snapshot.arrays)))
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

    def _requires(self, arrays: tuple[ArrayEntry, ...]) -> tuple[str, ...]:
        codecs = {f"codec:{CODEC_NAMES[int(codec)]}" for codec in set(self.stream.rows["codec"])}
        layouts = {f"layout:{record.layout.name.lower()}" for record in self.stream.records}
        deltas = {f"delta:{array.delta}" for array in arrays if array.delta}
        return tuple(sorted(codecs | layouts | deltas))


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
