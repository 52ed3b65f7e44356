"""Decode blobs from host memory straight into arrays on the device.

Per batch: blobs cross the link into a staging buffer, every checksum is compared on
the device, and only chunks whose blobs are whole are decoded. The staging buffer is
double, so one batch crosses the link while the one before is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core.errors import FormatError
from s4core.kernels.batches import Group, cut, groups
from s4core.kernels.faults import Fault, raise_fault
from s4core.kernels.fields import FieldsBatch, is_fields
from s4core.kernels.items import DecodeItem, check_arrays
from s4core.kernels.payload import Payload
from s4core.kernels.runtime import kernel, require
from s4core.kernels.staging import (
    aligned,
    device_bytes,
    new_event,
    new_stream,
    scratch_budget,
    to_device,
)
from s4core.kernels.tables import BLOB_DTYPE, THREADS
from s4core.kernels.zigzag import coded, is_small_zigzag, undone

__all__ = ["decodable", "decode"]

# raw, const, bitpack, rans; and gdeflate, nvcomp.ans, which stand in layout `fields` only.
_CODECS = (1, 2, 3, 4, 6, 7)


def decodable(rows: NDArray[np.void]) -> bool:
    """Return whether every blob of an array has a codec that can be decoded on the device."""
    return bool(np.isin(rows["codec"], _CODECS).all())


def decode(
    items: Sequence[DecodeItem],
    *,
    scratch_bytes: int | None = None,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Decode arrays into memory of their devices; returns when all of it is there.

    Args:
        items: the arrays; their payloads may be in any host memory.
        scratch_bytes: device memory to use beside the arrays; default as in `encode`.
        stream: where to run, default each device's current stream.

    Raises:
        ChecksumError: a blob is damaged.
        FormatError: a blob or an index row breaks FORMAT.md.
        CodecUnavailableError: no CuPy.
    """
    require()
    for index in sorted({item.words.device.index for item in items}):
        device = torch.device("cuda", index)
        mine = [item for item in items if item.words.device.index == index]
        on = stream or torch.cuda.current_stream(device)
        with torch.cuda.device(device), torch.cuda.stream(on):
            _Decoding(mine, device, on, scratch_budget(device, scratch_bytes)).run()


@dataclass
class _Stage:
    """One of the two ways across the link.

    Attributes:
        device: where blobs land.
        host: page-locked copy of blobs that come from ordinary memory.
        crossed: when the host side may be overwritten.
        decoded: when the device side may be.
    """

    device: Tensor
    host: Tensor
    crossed: torch.cuda.Event
    decoded: torch.cuda.Event


