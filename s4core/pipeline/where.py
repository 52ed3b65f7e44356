"""Which arrays the GPU codec takes.

Floating point arrays on CUDA devices are encoded and decoded where they are, all
of a call together. Everything else (integers, host tensors, machines without CuPy)
takes the host's way, and the same blobs come of it.
"""

from __future__ import annotations

import logging

from torch import Tensor

from s4core import kernels
from s4core.dtypes import DType

__all__ = ["gpu_takes"]

_log = logging.getLogger(__name__)
_told: set[str] = set()


def gpu_takes(words: Tensor, dtype: DType) -> bool:
    """Whether the GPU codec takes this array; logs once why not where it could have."""
    if words.device.type != "cuda" or not dtype.is_float:
        return False
    reason = kernels.why_unavailable()
    if reason and reason not in _told:
        _told.add(reason)
        _log.warning("CUDA tensors are encoded on the CPU, which is slower: %s", reason)
    return not reason
