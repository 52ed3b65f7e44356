"""Encode arrays where they are, prove it, and bring the blobs to the host.

A batch of chunks takes four launches: encode to scratch, offsets, seal (compact copy
in index order, with checksums), verify (decode again and compare with the words).
The blobs of one batch cross the link while the next one is encoded; the host follows
one batch behind, so it never waits for a batch that was just launched.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core.errors import CodecError, CodecUnavailableError
from s4core.kernels.batches import Group, cut, groups
from s4core.kernels.faults import raise_fault
from s4core.kernels.hashes import PieceHashes
from s4core.kernels.items import DeviceItem, EncodedItem
from s4core.kernels.pinned import PinnedArena
from s4core.kernels.runtime import kernel, require
from s4core.kernels.staging import (
    MIN_SCRATCH_BYTES,
    aligned,
    device_bytes,
    new_event,
    new_stream,
    scratch_budget,
    to_device,
)
from s4core.kernels.tables import BLOB_DTYPE, plane_stride

__all__ = ["encode"]

_THREADS = 256
_SEAL_WARPS = 4


def encode(
    items: Sequence[DeviceItem],
    *,
    verify: bool = True,
    scratch_bytes: int | None = None,
    stream: torch.cuda.Stream | None = None,
) -> list[EncodedItem]:
    """Encode arrays on their devices; returns when every blob is in host memory.

    Args:
        items: the arrays, on any CUDA devices.
        verify: decode every chunk again on the device and compare it with its words.
        scratch_bytes: device memory to use beside the arrays; None: 1 GiB, or a sixteenth
            of what is free if that is less. Twice this in several devices' case, once each.
        stream: where to run, default each device's current stream.

    Raises:
        CodecError: a chunk did not decode to the words it came from; nothing is returned.
        CodecUnavailableError: no CuPy, or too little device memory: use the CPU.
    """
    require()
    done: list[EncodedItem | None] = [None] * len(items)
    for device in sorted({item.words.device.index for item in items}):
        mine = [number for number, item in enumerate(items) if item.words.device.index == device]
        own = [items[number] for number in mine]
        encoded = _on_device(own, device, verify, scratch_bytes, stream)
        for number, item in zip(mine, encoded, strict=True):
            done[number] = item
    return [item for item in done if item is not None]


def _on_device(
    items: list[DeviceItem],
    index: int,
    verify: bool,
    scratch_bytes: int | None,
    stream: torch.cuda.Stream | None,
) -> list[EncodedItem]:
    """Encode arrays of one device, with less and less scratch where memory is short."""
    device = torch.device("cuda", index)
    on = stream or torch.cuda.current_stream(device)
    budget = scratch_budget(device, scratch_bytes)
    with torch.cuda.device(device), torch.cuda.stream(on):
        while True:
            try:
                return _Encoding(items, device, on, verify, budget).run()
            except torch.cuda.OutOfMemoryError as error:
                on.synchronize()
                budget = _smaller(budget, device, error)


def _smaller(budget: int, device: torch.device, error: Exception) -> int:
    if budget // 2 < MIN_SCRATCH_BYTES:
        raise CodecUnavailableError(
            f"{device} has no {budget} bytes left for the codec's scratch: "
            "encode on the CPU, or free device memory"
        ) from error
    warnings.warn(
        f"{device} is short of memory: the codec goes on with {budget // 2} bytes of scratch",
        ResourceWarning,
        stacklevel=2,
    )
    return budget // 2


@dataclass
class _Batch:
    """A batch under way: what the device was asked for, and where the answer will be."""

    group: Group
    part: slice
    out: Tensor
    blobs: Tensor
    status: Tensor
    ready: torch.cuda.Event


class _Encoding:
    """One call of `encode` on one device."""

    def __init__(
        self,
        items: list[DeviceItem],
        device: torch.device,
        stream: torch.cuda.Stream,
        verify: bool,
        budget: int,
    ) -> None:
        self._items = [_with_aligned(item) for item in items]
        self._device, self._stream, self._verify, self._budget = device, stream, verify, budget
        self._copies = new_stream(device)
        self._landing = _Landing(items)
        # When the copy out of each of the two compact buffers has ended.
        self._free = [new_event(), new_event()]

    def run(self) -> list[EncodedItem]:
        try:
            hashes = PieceHashes([item.words for item in self._items], self._stream)
            for group in groups(self._items):
                if len(group.chunks):
                    self._encode_group(group)
        finally:
            # Also when a chunk was refused: nothing may be under way in memory that is freed.
            self._stream.synchronize()
            self._copies.synchronize()
        return self._landing.items(hashes.digests())

    def _encode_group(self, group: Group) -> None:
        n = group.chunks["n"].astype(np.int64)
        planes = group.shape.planes
        stride = pad16_all(plane_stride(n, group.chunks["sub"].astype(np.int64)))
        bound = pad16_all(n) * planes
        # Scratch once, the compact buffer twice.
        parts = list(cut(stride * planes + 2 * bound, self._budget))
        scratch = device_bytes(max(int((stride[p] * planes).sum()) for p in parts), self._device)
        largest = max(int(bound[p].sum()) for p in parts)
        outs = [device_bytes(largest, self._device) for _ in parts[:2]]
        group.chunks["stride"] = stride // 16
        self._landing.begin(group, bound)
        behind: _Batch | None = None
        for number, part in enumerate(parts):
            upto = np.cumsum(stride[part] * planes)
            group.chunks["scratch"][part] = np.uint64(scratch.data_ptr()) + (
                upto - stride[part] * planes
            ).astype(np.uint64)
            batch = self._launch(group, part, outs[number % 2], self._free[number % 2])
            if behind is not None:
                self._collect(behind, self._free[(number - 1) % 2])
            behind = batch
        if behind is not None:
            self._collect(behind, self._free[(len(parts) - 1) % 2])
        # The buffers go back to the allocator, which must not hand them out before the copies end.
        self._stream.wait_stream(self._copies)

    def _launch(self, group: Group, part: slice, out: Tensor, free: torch.cuda.Event) -> _Batch:
        chunks = to_device(group.chunks[part], self._device)
        count = part.stop - part.start
        blob_count = count * group.shape.planes
        blobs = device_bytes(blob_count * BLOB_DTYPE.itemsize, self._device)
        offsets = device_bytes(8 * (blob_count + 1), self._device)
        status = torch.zeros(count, dtype=torch.int32, device=self._device)
        self._stream.wait_event(free)
        self._kernels(group, chunks, blobs, offsets, out, status, count)
        host_blobs = _pinned_like(blobs)
        host_status = _pinned_like(status)
        ready = new_event()
        ready.record(self._stream)
        return _Batch(group, part, out, host_blobs, host_status, ready)

    def _kernels(
        self,
        group: Group,
        chunks: Tensor,
        blobs: Tensor,
        offsets: Tensor,
        out: Tensor,
        status: Tensor,
        count: int,
    ) -> None:
        index, shape, on = self._device.index, group.shape, self._stream
        blob_count = np.uint32(count * shape.planes)
        c, b, o, to, s = (np.uint64(t.data_ptr()) for t in (chunks, blobs, offsets, out, status))
        kernel("encode.cu", "s4_encode", shape, index)(count, _THREADS, on, c, b)
        kernel("seal.cu", "s4_offsets", None, index)(1, 1024, on, b, o, blob_count)
        kernel("seal.cu", "s4_seal", None, index)(
            -(-int(blob_count) // _SEAL_WARPS),
            32 * _SEAL_WARPS,
            on,
            *(c, b, o, to),
            np.uint32(shape.planes),
            blob_count,
        )
        if self._verify:
            kernel("decode.cu", "s4_verify", shape, index)(count, _THREADS, on, c, b, o, to, s)

    def _collect(self, batch: _Batch, free: torch.cuda.Event) -> None:
        """Send a finished batch's blobs to the host."""
        batch.ready.synchronize()
        bad = np.flatnonzero(batch.status.numpy())
        if len(bad):
            number, chunk = batch.group.whose(batch.part.start + int(bad[0]))
            raise_fault(int(batch.status[bad[0]]), self._items[number].name, chunk)
        rows = batch.blobs.numpy().view(BLOB_DTYPE)
        self._copies.wait_event(batch.ready)
        with torch.cuda.stream(self._copies):
            start = 0
            for view in self._landing.place(batch.group, batch.part, rows):
                view.copy_(batch.out[start : start + view.numel()], non_blocking=True)
                start += view.numel()
        free.record(self._copies)


