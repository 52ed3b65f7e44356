"""Every dtype of torch is stored or refused by name, with torch's own sizes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from s4core.dtypes import BY_NAME, Layout, chunking, layout_of, lookup, plane_count
from s4core.errors import StateError

_ALL = sorted({str(found) for found in vars(torch).values() if isinstance(found, torch.dtype)})
# Names without kernels: torch itself can neither copy nor save tensors of these.
_SHELL = re.compile(r"torch\.u?int[1-7]")


@pytest.mark.parametrize("name", [name for name in _ALL if not _SHELL.fullmatch(name)])
def test_every_dtype_of_torch_has_torchs_own_sizes(name: str) -> None:
    dtype = lookup(name)
    theirs: torch.dtype = getattr(torch, dtype.name)
    assert f"torch.{dtype.name}" == name
    assert dtype.itemsize == theirs.itemsize
    assert dtype.words_per_element == (2 if theirs.is_complex else 1)
    assert dtype.word_bytes in (1, 2, 4, 8)


@pytest.mark.parametrize("name", [name for name in _ALL if _SHELL.fullmatch(name)])
def test_a_dtype_without_kernels_is_refused_by_name(name: str) -> None:
    with pytest.raises(StateError, match=rf"dtype '{name}' cannot be stored.*view it as uint8"):
        lookup(name)


@pytest.mark.parametrize("name", [name for name in BY_NAME if BY_NAME[name].is_float])
def test_the_exponent_is_as_wide_as_torch_says(name: str) -> None:
    # float8 by its name: torch's finfo misstates eps of float8_e5m2fnuz.
    if fields := re.search(r"_e(\d)m\d", name):
        assert BY_NAME[name].exponent_bits == int(fields[1])
        return
    theirs: torch.dtype = getattr(torch, name)
    info = torch.finfo(theirs.to_real() if theirs.is_complex else theirs)
    mantissa = round(-torch.log2(torch.tensor(info.eps, dtype=torch.float64)).item())
    assert BY_NAME[name].exponent_bits == 8 * BY_NAME[name].word_bytes - 1 - mantissa


@pytest.mark.parametrize(
    ("name", "words", "profile", "layout", "planes"),
    [
        ("bfloat16", 511, "open", Layout.WORDS, 1),
        ("bfloat16", 512, "open", Layout.FLOAT, 2),
        ("bfloat16", 512, "nvcomp", Layout.FIELDS, 3),
        ("float16", 512, "nvcomp", Layout.FIELDS, 4),
        ("float32", 256, "nvcomp", Layout.FIELDS, 5),
        ("float64", 128, "nvcomp", Layout.FLOAT, 8),
        ("complex64", 256, "open", Layout.FLOAT, 4),
        ("float8_e5m2", 1024, "nvcomp", Layout.BYTES, 1),
        ("int64", 128, "open", Layout.BYTES, 8),
        ("bool", 1024, "open", Layout.BYTES, 1),
    ],
)
def test_the_layout_follows_dtype_size_and_profile(
    name: str, words: int, profile: str, layout: Layout, planes: int
) -> None:
    dtype = lookup(name)
    assert layout_of(dtype, words, profile=profile) is layout
    assert plane_count(layout, dtype.word_bytes, dtype.exponent_bits) == planes


@pytest.mark.parametrize("words", [0, 1, 16 << 20, (16 << 20) + 1, 1 << 40])
def test_a_chunk_is_a_whole_number_of_sub_blocks_within_the_format(words: int) -> None:
    sizes = chunking(words)
    assert sizes.chunk_words % sizes.sub_block == 0
    assert sizes.chunk_words % 8 == 0
    assert 8 <= sizes.chunk_words <= 1 << 24


def test_the_table_needs_no_torch() -> None:
    code = "import sys, s4core.dtypes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
