"""The CUDA kernels compiled for the host (tests/emulation), so that tests need no GPU.

Every CUDA thread is a fiber; barriers and warp collectives work as on a device.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s4core.kernels import faults, tables
from s4core.kernels.tables import Shape

__all__ = ["Emulated", "aligned", "piece_hashes", "why_not"]

_HERE = Path(__file__).parent / "emulation"
_SOURCES = Path(tables.__file__).parent
_FILES = {"encode": 1, "decode": 2, "seal": 3}

Bytes = NDArray[np.uint8]


def why_not() -> str:
    if platform.machine() != "x86_64":
        return "the emulation switches fibers in x86-64 assembly"
    return "" if shutil.which("g++") else "needs g++"


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="s4-emulated-"))


@functools.cache
def _library(file: str, shape: Shape | None = None, verify: bool = False) -> ctypes.CDLL:
    flags = [f"-DS4_FILE={_FILES[file]}", f"-DS4_VERIFY={int(verify)}"]
    if shape:
        names = zip("WLD", (shape.word_bytes, shape.layout, shape.delta), strict=True)
        long = {"W": "S4_W", "L": "S4_LAYOUT", "D": "S4_DELTA"}
        flags += [f"-D{long[name]}={value}" for name, value in names]
    out = _folder() / ("".join(f.split("=")[1] for f in flags) + ".so")
    command = ["g++", "-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-fno-strict-aliasing"]
    command += [f"-I{_SOURCES}", *flags, "-o", str(out), str(_HERE / "kernels_on_host.cpp")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


def aligned(size: int, fill: int = 0xA5) -> Bytes:
    """Memory that begins at a multiple of 16 bytes, poisoned."""
    memory = np.full(size + 32, fill, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + size]


def _at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def piece_hashes(data: bytes) -> list[int]:
    """The hashes that `s4_pieces` makes of an array."""
    memory = aligned(len(data))
    memory[:] = np.frombuffer(data, np.uint8)
    table, pieces = tables.spans([memory.ctypes.data], [len(data)])
    hashes = np.zeros(pieces, np.uint64)
    _library("seal").run_pieces(_at(table), _at(hashes), 1, pieces)
    return [int(h) for h in hashes]


@dataclass
class Emulated:
    """Encodes and decodes one array with the emulated kernels."""

    shape: Shape
    words: Bytes
    chunk_words: int
    sub_block: int
    base: Bytes | None = None

    def _chunks(self, words: Bytes) -> NDArray[np.void]:
        size = self.shape.word_bytes
        lengths = tables.chunk_lengths(words.size // size, self.chunk_words)
        chunks = np.zeros(len(lengths), tables.CHUNK_DTYPE)
        offset = np.arange(len(lengths)) * self.chunk_words * size
        chunks["words"] = words.ctypes.data + offset
        if self.base is not None:
            chunks["base"] = self.base.ctypes.data + offset
        chunks["n"], chunks["sub"] = lengths, self.sub_block
        return chunks

    def encode(self) -> tuple[NDArray[np.void], Bytes]:
        """Encode; the rows of the index, and the blobs one after the other."""
        chunks, planes = self._chunks(self.words), self.shape.planes
        n = chunks["n"].astype(np.int64)
        stride = tables.pad16_all(tables.plane_stride(n, chunks["sub"].astype(np.int64)))
        scratch = aligned(int(stride.sum()) * planes)
        chunks["scratch"] = scratch.ctypes.data + (np.cumsum(stride) - stride) * planes
        chunks["stride"] = stride // 16
        blobs = np.zeros(len(chunks) * planes, tables.BLOB_DTYPE)
        library = _library("encode", self.shape)
        assert library.run_plan_bytes() == self.shape.plan_bytes
        plans = aligned(len(chunks) * self.shape.plan_bytes)
        library.run_encode(_at(chunks), _at(plans), _at(blobs), len(chunks))
        offsets = np.zeros(len(blobs) + 1, np.uint64)
        _library("seal").run_offsets(_at(blobs), _at(offsets), len(blobs))
        out = aligned(int(offsets[-1]))
        args = (_at(chunks), _at(blobs), _at(offsets), _at(out), planes, len(blobs))
        _library("seal").run_seal(*args)
        return blobs, out

    def _run(
        self, words: Bytes, blobs: NDArray[np.void], data: Bytes, *, verify: bool, check: bool
    ) -> NDArray[np.uint32]:
        chunks, planes = self._chunks(words), self.shape.planes
        offsets = np.zeros(len(blobs), np.uint64)
        offsets[1:] = np.cumsum(blobs["length"], dtype=np.uint64)[:-1]
        status = np.zeros(len(chunks), np.uint32)
        if check:
            fault = int(faults.Fault.CHECKSUM)
            args = (_at(blobs), _at(offsets), _at(data), _at(status), planes, len(blobs), fault)
            _library("seal").run_check(*args)
        run = _library("decode", self.shape, verify).run_decode
        run(_at(chunks), _at(blobs), _at(offsets), _at(data), _at(status), len(chunks))
        return status

    def verify(self, blobs: NDArray[np.void], data: Bytes) -> NDArray[np.uint32]:
        """Compare what the blobs hold with the words; the chunks' statuses."""
        return self._run(self.words, blobs, data, verify=True, check=False)

    def decode(
        self, blobs: NDArray[np.void], data: Bytes, *, check: bool = True
    ) -> tuple[Bytes, NDArray[np.uint32]]:
        """Decode; the words, and the chunks' statuses."""
        out = aligned(self.words.size, 0x5A)
        return out, self._run(out, blobs, data, verify=False, check=check)
