"""Memory is stored once, and only what tensors cover of it; sharing survives."""

from __future__ import annotations

import pytest
import torch
from bits import assert_same_bits, assert_same_state
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DTYPES, special_words, tensor_of, tensors
from torch import Tensor
from trips import reload

from s4core.errors import FormatError, StateError
from s4core.tree import TensorLeaf, empty, group_storages, meta_tensor, place, torch_dtype


def leaves(*found: Tensor) -> list[TensorLeaf]:
    return [TensorLeaf(str(number), tensor) for number, tensor in enumerate(found)]


def trip(*found: Tensor) -> list[int]:
    """Reload tensors, check bits, strides and aliasing; give the bytes of each array."""
    grouped, placed = reload(leaves(*found))
    assert_same_state(list(found), placed, aliasing=True)
    return [array.numel * torch_dtype(array.dtype).itemsize for array in grouped.arrays]


@settings(deadline=None, max_examples=150)
@given(tensors())
def test_any_tensor_alone_keeps_bits_shape_and_strides(tensor: Tensor) -> None:
    (stored,) = trip(tensor)
    assert stored <= tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_special_word_of_every_dtype_survives(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    word = size // 2 if dtype.is_complex else size
    data = b"".join(value.to_bytes(word, "little") for value in special_words(dtype))
    data = data[: len(data) // size * size]
    flat = tensor_of(data, dtype)
    trip(flat)
    trip(flat[1::2])


def test_a_bool_that_is_neither_0_nor_1_survives_even_a_copy() -> None:
    odd = torch.tensor([2, 0, 255, 1, 7], dtype=torch.uint8).view(torch.bool)
    assert trip(odd[::2]) == [3]


@pytest.mark.parametrize(
    ("view", "elements"),
    [
        (lambda t: t.t(), 24),
        (lambda t: t[1], 4),  # one row: its bytes only
        (lambda t: t[:, 1], 6),  # a column: without what lies between
        (lambda t: t[::2], 12),
        (lambda t: t[::2, ::3], 6),
        (lambda t: t[0].expand(5, 4), 4),  # repeated: once
        (lambda t: t[:, 0:1].expand(6, 9), 6),
        (lambda t: t[2, 3], 1),
        (lambda t: t.view(2, 3, 4).permute(2, 0, 1), 24),
        (lambda t: t.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), 24),
        (lambda t: t.as_strided((5, 3), (2, 1)), 11),  # overlapping windows: the run
        (lambda t: t[:0], 0),
    ],
)
def test_a_lone_view_stores_what_it_covers(view, elements: int) -> None:  # type: ignore[no-untyped-def]
    base = torch.arange(24, dtype=torch.float32).view(6, 4)
    assert trip(view(base)) == [4 * elements]


def test_contiguous_memory_is_not_copied() -> None:
    base = torch.arange(24.0).view(6, 4)
    for view in (base, base.t(), base[2:4], base[0].expand(3, 4)):
        (array,) = group_storages(leaves(view)).arrays
        assert array.gather().data_ptr() == view.data_ptr()


def test_tied_and_overlapping_tensors_are_one_array() -> None:
    base = torch.arange(24, dtype=torch.bfloat16).view(6, 4)
    assert trip(base, base.t(), base[1:3], base[:, 2], base.view(-1)[5]) == [48]


def test_only_the_run_that_views_cover_is_stored() -> None:
    base = torch.arange(1000.0)
    assert trip(base[100:110], base[105:120], base[500:501]) == [80, 4]


def test_neighbours_that_share_no_byte_are_arrays_of_their_own() -> None:
    flat = torch.arange(64, dtype=torch.uint8)
    found = flat[:32].view(torch.float32), flat[32:].view(torch.bfloat16)
    assert [array.dtype for array in group_storages(leaves(*found)).arrays] == [
        "float32",
        "bfloat16",
    ]
    assert trip(*found) == [32, 32]


def test_views_of_different_dtypes_share_bytes_at_whole_offsets() -> None:
    flat = torch.arange(64, dtype=torch.uint8)
    # Bytes 5..12 and 8..24: the array must start at a multiple of 8.
    found = flat[5:12], flat[8:24].view(torch.int64), flat[8:12].view(torch.float16)
    grouped = group_storages(leaves(*found))
    assert [(array.dtype, array.numel) for array in grouped.arrays] == [("uint8", 24)]
    assert [found.offset for found in grouped.places] == [5, 1, 4]
    assert trip(*found) == [24]


def test_a_chain_of_overlaps_is_one_array_whatever_the_order() -> None:
    base = torch.arange(30, dtype=torch.int16)
    assert trip(base[20:30], base[0:11], base[10:21]) == [60]


def test_a_tensor_twice_with_gaps_still_shares_memory() -> None:
    base = torch.arange(10.0)
    assert trip(base[::3], base[::3]) == [40]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 4)), max_size=6))
