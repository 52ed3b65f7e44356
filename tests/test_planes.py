"""Planes hold every bit of every word, where FORMAT.md says."""

from __future__ import annotations

import pytest
import torch
from bits import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DTYPES, FLOATS_16, all_patterns_16, special_words, tensor_of, tensors
from torch import Tensor

from s4core.dtypes import BY_NAME, DType, Layout, lookup, plane_count
from s4core.errors import CodecError, StateError
from s4core.planes import WORD_DTYPE, join, split, words


def layouts_of(dtype: DType) -> list[Layout]:
    found = [Layout.WORDS, Layout.BYTES]
    if dtype.is_float and dtype.word_bytes > 1:
        found.append(Layout.FLOAT)
    if dtype.name in ("bfloat16", "float16", "float32"):
        found.append(Layout.FIELDS)
    return found


CASES = [(dtype, layout) for dtype in BY_NAME.values() for layout in layouts_of(dtype)]
IDS = [f"{dtype.name}-{layout.name.lower()}" for dtype, layout in CASES]


def round_trip(found: Tensor, dtype: DType, layout: Layout) -> Tensor:
    planes = split(found, layout, dtype.exponent_bits)
    width = dtype.word_bytes if layout is Layout.WORDS else 1
    assert planes.dtype is torch.uint8
    assert planes.shape == (
        plane_count(layout, dtype.word_bytes, dtype.exponent_bits),
        found.numel() * width,
    )
    return join(planes, layout, dtype.word_bytes, dtype.exponent_bits)


@pytest.mark.parametrize("layout", [Layout.WORDS, Layout.FLOAT, Layout.BYTES, Layout.FIELDS])
@pytest.mark.parametrize("dtype", FLOATS_16, ids=str)
def test_join_undoes_split_on_every_16_bit_pattern(dtype: torch.dtype, layout: Layout) -> None:
    every = words(all_patterns_16(dtype))
    assert_same_bits(every, round_trip(every, lookup(str(dtype)), layout))


@settings(deadline=None, max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=IDS)
def test_join_undoes_split_and_xor_commutes(
    dtype: DType, layout: Layout, data: st.DataObject
) -> None:
    size, values = 8 * dtype.word_bytes, st.integers(0, (1 << 8 * dtype.word_bytes) - 1)
    drawn = data.draw(st.lists(st.tuples(values, values), max_size=33))
    a, b = (from_ints([pair[i] for pair in drawn], size) for i in (0, 1))
    assert_same_bits(a, round_trip(a, dtype, layout))
    exponent = dtype.exponent_bits
    apart = split(a, layout, exponent) ^ split(b, layout, exponent)
    assert_same_bits(split(a ^ b, layout, exponent), apart)


def from_ints(values: list[int], bits: int) -> Tensor:
    data = b"".join(value.to_bytes(bits // 8, "little") for value in values)
    return tensor_of(data, WORD_DTYPE[bits // 8])


# The layouts once more, written from FORMAT.md with Python's integers.
def oracle(word: int, layout: Layout, dtype: DType) -> list[int]:
    w, bits = dtype.word_bytes, 8 * dtype.word_bytes
    if layout is Layout.BYTES:
        return list(word.to_bytes(w, "big"))
    if layout is Layout.FLOAT:
        second = (word >> (bits - 1)) << 7 | (word >> (bits - 16)) & 0x7F
        rest = [(word >> (bits - 8 - 8 * k)) & 0xFF for k in range(2, w)]
        return [(word >> (bits - 9)) & 0xFF, second, *rest]
    mantissa = {"bfloat16": [(0, 7)], "float16": [(8, 2), (0, 8)]}
    mantissa["float32"] = [(16, 7), (8, 8), (0, 8)]
    exponent = (bits - 1 - dtype.exponent_bits, dtype.exponent_bits)
    fields = [(bits - 1, 1), exponent, *mantissa[dtype.name]]
    return [(word >> low) & ((1 << width) - 1) for low, width in fields]


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [case for case in CASES if case[1] is not Layout.WORDS],
    ids=[name for name in IDS if not name.endswith("-words")],
)
def test_planes_lie_where_the_format_says(dtype: DType, layout: Layout) -> None:
    ints = special_words(getattr(torch, dtype.name))
    ints += [0x0123456789ABCDEF & ((1 << 8 * dtype.word_bytes) - 1)]
    found = split(from_ints(ints, 8 * dtype.word_bytes), layout, dtype.exponent_bits)
    assert found.t().tolist() == [oracle(word, layout, dtype) for word in ints]


def test_layout_words_is_the_memory() -> None:
    found = split(torch.tensor([0x0102, -1], dtype=torch.int16), Layout.WORDS)
    assert found.tolist() == [[2, 1, 255, 255]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_words_are_the_tensors_own_memory(dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = data.draw(tensors([dtype], views=False))
    found = words(tensor)
    assert found.data_ptr() == tensor.data_ptr()
    assert found.dtype is WORD_DTYPE[lookup(str(dtype)).word_bytes]
    assert_same_bits(tensor, found.view(dtype))


def test_words_of_shapes_that_only_look_contiguous() -> None:
    column = torch.zeros(4, dtype=torch.complex64)[::3][:1]  # one element, stride 3
    assert words(column).tolist() == [0, 0]
    assert words(torch.tensor(1, dtype=torch.int16)).shape == (1,)
    assert words(torch.empty(0, 5)).shape == (0,)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_words_of_a_quantized_tensor_are_its_integers() -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([0.0, -1.0, 2.0]), 0.5, 1, torch.qint8)
    assert words(quantized).tolist() == [1, -1, 5]


def test_words_refuses_what_has_none() -> None:
    with pytest.raises(StateError, match=r"strides \(1, 3\): expected a contiguous one"):
        words(torch.zeros(2, 3).t())
    with pytest.raises(StateError, match=r"conjugate or negative view.*resolve_conj"):
        words(torch.zeros(2, dtype=torch.complex64).conj())
    with pytest.raises(StateError, match=r"torch\.uint4"):
        words(torch.zeros(2, dtype=torch.uint8).view(getattr(torch, "uint4")))  # noqa: B009 (mypy does not know it)


@pytest.mark.parametrize(
    ("word_bytes", "layout", "exponent_bits"),
    [(1, Layout.FLOAT, 4), (1, Layout.FIELDS, 5), (8, Layout.FIELDS, 11), (2, Layout.FIELDS, 7)],
)
def test_a_layout_that_does_not_fit_is_refused(
    word_bytes: int, layout: Layout, exponent_bits: int
) -> None:
    message = rf"layout {layout.name.lower()} does not fit words of {word_bytes} bytes"
    with pytest.raises(CodecError, match=message):
        split(torch.zeros(3, dtype=WORD_DTYPE[word_bytes]), layout, exponent_bits)
    with pytest.raises(CodecError, match=message):
        join(torch.zeros(1, 3, dtype=torch.uint8), layout, word_bytes, exponent_bits)


def test_join_counts_the_planes() -> None:
    with pytest.raises(CodecError, match=r"has 2 planes: found shape \(3, 5\)"):
        join(torch.zeros(3, 5, dtype=torch.uint8), Layout.FLOAT, 2, 8)
