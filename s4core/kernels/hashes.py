"""XXH3 on the device: the pieces of digests (FORMAT.md, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from s4core.kernels.runtime import kernel
from s4core.kernels.staging import aligned, to_device
from s4core.kernels.tables import PIECE_BYTES, THREADS, spans

__all__ = ["PieceHashes", "digests"]


class PieceHashes:
    """The hashes of every 64 KiB piece of some arrays of one device, on their way to the host."""

    def __init__(self, words: Sequence[Tensor], stream: torch.cuda.Stream) -> None:
        sizes = [t.numel() * t.element_size() for t in words]
        self._keep = [aligned(t) for t in words]
        table, pieces = spans([t.data_ptr() for t in self._keep], sizes)
        self._counts = [-(-size // PIECE_BYTES) for size in sizes]
        self._host = torch.empty(pieces, dtype=torch.int64, pin_memory=True)
        if not pieces:
            return
        device = words[0].device
        rows = to_device(table, device)
        hashes = torch.empty(pieces, dtype=torch.int64, device=device)
        kernel("seal.cu", "s4_pieces", None, device.index)(
            pieces,
            THREADS,
            stream,
            np.uint64(rows.data_ptr()),
            np.uint64(hashes.data_ptr()),
            np.uint32(len(table)),
        )
        self._host.copy_(hashes, non_blocking=True)

    def digests(self) -> list[bytes]:
        """Return the 16-byte digest of each array; the stream must have been waited for."""
        hashes: NDArray[np.int64] = self._host.numpy()
        ends = np.cumsum([0, *self._counts])
        return [
            xxhash.xxh3_128_digest(hashes[start:stop].tobytes()) for start, stop in pairwise(ends)
        ]


def digests(words: Sequence[Tensor], stream: torch.cuda.Stream | None = None) -> list[bytes]:
    """Return the digest of each array's words.

    Args:
        words: 1-D, contiguous, on CUDA devices, of any dtype.
        stream: where to run, default each device's current stream.

    Raises:
        CodecUnavailableError: no CuPy.
    """
    found: list[bytes] = [b""] * len(words)
    for device in {t.device for t in words}:
        mine = [number for number, t in enumerate(words) if t.device == device]
        on = stream or torch.cuda.current_stream(device)
        with torch.cuda.device(device), torch.cuda.stream(on):
            hashes = PieceHashes([words[number] for number in mine], on)
            on.synchronize()
        for number, digest in zip(mine, hashes.digests(), strict=True):
            found[number] = digest
    return found