@dataclass
class _Place:
    """Where one item's blobs go."""

    view: Tensor
    filled: int


class _Landing:
    """Host memory for the blobs of all items, and their rows."""

    def __init__(self, items: list[DeviceItem]) -> None:
        self._arena = PinnedArena()
        empty = _Place(torch.empty(0, dtype=torch.uint8), 0)
        self._places = [replace(empty) for _ in items]
        self._rows: list[list[NDArray[np.void]]] = [[] for _ in items]
        self._bound: NDArray[np.int64] = np.empty(0, np.int64)

    def begin(self, group: Group, bound: NDArray[np.int64]) -> None:
        """Start a group; `bound`: the most bytes that each chunk's blobs can take."""
        self._bound = np.concatenate((np.zeros(1, np.int64), np.cumsum(bound)))
        assert len(self._bound) == len(group.chunks) + 1

    def place(self, group: Group, part: slice, rows: NDArray[np.void]) -> list[Tensor]:
        """Return the host memory for a batch's blobs, in order, and keep its rows."""
        planes = group.shape.planes
        lengths = rows["length"].reshape(-1, planes).sum(axis=1, dtype=np.int64)
        views: list[Tensor] = []
        chunks = np.arange(part.start, part.stop)
        for member, run in groupby(chunks, key=lambda chunk: int(group.owner[chunk])):
            own = list(run)
            first, last = own[0] - part.start, own[-1] + 1 - part.start
            size = int(lengths[first:last].sum())
            after = int(self._bound[group.first[member + 1]] - self._bound[own[-1] + 1])
            number = group.members[member]
            views.append(self._grow(number, size, after))
            self._rows[number].append(rows[first * planes : last * planes].copy())
        return _merged(views)

    def _grow(self, number: int, size: int, after: int) -> Tensor:
        place = self._places[number]
        if place.filled == 0:
            place.view = self._arena.take(size + after)
        view = place.view[place.filled : place.filled + size]
        place.filled += size
        if not after:
            place.view = self._arena.give_back(place.view, place.filled)
        return view

    def items(self, digests: list[bytes]) -> list[EncodedItem]:
        """Return what was encoded."""
        return [
            EncodedItem(
                rows=np.concatenate(rows) if rows else np.empty(0, BLOB_DTYPE),
                payload=place.view[: place.filled].numpy(),
                digest=digest,
            )
            for place, rows, digest in zip(self._places, self._rows, digests, strict=True)
        ]


def _merged(views: list[Tensor]) -> list[Tensor]:
    """Join views that follow each other in one segment: fewer, larger copies."""
    merged: list[Tensor] = []
    for view in views:
        if not view.numel():
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
            and last.data_ptr() + last.numel() == view.data_ptr()
        ):
            merged[-1] = last.as_strided((last.numel() + view.numel(),), (1,))
        else:
            merged.append(view)
    return merged


def pad16_all(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round each size up to a multiple of 16."""
    return -(-sizes // 16) * 16


def _with_aligned(item: DeviceItem) -> DeviceItem:
    base = None if item.base is None else aligned(item.base)
    words = aligned(item.words)
    for one in (item.words, item.base):
        if one is not None and not one.is_contiguous():
            raise CodecError(f"{item.name}: words must be contiguous")
    return (
        item if words is item.words and base is item.base else replace(item, words=words, base=base)
    )


def _pinned_like(source: Tensor) -> Tensor:
    host = torch.empty_like(source, device="cpu", pin_memory=True)
    host.copy_(source, non_blocking=True)
    return host
