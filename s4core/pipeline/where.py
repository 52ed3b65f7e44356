"""Which arrays the GPU codec takes.

Floating point arrays on CUDA devices are encoded and decoded where they are, all
of a call together. Everything else (integers, host tensors, machines without CuPy)
takes the host's way, and the same blobs come of it.

The kernels have no `rans.ctx` and no `rans.grid` yet. What the GPU takes is therefore
written without them (`CONTEXTS_ON_GPU`): coding it on the host would cost the raw words'
way over the link and a hundredfold of the time. What holds such blobs is decoded on the host.
"""

from __future__ import annotations

import logging
from typing import Final

from torch import Tensor

from s4core import kernels
from s4core.dtypes import DType

__all__ = ["CONTEXTS_ON_GPU", "gpu_takes", "knows_more"]

# Whether the GPU codec writes and reads `rans.ctx` and `rans.grid`: the one place to say so.
CONTEXTS_ON_GPU: Final = False

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


def knows_more(words: Tensor, dtype: DType) -> bool:
    """Whether an array may be coded with contexts and grids where it is."""
    return dtype.is_float and (CONTEXTS_ON_GPU or not gpu_takes(words, dtype))
