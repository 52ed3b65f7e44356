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
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core.errors import CodecUnavailableError
from s4core.kernels.batches import Group, cut, groups
from s4core.kernels.faults import raise_fault
from s4core.kernels.fields import FieldsBatch, is_fields
from s4core.kernels.hashes import PieceHashes
from s4core.kernels.items import DeviceItem, EncodedItem, check_arrays
from s4core.kernels.landing import Landing
from s4core.kernels.runtime import kernel, require
from s4core.kernels.staging import (
    MIN_SCRATCH_BYTES,
    aligned,
    device_bytes,
    is_out_of_memory,
    new_event,
    new_stream,
    scratch_budget,
    to_device,
)
from s4core.kernels.tables import BLOB_DTYPE, OFFSET_THREADS, THREADS, pad16_all, plane_stride
from s4core.kernels.zigzag import coded, is_small_zigzag

__all__ = ["encode"]

# The first batch of a shape is this many times smaller than the others.
_FIRST: Final = 4


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
        scratch_bytes: device memory to use beside the arrays, on each device; None: 4 GiB, or
            a sixteenth of what is free if that is less.
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
            except RuntimeError as error:
                # Not only torch's allocator runs out: a stream or an event may find no room.
                if not is_out_of_memory(error):
                    raise
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


@dataclass(frozen=True)
class _Plan:
    """A group, cut into batches.

    Attributes:
        group: its chunks.
        stride: int64, bytes of scratch that a plane of each chunk may need.
        bound: int64, the most bytes that each chunk's blobs can take.
        parts: the batches.
    """

    group: Group
    stride: NDArray[np.int64]
    bound: NDArray[np.int64]
    parts: list[slice]

    def scratch_bytes(self, part: slice) -> int:
        """Bytes of scratch that a batch may need."""
        return int(self.stride[part].sum()) * self.group.shape.planes


