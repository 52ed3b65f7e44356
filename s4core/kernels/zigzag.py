"""The zigzag delta of arrays in layout `words`, which the kernels do not make: in torch.

These arrays have fewer than 1024 bytes, stored as their coded words lie in memory, so the
kernels see an array of bytes without a delta. The definition is FORMAT.md, section 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

import torch
from torch import Tensor

from s4core.dtypes import DType, Layout
from s4core.kernels.items import DecodeItem, DeviceItem

__all__ = ["coded", "is_small_zigzag", "undone"]

_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Item = TypeVar("Item", DeviceItem, DecodeItem)


def is_small_zigzag(item: DeviceItem | DecodeItem) -> bool:
    """Return whether the kernels need the item's coded words instead of its words."""
    small = item.layout is Layout.WORDS and item.delta == "zigzag"
    return small and item.words.numel() > 0


def _words(tensor: Tensor | None, dtype: DType) -> Tensor:
    assert tensor is not None
    return tensor.view(torch.uint8).clone().view(_SIGNED[dtype.word_bytes])


def _lowest(words: Tensor) -> int:
    return torch.iinfo(words.dtype).min


def _order(words: Tensor, dtype: DType) -> Tensor:
    return torch.where(words < 0, ~words, words ^ _lowest(words)) if dtype.is_float else words


def _unorder(ordered: Tensor, dtype: DType) -> Tensor:
    if not dtype.is_float:
        return ordered
    return torch.where(ordered < 0, ordered ^ _lowest(ordered), ~ordered)


def coded(item: Item) -> Item:
    """Return the item with its coded words in place of words and base."""
    words, base = _words(item.words, item.dtype), _words(item.base, item.dtype)
    d = _order(words, item.dtype) - _order(base, item.dtype)
    z = (d << 1) ^ (d >> (8 * item.dtype.word_bytes - 1))
    return replace(item, words=z, base=None, delta=None)


def undone(item: DecodeItem, z: Tensor) -> Tensor:
    """Return the words of an item, as bytes, from its coded words."""
    highest = torch.iinfo(z.dtype).max
    d = ((z >> 1) & highest) ^ -(z & 1)
    ordered = d + _order(_words(item.base, item.dtype), item.dtype)
    return _unorder(ordered, item.dtype).view(torch.uint8)
