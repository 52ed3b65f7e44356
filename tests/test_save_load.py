"""`save` and `load`: whatever went in comes out bit for bit, and damage is always an error."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bits import assert_same_bits, assert_same_state
from hypothesis import given, settings
from strategies import all_patterns_16, states, tensors

import s4weights
from s4core import dtypes
from s4weights import (
    ChecksumError,
    FormatError,
    KeyNotFoundError,
    S4Error,
    StateError,
    StoreError,
    VersionError,
)

CORPUS = Path(os.environ.get("S4_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))


def stored(state: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    s4weights.save(state, out, **options)
    return out.getvalue()


def loaded(data: bytes, **options: Any) -> Any:
    return s4weights.load(io.BytesIO(data), **options)


@given(states())
@settings(max_examples=60, deadline=None)
def test_any_state_comes_back_bit_for_bit(state: Any) -> None:
    assert_same_state(state, loaded(stored(state)))


@given(tensors())
@settings(max_examples=200, deadline=None)
def test_any_tensor_comes_back_bit_for_bit(tensor: torch.Tensor) -> None:
    assert_same_bits(tensor, loaded(stored({"t": tensor}))["t"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_65536_patterns_of_16_bits_come_back(dtype: torch.dtype) -> None:
    tensor = all_patterns_16(dtype)
    assert_same_bits(tensor, loaded(stored([tensor]))[0])


CHUNK = dtypes.chunking(1 << 20).chunk_words


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 31])
@pytest.mark.parametrize("kind", ["random", "equal", "weights", "half zero"])
def test_sizes_around_a_chunk_come_back(size: int, kind: str) -> None:
    rng = np.random.default_rng(size)
    words = {
        "random": lambda: rng.integers(0, 1 << 16, size, dtype=np.uint16),
        "equal": lambda: np.full(size, 0x7FC1, np.uint16),
        "weights": lambda: rng.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> 16,
        "half zero": lambda: np.where(np.arange(size) < size // 2, 0, rng.integers(0, 65536, size)),
    }[kind]().astype(np.uint16)
    tensor = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
    assert_same_bits(tensor, loaded(stored([tensor]))[0])


def test_the_same_state_gives_the_same_bytes() -> None:
    state = {"w": torch.randn(300, 300), "b": torch.zeros(7), "n": [1, "x", None]}
    assert stored(state) == stored(state)


def test_the_callers_tensors_are_unchanged() -> None:
    state = {"w": torch.randn(1000, 100).bfloat16(), "v": torch.rand(5000)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    stored(state)
    assert_same_state(before, state)


def test_loaded_tensors_share_nothing_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.s4"
    s4weights.save([torch.arange(10000.0)], path)
    first = s4weights.load(path)[0]
    first.zero_()
    assert_same_bits(torch.arange(10000.0), s4weights.load(path)[0])


@pytest.mark.parametrize("bytes_", [4096, 100_000, 5_000_000])
def test_random_bytes_cost_a_small_fixed_header_and_no_more(bytes_: int) -> None:
    data = np.random.default_rng(1).integers(0, 256, bytes_, dtype=np.uint8).tobytes()
    size = len(stored([torch.frombuffer(bytearray(data), dtype=torch.float32)]))
    chunks = -(-bytes_ // 4 // CHUNK)
    assert size <= bytes_ + 1200 + 4 * chunks * 31


def test_every_truncation_is_an_s4_error() -> None:
    data = stored({"w": torch.randn(40, 30).bfloat16(), "step": torch.tensor(3.0), "lr": 0.1})
    for size in range(len(data)):
        with pytest.raises(S4Error, match=r"memory://file-object"):
            loaded(data[:size])


def test_every_flipped_bit_is_an_s4_error_and_never_data() -> None:
    state = {"w": torch.randn(40, 30).bfloat16(), "v": torch.full((900,), 2.5), "lr": 0.1}
    data = bytearray(stored(state))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(S4Error):
            loaded(bytes(data))
        data[bit // 8] ^= 1 << bit % 8
    assert_same_state(state, loaded(bytes(data)))


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(S4Error):
        loaded(stored([torch.zeros(5000)]) + b"\0" * 16)


def test_a_damaged_blob_is_named() -> None:
    data = bytearray(stored([torch.randn(5000)]))
    data[5000] ^= 1
    with pytest.raises(ChecksumError, match=r"array 0: blob \d+ is damaged: expected XXH3-64"):
        loaded(bytes(data))


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus of real checkpoints in {CORPUS}")
@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*.safetensors")), ids=lambda path: path.name.split(".")[0]
)
def test_every_corpus_file_comes_back_bit_for_bit_and_smaller(path: Path) -> None:
    state = s4weights.load(path)
    data = stored(state)
    assert_same_state(state, loaded(data))
    assert len(data) < 0.85 * path.stat().st_size


def test_files_of_torch_and_safetensors_are_read_too(tmp_path: Path) -> None:
    import safetensors.torch

    state = {"w": torch.randn(20, 3), "h": torch.ones(4, dtype=torch.bfloat16)}
    torch.save(state, tmp_path / "a.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pt", "old.pt", "a.safetensors"):
        found = s4weights.load(tmp_path / name)
        assert_same_state(state, {key: found[key] for key in state})


class Custom:
    """A class that is no tensor, number or container."""


def test_a_torch_file_that_needs_code_names_the_way_out(tmp_path: Path) -> None:
    torch.save({"x": Custom()}, tmp_path / "a.pt")
    with pytest.raises(StateError, match="weights_only=False if you trust its author"):
        s4weights.load(tmp_path / "a.pt")


def test_a_foreign_class_is_refused_by_path_and_class() -> None:
    with pytest.raises(StateError, match=r"extra/x.*Custom"):
        stored({"extra": {"x": Custom()}})


def test_pickled_leaves_load_only_when_they_are_trusted() -> None:
    data = stored({"x": {1, 2}, "y": Custom()}, allow_pickle=True)
    with pytest.raises(StateError, match=r"y.*Custom.*weights_only=False"):
        loaded(data)
    assert type(loaded(data, weights_only=False)["y"]).__name__ == "Custom"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match=r"nothing.s4"):
        s4weights.load(tmp_path / "nothing.s4")
    with pytest.raises(FileNotFoundError):
        s4weights.load(tmp_path / "no directory" / "nothing.s4")


def test_a_foreign_file_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(FormatError, match="no checkpoint that S4 knows: it starts with 474946"):
        s4weights.load(tmp_path / "x")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(FormatError, match="it starts with nothing"):
        s4weights.load(tmp_path / "empty")


def test_a_newer_file_asks_for_an_upgrade() -> None:
    data = bytearray(stored([torch.zeros(4000)]))
    data[8] = 2
    with pytest.raises(VersionError, match=r"format version 2\.0.*upgrade s4weights"):
        loaded(bytes(data))


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(StoreError, match="s3://"):
        s4weights.load("ftp://host/x.s4")


def test_map_location_is_honoured_in_every_form() -> None:
    data = stored({"w": torch.randn(5000)})
    for where in (None, "cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda storage, _: storage):
        assert loaded(data, map_location=where)["w"].device.type == "cpu"
    assert loaded(data, map_location="meta")["w"].device.type == "meta"


def test_keys_fetch_only_what_they_match(tmp_path: Path) -> None:
    state = {"model": {"w": torch.randn(300, 100), "b": torch.ones(3)}, "opt": [torch.zeros(5000)]}
    s4weights.save(state, tmp_path / "x.s4")
    found = s4weights.load(tmp_path / "x.s4", keys=["model/*"])
    assert_same_state({"model/w": state["model"]["w"], "model/b": state["model"]["b"]}, found)
    with pytest.raises(KeyNotFoundError, match="no tensor's path matches 'modle/.'; there are 3"):
        s4weights.load(tmp_path / "x.s4", keys=["modle/*"])


def test_every_name_of_a_tied_weight_is_found() -> None:
    w = torch.randn(1000)
    found = loaded(stored({"emb": w, "head": {"w": w}}), keys=["head/*"])
    assert_same_state({"head/w": w}, found)


def test_tied_weights_are_stored_once_and_stay_tied() -> None:
    w = torch.randn(1000, 100)
    state = {"emb": w, "head": w, "row": w[3]}
    data = stored(state)
    assert len(data) < 1.01 * w.numel() * 4
    found = loaded(data)
    found["emb"][3, 0] = 42.0
    assert found["head"][3, 0] == found["row"][0] == 42.0


def test_an_existing_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.s4"
    s4weights.save([torch.zeros(9000)], path)
    s4weights.save([torch.ones(10)], path)
    assert_same_state([torch.ones(10)], s4weights.load(path))
    assert [p.name for p in tmp_path.iterdir()] == ["x.s4"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.s4"
    s4weights.save([torch.zeros(9000)], path)
    with pytest.raises(StateError):
        s4weights.save([torch.ones(10), Custom()], path)
    assert_same_state([torch.zeros(9000)], s4weights.load(path))
    assert [p.name for p in tmp_path.iterdir()] == ["x.s4"]
