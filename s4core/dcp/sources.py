"""Where the words of arrays come from: live memory, staged copies, or encoded already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
from torch import Tensor

from s4core import dtypes, tree
from s4core.checkpoint.buffers import Buffers
from s4core.errors import StateError
from s4core.manifest import INLINE_BYTES
from s4core.pipeline import Encoded, Job, compress
from s4core.tree import ArrayGroup, Place, TensorLeaf

__all__ = [
    "BATCH_BYTES",
    "Encoder",
    "Source",
    "Staged",
    "StagedLeaf",
    "encode_ahead",
    "live_sources",
]

# Arrays go to the pipeline in batches, large enough to keep a GPU busy.
BATCH_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Source:
    """One array: its words, or what they were encoded to.

    Attributes:
        key: path of its first tensor.
        dtype: of its elements.
        words: number of words.
        gather: gives the words: 1-D, contiguous; None if `encoded` is there instead.
        encoded: the words, encoded.
    """

    key: str
    dtype: dtypes.DType
    words: int
    gather: Callable[[], Tensor] | None = None
    encoded: Encoded | None = None

    @property
    def bytes(self) -> int:
        """Length of its words."""
        return self.words * self.dtype.word_bytes

    @classmethod
    def of(cls, group: ArrayGroup) -> Source:
        """The source of an array in live memory."""
        dtype = dtypes.lookup(group.dtype)
        return cls(group.key, dtype, group.numel * dtype.words_per_element, group.gather)


@dataclass(frozen=True)
class Encoder:
    """How words are encoded.

    Attributes:
        profile: which codecs may be used.
        verify: decode every chunk again before it counts.
    """

    profile: str = "open"
    verify: bool = True

    def encode(self, sources: Sequence[Source]) -> Iterator[tuple[Source, Encoded]]:
        """Yield each source with its encoded words, in order."""
        for batch in _batches(sources):
            todo = [source for source in batch if source.encoded is None]
            jobs = [Job(s.key, s.gather(), s.dtype) for s in todo if s.gather is not None]
            made = compress(jobs, profile=self.profile, verify=self.verify)
            for source in batch:
                yield source, source.encoded or next(made)


def _batches(sources: Sequence[Source]) -> Iterator[list[Source]]:
    batch: list[Source] = []
    size = 0
    for source in sources:
        if batch and size + source.bytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(source)
        size += source.bytes
    if batch:
        yield batch


@dataclass(frozen=True)
class StagedLeaf:
    """What a meta tensor stands for.

    Attributes:
        meta: the tensor itself, kept so that its identity is not given away.
        source: the array.
        place: of the tensor in it.
        device: where the tensor was, as the manifest says it.
    """

    meta: Tensor
    source: Source
    place: Place
    device: str


@dataclass(frozen=True)
class Staged:
    """What the meta tensors of one staged state stand for.

    Attributes:
        known: by the identity of the meta tensor's storage.
        copies: words in host memory, by the key of their array.
    """

    known: dict[int, StagedLeaf] = field(default_factory=dict)
    copies: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        leaves: Sequence[TensorLeaf],
        metas: Sequence[Tensor],
        encoder: Encoder,
        buffers: Buffers,
    ) -> Staged:
        """Copy or encode the words of `leaves`, for which `metas` will stand.

        Arrays on GPUs are encoded at once, others copied.

        Raises:
            StateError: a leaf is itself a meta tensor.
            CodecError: a chunk did not decode to the words it came from.
        """
        grouped = tree.group_storages(leaves)
        sources = [Source.of(group) for group in grouped.arrays]
        frozen, copies = _frozen(sources, encoder, buffers)
        known = {}
        for leaf, meta, place in zip(leaves, metas, grouped.places, strict=True):
            if place.array is None:
                raise StateError(f"{leaf.path}: a meta tensor has no bits to save")
            known[_identity(meta)] = StagedLeaf(meta, frozen[place.array], place, device_of(leaf))
        return cls(known, copies)

    def find(self, leaf: TensorLeaf) -> StagedLeaf:
        """Return what the meta tensor of `leaf` stands for.

        Raises:
            StateError: nothing, or not for all of it.
        """
        known = self.known.get(_identity(leaf.tensor))
        if known is None:
            raise StateError(
                f"{leaf.path}: a meta tensor that no stage() of this writer made has no bits to "
                "save. Wait for one async_save before the next with the same writer; savers "
                "in another process (AsyncCheckpointerType.PROCESS) cannot be used"
            )
        same = (leaf.tensor.dtype, leaf.tensor.shape, leaf.tensor.stride())
        meta = known.meta
        if same != (meta.dtype, meta.shape, meta.stride()) or leaf.tensor.storage_offset():
            raise StateError(
                f"{leaf.path}: the planner changed a tensor that was encoded already; use a "
                "planner that does not, or dcp.save"
            )
        return known


def _identity(meta: Tensor) -> int:
    return int(meta.untyped_storage()._cdata)


def _frozen(
    sources: Sequence[Source], encoder: Encoder, buffers: Buffers
) -> tuple[list[Source], dict[str, Tensor]]:
    done: dict[int, Source] = {}
    copies: dict[str, Tensor] = {}
    ahead: list[int] = []
    for number, source in enumerate(sources):
        words = source.gather() if source.gather is not None else torch.empty(0)
        if encode_ahead(words):
            ahead.append(number)
            continue
        copy = copies[source.key] = buffers.copy(source.key, words)
        done[number] = Source(source.key, source.dtype, source.words, partial(_given, copy))
    encoded = encoder.encode([sources[number] for number in ahead])
    for number, (source, result) in zip(ahead, encoded, strict=True):
        done[number] = Source(source.key, source.dtype, source.words, encoded=result)
    return [done[number] for number in range(len(sources))], copies


def encode_ahead(words: Tensor) -> bool:
    """Whether staging encodes an array at once rather than copies its words."""
    return words.device.type != "cpu" and words.numel() * words.element_size() > INLINE_BYTES


def _given(words: Tensor) -> Tensor:
    return words


def device_of(leaf: TensorLeaf) -> str:
    """The device of a leaf as a manifest says it; ranks number their GPUs as they like."""
    return "host" if leaf.host else leaf.tensor.device.type


def live_sources(leaves: Sequence[TensorLeaf]) -> list[tuple[Source, Place, str]]:
    """Return source, place and device of each leaf, none of which is a meta tensor."""
    grouped = tree.group_storages(leaves)
    sources = [Source.of(group) for group in grouped.arrays]
    found = []
    for leaf, place in zip(leaves, grouped.places, strict=True):
        assert place.array is not None
        found.append((sources[place.array], place, device_of(leaf)))
    return found
