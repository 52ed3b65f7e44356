"""Tensors one at a time, and parts of them for resharding: nothing else is fetched.

Of a part, only the chunks that hold it are fetched and decoded.

What is read is under the checksum of each blob; the digest of the array covers all of its
words and cannot be checked on a part. Arrays that are read with the help of another one
(derived, or coded with a companion's exponents) are decoded whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from s4core import dtypes, tree
from s4core.checkpoint.plan import Node, plan
from s4core.checkpoint.shards import Shard
from s4core.errors import FormatError, KeyNotFoundError, StateError
from s4core.format import ArrayRecord, BlobSpan
from s4core.manifest import TensorEntry
from s4core.memory import check_available
from s4core.pipeline import Step, Task, decompress

if TYPE_CHECKING:
    from s4core.checkpoint.reader import Reader

__all__ = ["LazyTensors", "read_slice"]


def read_slice(reader: Reader, path: str, start: int, stop: int) -> Tensor:
    """Return elements `start` to `stop` of a tensor in row-major order: 1-D, on the CPU.

    Args:
        reader: of the checkpoint.
        path: of the tensor.
        start: first element, at least 0.
        stop: the one after the last, at most the number of elements.

    Raises:
        KeyNotFoundError: no tensor has that path.
        StateError: it has no such elements.
        FormatError, ChainError, StoreError, CodecError: as `Reader.state`.
    """
    entry = _entry(reader, path)
    count = torch.Size(entry.shape).numel()
    if not 0 <= start <= stop <= count:
        raise StateError(
            f"{reader.where}: {path} has {count} elements: expected 0 <= start <= stop <= {count}, "
            f"found start {start}, stop {stop}"
        )
    nodes = plan(reader.chain, [_array(entry)])
    if start < stop and len(nodes) == 1 and _is_plain(entry, count, nodes[0]):
        part = _Part.of(reader, nodes[0], entry.offset + start, entry.offset + stop)
        if part is not None:
            return part.decoded()
    whole = reader.select([_literal(path)], "cpu")[path]
    return whole.reshape(-1)[start:stop].clone()


class LazyTensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by path; each is read when it is asked for, and not kept.

    Args:
        reader: of the checkpoint.
        map_location: as for `torch.load`.
    """

    def __init__(self, reader: Reader, map_location: object = None) -> None:
        self._reader, self._map_location = reader, map_location
        found = (path for tensor in reader.manifest.tensors for path in tensor.paths)
        self._paths = dict.fromkeys(found)

    def __getitem__(self, path: str) -> Tensor:
        if path not in self._paths:
            raise KeyError(path)
        return self._reader.select([_literal(path)], self._map_location)[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _entry(reader: Reader, path: str) -> TensorEntry:
    for entry in reader.manifest.tensors:
        if path in entry.paths and entry.array is not None:
            return entry
    raise KeyNotFoundError(f"{reader.where}: no tensor with elements is called {path!r}")


def _array(entry: TensorEntry) -> int:
    assert entry.array is not None  # _entry() saw to it
    return entry.array


def _literal(path: str) -> str:
    """`path` as a pattern that matches nothing else."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def _is_plain(entry: TensorEntry, count: int, node: Node) -> bool:
    """Whether the tensor's elements follow each other in its array, of its own dtype."""
    strides, step = [], 1
    for size in reversed(entry.shape):
        strides.append(step)
        step *= max(size, 1)
    dtype = dtypes.lookup(entry.dtype)
    fits = (entry.offset + count) * dtype.words_per_element <= node.entry.words
    same = node.entry.dtype == entry.dtype and tuple(reversed(strides)) == entry.stride
    return fits and same and node.companion is None and bool(node.steps)


def _check_record(record: ArrayRecord, node: Node, where: str) -> None:
    """Refuse a record of other words than the manifest's: chunks would be sought in vain."""
    words, word_bytes = node.entry.words, dtypes.lookup(node.entry.dtype).word_bytes
    if (record.words, record.word_bytes) != (words, word_bytes):
        raise FormatError(
            f"{where}: {record.words} words of {record.word_bytes} bytes: its manifest says "
            f"{words} of {word_bytes}"
        )


@dataclass(frozen=True)
class _Part:
    """Some chunks of one array, in each of its stored steps.

    Attributes:
        where: the array, for messages.
        node: the array.
        places: the shard and the blobs of each step.
        words: what is decoded: first, and after the last; a chunk of each step begins there.
        wanted: the part of it that is returned, counted from its start.
    """

    where: str
    node: Node
    places: list[tuple[Shard, BlobSpan, ArrayRecord]]
    words: tuple[int, int]
    wanted: tuple[int, int]

    @classmethod
    def of(cls, reader: Reader, node: Node, start: int, stop: int) -> _Part | None:
        """The chunks that hold elements `start` to `stop`; None if steps are cut at odds."""
        places = []
        for link in node.steps:
            shard, span = reader.span(link)
            _, entry = link.entry.at or (0, 0)
            record = shard.index.arrays[entry]
            _check_record(record, node, f"{shard.where}: array {entry}")
            places.append((shard, span, record))
        chunk = max(record.chunk_words for _, _, record in places)
        if any(chunk % record.chunk_words for _, _, record in places):
            return None
        scale = dtypes.lookup(node.entry.dtype).words_per_element
        first = start * scale // chunk * chunk
        last = min(-(-stop * scale // chunk) * chunk, node.entry.words)
        wanted = (start * scale - first, stop * scale - first)
        where = f"{reader.where}: a part of array {node.number}"
        return cls(where, node, places, (first, last), wanted)

    def decoded(self) -> Tensor:
        """Fetch and decode the chunks; return the elements that are wanted."""
        dtype = dtypes.lookup(self.node.entry.dtype)
        steps = [
            self._step(*place, link.entry.delta)
            for place, link in zip(self.places, self.node.steps, strict=True)
        ]
        elements = (self.words[1] - self.words[0]) // dtype.words_per_element
        check_available(elements * dtype.itemsize, self.where)
        out = tree.empty(self.node.entry.dtype, elements, torch.device("cpu"))
        decompress([Task(self.where, steps, dtype, out, digest=None)])
        begin, end = (word // dtype.words_per_element for word in self.wanted)
        return out[begin:end].clone()

    def _step(self, shard: Shard, span: BlobSpan, record: ArrayRecord, delta: str | None) -> Step:
        begin, end = self.words
        first, last = begin // record.chunk_words, -(-end // record.chunk_words)
        rows = shard.index.blobs[span.first : span.first + span.count]
        skipped = int(rows["length"][: first * record.planes].sum())
        rows = rows[first * record.planes : last * record.planes]
        spanned = (span.offset + skipped, int(rows["length"].sum()))
        (payload,) = shard.store.get_ranges(shard.key, [spanned])
        where = f"{shard.where}: chunks {first} to {last - 1} of an array"
        return Step(where, replace(record, words=end - begin), rows, payload, delta)