def test_any_views_of_one_storage_keep_bits_and_sharing(
    cuts: list[tuple[int, int, int]],
) -> None:
    base = torch.arange(64, dtype=torch.int32)
    found = [base[start : start + size * step : step] for start, size, step in cuts]
    assert sum(trip(*found)) <= max(base.nbytes, sum(view.nbytes for view in found))


def test_keys_and_places_name_the_first_tensor_and_its_elements() -> None:
    base = torch.arange(16.0).view(torch.complex64)
    grouped = group_storages(leaves(torch.zeros(2), base[2:], base[4:6]))
    assert [(array.key, array.dtype, array.numel) for array in grouped.arrays] == [
        ("0", "float32", 2),
        ("1", "complex64", 6),
    ]
    assert [(found.array, found.offset, found.stride) for found in grouped.places] == [
        (0, 0, (1,)),
        (1, 0, (1,)),
        (1, 2, (1,)),
    ]


def test_meta_tensors_have_no_array() -> None:
    assert trip(torch.empty(3, 4, device="meta").t(), torch.ones(1)) == [4]


def test_views_that_overlap_themselves_are_never_compact() -> None:
    windows = torch.arange(200.0).as_strided((3, 2, 2), (1, 2, 100))  # element 2 twice
    assert trip(windows) == [4 * 105]
    with pytest.raises(FormatError, match="reaches beyond its array of 48 bytes"):
        place(torch.arange(12.0), "float32", (3, 2, 2), (1, 2, 100), 0)


def test_an_empty_tensor_keeps_its_strides() -> None:
    assert trip(torch.empty_strided((0, 3, 2), (7, 1, 5))) == [0]


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "message"),
    [
        ((5,), (1,), 0, r"reaches beyond its array of 16 bytes"),
        ((4,), (1,), 1, "reaches beyond"),
        ((2, 2), (9, 1), 1, "reaches beyond"),
        ((2, 2), (1, 1, 1), 0, "no tensor has shape"),
        ((4,), (-1,), 3, "no tensor has shape"),
        ((-4,), (1,), 0, "no tensor has shape"),
        ((1 << 62, 4), (4, 1), 0, "larger than any memory"),
        ((2, 2), (1 << 61, 1), 0, "larger than any memory"),
        ((1,) * 65, (1,) * 65, 0, "no tensor has shape"),
        ((4, 1), (1, 1), 1 << 64, "no tensor has shape"),
        ((2, 3), (1, 1), 3, "reaches beyond"),
    ],
)
def test_a_place_outside_its_array_is_refused(
    shape: tuple[int, ...], stride: tuple[int, ...], offset: int, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        place(torch.arange(4.0), "float32", shape, stride, offset)


def test_a_compact_array_that_asks_for_too_much_memory_is_refused() -> None:
    with pytest.raises(StateError, match="cannot be allocated"):
        place(torch.arange(4.0), "float32", (4,), (1 << 56,), 0)
    with pytest.raises(StateError, match="cannot be allocated on cpu"):
        empty("float64", 1 << 57, "cpu")


def test_a_meta_tensor_of_impossible_shape_is_refused() -> None:
    with pytest.raises(FormatError, match="larger than any memory"):
        meta_tensor("float32", (1 << 40, 1 << 40), (1 << 40, 1))
    assert_same_bits(torch.empty(2, 3, device="meta"), meta_tensor("float32", (2, 3), (3, 1)))


def test_complex32_is_made_without_a_warning() -> None:
    assert empty("complex32", 3, "cpu").dtype is torch.complex32
    with pytest.raises(StateError, match="dtype 'float3' cannot be stored"):
        torch_dtype("float3")
