"""Whatever a file, a directory or a state does: an `S4Error`, in time, in bounds, without a call.

Files here have valid checksums over lies. Each test is a break that was found by attack.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from forging import (
    T0,
    constant,
    forge,
    inline,
    load,
    manifest,
    saved,
    stored,
    taken_apart,
    tensor,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import s4weights
from s4core import digests, memory
from s4core.checkpoint import Verifier, export_state, open_reader
from s4core.errors import ChecksumError, FormatError, S4Error, StateError, StoreError

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.quantize_per"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

ONE = inline(bytes(8), "int64", 1)
PAIR = inline(bytes(8), "float32", 2)
MANY = 1 << 40


def refused(error: type[S4Error], message: str, *parts: Any, **options: Any) -> None:
    with pytest.raises(error, match=message):
        load(forge(*parts), **options)


@pytest.mark.parametrize(
    ("array", "place", "message"),
    [
        (inline(bytes(12), "complex64", 3), tensor("complex64", [1], [1]), "expected whole elem"),
        (stored(10**30), tensor("uint8", [1], [1]), r"words: expected an integer .* below 2\^63"),
        (stored(1 << 62, "float32"), tensor("uint8", [1], [1]), "more than any machine holds"),
        (PAIR, tensor("float32", [10**4000] * 9, [1] * 9), r"shape: .* below 2\^63"),
        (PAIR, tensor("float32", [1] * 65, [1] * 65), "65 dimensions: at most 64"),
        (PAIR, tensor("float32", [2], [1], offset=1 << 63), r"offset: .* below 2\^63"),
        (PAIR, tensor("float32", [2], [1], device="meta"), "'meta', which holds no array"),
        (PAIR, tensor("float32", [2], [1], device="\ud800"), "device: expected a string"),
        (PAIR, tensor("float32", [2], [1], path="\ud800"), "path: expected a string"),
    ],
)
def test_numbers_and_names_that_no_writer_writes_are_refused(
    array: Any, place: Any, message: str
) -> None:
    refused(FormatError, message, manifest(arrays=[array], tensors=[place], tree=T0))


def test_words_in_the_manifest_are_those_of_their_digest() -> None:
    lie = PAIR | {"data": inline(b"other it", "float32", 2)["data"]}
    place = tensor("float32", [2], [1])
    refused(ChecksumError, "array 0: .*digest", manifest(arrays=[lie], tensors=[place], tree=T0))


def test_a_path_that_stands_twice_is_not_guessed_at() -> None:
    places = [tensor("float32", [2], [1]), tensor("float32", [1], [1])]
    file = forge(manifest(arrays=[PAIR], tensors=places, tree=T0))
    with pytest.raises(FormatError, match=r"path 'w' stands twice, at tensors\[0\] and tensors"):
        load(file, keys=["w"])


@pytest.mark.parametrize("device", ["xpu", "mtia", "hpu", "mps", "privateuseone", "cuda:99"])
def test_tensors_of_devices_that_are_not_here_come_to_the_cpu(device: str) -> None:
    if getattr(torch, device.partition(":")[0], None) and torch.accelerator.is_available():
        pytest.skip("this machine may have it")
    places = [tensor("float32", [2], [1], device=device)]
    found = load(forge(manifest(arrays=[PAIR], tensors=places, tree=T0)))
    assert found.device.type == "cpu"


@pytest.mark.parametrize("target", ["nope", 3.5, "hpu", {"cpu": "nope"}])
def test_a_map_location_that_is_not_here_is_a_sentence(target: Any) -> None:
    with pytest.raises(StateError, match="map_location .*(no device|no such device)"):
        load(saved(torch.ones(2)), map_location=target)


def test_a_small_file_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    place = tensor("uint8", [5], [1])
    terabyte = forge(manifest(arrays=[stored(MANY)], tensors=[place], tree=T0), *constant(MANY))
    assert len(terabyte) < 1100_000
    with pytest.raises(StateError, match="needs 1099511627776 bytes of memory: [0-9]+ are avail"):
        load(terabyte)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 30)
    words = 1 << 28
    several = manifest(
        arrays=[stored(words)] * 5,
        tensors=[tensor("uint8", [5], [1], path=str(n), array=n) for n in range(5)],
        tree=[{"$": "tensor", "t": n} for n in range(5)],
    )
    refused(StateError, "needs 1342177280 bytes of memory", several, *constant(words))
    # Spread over gaps: 8 bytes in the file, 256 MB in memory, each time.
    gaps = manifest(
        arrays=[PAIR],
        tensors=[tensor("float32", [2], [(1 << 26) + n], path=str(n)) for n in range(5)],
        tree=[{"$": "tensor", "t": n} for n in range(5)],
    )
    refused(StateError, "bytes of memory: 1073741824 are available", gaps)


def test_a_document_that_would_grow_beyond_memory_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 26)
    text = json.dumps(manifest(tree="@")).replace('"@"', "[" + "{}," * 1_000_000 + "0]")
    refused(StateError, "bytes of memory", text.encode())


EXPANDED = [
    ({"$": "bytes", "t": 0}, [tensor("uint8", [MANY], [0])], "expected bytes one after"),
    (
        {"$": "ndarray", "t": 0, "dtype": ">u2", "shape": [MANY // 2]},
        [tensor("uint8", [MANY], [0])],
        "expected 1099511627776 bytes",
    ),
    (
        {"$": "jagged", "dim": 1, "values": T0, "offsets": T0},
        [tensor("int64", [MANY], [0])],
        "repeats its elements",
    ),
    (
        {"$": "sparse", "layout": "sparse_coo", "size": [5], "parts": [T0, T0]},
        [tensor("int64", [1, MANY], [0, 0])],
        "repeats its elements",
    ),
    (
        {"$": "nested", "parts": [T0] * 4},
        [tensor("int64", [MANY], [0])],
        "repeats its elements",
    ),
    (
        {"$": "quantized", "dtype": "quint4x2", "size": [0, 1 << 62, 1 << 62], "ints": T0,
         "scheme": "per_tensor_affine", "scale": 1.0, "zero_point": 0},
        [tensor("uint8", [0], [1])],
        "torch refused its parts: Stride",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("node", "places", "message"), EXPANDED)
def test_parts_that_repeat_their_elements_cannot_hang_or_fill_the_memory(
    node: Any, places: Any, message: str
) -> None:
    refused(FormatError, message, manifest(arrays=[ONE], tensors=places, tree=node))


def test_a_jagged_tensor_is_not_slipped_in_as_a_subclass() -> None:
    node = {
        "$": "subclass", "class": "torch.nested._internal.nested_tensor:NestedTensor",
        "size": [1, 1], "stride": [1, 1], "inner": {"_values": T0, "_offsets": T0},
        "context": {"ragged_size": 1, "ragged_idx": 1, "requires_grad": False},
    }  # fmt: skip
    place = tensor("int64", [1], [1])
    refused(FormatError, "jagged tensor has", manifest(arrays=[ONE], tensors=[place], tree=node))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"$": "namedtuple", "class": "a:B", "fields": ["fi", "\ufb01"], "items": [1, 2]}, "names"),
        ({"$": "namedtuple", "class": "a:B", "fields": [f"a{n}" for n in range(5000)],
          "items": [0] * 5000}, "and 4990 more"),
        ({"$": "device", "type": "cuda", "index": 300}, "it makes cuda:44"),
        ({"$": "dict", "items": [[n * ((1 << 61) - 1), 0] for n in range(1, 999)]}, "one hash"),
        ({"$": "set", "items": [n * ((1 << 61) - 1) for n in range(1, 999)]}, "one hash"),
    ],
)  # fmt: skip
def test_trees_made_to_be_slow_or_to_trip_python_are_refused(tree: Any, message: str) -> None:
    refused(FormatError, message, manifest(tree=tree))


def test_a_node_within_nodes_is_looked_at_once() -> None:
    node: Any = T0 | {"attrs": {"z": [0] * 300_000}}
    for _ in range(120):
        node = T0 | {"attrs": {"a": node}}
    place = tensor("int64", [1], [1])
    assert load(forge(manifest(arrays=[ONE], tensors=[place], tree=node))).a.a.a is not None


def test_deep_json_outside_the_tree_is_refused_without_recursion() -> None:
    deep: Any = functools.reduce(lambda inner, _: [inner], range(900), 0)
    for key in ("format", "requires", "arrays", "id"):
        document = manifest(**{key: [deep]})
        refused(FormatError, "expected", document)


BASE = taken_apart(
    saved(
        {
            "w": torch.arange(3000.0),
            "gaps": torch.arange(90.0)[::3],
            "tied": [torch.ones(3, dtype=torch.complex64)],
            "bytes": b"x" * 2000,
            "const": torch.zeros(5000, dtype=torch.int16),
        }
    )
)
JUNK = st.sampled_from(
    [None, True, -1, 0, 1, 7, 1 << 40, 1 << 63, 1.5, "", "x", "\ud800", [], {}, [1], [0, 0],
     "cpu", "meta", "float64", "zigzag", "0" * 32, [1 << 62], [0]]
)  # fmt: skip


def _spots(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += _spots(value, (*path, key))
    return found


SPOTS = _spots(BASE[0])


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(SPOTS), JUNK), min_size=1, max_size=3))
def test_any_field_of_a_manifest_may_be_anything(changes: list[tuple[Any, Any]]) -> None:
    document = copy.deepcopy(BASE[0])
    for spot, junk in changes:
        place = document
        try:
            for step in spot[:-1]:
                place = place[step]
            place[spot[-1]] = junk
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change took it away
    with contextlib.suppress(S4Error):
        load(forge(document, *BASE[1:]))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32))
def test_any_record_of_an_index_may_be_anything(seed: int) -> None:
    chance = random.Random(seed)
    document, records, rows, data = BASE
    rows, changed = rows.copy(), bytearray(data)
    for _ in range(chance.randint(1, 3)):
        row = rows[chance.randrange(len(rows))]
        field = chance.choice(["length", "codec", "param"])
        row[field] = chance.choice([0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 255])
    for _ in range(chance.randint(0, 4)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    at = 0
    for row in rows:  # lies with valid checksums
        row["checksum"] = digests.checksum(bytes(changed[at : at + int(row["length"])]))
        at += int(row["length"])
    with contextlib.suppress(S4Error):
        load(forge(document, records, rows, bytes(changed)))


def test_verify_checks_an_array_that_begins_where_a_constant_one_ends(tmp_path: Path) -> None:
    document, records, rows, data = taken_apart(
        saved({"constant": torch.zeros(10_000), "w": torch.arange(10_000.0).exp_()})
    )
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    file = tmp_path / "x.s4"
    file.write_bytes(forge(document, records, rows, bytes(damaged)))
    finding = Verifier().check("x", lambda: open_reader(file))
    assert not finding.ok
    assert "damaged" in finding.error


@pytest.mark.parametrize("words", [0, 1024, 20_000])
def test_a_slice_of_an_array_with_another_number_of_words_is_refused(
    tmp_path: Path, words: int
) -> None:
    file, place = tmp_path / "x.s4", tensor("uint8", [10_000], [1])
    document = manifest(arrays=[stored(10_000)], tensors=[place], tree=T0)
    file.write_bytes(forge(document, *constant(words, chunk_words=1024)))
    with pytest.raises(FormatError, match=f"array 0: {words} words of 1 bytes: its manifest says"):
        open_reader(file).slice("w", 5000, 5010)


def test_a_huge_file_that_begins_like_a_ref_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"{")
    os.truncate(file, 1 << 42)  # sparse: it takes no room
    with pytest.raises(FormatError, match="is not a ref: 4398046511104 bytes, at most 64 KiB"):
        s4weights.load(file)


def test_a_file_whose_name_is_not_unicode_harms_no_run(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    run.save({"a": torch.ones(100)}, step=1)
    with open(os.fsencode(tmp_path) + b"/\xff\xfe", "wb") as other:
        other.write(b"{")
    assert list(run.names()) == ["step-00000001.ckpt"]
    assert run.gc().swept == {}


class _Bits:
    """A file object that reads and writes a few bytes at a time, as a raw one may."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def read(self) -> bytes:
        part, self.data = self.data[:100], self.data[100:]
        return part

    def write(self, part: memoryview) -> int:
        self.data += bytes(part[:7])
        return min(7, len(part))