def _plan(group: Group, budget: int) -> _Plan:
    n, planes = group.chunks["n"].astype(np.int64), group.shape.planes
    stride = pad16_all(plane_stride(n, group.chunks["sub"].astype(np.int64)))
    bound = pad16_all(n) * planes
    group.chunks["stride"] = stride // 16
    # Scratch once, the compact buffer twice. The link idles until the first batch is done.
    costs = 5 * bound if is_fields(group.shape) else stride * planes + 2 * bound
    return _Plan(group, stride, bound, list(cut(costs, budget, first=budget // _FIRST)))


@dataclass
class _Batch:
    """A batch under way: what the device was asked for, and where the answer will be."""

    plan: _Plan
    part: slice
    out: Tensor
    blobs: Tensor
    status: Tensor
    ready: torch.cuda.Event
    free: torch.cuda.Event


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
        self._given = items
        self._items = [_with_aligned(item) for item in items]
        self._device, self._stream, self._verify, self._budget = device, stream, verify, budget
        self._copies = new_stream(device)
        self._landing = Landing(len(items))

    def run(self) -> list[EncodedItem]:
        plans = [_plan(group, self._budget) for group in groups(self._items)]
        fields = [plan for plan in plans if is_fields(plan.group.shape)]
        work = [(plan, part) for plan in plans if plan not in fields for part in plan.parts]
        scratch = device_bytes(max((w.scratch_bytes(p) for w, p in work), default=0), self._device)
        largest = max((int(w.bound[p].sum()) for w, p in work), default=0)
        # Two compact buffers, and when the copy out of each has ended.
        outs = [(device_bytes(largest, self._device), new_event()) for _ in work[:2]]
        try:
            behind: _Batch | None = None
            for number, (plan, part) in enumerate(work):
                batch = self._launch(plan, part, scratch, *outs[number % 2])
                if behind is not None:
                    self._collect(behind)
                behind = batch
            # Hashed while the last blobs cross the link.
            if behind is not None:
                self._collect(behind)
            for plan in fields:
                self._encode_fields(plan)
            hashes = PieceHashes([item.words for item in self._given], self._stream)
            blobs = self._landing.blobs()
        finally:
            # Also when a chunk was refused: nothing may be under way in memory that is freed.
            self._stream.synchronize()
            self._copies.synchronize()
        return [
            EncodedItem(rows, payload, digest)
            for (rows, payload), digest in zip(blobs, hashes.digests(), strict=True)
        ]

    def _launch(
        self, plan: _Plan, part: slice, scratch: Tensor, out: Tensor, free: torch.cuda.Event
    ) -> _Batch:
        group, count = plan.group, part.stop - part.start
        sizes = plan.stride[part] * group.shape.planes
        group.chunks["scratch"][part] = scratch.data_ptr() + np.cumsum(sizes) - sizes
        chunks = to_device(group.chunks[part], self._device)
        blob_count = count * group.shape.planes
        blobs = device_bytes(blob_count * BLOB_DTYPE.itemsize, self._device)
        offsets = device_bytes(8 * (blob_count + 1), self._device)
        status = torch.zeros(count, dtype=torch.int32, device=self._device)
        self._stream.wait_event(free)
        self._kernels(group, chunks, blobs, offsets, out, status, count)
        host_blobs, host_status = _pinned_like(blobs), _pinned_like(status)
        ready = new_event()
        ready.record(self._stream)
        return _Batch(plan, part, out, host_blobs, host_status, ready, free)

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
        blob_count = count * shape.planes
        plans = device_bytes(count * shape.plan_bytes, self._device)
        c, v, b, o, to, s = (
            np.uint64(t.data_ptr()) for t in (chunks, plans, blobs, offsets, out, status)
        )
        kernel("encode.cu", "s4_choose", shape, index)(count, THREADS, on, c, v)
        for name in ("s4_encode_plain", "s4_encode"):
            kernel("encode.cu", name, shape, index)(count, THREADS, on, c, v, b)
        offsets_kernel = kernel("seal.cu", "s4_offsets", None, index)
        offsets_kernel(1, OFFSET_THREADS, on, b, o, np.uint32(blob_count))
        seal = kernel("seal.cu", "s4_seal", None, index)
        seal(blob_count, THREADS, on, c, b, o, to, np.uint32(shape.planes))
        if self._verify:
            for name in ("s4_decode_plain", "s4_decode"):
                check = kernel("decode.cu", name, shape, index, verify=True)
                check(count, THREADS, on, c, b, o, to, s)

    def _encode_fields(self, plan: _Plan) -> None:
        """Profile `nvcomp`: batch after batch, each to its end."""
        group = plan.group
        for part in plan.parts:
            batch = FieldsBatch(group, part, self._device, self._stream)
            rows, out = batch.encode()
            if self._verify:
                self._refuse(batch.decode(rows, out, verify=True), group, part)
            start = 0
            for view in self._landing.place(group, part, plan.bound, rows):
                view.copy_(out[start : start + view.numel()], non_blocking=True)
                start += view.numel()

    def _refuse(self, status: NDArray[np.integer[Any]], group: Group, part: slice) -> None:
        """Raise if a chunk of a batch has a fault."""
        bad = np.flatnonzero(status)
        if len(bad):
            number, chunk = group.whose(part.start + int(bad[0]))
            raise_fault(int(status[bad[0]]), self._items[number].name, chunk)

    def _collect(self, batch: _Batch) -> None:
        """Send a finished batch's blobs to the host."""
        batch.ready.synchronize()
        group = batch.plan.group
        self._refuse(batch.status.numpy(), group, batch.part)
        rows = batch.blobs.numpy().view(BLOB_DTYPE)
        self._copies.wait_event(batch.ready)
        with torch.cuda.stream(self._copies):
            start = 0
            for view in self._landing.place(group, batch.part, batch.plan.bound, rows):
                view.copy_(batch.out[start : start + view.numel()], non_blocking=True)
                start += view.numel()
        batch.free.record(self._copies)


def _with_aligned(item: DeviceItem) -> DeviceItem:
    check_arrays(item)
    base = None if item.base is None else aligned(item.base)
    ready = replace(item, words=aligned(item.words), base=base)
    return coded(ready) if is_small_zigzag(ready) else ready


def _pinned_like(source: Tensor) -> Tensor:
    host = torch.empty_like(source, device="cpu", pin_memory=True)
    host.copy_(source, non_blocking=True)
    return host