class _Decoding:
    """One call of `decode` on one device."""

    def __init__(
        self,
        items: list[DecodeItem],
        device: torch.device,
        stream: torch.cuda.Stream,
        budget: int,
    ) -> None:
        self._given = items
        self._items = [_with_aligned(item) for item in items]
        self._device, self._stream, self._budget = device, stream, budget
        self._copies = new_stream(device)
        self._pending: list[tuple[Group, slice, Tensor]] = []

    def run(self) -> None:
        try:
            for group in groups(self._items):
                self._decode_group(group)
        finally:
            # Also when a chunk was refused: nothing may be under way in memory that is freed.
            self._copies.synchronize()
            self._stream.synchronize()
        for group, part, status in self._pending:
            self._refuse(group, part, status.numpy())
        for given, item in zip(self._given, self._items, strict=True):
            if is_small_zigzag(given):
                given.words.view(torch.uint8).copy_(undone(given, item.words))
            elif given.words.data_ptr() != item.words.data_ptr():
                given.words.copy_(item.words)

    def _decode_group(self, group: Group) -> None:
        planes = group.shape.planes
        rows = self._rows(group)
        sizes = rows["length"].reshape(-1, planes).sum(axis=1, dtype=np.int64)
        payload = Payload([self._items[number].payload for number in group.members])
        if len(payload) != int(sizes.sum()):
            raise FormatError(
                f"blobs of {len(payload)} bytes: the index says {int(sizes.sum())}; "
                "fetch the objects again"
            )
        parts = list(cut(2 * sizes, self._budget))
        largest = max(int(sizes[part].sum()) for part in parts) if parts else 0
        host = 0 if payload.pinned else largest
        stages = [self._stage(largest, host) for _ in parts[:2]]
        start = 0
        for number, part in enumerate(parts):
            size = int(sizes[part].sum())
            stage = stages[number % 2]
            own = rows[part.start * planes : part.stop * planes]
            self._cross(payload, start, size, stage)
            if is_fields(group.shape):
                self._decode_fields(group, part, own, stage)
            else:
                self._launch(group, part, own, stage)
            start += size
        # The stages go back to the allocator here, and the payload to the caller soon after.
        self._copies.synchronize()

    def _stage(self, size: int, host: int) -> _Stage:
        stage = _Stage(
            device_bytes(size, self._device),
            torch.empty(host, dtype=torch.uint8, pin_memory=True),
            new_event(),
            new_event(),
        )
        # The allocator hands out memory in the order of the stream, and what ran there before may
        # still use it; the copies are on another stream.
        stage.decoded.record(self._stream)
        return stage

    def _rows(self, group: Group) -> NDArray[np.void]:
        """Return the index rows of a group, checked against its chunks."""
        tables: list[NDArray[np.void]] = []
        for member, number in enumerate(group.members):
            item = self._items[number]
            expected = int(group.first[member + 1] - group.first[member]) * group.shape.planes
            rows = np.ascontiguousarray(item.rows).view(BLOB_DTYPE).reshape(-1)
            if len(rows) != expected:
                raise FormatError(f"{item.name}: {len(rows)} blobs: expected {expected}")
            if (rows["length"] % 16).any():
                raise FormatError(f"{item.name}: a blob's length is not a multiple of 16")
            tables.append(rows)
        return np.concatenate(tables)

    def _cross(self, payload: Payload, start: int, size: int, stage: _Stage) -> None:
        self._copies.wait_event(stage.decoded)
        if not payload.pinned:
            stage.crossed.synchronize()
            payload.copy_to(stage.host.numpy(), start, size)
        with torch.cuda.stream(self._copies):
            if payload.pinned:
                at = 0
                for view in payload.views(start, size):
                    stage.device[at : at + view.numel()].copy_(view, non_blocking=True)
                    at += view.numel()
            else:
                stage.device[:size].copy_(stage.host[:size], non_blocking=True)
        stage.crossed.record(self._copies)

    def _decode_fields(
        self, group: Group, part: slice, rows: NDArray[np.void], stage: _Stage
    ) -> None:
        self._stream.wait_event(stage.crossed)
        batch = FieldsBatch(group, part, self._device, self._stream)
        self._refuse(group, part, batch.decode(rows, stage.device, verify=False))
        stage.decoded.record(self._stream)

    def _refuse(self, group: Group, part: slice, status: NDArray[np.integer[Any]]) -> None:
        """Raise if a chunk of a batch has a fault."""
        bad = np.flatnonzero(status)
        if len(bad):
            number, chunk = group.whose(part.start + int(bad[0]))
            raise_fault(int(status[bad[0]]), self._items[number].name, chunk)

    def _launch(self, group: Group, part: slice, rows: NDArray[np.void], stage: _Stage) -> None:
        count, shape, index = part.stop - part.start, group.shape, self._device.index
        offsets = np.zeros(len(rows), np.uint64)
        np.cumsum(rows["length"][:-1], dtype=np.uint64, out=offsets[1:])
        tables = [to_device(t, self._device) for t in (group.chunks[part], rows, offsets)]
        status = torch.zeros(count, dtype=torch.int32, device=self._device)
        c, b, o = (np.uint64(t.data_ptr()) for t in tables)
        stream_at, s = np.uint64(stage.device.data_ptr()), np.uint64(status.data_ptr())
        self._stream.wait_event(stage.crossed)
        on = self._stream
        check = kernel("seal.cu", "s4_check", None, index)
        planes, fault = np.uint32(shape.planes), np.uint32(Fault.CHECKSUM)
        check(len(rows), THREADS, on, b, o, stream_at, s, planes, fault)
        for name in ("s4_decode_plain", "s4_decode"):
            kernel("decode.cu", name, shape, index)(count, THREADS, on, c, b, o, stream_at, s)
        stage.decoded.record(self._stream)
        host = torch.empty(count, dtype=torch.int32, pin_memory=True)
        host.copy_(status, non_blocking=True)
        self._pending.append((group, part, host))


def _with_aligned(item: DecodeItem) -> DecodeItem:
    check_arrays(item)
    base = None if item.base is None else aligned(item.base)
    ready = replace(item, words=aligned(item.words), base=base)
    # Of a small zigzag the kernels decode the coded words, into memory of their own.
    return coded(ready) if is_small_zigzag(ready) else ready
