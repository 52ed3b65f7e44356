"""Verify: is every byte that a checkpoint stands on there and unharmed?

Checksums only (as fast as the store reads, many requests side by side), or a full decode
of every array up to its digest. Blobs that several checkpoints share are checked once; if
they are damaged, each checkpoint that stands on them is lost, and no other.

What cannot be read because the store does not answer is not damage: that is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from s4core import digests
from s4core.checkpoint.fetch import Request, fetch
from s4core.checkpoint.reader import Reader
from s4core.errors import FormatError, KeyNotFoundError, S4Error, StoreError

__all__ = ["Finding", "Verifier"]

_BATCH_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Finding:
    """The verdict on one checkpoint.

    Attributes:
        name: of the ref or file.
        ok: whether it would load, bit for bit.
        bytes: that were read for it.
        error: what is wrong, "" if nothing.
    """

    name: str
    ok: bool
    bytes: int
    error: str


_Place = tuple[str, int]  # address of a shard, offset of an array's blobs in it


@dataclass
class Verifier:
    """Checks checkpoints, remembering the verdict on blobs that several of them share.

    Attributes:
        full: decode every array too.
        progress: called with the number of bytes read so far, by one thread at a time.
        threads: reads side by side.
    """

    full: bool = False
    progress: Callable[[int], None] = lambda _: None
    threads: int = 8
    read_bytes: int = 0
    _verdicts: dict[_Place, str] = field(default_factory=dict)  # "" is good
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, name: str, open_reader: Callable[[], Reader]) -> Finding:
        """Check one checkpoint; whatever is wrong with it is in the finding.

        Raises:
            StoreError: the store did not answer, or denied it.
        """
        before = self.read_bytes
        try:
            reader = open_reader()
            error = self._decode(reader) if self.full else self._checksums(reader)
        except StoreError as failure:
            if not isinstance(failure, KeyNotFoundError):
                raise
            error = str(failure)
        except S4Error as failure:
            error = str(failure)
        return Finding(name, ok=not error, bytes=self.read_bytes - before, error=error)

    def _decode(self, reader: Reader) -> str:
        cpu = torch.device("cpu")
        for _, words in reader.arrays(range(len(reader.manifest.arrays)), lambda _: cpu):
            self._advance(words.numel() * words.element_size())
        return ""

    def _checksums(self, reader: Reader) -> str:
        places = dict(reader.stored_spans())
        new = [item for item in places.items() if item[0] not in self._verdicts]
        with ThreadPoolExecutor(self.threads, thread_name_prefix="s4-verify") as readers:
            for place, verdict in readers.map(self._read, list(_batches(new))):
                self._verdicts.update(dict.fromkeys(place, "") | verdict)
        return next((self._verdicts[place] for place in places if self._verdicts[place]), "")

    def _read(
        self, batch: Sequence[tuple[_Place, Request]]
    ) -> tuple[list[_Place], dict[_Place, str]]:
        """Check a batch; return its places, and what is wrong with some of them."""
        try:
            found = list(fetch([request for _, request in batch]))
        except (FormatError, KeyNotFoundError) as error:  # a shard is gone, or cut short
            if len(batch) == 1:
                return [batch[0][0]], {batch[0][0]: str(error)}
            alone = [self._read([item]) for item in batch]
            return [p for p, _ in batch], {k: v for _, bad in alone for k, v in bad.items()}
        bad: dict[_Place, str] = {}
        for (place, request), (data,) in zip(batch, found, strict=True):
            try:
                _check_blobs(request, data)
            except FormatError as error:
                bad[place] = str(error)
            self._advance(len(data))
        return [place for place, _ in batch], bad

    def _advance(self, count: int) -> None:
        with self._lock:
            self.read_bytes += count
            self.progress(self.read_bytes)


def _batches(
    requests: Sequence[tuple[_Place, Request]],
) -> Iterator[list[tuple[_Place, Request]]]:
    """Small arrays go together, so that a thread has enough to do."""
    batch: list[tuple[_Place, Request]] = []
    for item in requests:
        batch.append(item)
        if sum(request.bytes for _, request in batch) >= _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_blobs(request: Request, data: bytes) -> None:
    ((shard, span),) = request.spans
    view, start = memoryview(data), 0
    rows = shard.index.blobs[span.first : span.first + span.count]
    for number, (length, checksum) in enumerate(_lengths(rows)):
        where = f"{shard.where}: blob {span.first + number} at byte {span.offset + start}"
        digests.check(view[start : start + length], checksum, where)
        start += length


def _lengths(rows: NDArray[np.void]) -> Iterator[tuple[int, int]]:
    return zip(rows["length"].tolist(), rows["checksum"].tolist(), strict=True)
