"""Views of an array's words as bytes, without a copy."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from s4core import digests
from s4core.dtypes import DType

__all__ = ["array_digest", "byte_view", "words_of"]


def byte_view(words: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous host tensor: uint8, shape (bytes,), sharing memory."""
    view: NDArray[np.uint8] = words.detach().reshape(-1).view(torch.uint8).numpy()
    return view


def words_of(words: Tensor, dtype: DType) -> int:
    """Return the number of words in a tensor of `dtype`'s elements (or of its raw bytes)."""
    return words.numel() * words.element_size() // dtype.word_bytes


def array_digest(words: Tensor) -> bytes:
    """Return the 16-byte digest of a contiguous tensor's words (FORMAT.md, section 5)."""
    return digests.digest(byte_view(words.cpu()))
