"""Hypothesis strategies for the data that breaks codecs.

Tensors of every dtype that S4 stores, filled with NaN payloads, infinities,
subnormals, signed zeros, runs, random bytes or plausible weights, at sizes on
both sides of every boundary, contiguous or not; and nested states of them.
"""

from __future__ import annotations

import datetime
import pathlib
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from s4core.dtypes import BY_NAME

__all__ = [
    "DTYPES",
    "FLOATS_16",
    "SIZES",
    "all_patterns_16",
    "fills",
    "sizes",
    "special_words",
    "states",
    "tensor_of",
    "tensors",
]

# Dtypes whose tensors are plain (quantized ones carry a scale besides).
DTYPES: tuple[torch.dtype, ...] = tuple(
    getattr(torch, name) for name in BY_NAME if not name.startswith(("q", "bits"))
)
FLOATS_16 = (torch.bfloat16, torch.float16)
SIZES = (0, 1, 31, 33)

_EXPONENT_BITS = {name: dtype.exponent_bits for name, dtype in BY_NAME.items()}


def tensor_of(data: bytes, dtype: torch.dtype) -> Tensor:
    """A 1-D tensor of `dtype` over a copy of `data`, whose length is a multiple of the itemsize."""
    # Into memory of torch's own: what numpy lends has stride 0 when it is empty.
    raw = torch.empty(len(data), dtype=torch.uint8)
    raw.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    return raw.view(dtype)


def all_patterns_16(dtype: torch.dtype) -> Tensor:
    """All 65,536 words of a 2-byte dtype, in ascending order: shape (65536,)."""
    return tensor_of(np.arange(1 << 16, dtype="<u2").tobytes(), dtype)


def special_words(dtype: torch.dtype) -> list[int]:
    """Words of `dtype` that codecs get wrong, as unsigned integers of its word size."""
    kind = BY_NAME[str(dtype).removeprefix("torch.")]
    bits = 8 * kind.word_bytes
    top, full = 1 << (bits - 1), (1 << bits) - 1
    words = [0, 1, 2, top, top - 1, top | 1, full, full - 1, full >> 1]
    if kind.exponent_bits:
        mantissa = bits - 1 - kind.exponent_bits
        infinity = ((1 << kind.exponent_bits) - 1) << mantissa
        quiet = infinity | 1 << (mantissa - 1)
        one = (1 << (kind.exponent_bits - 1)) - 1 << mantissa
        subnormal = (1 << mantissa) - 1
        both_signs = [infinity, infinity | 1, quiet, quiet | 3, one, one + 1, subnormal]
        words += both_signs + [word | top for word in both_signs]
    return [word & full for word in words]


def sizes(chunk: int | None = None) -> SearchStrategy[int]:
    """Numbers of elements: 0, 1, 31, 33, others below 80, and around `chunk` when given."""
    near = () if chunk is None else (chunk - 1, chunk, chunk + 1)
    return st.sampled_from(SIZES + near) | st.integers(0, 80)


