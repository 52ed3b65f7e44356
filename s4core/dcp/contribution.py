"""What one rank writes, and what it tells the coordinator about it.

A rank puts one shard; everything else travels with the results of its writes, and becomes
part of the one manifest that the coordinator puts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from s4core.checkpoint.shards import ShardStream
from s4core.dcp.leaves import Resolved
from s4core.dcp.sources import Encoder, Source, Staged, live_sources
from s4core.errors import StateError
from s4core.format import CODEC_NAMES
from s4core.manifest import INLINE_BYTES, ArrayEntry, TensorEntry
from s4core.pipeline import Encoded, array_digests, byte_view
from s4core.tree import DistributedTensor, DistributedValue, Part, Place, TensorLeaf

__all__ = ["Contribution", "Parts", "Pieces", "gather_pieces"]

Parts = Iterator[bytes | memoryview]


@dataclass(frozen=True)
class Contribution:
    """One rank's share of a checkpoint; its numbers count within this share.

    Attributes:
        checkpoint: id of the checkpoint it was written for.
        key: of its shard, "" if nothing had to be put.
        shard_bytes: length of the shard.
        data_bytes: length of the blobs in it.
        requires: what a reader needs to know.
        arrays: those of the shard have `at` (0, entry).
        tensors: in these arrays.
        items: of these tensors.
    """

    checkpoint: str
    key: str
    shard_bytes: int
    data_bytes: int
    requires: tuple[str, ...]
    arrays: tuple[ArrayEntry, ...]
    tensors: tuple[TensorEntry, ...]
    items: tuple[DistributedTensor | DistributedValue, ...]


@dataclass(frozen=True)
class Pieces:
    """A rank's items with the sources of their words, ready to be encoded.

    Attributes:
        sources: each array once.
        tensors: in these arrays.
        items: of these tensors.
    """

    sources: tuple[Source, ...]
    tensors: tuple[TensorEntry, ...]
    items: tuple[DistributedTensor | DistributedValue, ...]

    @property
    def raw_bytes(self) -> int:
        """Length of all arrays."""
        return sum(source.bytes for source in self.sources)

    def write(
        self, checkpoint: str, key: str, encoder: Encoder, put: Callable[[str, Parts, int], None]
    ) -> Contribution:
        """Encode the arrays and put them as one shard.

        Args:
            checkpoint: id.
            key: of the shard.
            encoder: for the words.
            put: puts a shard: key, its bytes, and about how many.

        Raises:
            CodecError: a chunk did not decode to the words it came from.
            StoreError: the store refused.
        """
        shard = _Shard(encoder)
        small = [number for number, s in enumerate(self.sources) if s.bytes <= INLINE_BYTES]
        large = [number for number, s in enumerate(self.sources) if s.bytes > INLINE_BYTES]
        entries = {number: _inline(self.sources[number]) for number in small}
        if large:
            put(key, shard.stream([self.sources[number] for number in large]), self.raw_bytes)
            entries |= dict(zip(large, shard.entries, strict=True))
        return Contribution(
            checkpoint=checkpoint,
            key=key if large else "",
            shard_bytes=shard.out.bytes,
            data_bytes=shard.out.data_bytes,
            requires=shard.requires,
            arrays=tuple(entries[number] for number in range(len(self.sources))),
            tensors=self.tensors,
            items=self.items,
        )


@dataclass
class _Shard:
    """A shard being written and the entries of its arrays."""

    encoder: Encoder
    out: ShardStream = field(default_factory=ShardStream)
    entries: list[ArrayEntry] = field(default_factory=list)

    def stream(self, sources: Sequence[Source]) -> Parts:
        yield self.out.begin()
        for source, encoded in self.encoder.encode(sources):
            yield from self.out.add(encoded)
            self.entries.append(self._entry(source, encoded))
        yield from self.out.end()

    def _entry(self, source: Source, encoded: Encoded) -> ArrayEntry:
        at = (0, len(self.entries))
        words, digest = encoded.record.words, encoded.digest.hex()
        return ArrayEntry(source.dtype.name, words, digest, at=at)

    @property
    def requires(self) -> tuple[str, ...]:
        codecs = {f"codec:{CODEC_NAMES[int(codec)]}" for codec in set(self.out.rows["codec"])}
        layouts = {f"layout:{record.layout.name.lower()}" for record in self.out.records}
        return tuple(sorted(codecs | layouts))


def _inline(source: Source) -> ArrayEntry:
    if source.gather is None:
        raise StateError(f"{source.key}: {source.bytes} bytes were encoded ahead")
    words = source.gather().cpu()
    (digest,) = array_digests([words])
    data = byte_view(words).tobytes()
    return ArrayEntry(source.dtype.name, source.words, digest.hex(), data=data)


def gather_pieces(resolved: Sequence[Resolved], staged: Staged) -> Pieces:
    """Find the arrays of all items: memory that is shared is stored once.

    Args:
        resolved: the items of this rank.
        staged: what meta tensors among them stand for.

    Raises:
        StateError: a meta tensor stands for nothing.
    """
    return _Gathering(staged).run(resolved)


@dataclass
class _Gathering:
    staged: Staged
    leaves: list[TensorLeaf] = field(default_factory=list)
    items: list[DistributedTensor | DistributedValue] = field(default_factory=list)

    def run(self, resolved: Sequence[Resolved]) -> Pieces:
        for one in resolved:
            self._add(one)
        found = self._found()
        numbers: dict[int, int] = {}
        sources: list[Source] = []
        tensors = []
        for leaf, (source, place, device) in zip(self.leaves, found, strict=True):
            if id(source) not in numbers:
                numbers[id(source)] = len(sources)
                sources.append(source)
            tensors.append(_tensor_entry(leaf, place, device, numbers[id(source)]))
        return Pieces(tuple(sources), tuple(tensors), tuple(self.items))

    def _add(self, one: Resolved) -> None:
        name, planned = one.item.index.fqn, one.item.tensor_data
        first = len(self.leaves)
        if planned is None:
            self.leaves += one.parts.leaves
            numbers = tuple(range(first, len(self.leaves)))
            self.items.append(DistributedValue(name, one.way, one.parts.node, numbers))
            return
        (leaf,) = one.parts.leaves
        offsets, sizes = tuple(planned.chunk.offsets), tuple(planned.chunk.sizes)
        if sizes != tuple(planned.size):
            # A part lies below its tensor, under its offsets.
            path = f"{leaf.path}/{','.join(map(str, offsets))}"
            leaf = TensorLeaf(path, leaf.tensor, leaf.host)
        self.leaves.append(leaf)
        dtype = str(planned.properties.dtype).removeprefix("torch.")
        grad = planned.properties.requires_grad
        part = Part(first, offsets, sizes)
        self.items.append(
            DistributedTensor(name, one.way, dtype, tuple(planned.size), grad, (part,))
        )

    def _found(self) -> list[tuple[Source, Place, str]]:
        """Source, place and device of each leaf."""
        live = [number for number, leaf in enumerate(self.leaves) if not leaf.tensor.is_meta]
        found = dict(zip(live, live_sources([self.leaves[number] for number in live]), strict=True))
        for number, leaf in enumerate(self.leaves):
            if leaf.tensor.is_meta:
                known = self.staged.find(leaf)
                found[number] = (known.source, known.place, known.device)
        return [found[number] for number in range(len(self.leaves))]


def _tensor_entry(leaf: TensorLeaf, place: Place, device: str, array: int) -> TensorEntry:
    return TensorEntry(
        path=leaf.path,
        dtype=place.dtype,
        shape=place.shape,
        stride=place.stride,
        array=array,
        offset=place.offset,
        device=device,
        also=tuple(leaf.also),
    )
