"""Verify: is every byte that a checkpoint stands on there and unharmed?

Checksums only (as fast as the store reads), or a full decode of every array up
to its digest. Blobs that several checkpoints share are checked once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from s4core import digests
from s4core.checkpoint.fetch import Request, fetch
from s4core.checkpoint.reader import Reader
from s4core.errors import S4Error

__all__ = ["Finding", "Verifier"]


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


@dataclass
class Verifier:
    """Checks checkpoints one after another, remembering which blobs are known to be good.

    Attributes:
        full: decode every array too.
        progress: called with the number of bytes read so far.
    """

    full: bool = False
    progress: Callable[[int], None] = lambda _: None
    read_bytes: int = 0
    _good: set[tuple[str, int]] = field(default_factory=set)

    def check(self, name: str, open_reader: Callable[[], Reader]) -> Finding:
        """Check one checkpoint; whatever is wrong with it is in the finding."""
        before = self.read_bytes
        try:
            reader = open_reader()
            if self.full:
                self._decode(reader)
            else:
                self._checksums(reader)
        except S4Error as error:
            return Finding(name, ok=False, bytes=self.read_bytes - before, error=str(error))
        return Finding(name, ok=True, bytes=self.read_bytes - before, error="")

    def _decode(self, reader: Reader) -> None:
        cpu = torch.device("cpu")
        for _, words in reader.arrays(range(len(reader.manifest.arrays)), lambda _: cpu):
            self._advance(words.numel() * words.element_size())

    def _checksums(self, reader: Reader) -> None:
        requests, labels = [], []
        for place, request in reader.stored_spans():
            if place not in self._good:
                requests.append(request)
                labels.append(place)
        for place, request, (data,) in zip(labels, requests, fetch(requests), strict=True):
            _check_blobs(request, data)
            self._good.add(place)
            self._advance(len(data))

    def _advance(self, count: int) -> None:
        self.read_bytes += count
        self.progress(self.read_bytes)


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
