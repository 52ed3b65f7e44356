"""The one file that loads nvCOMP: its batched ANS and GDeflate through the C interface.

The library ends the process when it is given a damaged stream, so callers compare
checksums before they decompress. It leaves bytes of its output unwritten, so callers
zero output buffers first; blobs are then the same from run to run.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from s4core.errors import CodecError, CodecUnavailableError

__all__ = ["ANS", "GDEFLATE", "Batched", "Streams", "why_unavailable"]

_MAJOR: Final = 6
_SUCCESS: Final = 0
_TYPE_UCHAR: Final = 1
_BACKEND_CUDA: Final = 2
_OPTION_BYTES: Final = 64


class _Options(ctypes.Structure):
    """64 bytes of options, passed by value; what each byte means differs by codec."""

    _fields_ = (("bytes", ctypes.c_uint8 * _OPTION_BYTES),)


def _options(*numbers: int) -> _Options:
    """Options whose first 32-bit numbers are these, and the rest zero."""
    options = _Options()
    for index, number in enumerate(numbers):
        options.bytes[4 * index] = number
    return options


@functools.cache
def _library() -> ctypes.CDLL:
    from nvidia import libnvcomp

    library: ctypes.CDLL | None = libnvcomp.load_library()
    if library is None:
        raise ImportError(f"libnvcomp.so.{_MAJOR} could not be loaded")
    return library


@functools.cache
def why_unavailable() -> str:
    """Return why nvCOMP cannot run here, or an empty string."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        _library()
    except (ImportError, OSError) as error:
        cuda = (torch.version.cuda or "13").split(".")[0]
        return f"nvCOMP {_MAJOR} is missing ({error}): pip install 's4weights[cu{cuda}]'"
    return ""


@dataclass(frozen=True)
class Streams:
    """Byte arrays on the device, each 16-byte aligned.

    Attributes:
        addresses: int64, shape (count,), on the device.
        sizes: int64, shape (count,), on the device.
        largest: no size is over this.
        total: nor their sum over this.
    """

    addresses: Tensor
    sizes: Tensor
    largest: int
    total: int

    def __len__(self) -> int:
        return self.addresses.numel()


@dataclass(frozen=True)
class Batched:
    """One codec of nvCOMP, for many chunks in one call.

    Attributes:
        name: as in the names of its functions.
        compress_options: for its compressor.
        decompress_options: for its decompressor.
    """

    name: str
    compress_options: _Options
    decompress_options: _Options

    def _call(self, function: str, *args: Any) -> None:
        reason = why_unavailable()
        if reason:
            raise CodecUnavailableError(
                f"nvCOMP cannot run: {reason}; profile `open` needs no nvCOMP, and a host that has "
                "it converts a checkpoint with `s4weights export`"
            )
        status = getattr(_library(), f"nvcompBatched{self.name}{function}")(*args)
        if status != _SUCCESS:
            raise CodecError(f"nvCOMP {self.name}{function} returned status {status}: expected 0")

    def max_output(self, largest: int) -> int:
        """Return the most bytes that an input of at most `largest` bytes is compressed to."""
        size = ctypes.c_size_t()
        self._call(
            "CompressGetMaxOutputChunkSize",
            ctypes.c_size_t(largest),
            self.compress_options,
            ctypes.byref(size),
        )
        return size.value

    def _temp(self, function: str, options: _Options, streams: Streams, stream: Any) -> Tensor:
        size = ctypes.c_size_t()
        self._call(
            function,
            ctypes.c_size_t(len(streams)),
            ctypes.c_size_t(streams.largest),
            options,
            ctypes.byref(size),
            ctypes.c_size_t(streams.total),
            ctypes.c_void_p(stream.cuda_stream),
        )
        return torch.empty(size.value, dtype=torch.uint8, device=streams.addresses.device)

    def compress(
        self, inputs: Streams, outputs: Tensor, stream: torch.cuda.Stream
    ) -> tuple[Tensor, Tensor]:
        """Compress every input.

        Args:
            inputs: what to compress.
            outputs: int64, on the device: where to; each has room for `max_output`, zeroed.
            stream: current on the inputs' device.

        Returns:
            Sizes, int64, and statuses, int32 (0: good), on the device.
        """
        temp = self._temp("CompressGetTempSize", self.compress_options, inputs, stream)
        sizes = torch.zeros_like(inputs.sizes)
        statuses = torch.full_like(sizes, -1, dtype=torch.int32)
        self._call(
            "CompressAsync",
            *(_pointer(inputs.addresses), _pointer(inputs.sizes)),
            *(ctypes.c_size_t(inputs.largest), ctypes.c_size_t(len(inputs))),
            *(_pointer(temp), ctypes.c_size_t(temp.numel())),
            *(_pointer(outputs), _pointer(sizes)),
            *(self.compress_options, _pointer(statuses), ctypes.c_void_p(stream.cuda_stream)),
        )
        return sizes, statuses

    def decompress(
        self, inputs: Streams, outputs: Streams, stream: torch.cuda.Stream
    ) -> tuple[Tensor, Tensor]:
        """Decompress every input to the output of the same number; as `compress`.

        The inputs' checksums must have been compared. Returns the sizes made, and statuses.
        """
        temp = self._temp("DecompressGetTempSize", self.decompress_options, outputs, stream)
        sizes = torch.zeros_like(outputs.sizes)
        statuses = torch.full_like(sizes, -1, dtype=torch.int32)
        self._call(
            "DecompressAsync",
            *(_pointer(inputs.addresses), _pointer(inputs.sizes)),
            *(_pointer(outputs.sizes), _pointer(sizes), ctypes.c_size_t(len(inputs))),
            *(_pointer(temp), ctypes.c_size_t(temp.numel()), _pointer(outputs.addresses)),
            *(self.decompress_options, _pointer(statuses), ctypes.c_void_p(stream.cuda_stream)),
        )
        return sizes, statuses


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


# rANS of bytes, exact histogram, the library's own choice of sub-chunks and states.
ANS: Final = Batched("ANS", _options(0, _TYPE_UCHAR), _options(_BACKEND_CUDA, 0xFF))
# Level 0, entropy coding alone: mantissas hold no matches, and it is ten times as fast as level 1.
GDEFLATE: Final = Batched("Gdeflate", _options(0), _options(_BACKEND_CUDA))
