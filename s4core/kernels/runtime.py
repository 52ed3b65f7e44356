"""The one place that imports CuPy: kernels compiled for the device at hand, and launched.

Sources are the .cu and .cuh files beside this module, compiled by NVRTC at first
use for the device's own architecture and kept in CuPy's cache on disk. Kernels run
on torch's streams and on memory of torch's allocator.
"""

from __future__ import annotations

import functools
import re
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from s4core.errors import CodecUnavailableError
from s4core.kernels.tables import Shape

__all__ = ["Kernel", "available", "kernel", "kernel_source", "require", "why_unavailable"]

_HERE: Final = Path(__file__).parent
_INCLUDE: Final = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_PRAGMA_ONCE: Final = "#pragma once"
_lock = threading.Lock()


def _import_cupy() -> Any:
    import cupy

    return cupy


@functools.cache
def why_unavailable() -> str:
    """Return why nothing can be encoded on a GPU here, or an empty string."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        _import_cupy()
    except ImportError as error:
        cuda = (torch.version.cuda or "13").split(".")[0]
        return f"CuPy is missing ({error}): pip install 's4weights[cu{cuda}]'"
    return ""


def available(device: torch.device | str | int | None = None) -> bool:
    """Return whether arrays on `device` (default: any CUDA device) can be encoded there."""
    if device is not None and torch.device(device).type != "cuda":
        return False
    return not why_unavailable()


def require() -> None:
    """Raise `CodecUnavailableError` unless the kernels can run here."""
    reason = why_unavailable()
    if reason:
        raise CodecUnavailableError(
            f"the GPU codec cannot run: {reason}; the CPU codec reads and writes the same bytes"
        )


def kernel_source(name: str) -> str:
    """Return a source file with its includes in place, each once."""
    seen: set[str] = set()

    def inline(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = (_HERE / file).read_text(encoding="utf-8").replace(_PRAGMA_ONCE, "")
        return _INCLUDE.sub(lambda found: inline(found[1]), text)

    return inline(name)


class Kernel:
    """One compiled kernel on one device."""

    def __init__(self, function: Any, device: int) -> None:
        self._function, self._device = function, device

    def __call__(
        self, blocks: int, threads: int, stream: torch.cuda.Stream, *args: np.generic
    ) -> None:
        """Launch on `stream`; pointers are passed as uint64. No blocks: nothing happens."""
        if not blocks:
            return
        cuda = _import_cupy().cuda
        with cuda.Device(self._device), _cupy_stream(stream.cuda_stream, self._device):
            self._function((blocks,), (threads,), args)


@functools.lru_cache(maxsize=64)
def _cupy_stream(pointer: int, device: int) -> Any:
    cuda = _import_cupy().cuda
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_Stream(pointer))
    return cuda.ExternalStream(pointer, device)


class _Stream:
    """A stream by its address, in the CUDA stream protocol."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


@functools.cache
def _module(file: str, shape: Shape | None, device: int, verify: bool) -> Any:
    cupy = _import_cupy()
    options = ["-std=c++17"]
    if shape is not None:
        options += [
            f"-DS4_W={shape.word_bytes}",
            f"-DS4_LAYOUT={shape.layout}",
            f"-DS4_DELTA={shape.delta}",
            f"-DS4_VERIFY={int(verify)}",
            f"-DS4_FIELDS={5 if shape.layout == 4 else 8}",
        ]
    with cupy.cuda.Device(device):
        return cupy.RawModule(code=kernel_source(file), options=tuple(options), backend="nvrtc")


@functools.cache
def _kernel(file: str, name: str, shape: Shape | None, device: int, verify: bool) -> Kernel:
    cupy = _import_cupy()
    with cupy.cuda.Device(device):
        function = _module(file, shape, device, verify).get_function(name)
        # Otherwise the driver leaves too little shared memory for four blocks a processor.
        function.preferred_shared_memory_carveout = 100
    return Kernel(function, device)


def kernel(
    file: str, name: str, shape: Shape | None, device: int, *, verify: bool = False
) -> Kernel:
    """Return kernel `name` of source `file`, compiled for `shape` at first use.

    Args:
        file: a source file beside this module.
        name: of the kernel.
        shape: of the words; None for a source that does not depend on it.
        device: index of the CUDA device.
        verify: of decode.cu: compare with the words instead of writing them.

    Raises:
        CodecUnavailableError: there is no CUDA device, or no CuPy.
    """
    require()
    with _lock:
        return _kernel(file, name, shape, device, verify)
