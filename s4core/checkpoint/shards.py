"""Shards in a store: reading their ends and index once, and writing them as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from s4core import digests
from s4core import format as shard_format
from s4core.errors import FormatError
from s4core.format import (
    BLOB_DTYPE,
    FOOTER_BYTES,
    HEADER,
    HEADER_BYTES,
    ArrayRecord,
    BlobSpan,
    Footer,
    ShardIndex,
)
from s4core.pipeline import Encoded
from s4core.stores import Store

__all__ = ["Shard", "ShardStream"]


@dataclass
class Shard:
    """One stored shard; its index is fetched at first use and kept.

    Attributes:
        store: holds it.
        key: its key there.
        expected_bytes: its size by the manifest, None where nothing else says so.
    """

    store: Store
    key: str
    expected_bytes: int | None = None

    @property
    def where(self) -> str:
        """Its full address, for messages."""
        return self.store.url_of(self.key)

    @cached_property
    def footer(self) -> Footer:
        """Its two ends, checked.

        Raises:
            FormatError: it is not a whole shard, or not the one the manifest describes.
        """
        size = self.store.size(self.key)
        if self.expected_bytes is not None and size != self.expected_bytes:
            raise FormatError(
                f"{self.where}: {size} bytes: its manifest says {self.expected_bytes}; restore "
                "the object from another copy"
            )
        if size < HEADER_BYTES + FOOTER_BYTES:
            (header,) = self.store.get_ranges(self.key, [(0, min(size, HEADER_BYTES))])
            return shard_format.unpack_footer(header, b"", size, self.where)
        ends = [(0, HEADER_BYTES), (size - FOOTER_BYTES, FOOTER_BYTES)]
        header, footer = self.store.get_ranges(self.key, ends)
        return shard_format.unpack_footer(header, footer, size, self.where)

    @cached_property
    def index(self) -> ShardIndex:
        """Its index, checked.

        Raises:
            FormatError: it is damaged, or breaks FORMAT.md.
        """
        footer = self.footer
        span = (footer.index_offset, footer.index_length)
        (data,) = self.store.get_ranges(self.key, [span])
        return shard_format.unpack_index(data, footer, self.where)

    @cached_property
    def spans(self) -> list[BlobSpan]:
        """Where the blobs of each array lie."""
        return self.index.spans()

    def span(self, entry: int) -> BlobSpan:
        """Where the blobs of array number `entry` lie.

        Raises:
            FormatError: there is no such array.
        """
        if entry >= len(self.spans):
            raise FormatError(
                f"{self.where}: array {entry} is asked for: the shard has {len(self.spans)}"
            )
        return self.spans[entry]


class ShardStream:
    """A shard being written: yields its bytes in order and remembers its index.

    The rows of the index are all that is held in memory (16 bytes a blob).
    """

    def __init__(self) -> None:
        self.records: list[ArrayRecord] = []
        self._rows: list[NDArray[np.void]] = []
        self._offset = HEADER_BYTES
        self.bytes = 0  # of the whole shard, known once `end` has run

    @property
    def rows(self) -> NDArray[np.void]:
        """The rows written so far: BLOB_DTYPE, shape (blobs,)."""
        return np.concatenate(self._rows) if self._rows else np.empty(0, BLOB_DTYPE)

    @property
    def data_bytes(self) -> int:
        """Length of the blobs written so far."""
        return self._offset - HEADER_BYTES

    def begin(self) -> bytes:
        """Return the header."""
        return HEADER

    def add(self, encoded: Encoded) -> Iterator[memoryview]:
        """Yield the blobs of one array and enter it into the index."""
        self.records.append(encoded.record)
        self._rows.append(encoded.rows)
        self._offset += encoded.stored_bytes
        yield from (view for view in map(digests.flat, encoded.payload) if view.nbytes)

    def end(self, manifest: bytes = b"") -> Iterator[bytes]:
        """Yield the embedded manifest, if any, the index and the footer."""
        index = shard_format.pack_index(ShardIndex(tuple(self.records), self.rows))
        padded = manifest + b" " * (shard_format.pad16(len(manifest)) - len(manifest))
        footer = Footer(
            index_offset=self._offset + len(padded),
            index_length=len(index),
            index_checksum=digests.checksum(index),
            manifest_offset=self._offset if padded else 0,
            manifest_length=len(padded),
            manifest_checksum=digests.checksum(padded) if padded else 0,
        )
        self.bytes = footer.index_offset + len(index) + FOOTER_BYTES
        if padded:
            yield padded
        yield index
        yield shard_format.pack_footer(footer)
