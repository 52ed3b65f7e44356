"""Deltas are bijections on every pattern, and the coded words are those of FORMAT.md."""

from __future__ import annotations

import pytest
import torch
from bits import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import all_patterns_16, tensor_of
from torch import Tensor

from s4core.delta import KINDS, apply, undo
from s4core.errors import CodecError

WORDS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


# FORMAT.md, section 3, in Python's integers.
def oracle(kind: str, x: int, b: int, bits: int, is_float: bool) -> int:
    full, top = (1 << bits) - 1, 1 << (bits - 1)
    if kind == "xor":
        return x ^ b

    def order(u: int) -> int:
        if not is_float:
            return u
        return ~u & full if u & top else u | top

    d = (order(x) - order(b)) & full
    signed = d - (1 << bits) if d & top else d
    return ((signed << 1) ^ (signed >> (bits - 1))) & full


def from_ints(values: list[int], bits: int) -> Tensor:
    return tensor_of(b"".join(v.to_bytes(bits // 8, "little") for v in values), WORDS[bits])


def edge_words(bits: int) -> st.SearchStrategy[int]:
    top, full = 1 << (bits - 1), (1 << bits) - 1
    edges = [0, 1, 2, top - 1, top, top + 1, full - 1, full]
    return st.integers(0, full) | st.sampled_from(edges)


@pytest.mark.parametrize("is_float", [True, False], ids=["float", "plain"])
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("bits", sorted(WORDS))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_coded_words_are_the_formats_and_undo_restores(
    bits: int, kind: str, is_float: bool, data: st.DataObject
) -> None:
    pairs = data.draw(st.lists(st.tuples(edge_words(bits), edge_words(bits)), max_size=33))
    x, b = (from_ints([pair[i] for pair in pairs], bits) for i in (0, 1))
    coded = apply(kind, x, b, is_float)
    expected = from_ints([oracle(kind, p, q, bits, is_float) for p, q in pairs], bits)
    assert_same_bits(expected, coded)
    assert_same_bits(x, undo(kind, coded, b, is_float))


@pytest.mark.parametrize("is_float", [True, False], ids=["float", "plain"])
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("base", [0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7F80, 0x3F80])
def test_every_16_bit_pattern_against_every_edge(kind: str, base: int, is_float: bool) -> None:
    every = all_patterns_16(torch.int16)
    under = from_ints([base], 16).expand(1 << 16).contiguous()
    coded = apply(kind, every, under, is_float)
    assert len(torch.unique(coded)) == 1 << 16
    assert_same_bits(every, undo(kind, coded, under, is_float))
    assert_same_bits(under, undo(kind, apply(kind, under, every, is_float), every, is_float))


@pytest.mark.parametrize(
    ("x", "b", "coded"),
    [(1.0, 1.0, 0), (1.0078125, 1.0, 2), (1.0, 1.0078125, 1), (-0.0, 0.0, 1), (0.0, -0.0, 2)],
)
def test_close_numbers_give_small_coded_words(x: float, b: float, coded: int) -> None:
    words = [torch.tensor([v], dtype=torch.bfloat16).view(torch.int16) for v in (x, b)]
    assert apply("zigzag", words[0], words[1], True).tolist() == [coded]


def test_arguments_are_not_changed() -> None:
    x, b = torch.tensor([1, -2, 3]), torch.tensor([-7, 8, 9])
    before = (x.clone(), b.clone())
    for kind in KINDS:
        undo(kind, apply(kind, x, b, True), b, True)
    assert_same_bits(before[0], x)
    assert_same_bits(before[1], b)


def test_what_does_not_match_is_refused() -> None:
    x = torch.zeros(3, dtype=torch.int16)
    with pytest.raises(CodecError, match=r"delta 'sum': expected one of xor, zigzag"):
        apply("sum", x, x, True)
    for base in (x[:2], x.to(torch.int32), x.to("meta")):
        with pytest.raises(CodecError, match="one signed integer dtype, shape and device"):
            undo("xor", x, base, True)
    unsigned = x.view(torch.uint16)
    with pytest.raises(CodecError, match=r"torch\.uint16"):
        apply("zigzag", unsigned, unsigned, True)
