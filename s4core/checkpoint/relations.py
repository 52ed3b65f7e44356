"""Which arrays of one state say something about each other: found by shape, sample and path.

Candidates are cheap guesses; whatever comes of them is proven on every word, or measured.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from s4core import dtypes
from s4core.manifest import INLINE_BYTES, TensorEntry
from s4core.pipeline import byte_view, exceptions_of, fits, rounded

__all__ = ["Array", "Derivation", "Kin", "columns_of", "find_derivations"]

_SAMPLE: Final = 256
# An array of this many bytes or fewer is not worth a reference to an equal one.
_LEAST_COPY_BYTES: Final = 4096
_MOST_EXCEPTIONS: Final = 1024
# Words of a sample that are looked up together.
_RUN: Final = 16
# Arrays tried as source, and as context; and how many equal ones are few.
_MOST_SOURCES: Final = 4
_MOST_COMPANIONS: Final = 2
_FEW: Final = 32
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
    to `exp_avg_sq` of layer 3 than to `exp_avg` of layer 4. Nothing here takes time that
    grows with the square of the number of arrays.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays
        self.by_size: dict[int, list[int]] = defaultdict(list)
        self._words = [Counter(_WORD.findall(array.key)) for array in arrays]
        self._holders: dict[str, list[int]] = defaultdict(list)
        for number, array in enumerate(arrays):
            if array.bytes > INLINE_BYTES:
                self.by_size[array.words].append(number)
            for word in self._words[number]:
                self._holders[word].append(number)

    def companions(self, number: int, accept: Callable[[int], bool]) -> list[int]:
        """Return arrays whose exponents may be a context for array `number`, likeliest first.

        Args:
            number: of the array.
            accept: which others count.
        """
        array = self.arrays[number]
        near: Iterable[int] = () if array.companion is None else (array.companion,)
        if array.companion == -1:
            near = self._near(number)
        others = [
            other
            for other in near
            if other != number
            and self.arrays[other].words == array.words
            and self.arrays[other].bytes > INLINE_BYTES
            and self.arrays[other].dtype.is_float
            and accept(other)
        ]
        return self.likeliest(number, others)[:_MOST_COMPANIONS]

    def likeliest(self, number: int, others: Iterable[int]) -> list[int]:
        """Return `others`, those with the most alike path first."""
        return sorted(others, key=lambda other: (-self._alike(number, other), other))

    def _near(self, number: int) -> set[int]:
        """Arrays of equal size, or where these are many, those that share a rare word."""
        equal = self.by_size[self.arrays[number].words]
        if len(equal) <= _FEW:
            return set(equal)
        holders = (self._holders[word] for word in self._words[number])
        return {other for some in holders if len(some) <= _FEW for other in some}

    def _alike(self, number: int, other: int) -> float:
        shared = self._words[number] & self._words[other]
        return sum(count / len(self._holders[word]) for word, count in shared.items())


def find_derivations(kin: Kin, targets: Iterable[int]) -> dict[int, Derivation]:
    """Find the arrays among `targets` that follow from another array.

    No array is derived from one that is itself derived.

    Args:
        kin: of all arrays of the state.
        targets: numbers of those that may be derived.
    """
    found: dict[int, Derivation] = {}
    sources: set[int] = set()
    targets = list(targets)
    for how in ("rne", "copy"):
        search = _Search(how, kin)
        for number in targets:
            if number in found or number in sources:
                continue
            derivation = search.derive(number, found)
            if derivation is not None:
                found[number] = derivation
                sources.add(derivation.of)
    return found


class _Search:
    """Finds sources by a few words of each array, and proves them on all.

    What a source's words at some places would become is kept under each run of them, so
    that a target finds its source by a run without exceptions.
    """

    def __init__(self, how: str, kin: Kin) -> None:
        self._how, self._kin, self._arrays = how, kin, kin.arrays
        self._runs: dict[tuple[int, str], dict[bytes, list[int]]] = {}

    def derive(self, number: int, found: Container[int]) -> Derivation | None:
        """Derive array `number` from one that is not in `found`, if one will do."""
        target = self._arrays[number]
        least = _LEAST_COPY_BYTES if self._how == "copy" else INLINE_BYTES
        if target.bytes <= least or target.companion is None:
            return None
        others = [target.companion] if target.companion != -1 else self._hopeful(number)
        for other in [other for other in others if other not in found][:_MOST_SOURCES]:
            exceptions = self._prove(other, number)
            if exceptions is not None:
                return Derivation(self._how, other, exceptions)
        return None

    def _fits(self, other: int, number: int) -> bool:
        fit = fits(self._how, self._arrays[other].dtype, self._arrays[number].dtype)
        return fit and (self._how == "rne" or other < number)

    def _hopeful(self, number: int) -> list[int]:
        target = self._arrays[number]
        key = (target.words, target.dtype.name)
        if key not in self._runs:
            self._runs[key] = self._index(*key)
        if not self._runs[key]:
            return []
        hits: Counter[int] = Counter()
        for run in _runs_of(_sample(target)):
            for other in self._runs[key].get(run, ())[:_FEW]:
                if other != number and self._fits(other, number):
                    hits[other] += 1
        return self._kin.likeliest(number, hits)

    def _index(self, words: int, dtype: str) -> dict[bytes, list[int]]:
        """Arrays of so many words by each run of what their sample would become."""
        index: dict[bytes, list[int]] = defaultdict(list)
        into = dtypes.lookup(dtype)
        group = self._kin.by_size[words]
        if len(group) < 2:
            return index
        for other in group:
            source = self._arrays[other]
            if fits(self._how, source.dtype, into) and source.companion in (None, -1):
                for run in _runs_of(rounded(self._how, _sample(source), source.dtype, into)):
                    index[run].append(other)
        return index

    def _prove(self, other: int, number: int) -> bytes | None:
        if not self._fits(other, number):
            return None
        arrays = self._arrays[other], self._arrays[number]
        source, target = (array.gather() for array in arrays)
        if source.device != target.device:
            return None
        # Each exception costs 8 bytes and the word, in base64.
        limit = min(_MOST_EXCEPTIONS, arrays[1].bytes // 128) if self._how == "rne" else 0
        try:
            return exceptions_of(self._how, source, target, arrays[0].dtype, arrays[1].dtype, limit)
        except torch.cuda.OutOfMemoryError:
            return None  # a save must never be what runs a training out of memory


def _sample(array: Array) -> Tensor:
    words = array.gather()
    step = max(1, words.numel() // _SAMPLE)
    return words[::step][:_SAMPLE].contiguous().cpu()


def _runs_of(sample: Tensor) -> set[bytes]:
    """The runs of a sample that are not constant; what is constant costs nothing anyway."""
    size = sample.element_size()
    data = byte_view(sample).tobytes()
    step = _RUN * size
    runs = {data[start : start + step] for start in range(0, len(data), step)}
    return {run for run in runs if run != run[:size] * (len(run) // size)}
