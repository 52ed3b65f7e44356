"""Which arrays of one state say something about each other: found by shape, sample and path.

Candidates are cheap guesses; whatever comes of them is proven on every word, or measured.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from s4core import dtypes
from s4core.manifest import INLINE_BYTES, TensorEntry
from s4core.pipeline import byte_view, exceptions_of, fits

__all__ = ["Array", "Derivation", "Kin", "columns_of", "find_derivations"]

_SAMPLE: Final = 256
# An array of this many bytes or fewer is not worth a reference to an equal one.
_LEAST_COPY_BYTES: Final = 4096
_MOST_EXCEPTIONS: Final = 1024
# Of a sample, so many may differ before the proof is not even begun.
_MOST_IN_SAMPLE: Final = _SAMPLE // 32
# Arrays tried as source of a cast, and as context.
_MOST_SOURCES: Final = 4
_MOST_COMPANIONS: Final = 2
_WORD: Final = re.compile(r"[^/._]+")


@dataclass(frozen=True)
class Array:
    """One array of a snapshot: its key (the path of its first tensor) and its words.

    Attributes:
        companion: the array that it is known to be read with; -1: unknown, None: none.
    """

    key: str
    dtype: dtypes.DType
    words: int
    gather: Callable[[], Tensor]
    companion: int | None = -1

    @property
    def bytes(self) -> int:
        """Length of its words."""
        return self.words * self.dtype.word_bytes


@dataclass(frozen=True)
class Derivation:
    """An array that follows from another one; proven."""

    how: str
    of: int
    exceptions: bytes


def columns_of(tensors: Iterable[TensorEntry], arrays: Sequence[Array]) -> dict[int, int]:
    """Return the width of the arrays that are matrices: words in a row, as they lie."""
    found: dict[int, int] = {}
    for tensor in tensors:
        if tensor.array is None or len(tensor.shape) < 2 or 0 in tensor.shape:
            continue
        outer = max(range(len(tensor.shape)), key=lambda dim: tensor.stride[dim])
        rows, words = tensor.shape[outer], arrays[tensor.array].words
        if words % rows == 0 and 1 < words // rows < words:
            found.setdefault(tensor.array, words // rows)
    return found


class Kin:
    """Which arrays have as many words, and whose paths are alike.

    A word of a path says the more the fewer arrays have it: `exp_avg` of layer 3 is nearer
    to `exp_avg_sq` of layer 3 than to `exp_avg` of layer 4.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays
        self._words = [Counter(_WORD.findall(array.key)) for array in arrays]
        self._holders = Counter(word for words in self._words for word in words)
        self._by_size: dict[int, list[int]] = defaultdict(list)
        for number, array in enumerate(arrays):
            if array.bytes > INLINE_BYTES:
                self._by_size[array.words].append(number)

    def likeliest(self, number: int, accept: Callable[[int], bool], most: int) -> list[int]:
        """Return other arrays of as many words, the most alike first.

        Args:
            number: of the array.
            accept: which of them count.
            most: how many are returned.
        """
        known = self.arrays[number].companion
        if known != -1:
            return [known] if known is not None and accept(known) else []
        others = [o for o in self._by_size[self.arrays[number].words] if o != number and accept(o)]
        return sorted(others, key=lambda other: (-self._alike(number, other), other))[:most]

    def _alike(self, number: int, other: int) -> float:
        shared = self._words[number] & self._words[other]
        return sum(count / self._holders[word] for word, count in shared.items())

    def companions(self, number: int, accept: Callable[[int], bool]) -> list[int]:
        """Return arrays whose exponents may be a context for array `number`."""
        return self.likeliest(
            number,
            lambda other: self.arrays[other].dtype.is_float and accept(other),
            _MOST_COMPANIONS,
        )


def find_derivations(kin: Kin, targets: Iterable[int]) -> dict[int, Derivation]:
    """Find the arrays among `targets` that follow from another array.

    No array is derived from one that is itself derived.

    Args:
        kin: of all arrays of the state.
        targets: numbers of those that may be derived.
    """
    search = _Search(kin)
    targets = list(targets)
    for how in ("rne", "copy"):
        for number in targets:
            search.derive(how, number)
    return search.found


class _Search:
    """Samples and proofs; a sample is taken once."""

    def __init__(self, kin: Kin) -> None:
        self._kin, self._arrays = kin, kin.arrays
        self._samples: dict[int, Tensor] = {}
        self._sources: set[int] = set()
        self.found: dict[int, Derivation] = {}

    def derive(self, how: str, number: int) -> None:
        """Derive array `number` from one of the others, if one will do."""
        if number in self.found or number in self._sources:
            return

        def accept(other: int) -> bool:
            return other not in self.found and self._hopeful(how, other, number)

        for other in self._kin.likeliest(number, accept, _MOST_SOURCES):
            exceptions = self._prove(how, other, number)
            if exceptions is not None:
                self.found[number] = Derivation(how, other, exceptions)
                self._sources.add(other)
                return

    def _hopeful(self, how: str, other: int, number: int) -> bool:
        source, target = self._arrays[other], self._arrays[number]
        if target.bytes <= INLINE_BYTES or not fits(how, source.dtype, target.dtype):
            return False
        if how == "copy" and (target.bytes <= _LEAST_COPY_BYTES or other > number):
            return False
        return target.companion == other or self._seems(how, other, number)

    def _seems(self, how: str, other: int, number: int) -> bool:
        """Whether the samples let hope."""
        source, target = self._sample(other), self._sample(number)
        if how == "copy":
            size = self._arrays[number].dtype.word_bytes
            words = byte_view(source).reshape(-1, size)
            # What is constant costs nothing anyway.
            varies = bool((words != words[0]).any())
            return varies and bool((words == byte_view(target).reshape(-1, size)).all())
        return self._exceptions(how, source, target, other, number, _MOST_IN_SAMPLE) is not None

    def _sample(self, number: int) -> Tensor:
        if number not in self._samples:
            words = self._arrays[number].gather()
            step = max(1, words.numel() // _SAMPLE)
            self._samples[number] = words[::step][:_SAMPLE].contiguous().cpu()
        return self._samples[number]

    def _prove(self, how: str, other: int, number: int) -> bytes | None:
        source, target = self._arrays[other].gather(), self._arrays[number].gather()
        if source.device != target.device:
            return None
        limit = 0
        if how == "rne":
            # Each costs 8 bytes and the word, in base64.
            limit = min(_MOST_EXCEPTIONS, self._arrays[number].bytes // 128)
        try:
            return self._exceptions(how, source, target, other, number, limit)
        except torch.cuda.OutOfMemoryError:
            return None  # a save must never be what runs a training out of memory

    def _exceptions(
        self, how: str, source: Tensor, target: Tensor, other: int, number: int, limit: int
    ) -> bytes | None:
        pair = self._arrays[other].dtype, self._arrays[number].dtype
        return exceptions_of(how, source, target, *pair, limit)
