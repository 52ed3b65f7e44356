"""Decompress: blobs to the words of an array, every blob checked before it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core import digests
from s4core.digests import Buffer
from s4core.dtypes import DType
from s4core.errors import ChecksumError, FormatError
from s4core.format import ArrayRecord
from s4core.pipeline.host import decode_chunk
from s4core.pipeline.threads import map_chunks
from s4core.pipeline.words import byte_view

__all__ = ["Step", "decompress"]


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


def decompress(steps: Sequence[Step], dtype: DType, out: Tensor, digest: str, where: str) -> None:
    """Decode an array straight into `out`.

    Args:
        steps: the whole array, then each delta on it.
        dtype: of the elements.
        out: 1-D, contiguous, of the array's size, on any device.
        digest: of the original words, 32 hex digits.
        where: the array, for messages.

    Raises:
        ChecksumError: a blob, or the outcome, is not what was written.
        FormatError: a blob breaks FORMAT.md.
        CodecUnavailableError: a codec that needs a GPU.
    """
    target = out if out.device.type == "cpu" else torch.empty_like(out, device="cpu")
    words = byte_view(target)
    for step in steps:
        _check_shape(step, dtype, len(words), where)
    # A delta is undone from one buffer into the other, so that no chunk of the
    # base is overwritten before it was used; the last step must end in `words`.
    spare = np.empty_like(words) if len(steps) > 1 else words
    for number, step in enumerate(steps):
        last = (len(steps) - 1 - number) % 2 == 0
        into, base = (words, spare) if last else (spare, words)
        work = _ChunkWork(step, dtype, into, base if step.delta else None)
        for _ in map_chunks(work, range(step.record.chunks)):
            pass
    found = digests.digest(words).hex()
    if found != digest:
        raise ChecksumError(
            f"{where}: the decoded words have digest {found}: expected {digest}; restore the "
            "checkpoint from another copy"
        )
    if target is not out:
        out.copy_(target)


def _check_shape(step: Step, dtype: DType, size: int, where: str) -> None:
    record = step.record
    if (record.words * record.word_bytes, record.word_bytes) != (size, dtype.word_bytes):
        raise FormatError(
            f"{step.where}: {record.words} words of {record.word_bytes} bytes: {where} has "
            f"{size // dtype.word_bytes} of {dtype.word_bytes}"
        )


class _ChunkWork:
    """Checks and decodes one chunk; runs on worker threads."""

    def __init__(
        self,
        step: Step,
        dtype: DType,
        out: NDArray[np.uint8],
        base: NDArray[np.uint8] | None,
    ) -> None:
        self._step, self._dtype, self._out, self._base = step, dtype, out, base
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
        try:
            decode_chunk(
                encoded,
                self._dtype,
                record.layout,
                self._out[part],
                base=base,
                kind=self._step.delta,
            )
        except FormatError as error:
            raise type(error)(f"{self._step.where}, chunk {chunk}: {error}") from error

    def _checked(self, number: int) -> tuple[int, int, memoryview]:
        row = self._step.rows[number]
        blob = self._payload[self._ends[number] : self._ends[number + 1]]
        digests.check(blob, int(row["checksum"]), f"{self._step.where}: blob {number}")
        return int(row["codec"]), int(row["param"]), blob
