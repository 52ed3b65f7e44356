"""Compress: the words of arrays to blobs, each decoded again before it counts.

The digest is taken of the words that were encoded and compared, chunk by chunk.
Blobs hold no view of the caller's memory: what was returned is safe to mutate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from s4core import digests, dtypes, kernels
from s4core.codecs import NO_SIDE, EncodedPlane, Side, context_bytes
from s4core.digests import Buffer
from s4core.dtypes import Chunking, DType, Layout
from s4core.errors import CodecError, CodecUnavailableError
from s4core.format import BLOB_DTYPE, ArrayRecord
from s4core.kernels import DeviceItem
from s4core.pipeline.choose import Companion
from s4core.pipeline.host import decode_chunk, encode_chunk
from s4core.pipeline.threads import map_chunks
from s4core.pipeline.where import gpu_takes, knows_more
from s4core.pipeline.words import byte_view, words_of

_log = logging.getLogger(__name__)
_local = threading.local()

__all__ = ["Encoded", "Job", "compress", "record_for"]


@dataclass(frozen=True)
class Job:
    """One array to encode.

    Attributes:
        name: for messages.
        words: 1-D, contiguous, of `dtype`'s elements, on any device.
        dtype: of the elements.
        base: words of the base, same size, same device; None: stored whole.
        delta: `xor` or `zigzag` with a base.
        beside: the array whose exponents are the context of an array that is stored whole;
            the context of a delta is its base.
        columns: width of the matrix for `rans.grid`, 0: none.
    """

    name: str
    words: Tensor
    dtype: DType
    base: Tensor | None = None
    delta: str | None = None
    beside: Companion | None = None
    columns: int = 0

    @property
    def companion(self) -> Companion | None:
        """The array whose exponents are the context, if it has one and may use it."""
        if self.base is None or not knows_more(self.words, self.dtype):
            return self.beside
        return Companion(self.base, self.dtype)

    @property
    def chunking(self) -> Chunking:
        """Sizes of its chunks and sub-blocks."""
        known = self.companion is not None or self.columns > 0
        return dtypes.chunking(words_of(self.words, self.dtype), contexts=known)


@dataclass(frozen=True)
class Encoded:
    """One encoded array.

    Attributes:
        record: its record in the index.
        rows: BLOB_DTYPE, shape (record.blobs,): its rows in the index.
        payload: the bytes of the blobs in order, padding included, in any number of pieces.
        digest: 16 bytes, of the original words.
    """

    record: ArrayRecord
    rows: NDArray[np.void]
    payload: Sequence[Buffer]
    digest: bytes

    @property
    def stored_bytes(self) -> int:
        """Length of all its blobs."""
        return int(self.rows["length"].sum(dtype=np.uint64))


def record_for(job: Job, profile: str) -> ArrayRecord:
    """Return how the array of `job` is cut (FORMAT.md, sections 2 and 4.4)."""
    words = words_of(job.words, job.dtype)
    if not gpu_takes(job.words, job.dtype):
        profile = "open"  # the host writes no other
    layout = dtypes.layout_of(job.dtype, words, profile=profile)
    if job.delta == "zigzag" and layout is not Layout.WORDS:
        layout = Layout.BYTES
    word_bytes = job.dtype.word_bytes
    return ArrayRecord(
        words=words,
        chunk_words=job.chunking.chunk_words,
        layout=layout,
        word_bytes=word_bytes,
        planes=dtypes.plane_count(layout, word_bytes, job.dtype.exponent_bits),
    )


def compress(
    jobs: Sequence[Job], *, profile: str = "open", verify: bool = True
) -> Iterator[Encoded]:
    """Encode arrays where they are: those on GPUs together, the others one after the other.

    Args:
        jobs: the arrays.
        profile: which codecs may be used.
        verify: decode every chunk again and compare it with the words it came from.

    Yields:
        One result for each job, in order.

    Raises:
        CodecError: a chunk did not decode to the words it came from; nothing of it was returned.
    """
    records = [record_for(job, profile) for job in jobs]
    done = _compress_on_gpus(jobs, records, verify)
    rest = [job for number, job in enumerate(jobs) if number not in done]
    on_host = _compress_on_host(rest, verify)
    for number in range(len(jobs)):
        yield done.pop(number) if number in done else next(on_host)


def _compress_on_gpus(
    jobs: Sequence[Job], records: Sequence[ArrayRecord], verify: bool
) -> dict[int, Encoded]:
    """Encode the jobs that the GPU codec takes; an empty result sends them to the host."""
    taken = [number for number, job in enumerate(jobs) if gpu_takes(job.words, job.dtype)]
    items = [_device_item(jobs[number], records[number]) for number in taken]
    if not items:
        return {}
    try:
        encoded = kernels.encode(items, verify=verify)
    except CodecUnavailableError as error:
        # A save must never be what runs a training out of memory.
        _log.warning("encoding on the CPU: %s", error)
        return {}
    return {
        number: Encoded(records[number], item.rows, [item.payload], item.digest)
        for number, item in zip(taken, encoded, strict=True)
    }


def _device_item(job: Job, record: ArrayRecord) -> DeviceItem:
    return DeviceItem(
        name=job.name,
        words=job.words,
        dtype=job.dtype,
        layout=record.layout,
        chunk_words=record.chunk_words,
        sub_block=job.chunking.sub_block,
        base=job.base,
        delta=job.delta,
    )


def _compress_on_host(jobs: Sequence[Job], verify: bool) -> Iterator[Encoded]:
    """Encode jobs one after the other, their chunks side by side on the worker threads."""
    works = [_ChunkWork.of(job, record_for(job, "open"), verify) for job in jobs]
    places = ((work, chunk) for work in works for chunk in range(work.record.chunks))
    chunks = map_chunks(lambda place: place[0](place[1]), places)
    for work in works:
        done = list(islice(chunks, work.record.chunks))
        rows = np.concatenate([chunk.rows for chunk in done]) if done else np.empty(0, BLOB_DTYPE)
        payload = [plane.data for chunk in done for plane in chunk.planes]
        digest = digests.digest_of_pieces(piece for chunk in done for piece in chunk.pieces)
        yield Encoded(work.record, rows, payload, digest)


def _scratch(size: int) -> NDArray[np.uint8]:
    """Memory of this thread, used again: fresh pages can cost more than decoding."""
    held: NDArray[np.uint8] | None = getattr(_local, "held", None)
    if held is None or held.size < size:
        held = _local.held = np.empty(size, np.uint8)
    return held[:size]


@dataclass(frozen=True)
class _Chunk:
    """One encoded chunk: its rows of the index, its blobs, the hashes of its words' pieces."""

    rows: NDArray[np.void]
    planes: list[EncodedPlane]
    pieces: list[int]


