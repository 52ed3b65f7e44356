"""What a manifest holds, as Python values (FORMAT.md, section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from s4core import dtypes

__all__ = [
    "DELTAS",
    "DERIVATIONS",
    "FORMAT",
    "INLINE_BYTES",
    "VERSION",
    "ArrayEntry",
    "Json",
    "Manifest",
    "Need",
    "ShardEntry",
    "TensorEntry",
]

Json = Any  # JSON as the json module makes it; every use checks what it holds

FORMAT: Final = "s4-manifest"
VERSION: Final = 1
# Arrays of at most this many bytes (a step counter, a learning rate) lie in the
# manifest: an index record and a ranged get would cost more than they hold.
INLINE_BYTES: Final = 64
DELTAS: Final = ("xor", "zigzag")
# How an array may follow from another one of the same manifest (FORMAT.md, section 7.1).
DERIVATIONS: Final = ("copy", "rne")


@dataclass(frozen=True)
class Need:
    """Another checkpoint that this one cannot be read without."""

    id: str
    digest: str


@dataclass(frozen=True)
class ShardEntry:
    """A shard of this checkpoint: key below `shards/` of its store, "" for this file."""

    key: str
    bytes: int


@dataclass(frozen=True)
class ArrayEntry:
    """Where the words of one array are.

    Exactly one of `at`, `same`, `data` and `derived` is set.

    Attributes:
        dtype: torch's name.
        words: number of words.
        digest: of the original words, 32 hex digits.
        depth: number of deltas that lie under the array, and under what it is read with.
        at: (shard, entry in its index).
        delta: `xor` or `zigzag`; then `base` is (need, array) and `base_digest` its digest.
        same: (need, array): equal to that array.
        data: the words themselves, at most 64 bytes.
        context: with `at` and no delta: the array of this manifest that gives the contexts.
        derived: `copy` or `rne`: what makes it of the array `of` of this manifest.
        of: number of that array.
        exceptions: a u64 position and the word for each that differs.
    """

    dtype: str
    words: int
    digest: str
    depth: int = 0
    at: tuple[int, int] | None = None
    delta: str | None = None
    base: tuple[int, int] | None = None
    base_digest: str | None = None
    same: tuple[int, int] | None = None
    data: bytes | None = None
    context: int | None = None
    derived: str | None = None
    of: int | None = None
    exceptions: bytes = b""

    @property
    def companion(self) -> int | None:
        """The array of the same manifest that it cannot be read without."""
        return self.of if self.context is None else self.context

    @property
    def bytes(self) -> int:
        """Length of the original words."""
        return self.words * dtypes.lookup(self.dtype).word_bytes


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the state: a view of an array (`array` None: a meta tensor).

    `also` holds the other paths at which the same object sits (tied weights).
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    array: int | None
    offset: int
    device: str
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path at which the tensor sits, the first one first."""
        return (self.path, *self.also)

    @property
    def span(self) -> int:
        """Elements from the first to the last, both included; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum(
            (size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)
        )


@dataclass(frozen=True)
class Manifest:
    """A checkpoint. Attributes are the keys of FORMAT.md, section 7."""

    requires: tuple[str, ...]
    id: str
    created: str
    writer: str
    profile: str
    step: int | None
    base: int | None
    depth: int
    needs: tuple[Need, ...]
    shards: tuple[ShardEntry, ...]
    arrays: tuple[ArrayEntry, ...]
    tensors: tuple[TensorEntry, ...]
    tree: Json
    raw_bytes: int
    stored_bytes: int
    meta: Mapping[str, Json] = field(default_factory=dict)
