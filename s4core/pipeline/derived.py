"""Arrays that another array of the same state says all about (FORMAT.md, section 7.1).

`copy`: every word is the same. `rne`: each word is the other's float32 rounded to nearest,
ties to even, to bfloat16 or float16, but for a few exceptions that are listed. Integer
operations of torch only, so that every device finds the same words and a proof made on one
holds on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from s4core.dtypes import DType
from s4core.errors import CodecError
from s4core.planes import WORD_DTYPE

__all__ = ["derive", "exceptions_of", "fits", "rounded"]

# Words at a time: on the host what stays in the cache, on a GPU what keeps it busy and is
# small beside the arrays.
_HOST_STEP: Final = 1 << 15
_GPU_STEP: Final = 1 << 24


def fits(how: str, source: DType, target: DType) -> bool:
    """Whether arrays of dtype `target` can be derived from arrays of dtype `source`."""
    if how == "copy":
        return source == target
    return how == "rne" and source.name == "float32" and target.name in ("bfloat16", "float16")


def rounded(how: str, sample: Tensor, source_dtype: DType, dtype: DType) -> Tensor:
    """Return the words of `dtype` that follow from a small tensor of `source_dtype`."""
    return _round(how, _words(sample, source_dtype.word_bytes), dtype)


def _steps(words: Tensor) -> Iterator[slice]:
    step = _HOST_STEP if words.device.type == "cpu" else _GPU_STEP
    return (slice(start, start + step) for start in range(0, words.numel(), step))


def _words(tensor: Tensor, word_bytes: int) -> Tensor:
    return tensor.view(WORD_DTYPE[word_bytes])


def _round(how: str, source: Tensor, target: DType) -> Tensor:
    """The words that follow from `source`, words of its dtype, int16 or as `source`."""
    if how == "copy":
        return source
    if target.name == "bfloat16":
        return _to_bfloat16(source)
    return _to_float16(source)


def _to_bfloat16(words: Tensor) -> Tensor:
    """NaN becomes 0x7fc0. Beyond 2^31 the sum wraps as unsigned numbers do."""
    odd = (words >> 16).bitwise_and_(1)
    upper = odd.add_(0x7FFF).add_(words).bitwise_right_shift_(16).to(torch.int16)
    return upper.masked_fill_((words & 0x7FFFFFFF) > 0x7F800000, 0x7FC0)


def _to_float16(words: Tensor) -> Tensor:
    """NaN becomes 0x7e00 with the sign; what is too large becomes infinity."""
    magnitude = words & 0x7FFFFFFF
    exponent = magnitude >> 23
    normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    # Below 2^-14 the unit is 2^-24: the significand is shifted by 14 bits and more.
    shift = (126 - exponent).clamp_(14, 25)
    significand = (magnitude & 0x7FFFFF) | 0x800000
    quotient, half = significand >> shift, 1 << (shift - 1)
    rest = significand - (quotient << shift)
    tie_up = (rest == half) & ((quotient & 1) == 1)
    small = quotient + ((rest > half) | tie_up).to(torch.int32)
    found = torch.where(magnitude >= 0x38800000, normal.clamp_(max=0x7C00), small)
    found.masked_fill_(magnitude > 0x7F800000, 0x7E00)
    return (found | ((words >> 16) & 0x8000)).to(torch.int16)


def exceptions_of(
    how: str, source: Tensor, target: Tensor, source_dtype: DType, dtype: DType, limit: int
) -> bytes | None:
    """Compare every word of `target` with what follows from `source`.

    Args:
        how: `copy` or `rne`.
        source: 1-D, contiguous, of `source_dtype`'s elements.
        target: as many words, 1-D, contiguous, same device.
        source_dtype: as `fits` says.
        dtype: of `target`.
        limit: the most words that may differ.

    Returns:
        The exceptions: a u64 position and the word for each, by rising position; None if
        there are more than `limit`.
    """
    old, new = _words(source, source_dtype.word_bytes), _words(target, dtype.word_bytes)
    positions: list[Tensor] = []
    for part in _steps(new):
        differs = _round(how, old[part], dtype) != new[part]
        at = differs.nonzero().view(-1) + part.start
        limit -= at.numel()
        if limit < 0:
            return None
        positions.append(at)
    found = torch.cat(positions) if positions else torch.empty(0, dtype=torch.int64)
    return _pack(found.cpu().numpy(), new[found].cpu().numpy(), dtype)


def _record(dtype: DType) -> np.dtype[np.void]:
    return np.dtype([("at", "<u8"), ("word", f"<i{dtype.word_bytes}")])


def _pack(positions: np.ndarray, words: np.ndarray, dtype: DType) -> bytes:
    records = np.empty(len(positions), _record(dtype))
    records["at"], records["word"] = positions, words
    return records.tobytes()


def derive(
    how: str, source: Tensor, out: Tensor, source_dtype: DType, dtype: DType, exceptions: bytes
) -> None:
    """Fill `out` with the words that follow from `source` and the exceptions.

    Args:
        how: `copy` or `rne`.
        source: 1-D, contiguous, of `source_dtype`'s elements.
        out: as many words of `dtype`, 1-D, contiguous, same device.
        source_dtype: as `fits` says.
        dtype: of `out`.
        exceptions: as `exceptions_of` gives them; positions have been checked.

    Raises:
        CodecError: dtypes that this derivation does not know.
    """
    if not fits(how, source_dtype, dtype):
        raise CodecError(f"no derivation {how} from {source_dtype.name} to {dtype.name}")
    old, new = _words(source, source_dtype.word_bytes), _words(out, dtype.word_bytes)
    for part in _steps(new):
        new[part] = _round(how, old[part], dtype)
    records = np.frombuffer(exceptions, _record(dtype))
    if len(records):
        at = torch.from_numpy(records["at"].astype(np.int64)).to(new.device)
        new[at] = torch.from_numpy(records["word"].copy()).to(new.device)