@dataclass(frozen=True)
class _ChunkWork:
    """Encodes, verifies and checksums one chunk; runs on worker threads."""

    job: Job
    record: ArrayRecord
    words: NDArray[np.uint8]
    base: NDArray[np.uint8] | None
    companion: NDArray[np.uint8] | None
    verify: bool

    @classmethod
    def of(cls, job: Job, record: ArrayRecord, verify: bool) -> _ChunkWork:
        """The work on the chunks of one job."""
        base = None if job.base is None else byte_view(job.base.cpu())
        beside = job.companion
        # Arrays of fewer than 1024 bytes have no planes that a context could serve.
        usable = beside is not None and record.layout is not Layout.WORDS
        companion = byte_view(beside.words.cpu()) if beside is not None and usable else None
        return cls(job, record, byte_view(job.words.cpu()), base, companion, verify)

    def _side(self, chunk: int) -> Side:
        """What is known beside the words of one chunk."""
        first, beside = chunk * self.record.chunk_words, self.job.companion
        if self.companion is not None and beside is not None:
            size = beside.dtype.word_bytes
            last = first + self.record.words_in_chunk(chunk)
            context = context_bytes(self.companion[first * size : last * size], beside.dtype)
            return Side(context=context)
        columns = self.job.columns if self.record.layout is Layout.FLOAT else 0
        return Side(columns=columns, first=first % columns) if columns else NO_SIDE

    def __call__(self, chunk: int) -> _Chunk:
        size = self.record.chunk_words * self.record.word_bytes
        part = slice(chunk * size, (chunk + 1) * size)
        words = self.words[part]
        base = None if self.base is None else self.base[part]
        side = self._side(chunk)
        encoded = encode_chunk(
            words,
            self.job.dtype,
            self.record.layout,
            self.job.chunking.sub_block,
            base=base,
            kind=self.job.delta,
            side=side,
        )
        # The digest is of what the blobs decode to, whatever happens to the words meanwhile.
        proven = self._decoded(chunk, words, base, encoded, side) if self.verify else words
        rows = np.zeros(len(encoded), BLOB_DTYPE)
        for row, plane in zip(rows, encoded, strict=True):
            row["checksum"] = digests.checksum(plane.data)
            row["length"], row["codec"], row["param"] = len(plane.data), plane.codec, plane.param
        # Chunks are whole numbers of pieces, so a chunk's pieces are the array's.
        return _Chunk(rows, encoded, digests.pieces(proven))

    def _decoded(
        self,
        chunk: int,
        words: NDArray[np.uint8],
        base: NDArray[np.uint8] | None,
        encoded: list[EncodedPlane],
        side: Side,
    ) -> NDArray[np.uint8]:
        """Decode a chunk again and compare it; the outcome is this thread's scratch."""
        again = _scratch(len(words))
        planes = [(plane.codec, plane.param, plane.data) for plane in encoded]
        decode_chunk(
            planes,
            self.job.dtype,
            self.record.layout,
            again,
            base=base,
            kind=self.job.delta,
            context=side.context,
        )
        if not np.array_equal(words, again):
            first = int(np.flatnonzero(words != again)[0])
            raise CodecError(
                f"{self.job.name}: chunk {chunk} does not decode to the words it came from "
                f"(first difference at byte {first} of the chunk); nothing was written. Either "
                "the tensor was changed while it was being saved, or this machine's memory or "
                "processor is faulty"
            )
        return again
