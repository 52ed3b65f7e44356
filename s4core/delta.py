"""Turn words into coded words against a base, and back, exactly for every pattern.

    xor      x ^ b
    zigzag   z(o(x) - o(b)): o maps words to integers in the order of the numbers they
             stand for, so that close numbers differ by a small integer, and z folds
             the sign into bit 0, so that small differences have zeros on top

All arithmetic is modulo 2**B, B the bits of a word (FORMAT.md, section 3). Words are
signed tensors, as everywhere: torch has no subtraction and shift of uint16, uint32 and
uint64 on every device, and two's complement addition wraps the same for both. The
arithmetic shift by B - 1 that spreads the sign over the word comes for free, the
logical shift by 1 is an arithmetic one with the top bit masked off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from s4core.errors import CodecError

__all__ = ["KINDS", "apply", "undo"]


def apply(kind: str, words: Tensor, base: Tensor, is_float: bool) -> Tensor:
    """Code words against their base.

    Args:
        kind: `xor` or `zigzag`.
        words: int8, int16, int32 or int64, any shape; not changed.
        base: same dtype, shape and device; not changed.
        is_float: whether the words are floating point with the sign on top.

    Returns:
        The coded words, like `words`.

    Raises:
        CodecError: unknown kind, or words and base that do not match.
    """
    _check(kind, words, base)
    return KINDS[kind][0](words, base, is_float)


def undo(kind: str, coded: Tensor, base: Tensor, is_float: bool) -> Tensor:
    """Return the words that `apply` coded. Arguments and errors are those of `apply`."""
    _check(kind, coded, base)
    return KINDS[kind][1](coded, base, is_float)


def _check(kind: str, words: Tensor, base: Tensor) -> None:
    if kind not in KINDS:
        raise CodecError(f"delta {kind!r}: expected one of {', '.join(KINDS)}")
    found = [(t.dtype, tuple(t.shape), str(t.device)) for t in (words, base)]
    if found[0] != found[1] or words.dtype not in _SIGNED:
        raise CodecError(
            f"delta {kind}: expected words and base of one signed integer dtype, shape and "
            f"device: found {found[0]} and {found[1]}"
        )


def _xor(words: Tensor, base: Tensor, is_float: bool) -> Tensor:  # noqa: ARG001 (one signature)
    return words ^ base


def _zigzag(words: Tensor, base: Tensor, is_float: bool) -> Tensor:
    difference = _order(words, is_float) - _order(base, is_float)
    return (difference << 1) ^ (difference >> (_bits(words) - 1))


def _unzigzag(coded: Tensor, base: Tensor, is_float: bool) -> Tensor:
    difference = ((coded >> 1) & _low_bits(coded)) ^ -(coded & 1)
    return _unorder(difference + _order(base, is_float), is_float)


def _order(words: Tensor, is_float: bool) -> Tensor:
    """o: negative numbers (top bit set) complemented, positive ones with the top bit set."""
    if not is_float:
        return words
    sign = words >> (_bits(words) - 1)  # all ones for a negative number
    return words ^ (sign | _top_bit(words))


def _unorder(ordered: Tensor, is_float: bool) -> Tensor:
    if not is_float:
        return ordered
    positive = ordered >> (_bits(ordered) - 1)  # all ones where the number was positive
    return ordered ^ (~positive | _top_bit(ordered))


def _bits(words: Tensor) -> int:
    return 8 * words.element_size()


def _top_bit(words: Tensor) -> int:
    return -(1 << (_bits(words) - 1))


def _low_bits(words: Tensor) -> int:
    """All bits but the top one."""
    return (1 << (_bits(words) - 1)) - 1


_SIGNED: Final = (torch.int8, torch.int16, torch.int32, torch.int64)
_Coder = Callable[[Tensor, Tensor, bool], Tensor]
KINDS: Final[dict[str, tuple[_Coder, _Coder]]] = {
    "xor": (_xor, _xor),
    "zigzag": (_zigzag, _unzigzag),
}