@st.composite
def fills(draw: st.DrawFn, dtype: torch.dtype, count: int) -> bytes:
    """The bytes of `count` elements of `dtype`, by one of several adversaries."""
    kind = BY_NAME[str(dtype).removeprefix("torch.")]
    words = count * kind.words_per_element
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    how = draw(st.sampled_from(("random", "special", "equal", "weights", "ramp", "runs")))
    unsigned = np.dtype(f"<u{kind.word_bytes}")
    special = np.array(special_words(dtype), dtype=unsigned)
    if how == "random":
        return rng.bytes(count * kind.itemsize)
    if how == "special":
        return rng.choice(special, words).tobytes()
    if how == "equal":
        return np.full(words, draw(st.sampled_from(special_words(dtype))), unsigned).tobytes()
    if how == "ramp":
        return np.arange(words).astype(unsigned).tobytes()
    if how == "runs":
        return np.repeat(rng.choice(special, words // 7 + 1), 7)[:words].tobytes()
    return _weights(rng, kind.name, words, unsigned)


def _weights(
    rng: np.random.Generator, name: str, words: int, unsigned: np.dtype[np.unsignedinteger[Any]]
) -> bytes:
    """Normal values as a trained layer has them, or small integers where those make sense."""
    values: np.ndarray[Any, Any] = rng.standard_normal(words).astype(np.float32) * np.float32(0.02)
    if name == "bfloat16":
        values = values.view("<u4") >> 16
    elif name.startswith(("float", "complex")) and unsigned.itemsize > 1:
        values = values.astype(f"<f{unsigned.itemsize}").view(unsigned)
    else:
        values = rng.geometric(0.3, words)
    return bytes(values.astype(unsigned))


@st.composite
def tensors(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype] = DTYPES,
    *,
    chunk: int | None = None,
    views: bool = True,
) -> Tensor:
    """Tensors of the given dtypes.

    Args:
        draw: given by Hypothesis.
        dtypes: to choose from.
        chunk: also sizes of chunk - 1, chunk and chunk + 1 elements.
        views: also 0-dim, 2-D, transposed, strided, offset and expanded ones; else 1-D
            and contiguous only.
    """
    dtype = draw(st.sampled_from(dtypes))
    count = draw(sizes(chunk))
    flat = tensor_of(draw(fills(dtype, count)), dtype)
    return draw(_view_of(flat)) if views else flat


@st.composite
def _view_of(draw: st.DrawFn, flat: Tensor) -> Tensor:
    kinds = ["plain", "stepped", "offset", "empty"]
    if flat.numel():
        kinds += ["scalar", "expanded", "windows"]
    if flat.numel() % 6 == 0:
        kinds += ["matrix", "transposed", "column", "cube"]
    kind = draw(st.sampled_from(kinds))
    if kind == "windows":
        return flat.as_strided((max(flat.numel() - 2, 1), min(flat.numel(), 3)), (1, 1))
    views: dict[str, Any] = {
        "plain": lambda: flat,
        "stepped": lambda: flat[::2],
        "offset": lambda: flat[flat.numel() // 3 :],
        "empty": lambda: flat[:0].reshape(0, 3),
        "scalar": lambda: flat[flat.numel() // 2],
        "expanded": lambda: flat.expand(3, -1),
        "matrix": lambda: flat.view(6, -1),
        "transposed": lambda: flat.view(6, -1).t(),
        "column": lambda: flat.view(-1, 6)[:, 1],
        "cube": lambda: flat.view(2, 3, -1).permute(2, 0, 1),
    }
    view: Tensor = views[kind]()
    return view


def _array(length: int, dtype: str) -> np.ndarray[Any, Any]:
    return np.arange(length).astype(dtype)


_TEXT = st.text(max_size=6) | st.sampled_from(["", "/", "a/b", "~", "$", "\ud800", "\ud83d\ude00"])
_FLOATS = st.floats() | st.sampled_from([-0.0, float("inf"), -float("inf")])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**70, -(2**70), 2**1100])
    | _FLOATS
    | _TEXT
    | st.binary(max_size=8)
)
_KEYS = st.none() | st.booleans() | st.integers() | _FLOATS | _TEXT | st.binary(max_size=8)
_OTHERS: SearchStrategy[Any] = (
    st.complex_numbers()
    | st.builds(range, st.integers(), st.integers(), st.integers(1, 9))
    | st.builds(slice, st.none() | st.integers(), st.integers(), st.none())
    | st.builds(torch.Size, st.lists(st.integers(0, 9), max_size=3))
    | st.sampled_from(DTYPES)
    | st.sampled_from([torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")])
    | st.builds(pathlib.PurePosixPath, st.text(max_size=5))
    | st.datetimes(timezones=st.none() | st.just(datetime.timezone.utc))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.frozensets(_KEYS, max_size=3)
    | st.sets(_KEYS, max_size=3)
    | st.builds(bytearray, st.binary(max_size=8))
    | st.builds(np.float32, st.floats(width=32))
    | st.builds(np.int64, st.integers(-(2**63), 2**63 - 1))
    | st.builds(_array, st.integers(0, 9), st.sampled_from(["<i2", ">f4", "<c8", "<M8[s]", "?"]))
)


def _containers(children: SearchStrategy[Any]) -> SearchStrategy[Any]:
    keyed = st.dictionaries(_KEYS | st.tuples(_KEYS, _KEYS), children, max_size=4)
    named = st.dictionaries(_TEXT, children, max_size=4)
    return (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | named
        | keyed
        | keyed.map(OrderedDict)
        | named.map(lambda entries: defaultdict(list, entries))
    )


def states(
    leaves: SearchStrategy[Any] | None = None, *, max_leaves: int = 12
) -> SearchStrategy[Any]:
    """Nested states: containers of scalars, simple objects and `leaves` (default: `tensors()`)."""
    found = tensors() if leaves is None else leaves
    return st.recursive(_SCALARS | _OTHERS | found, _containers, max_leaves=max_leaves)
