"""Profile `nvcomp`: sign, exponent and mantissa as planes, through nvCOMP where that pays.

Per chunk and plane, from the histogram as in profile `open` (FORMAT.md, 4.3): the sign
is `const` or `bitpack`; a plane that `open` would code with rANS goes through nvCOMP, an
exponent through ANS and a mantissa through GDeflate, and is stored raw where that is not
smaller; everything else is what `open` makes of it. To the kernels of profile `open` each
plane of each chunk is a chunk of one-byte words of its own: a *row*.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core.errors import CodecError
from s4core.kernels import nvcomp
from s4core.kernels.batches import Group
from s4core.kernels.faults import Fault
from s4core.kernels.runtime import kernel
from s4core.kernels.staging import device_bytes, to_device
from s4core.kernels.tables import (
    BLOB_DTYPE,
    CHUNK_DTYPE,
    OFFSET_THREADS,
    THREADS,
    Shape,
    pad16,
    pad16_all,
)

__all__ = ["FieldsBatch", "is_fields"]

_RAW, _BITPACK, _RANS, _GDEFLATE, _ANS = 1, 3, 4, 6, 7
_CODECS: Final = {_ANS: nvcomp.ANS, _GDEFLATE: nvcomp.GDEFLATE}
# A plane as words of one byte.
_BYTES: Final = Shape(1, 2, 0)
# struct Verdicts of one-byte words: codec, mask, top, varies, first, then frequencies.
_PLAN_NUMBERS: Final = _BYTES.plan_bytes // 4
_PLAN_CODEC: Final = 0
_PLAN_FIRST: Final = 4
_SIGN: Final = 0
_EXPONENT: Final = 1

_Numbers = NDArray[np.int64]


def is_fields(shape: Shape) -> bool:
    """Return whether words of this shape are cut into `fields`."""
    return shape.layout > 2


class FieldsBatch:
    """One batch of chunks whose words are cut into fields, on one device and stream."""

    def __init__(
        self, group: Group, part: slice, device: torch.device, stream: torch.cuda.Stream
    ) -> None:
        self._shape, self._device, self._stream = group.shape, device, stream
        self._chunks = group.chunks[part].copy()
        self._planes = group.shape.planes
        n = self._chunks["n"].astype(np.int64)
        padded = pad16_all(n)
        self._buffer = device_bytes(int(padded.sum()) * self._planes, device)
        first = np.cumsum(padded * self._planes) - padded * self._planes
        self._chunks["scratch"] = self._buffer.data_ptr() + first
        self._chunks["stride"] = padded // 16
        # Of each row: its length, and where its plane lies.
        self._n: _Numbers = np.repeat(n, self._planes)
        role = np.tile(np.arange(self._planes), len(n))
        self._role: _Numbers = role
        self._at: _Numbers = (
            self._buffer.data_ptr() + np.repeat(first, self._planes) + role * pad16_all(self._n)
        )

    def encode(self) -> tuple[NDArray[np.void], Tensor]:
        """Return the blobs' rows, and the blobs one after the other on the device."""
        table = self._rows()
        slots = self._slots()
        room = device_bytes(int(slots.sum()), self._device)
        room.zero_()  # nvCOMP leaves bytes unwritten
        table["scratch"] = room.data_ptr() + np.cumsum(slots) - slots
        table["stride"] = slots // 16
        chunks = to_device(self._chunks, self._device)
        self._launch("fields.cu", "s4_cut_fields", self._shape, len(self._chunks), chunks)
        codec, blobs = self._choose_and_encode(to_device(table, self._device))
        for number, batched in _CODECS.items():
            self._compress(np.flatnonzero(codec == number), number, batched, table, blobs)
        return self._seal(table, blobs)

    def _launch(
        self, file: str, name: str, shape: Shape | None, blocks: int, *args: Tensor | np.uint32
    ) -> None:
        threads = OFFSET_THREADS if name == "s4_offsets" else THREADS
        values = [np.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in args]
        run = kernel(file, name, shape, self._device.index)
        run(blocks, threads, self._stream, *values)

    def _rows(self) -> NDArray[np.void]:
        table = np.zeros(len(self._n), CHUNK_DTYPE)
        table["words"], table["n"] = self._at, self._n
        table["sub"] = np.repeat(self._chunks["sub"], self._planes)
        return table

    def _slots(self) -> _Numbers:
        """Bytes that each row's blob may need, whatever codec makes it."""
        lengths, where = np.unique(self._n, return_inverse=True)
        most = [
            pad16(max(int(n), *(codec.max_output(int(n)) for codec in _CODECS.values())))
            for n in lengths
        ]
        slots: _Numbers = np.array(most, dtype=np.int64)[where]
        return slots

    def _choose_and_encode(self, rows: Tensor) -> tuple[_Numbers, NDArray[np.void]]:
        """Encode what is not nvCOMP's; the codec of every row, and the rows' records."""
        count = len(self._n)
        plans = device_bytes(count * _BYTES.plan_bytes, self._device)
        self._launch("encode.cu", "s4_choose", _BYTES, count, rows, plans)
        numbers = plans[: count * _BYTES.plan_bytes].view(torch.int32).view(count, _PLAN_NUMBERS)
        codec: _Numbers = numbers[:, _PLAN_CODEC].cpu().numpy().astype(np.int64)
        signs = np.flatnonzero((self._role == _SIGN) & ((codec == _RANS) | (codec == _RAW)))
        if len(signs):
            # A sign that varies has one bit to pack, and its constant bits are zero.
            where = torch.from_numpy(signs).to(self._device)
            numbers[where, _PLAN_CODEC] = _BITPACK
            numbers[where, _PLAN_FIRST] = 0
            codec[signs] = _BITPACK
        blobs = device_bytes(count * BLOB_DTYPE.itemsize, self._device)
        self._launch("encode.cu", "s4_encode", _BYTES, count, rows, plans, blobs)
        external = codec == _RANS
        codec[external] = np.where(self._role[external] == _EXPONENT, _ANS, _GDEFLATE)
        records = blobs.cpu().numpy().view(BLOB_DTYPE)[:count].copy()
        records["zero"] = 0  # of rows that are nvCOMP's nothing was written
        return codec, records

    def _streams(self, addresses: _Numbers, sizes: _Numbers) -> nvcomp.Streams:
        return nvcomp.Streams(
            torch.from_numpy(addresses).to(self._device),
            torch.from_numpy(sizes).to(self._device),
            int(sizes.max()),
            int(sizes.sum()),
        )

    def _compress(
        self,
        rows: _Numbers,
        number: int,
        codec: nvcomp.Batched,
        table: NDArray[np.void],
        blobs: NDArray[np.void],
    ) -> None:
        """Compress rows with one codec of nvCOMP; store raw what does not get smaller."""
        if not len(rows):
            return
        inputs = self._streams(self._at[rows], self._n[rows])
        outputs = torch.from_numpy(table["scratch"][rows].astype(np.int64)).to(self._device)
        sizes, statuses = (t.cpu().numpy() for t in codec.compress(inputs, outputs, self._stream))
        if statuses.any():
            raise CodecError(
                f"nvCOMP {codec.name} could not compress a plane: status "
                f"{int(statuses[np.flatnonzero(statuses)[0]])}, expected 0; nothing was written"
            )
        length, whole = pad16_all(sizes), pad16_all(self._n[rows])
        smaller = length < whole
        blobs["codec"][rows] = np.where(smaller, number, _RAW)
        blobs["length"][rows] = np.where(smaller, length, whole)
        blobs["param"][rows] = np.where(smaller, length - sizes, 0)
        table["scratch"][rows] = np.where(smaller, table["scratch"][rows], self._at[rows])

    def _seal(
        self, table: NDArray[np.void], blobs: NDArray[np.void]
    ) -> tuple[NDArray[np.void], Tensor]:
        count = len(blobs)
        out = device_bytes(int(blobs["length"].sum(dtype=np.int64)), self._device)
        rows, records = to_device(table, self._device), to_device(blobs, self._device)
        offsets = device_bytes(8 * (count + 1), self._device)
        self._launch("seal.cu", "s4_offsets", None, 1, records, offsets, np.uint32(count))
        self._launch("seal.cu", "s4_seal", None, count, rows, records, offsets, out, np.uint32(1))
        return records.cpu().numpy().view(BLOB_DTYPE), out

    def decode(self, blobs: NDArray[np.void], out: Tensor, *, verify: bool) -> _Numbers:
        """Decode blobs and write the words, or compare with them.

        Args:
            blobs: the rows' records; their checksums are compared first.
            out: the blobs, one after the other on the device.
            verify: compare with the words instead of writing them.

        Returns:
            The status of each chunk, as in `faults`.
        """
        status = self._check(blobs, out)
        if status.any():
            return status
        self._buffer.fill_(0)
        external = np.isin(blobs["codec"], list(_CODECS))
        starts = np.cumsum(blobs["length"], dtype=np.int64) - blobs["length"]
        self._decode_own(np.flatnonzero(~external), blobs, starts, out, status)
        for number, codec in _CODECS.items():
            rows = np.flatnonzero(blobs["codec"] == number)
            self._decompress(rows, codec, blobs, starts, out, status)
        if not status.any():
            self._join(status, verify)
        return status

    def _check(self, blobs: NDArray[np.void], out: Tensor) -> _Numbers:
        count = len(blobs)
        offsets = np.cumsum(blobs["length"], dtype=np.uint64) - blobs["length"]
        status = torch.zeros(len(self._chunks), dtype=torch.int32, device=self._device)
        self._launch(
            *("seal.cu", "s4_check", None, count),
            *(to_device(blobs, self._device), to_device(offsets, self._device), out, status),
            *(np.uint32(self._planes), np.uint32(Fault.CHECKSUM)),
        )
        return status.cpu().numpy().astype(np.int64)

    def _fail(self, status: _Numbers, rows: _Numbers, fault: Fault) -> None:
        for row in rows:
            status[row // self._planes] = fault | int(self._role[row]) << 8

    def _decode_own(
        self,
        rows: _Numbers,
        blobs: NDArray[np.void],
        starts: _Numbers,
        out: Tensor,
        status: _Numbers,
    ) -> None:
        """Decode what is not nvCOMP's."""
        if not len(rows):
            return
        table, records = self._rows()[rows], np.ascontiguousarray(blobs[rows])
        found = torch.zeros(len(rows), dtype=torch.int32, device=self._device)
        args = [to_device(t, self._device) for t in (table, records, starts[rows])]
        for name in ("s4_decode_plain", "s4_decode"):
            self._launch("decode.cu", name, _BYTES, len(rows), *args, out, found)
        faults = found.cpu().numpy()
        for row, fault in zip(rows[faults != 0], faults[faults != 0], strict=True):
            self._fail(status, np.array([row]), Fault(int(fault) & 0xFF))

    def _decompress(
        self,
        rows: _Numbers,
        codec: nvcomp.Batched,
        blobs: NDArray[np.void],
        starts: _Numbers,
        out: Tensor,
        status: _Numbers,
    ) -> None:
        if not len(rows):
            return
        sizes = blobs["length"][rows].astype(np.int64) - blobs["param"][rows]
        bad = rows[(blobs["param"][rows] > 15) | (sizes <= 0)]
        if len(bad):
            self._fail(status, bad, Fault.LENGTH)
            return
        self._fail(
            status, rows[_padding(out, starts[rows] + sizes, blobs["param"][rows])], Fault.PADDING
        )
        inputs = self._streams(out.data_ptr() + starts[rows], sizes)
        outputs = self._streams(self._at[rows], self._n[rows])
        made, statuses = (t.cpu().numpy() for t in codec.decompress(inputs, outputs, self._stream))
        self._fail(status, rows[(statuses != 0) | (made != self._n[rows])], Fault.END)

    def _join(self, status: _Numbers, verify: bool) -> None:
        found = torch.zeros(len(self._chunks), dtype=torch.int32, device=self._device)
        fault = Fault.MISMATCH if verify else Fault.HEADER
        run = kernel("fields.cu", "s4_join_fields", self._shape, self._device.index, verify=verify)
        chunks = to_device(self._chunks, self._device)
        pointers = (np.uint64(chunks.data_ptr()), np.uint64(found.data_ptr()))
        run(len(self._chunks), THREADS, self._stream, *pointers, np.uint32(fault))
        status[:] = found.cpu().numpy()


def _padding(out: Tensor, ends: _Numbers, padding: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which streams are followed by padding that is not zero."""
    offsets = np.arange(16)
    where = np.minimum(ends[:, None] + offsets, out.numel() - 1)
    tails = out[torch.from_numpy(where).to(out.device)].cpu().numpy()
    wrong: NDArray[np.bool_] = ((tails != 0) & (offsets < padding[:, None])).any(axis=1)
    return wrong
