"""Saving one checkpoint after another into a repository, and what the next stands on.

`freeze` (a copy in host memory) or `prepare(ahead=True)` (encoded at once, on the GPU that
holds it) make the caller's state safe to mutate; `commit` does the rest and may run on
another thread. The reference moves on only after a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from s4core.checkpoint.buffers import Buffers
from s4core.checkpoint.options import Options
from s4core.checkpoint.reference import Reference
from s4core.checkpoint.snapshot import Snapshot
from s4core.checkpoint.writer import Writer
from s4core.manifest import Json, Manifest, ShardEntry, dump
from s4core.repository import NAME_KEY, Repository, new_id

__all__ = ["Outcome", "Prepared", "Saver", "freeze", "write_checkpoint"]


@dataclass(frozen=True)
class Outcome:
    """A committed checkpoint: where it is and what it cost."""

    reference: Reference
    kind: str
    stored_bytes: int


def freeze(snapshot: Snapshot, buffers: Buffers) -> Snapshot:
    """Return the snapshot with its words copied to host memory: the state may then change."""

    def keep(words: Tensor) -> Tensor:
        return words

    arrays = tuple(
        replace(array, gather=partial(keep, buffers.copy(array.key, array.gather())))
        for array in snapshot.arrays
    )
    return replace(snapshot, arrays=arrays, frozen=True)


@dataclass
class Prepared:
    """A checkpoint planned against the reference, and perhaps encoded already.

    Attributes:
        writer: its plan.
        parts: the bytes of its shard, if it was encoded ahead of the caller's return.
    """

    writer: Writer
    parts: list[bytes | memoryview] | None = None

    def shard(self) -> Iterable[bytes | memoryview] | None:
        """The bytes of its shard, to be asked for once; None: it needs none."""
        if not self.writer.has_shard:
            return None
        return self.writer.shard() if self.parts is None else self.parts


@dataclass
class Saver:
    """Saves states into a repository.

    Attributes:
        repository: where.
        options: how.
        reference: the checkpoint that the next delta stands on.
        buffers: host memory for copies of words.
    """

    repository: Repository
    options: Options
    reference: Reference | None = None
    buffers: Buffers = field(default_factory=Buffers)

    def prepare(self, snapshot: Snapshot, *, ahead: bool = False) -> Prepared:
        """Plan a checkpoint against the current reference.

        Args:
            snapshot: the state; nobody may change its words until `commit` returns, or
                until this returns if `ahead` is set.
            ahead: encode now, into host memory.

        Raises:
            CodecError: a chunk did not decode to the words it came from.
        """
        if self.reference is not None and not self.repository.usable(self.reference.manifest.id):
            # Someone else removes it: a delta against it could never be loaded.
            self.reference = None
        previous = None
        if self.reference is not None:
            previous = self.reference.previous(self.options.max_depth)
        writer = Writer(snapshot, self.options.profile, self.options.verify, previous)
        parts = list(writer.shard()) if ahead and writer.has_shard else None
        return Prepared(writer, parts)

    def commit(
        self,
        prepared: Prepared,
        *,
        step: int | None,
        meta: Mapping[str, Json],
        progress: Callable[[int], None],
    ) -> Outcome:
        """Write a checkpoint; nothing is visible before its manifest is put.

        Args:
            prepared: against the reference as it is now.
            step: of the training.
            meta: for people.
            progress: called with the number of bytes of words that are done.

        Raises:
            StoreError: the store refused; older checkpoints are unharmed.
            CodecError: a chunk did not decode to the words it came from.
        """
        writer, snapshot = prepared.writer, prepared.writer.snapshot
        if self.reference is not None and _equal(writer, self.reference.manifest, step, meta):
            return Outcome(self.reference, "alias", 0)
        manifest, digest = write_checkpoint(
            self.repository, writer, prepared.shard(), step=step, meta=meta, progress=progress
        )
        reference = Reference(self.repository, manifest, digest)
        if prepared.parts is None:
            # What was encoded ahead may have changed since: its words are in the store only.
            reference.keep(snapshot, self.options.reference_bytes, self.buffers, self.reference)
        self.reference = reference
        return Outcome(reference, _kind(manifest), writer.stream.bytes + len(dump(manifest)))


def write_checkpoint(
    repository: Repository,
    writer: Writer,
    parts: Iterable[bytes | memoryview] | None,
    *,
    step: int | None,
    meta: Mapping[str, Json],
    progress: Callable[[int], None],
) -> tuple[Manifest, str]:
    """Put a shard and commit a manifest under a new id.

    Args:
        repository: where.
        writer: the plan.
        parts: the bytes of the shard; None: all is in the manifest.
        step: of the training.
        meta: for people.
        progress: called with the number of bytes of words that are done.

    Returns:
        The manifest and its digest.
    """
    repository.ensure_marker()
    identity = new_id()
    shards: tuple[ShardEntry, ...] = ()
    if parts is not None:
        key = f"{identity}/0-0.s4"
        repository.put_shard(key, _counted(parts, writer, progress), writer.snapshot.raw_bytes)
        shards = (ShardEntry(key, writer.stream.bytes),)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    manifest = writer.manifest(
        identity=identity, created=created, step=step, shards=shards, meta=meta
    )
    return manifest, repository.commit(manifest)


def _counted(
    parts: Iterable[bytes | memoryview], writer: Writer, progress: Callable[[int], None]
) -> Iterator[bytes | memoryview]:
    for part in parts:
        yield part
        progress(writer.done_bytes)


def _kind(manifest: Manifest) -> str:
    if manifest.needs and not manifest.shards:
        return "alias"
    return "delta" if manifest.depth else "base"


def _equal(writer: Writer, old: Manifest, step: int | None, meta: Mapping[str, Json]) -> bool:
    """Whether the state is the one that `old` describes, so that a second ref will do."""
    return (
        not writer.has_shard
        and old.tree == writer.snapshot.tree
        and old.tensors == writer.snapshot.tensors
        and [array.digest for array in old.arrays] == writer.digests
        and (old.step, _told(old.meta)) == (step, _told(meta))
    )


def _told(meta: Mapping[str, Json]) -> dict[str, Json]:
    """What the caller told: the name is the ref's own, and a checkpoint may have several."""
    return {key: value for key, value in meta.items() if key != NAME_KEY}
