"""Fetching blobs: coalesced, ahead of the decoder, within a budget.

The plan is made first and holds no bytes; then batches of about `BATCH_BYTES`
are fetched one ahead of the one being decoded. Memory is two batches, or two
arrays where one array is larger than a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from s4core.checkpoint.shards import Shard
from s4core.format import BlobSpan
from s4core.memory import check_available

__all__ = ["BATCH_BYTES", "Request", "fetch"]

BATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Request:
    """The blobs of one array: one span for each of its links, the whole one first."""

    spans: Sequence[tuple[Shard, BlobSpan]]

    @property
    def bytes(self) -> int:
        """Length of all its blobs."""
        return sum(span.length for _, span in self.spans)


def fetch(requests: Sequence[Request], budget: int = BATCH_BYTES) -> Iterator[list[bytes]]:
    """Yield the bytes of each request, in order: one buffer for each span.

    Raises:
        StateError: the stored bytes of one array and its bases do not fit in memory.
        StoreError: a get failed.
        TruncatedError: an object is shorter than its index says.
    """
    largest = max((request.bytes for request in requests), default=0)
    check_available(largest, "an array as it is stored, with all that it stands on,")
    batches = list(_batches(requests, budget))
    if len(batches) < 2:
        for batch in batches:
            yield from _get(batch)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="s4-fetch") as ahead:
        waiting = ahead.submit(_get, batches[0])
        for following in batches[1:]:
            ready = waiting.result()
            waiting = ahead.submit(_get, following)
            yield from ready
        yield from waiting.result()


def _batches(requests: Sequence[Request], budget: int) -> Iterator[list[Request]]:
    batch: list[Request] = []
    size = 0
    for request in requests:
        if batch and size + request.bytes > budget:
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += request.bytes
    if batch:
        yield batch


def _get(batch: Sequence[Request]) -> list[list[bytes]]:
    by_shard: dict[int, list[tuple[int, int, Shard, BlobSpan]]] = {}
    for number, request in enumerate(batch):
        for link, (shard, span) in enumerate(request.spans):
            by_shard.setdefault(id(shard), []).append((number, link, shard, span))
    found = [[b""] * len(request.spans) for request in batch]
    for wanted in by_shard.values():
        shard = wanted[0][2]
        ranges = [(span.offset, span.length) for _, _, _, span in wanted]
        pieces = shard.store.get_ranges(shard.key, ranges)
        for (number, link, _, _), data in zip(wanted, pieces, strict=True):
            found[number][link] = data
    return found
