"""Views of an array's words as bytes, without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core import digests, kernels
from s4core.dtypes import DType

__all__ = ["array_digests", "byte_view", "words_of"]


def byte_view(words: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous host tensor: uint8, shape (bytes,), sharing memory."""
    view: NDArray[np.uint8] = words.detach().reshape(-1).view(torch.uint8).numpy()
    return view


def words_of(words: Tensor, dtype: DType) -> int:
    """Return the number of words in a tensor of `dtype`'s elements (or of its raw bytes)."""
    return words.numel() * words.element_size() // dtype.word_bytes


def array_digests(words: Sequence[Tensor]) -> list[bytes]:
    """Return the 16-byte digest of the words of contiguous tensors (FORMAT.md, section 5)."""
    on_gpu = [n for n, t in enumerate(words) if t.device.type == "cuda" and kernels.available()]
    found = dict(
        zip(on_gpu, kernels.digests([words[n] for n in on_gpu]) if on_gpu else (), strict=True)
    )
    return [
        found[n] if n in found else digests.digest(byte_view(t.cpu())) for n, t in enumerate(words)
    ]
