"""Decompress: blobs to the words of an array, every blob checked before it is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core import digests, kernels
from s4core.codecs import CodecId, context_bytes
from s4core.digests import Buffer
from s4core.dtypes import DType
from s4core.errors import ChecksumError, FormatError
from s4core.format import ArrayRecord
from s4core.kernels import DecodeItem
from s4core.pipeline.choose import Companion
from s4core.pipeline.host import decode_chunk
from s4core.pipeline.threads import map_chunks
from s4core.pipeline.where import gpu_takes
from s4core.pipeline.words import byte_view

__all__ = ["Step", "Task", "decompress"]

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """One stored step of an array: all its blobs, and how it stands on the step before.

    Attributes:
        where: shard and entry, for messages.
        record: its record in the shard's index.
        rows: BLOB_DTYPE, shape (record.blobs,): its rows in the index.
        payload: the bytes of its blobs, one after the other.
        delta: `xor` or `zigzag` against the step before, None for a whole array.
    """

    where: str
    record: ArrayRecord
    rows: NDArray[np.void]
    payload: Buffer
    delta: str | None = None


@dataclass(frozen=True)
class Task:
    """One array to decode.

    Attributes:
        where: the array, for messages.
        steps: the whole array, then each delta on it.
        dtype: of the elements.
        out: 1-D, contiguous, of the array's size, on any device.
        digest: of the original words, 32 hex digits; None for a part, whose digest is unknown.
        beside: the array whose exponents are the context of the first step; its words must
            be there before `decompress` is called.
    """

    where: str
    steps: Sequence[Step]
    dtype: DType
    out: Tensor
    digest: str | None
    beside: Companion | None = None

    @property
    def bytes(self) -> int:
        """Length of the array."""
        return self.out.numel() * self.out.element_size()


def decompress(tasks: Sequence[Task]) -> None:
    """Decode arrays straight into their `out`: those on GPUs together.

    Raises:
        ChecksumError: a blob, or the outcome, is not what was written.
        FormatError: a blob breaks FORMAT.md.
        CodecUnavailableError: a codec that needs a GPU.
    """
    for task in tasks:
        for step in task.steps:
            _check_shape(step, task)
    on_gpu = [_gpu_decodes(task) for task in tasks]
    _decode_on_gpus([task for task, gpu in zip(tasks, on_gpu, strict=True) if gpu])
    _decode_on_host([task for task, gpu in zip(tasks, on_gpu, strict=True) if not gpu])


def _gpu_decodes(task: Task) -> bool:
    return gpu_takes(task.out, task.dtype) and all(
        kernels.decodable(step.rows) for step in task.steps
    )


def _decode_on_gpus(tasks: Sequence[Task]) -> None:
    if not tasks:
        return
    # Two buffers for each array, as on the host; all first steps go together, then
    # all second ones.
    pairs = [_Pair.of(task, torch.empty_like) for task in tasks]
    for level in range(max(len(task.steps) for task in tasks)):
        kernels.decode(
            [
                _decode_item(task, pair, level)
                for task, pair in zip(tasks, pairs, strict=True)
                if level < len(task.steps)
            ]
        )
    found = kernels.digests([task.out for task in tasks])
    for task, digest in zip(tasks, found, strict=True):
        _check_digest(task, digest)


def _decode_item(task: Task, pair: _Pair[Tensor], level: int) -> DecodeItem:
    step = task.steps[level]
    into, base = pair.at(level)
    return DecodeItem(
        name=step.where,
        rows=step.rows,
        payload=digests.flat(step.payload),
        words=into,
        dtype=task.dtype,
        layout=step.record.layout,
        chunk_words=step.record.chunk_words,
        base=base if step.delta else None,
        delta=step.delta,
    )


def _decode_on_host(tasks: Sequence[Task]) -> None:
    """Decode tasks level by level, their chunks side by side on the worker threads."""
    targets = [
        task.out if task.out.device.type == "cpu" else torch.empty_like(task.out, device="cpu")
        for task in tasks
    ]
    views = [byte_view(target) for target in targets]
    pairs = [
        _Pair(len(task.steps), view, np.empty_like(view) if len(task.steps) > 1 else view)
        for task, view in zip(tasks, views, strict=True)
    ]
    for level in range(max((len(task.steps) for task in tasks), default=0)):
        works = [
            _ChunkWork.of(task, pair, level)
            for task, pair in zip(tasks, pairs, strict=True)
            if level < len(task.steps)
        ]
        places = ((work, chunk) for work in works for chunk in range(work.chunks))
        for _ in map_chunks(lambda place: place[0](place[1]), places):
            pass
    for task, target, found in zip(tasks, targets, map_chunks(digests.digest, views), strict=True):
        _check_digest(task, found)
        if target is not task.out:
            task.out.copy_(target)


@dataclass(frozen=True)
class _Pair(Generic[T]):
    """Two buffers that take turns, so that no chunk of a base is overwritten before its use.

    The last of `steps` ends in `out`.
    """

    steps: int
    out: T
    spare: T

    @classmethod
    def of(cls, task: Task, make: Callable[[Tensor], Tensor]) -> _Pair[Tensor]:
        """Buffers for a task: its own, and another one if it has more than one step."""
        spare = make(task.out) if len(task.steps) > 1 else task.out
        return _Pair(len(task.steps), task.out, spare)

    def at(self, level: int) -> tuple[T, T]:
        """Where step number `level` goes, and where the one before it went."""
        last = (self.steps - 1 - level) % 2 == 0
        return (self.out, self.spare) if last else (self.spare, self.out)


def _check_digest(task: Task, found: bytes) -> None:
    if task.digest is not None and found.hex() != task.digest:
        raise ChecksumError(
            f"{task.where}: the decoded words have digest {found.hex()}: expected {task.digest}; "
            "restore the checkpoint from another copy"
        )


def _check_shape(step: Step, task: Task) -> None:
    record, word_bytes = step.record, task.dtype.word_bytes
    if (record.words * record.word_bytes, record.word_bytes) != (task.bytes, word_bytes):
        raise FormatError(
            f"{step.where}: {record.words} words of {record.word_bytes} bytes: {task.where} has "
            f"{task.bytes // word_bytes} of {word_bytes}"
        )


class _ChunkWork:
    """Checks and decodes one chunk; runs on worker threads."""

    @classmethod
    def of(cls, task: Task, pair: _Pair[NDArray[np.uint8]], level: int) -> _ChunkWork:
        """The work on the chunks of one step of a task."""
        into, base = pair.at(level)
        step = task.steps[level]
        if not (step.rows["codec"] == CodecId.RANS_CTX).any():
            return cls(step, task.dtype, into, base if step.delta else None)
        if step.delta and task.dtype.is_float:
            return cls(step, task.dtype, into, base, (base, task.dtype))
        if task.beside is None or level:
            return cls(step, task.dtype, into, base if step.delta else None)
        beside = (byte_view(task.beside.words.cpu()), task.beside.dtype)
        return cls(step, task.dtype, into, None, beside)

    def __init__(
        self,
        step: Step,
        dtype: DType,
        out: NDArray[np.uint8],
        base: NDArray[np.uint8] | None,
        beside: tuple[NDArray[np.uint8], DType] | None = None,
    ) -> None:
        self._step, self._dtype, self._out, self._base = step, dtype, out, base
        self._beside = beside
        self.chunks = step.record.chunks
        self._payload = digests.flat(step.payload)
        ends = np.cumsum(step.rows["length"], dtype=np.int64)
        self._ends = np.concatenate((np.zeros(1, np.int64), ends))
        if len(self._payload) != self._ends[-1]:
            raise FormatError(
                f"{step.where}: blobs of {len(self._payload)} bytes: expected {self._ends[-1]}"
            )

    def __call__(self, chunk: int) -> None:
        record = self._step.record
        first = chunk * record.planes
        encoded = [self._checked(number) for number in range(first, first + record.planes)]
        size = record.chunk_words * record.word_bytes
        part = slice(chunk * size, (chunk + 1) * size)
        base = None if self._base is None else self._base[part]
        context = self._context(chunk)
        try:
            decode_chunk(
                encoded,
                self._dtype,
                record.layout,
                self._out[part],
                base=base,
                kind=self._step.delta,
                context=context,
            )
        except FormatError as error:
            raise type(error)(f"{self._step.where}, chunk {chunk}: {error}") from error

    def _context(self, chunk: int) -> NDArray[np.uint8] | None:
        """The context byte of each word of a chunk."""
        if self._beside is None:
            return None
        words, dtype = self._beside
        first = chunk * self._step.record.chunk_words
        last = first + self._step.record.words_in_chunk(chunk)
        return context_bytes(words[first * dtype.word_bytes : last * dtype.word_bytes], dtype)

    def _checked(self, number: int) -> tuple[int, int, memoryview]:
        row = self._step.rows[number]
        blob = self._payload[self._ends[number] : self._ends[number + 1]]
        digests.check(blob, int(row["checksum"]), f"{self._step.where}: blob {number}")
        return int(row["codec"]), int(row["param"]), blob