class _Gives:
    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> Any:
        return self.value


def test_file_objects_may_take_and_give_a_part_at_a_time() -> None:
    state, file = {"a": torch.arange(300.0)}, _Bits()
    s4weights.save(state, file)  # type: ignore[arg-type]
    assert file.data == saved(state)
    assert s4weights.load(file)["a"].tolist() == state["a"].tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [_Gives("text"), _Gives(None), io.StringIO("x"), 5, None, b"x"])
def test_what_gives_no_bytes_is_a_sentence(source: Any) -> None:
    with pytest.raises(StateError, match="expected a path, a URL or a binary file object"):
        s4weights.load(source)


@pytest.mark.parametrize("target", [io.StringIO(), 5, None])
def test_what_takes_no_bytes_is_a_sentence(target: Any) -> None:
    with pytest.raises(StateError, match="expected a path, a URL or a binary file object"):
        s4weights.save({"a": 1}, target)


def test_an_array_without_a_tensor_is_exported_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.s4"
    place = tensor("float32", [2], [1])
    file.write_bytes(forge(manifest(arrays=[PAIR, PAIR], tensors=[place], tree=T0)))
    with contextlib.suppress(S4Error):
        export_state(open_reader(file), tmp_path / "y.s4", weights_only=True)


def test_a_save_does_not_replace_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError):
        s4weights.save({"a": 1}, tmp_path / "pipe")
