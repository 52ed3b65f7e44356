"""A hostile tree is an error that names its place; never another exception, never a call."""

from __future__ import annotations

import copy
import json
import pathlib
import warnings
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from trips import reload

from s4core.errors import FormatError, StateError, VersionError
from s4core.tree import flatten, unflatten

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC)"),
    pytest.mark.filterwarnings("ignore:Sparse invariant"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

TENSORS: list[Tensor | None] = [
    torch.arange(4.0),
    torch.arange(6, dtype=torch.int64),
    torch.zeros(9, dtype=torch.uint8),
    None,
    torch.empty(2, device="meta"),
    torch.tensor([[0, 9]]),
]


def t(number: int) -> dict[str, Any]:
    return {"$": "tensor", "t": number}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (t(6), "node 'tensor': tensor 6: there are 6"),
        (t(-1), "tensor -1: there are 6"),
        (t(3), "tensor 3 was not loaded"),
        ({"$": "tensor", "t": True}, "t: expected an integer"),
        ({"$": "tensor", "t": "0"}, "t: expected an integer"),
        ({"$": "tensor"}, "t is missing"),
        (t(0) | {"zzz": 1}, "unknown key 'zzz'"),
        (t(0) | {"grad": 1}, "grad: expected true or nothing"),
        (t(1) | {"grad": True}, "torch refused a torch.int64"),
        (t(1) | {"param": True, "grad": True}, "torch refused a torch.int64"),
        (t(0) | {"attrs": {"sum": 1}}, "attribute 'sum' would hide one of Tensor's own"),
        (t(0) | {"attrs": {"__class__": 1}}, "attribute '__class__' would hide"),
        (t(0) | {"attrs": []}, "attrs: expected an object"),
        ({"$": "newer", "x": 1}, "kind 'newer' is not known to this release"),
        ({"$": None}, "kind None is not known"),
        ({"$": ["tensor"]}, "is not known"),
        (float("inf"), "expected JSON, found the float inf"),
        ({"$": "int", "hex": "0x"}, "hexadecimal integer"),
        ({"$": "int", "hex": "-"}, "hexadecimal integer"),
        ({"$": "float", "bits": "7ff8"}, "16 hex digits"),
        ({"$": "float", "bits": 1.5}, "16 hex digits"),
        ({"$": "complex", "bits": ["7ff8000000000000"]}, "two floats"),
        ({"$": "str", "utf8": "/w=="}, "expected UTF-8"),
        ({"$": "bytes", "data": "a"}, "expected base64"),
        ({"$": "bytes", "t": 0}, "expected a tensor of bytes"),
        ({"$": "bytes", "t": 4}, "expected a tensor of bytes"),
        ({"$": "range", "args": [0, 1]}, "args: expected 3, found 2"),
        ({"$": "range", "args": [0, 1, 0]}, "range refused its arguments"),
        ({"$": "range", "args": ["a", 1, 1]}, "range refused its arguments"),
        ({"$": "path", "class": "Popen", "value": "x"}, "expected a class of pathlib"),
        ({"$": "path", "class": "PurePosixPath", "value": 1}, "and a string"),
        ({"$": "date", "args": [2024, 13, 1]}, "date refused its arguments"),
        ({"$": "datetime", "args": [2024, 1, 1], "tz": "UTC"}, "datetime refused its arguments"),
        ({"$": "timedelta", "args": [10**12, 0, 0]}, "timedelta refused its arguments"),
        ({"$": "timezone", "args": [9, 0, 0]}, "timezone refused its arguments"),
        ({"$": "tuple", "items": {}}, "items: expected a list"),
        ({"$": "set", "items": [1, 1]}, "a int stands twice among the keys"),
        ({"$": "set", "items": [[1]]}, "a list cannot be a key"),
        ({"$": "set", "items": [{"$": "set", "items": []}]}, "a set cannot be a key"),
        ({"$": "dict", "items": [[1, 2], [1, 3]]}, "a int stands twice among the keys"),
        ({"$": "dict", "items": [[1]]}, r"items\[0\]: expected a key and a value"),
        ({"$": "dict", "items": [[{"$": "tuple", "items": [[]]}, 1]]}, "a tuple cannot be a key"),
        ({"$": "odict", "items": [], "attrs": {"update": 1}}, "would hide one of OrderedDict's"),
        ({"$": "defaultdict", "factory": "eval", "items": []}, "factory: expected one of list"),
        ({"$": "defaultdict", "factory": {"$": "size", "items": []}, "items": []}, "be called"),
        ({"$": "namedtuple", "class": "a:B", "fields": ["x"], "items": []}, "0 items for the"),
        ({"$": "namedtuple", "class": "a:B", "fields": ["x y"], "items": [1]}, "expected names"),
        ({"$": "namedtuple", "class": "a:B", "fields": ["_x"], "items": [1]}, "expected names"),
        ({"$": "namedtuple", "class": "a:B", "fields": [1], "items": [1]}, "a list of strings"),
        ({"$": "size", "items": [1, -1]}, r"expected sizes of 0 to 2\^63"),
        ({"$": "torch", "name": "nn"}, "has no dtype or layout 'nn'"),
        ({"$": "torch", "name": "_dynamo"}, "has no dtype or layout"),
        ({"$": "device", "type": "toaster", "index": None}, "torch has no such device"),
        ({"$": "device", "type": "cuda", "index": 10**30}, "torch has no such device"),
        ({"$": "ndarray", "t": 4}, "is no array of numpy"),
        ({"$": "ndarray", "t": 0, "dtype": "<f8", "shape": [2]}, "is no array of numpy"),
        ({"$": "ndarray", "t": 2, "dtype": "|O", "shape": [1]}, "description of a dtype"),
        ({"$": "ndarray", "t": 2, "dtype": "O8", "shape": [1]}, "description of a dtype"),
        ({"$": "ndarray", "t": 2, "dtype": ">f4", "shape": [2]}, "expected 8 bytes"),
        ({"$": "ndarray", "t": 2, "dtype": ">f4", "shape": [1 << 62, 1 << 62]}, "bytes, found"),
        ({"$": "ndarray", "t": 2, "dtype": {"base": "<i2", "shape": [-1]}, "shape": []}, "small"),
        ({"$": "npscalar", "dtype": "<f4", "data": "AAA="}, "numpy refused the bytes"),
        ({"$": "npscalar", "dtype": "<f4", "data": "AAAAAAA="}, "expected 4 bytes"),
        ({"$": "npscalar", "dtype": "<U1", "data": "AAAA"}, "numpy refused the bytes"),
        ({"$": "npdtype", "dtype": {"names": ["a"]}}, "expected names, formats"),
        ({"$": "npdtype", "dtype": "<M8[zz]"}, "dtype: "),
        ({"$": "sparse", "layout": "strided", "size": [2], "parts": []}, "a sparse layout"),
        ({"$": "sparse", "layout": "sparse_coo", "size": [2], "parts": [1, 2]}, "expected tensors"),
        ({"$": "sparse", "layout": "sparse_coo", "size": [4], "parts": [t(5), t(1)]}, "refused"),
        ({"$": "sparse", "layout": "sparse_csr", "size": [2, 2], "parts": [t(1)] * 3}, "refused"),
        ({"$": "nested", "parts": [t(0)] * 4}, "tables of sizes, strides and offsets"),
        ({"$": "jagged", "dim": 1, "values": t(0), "offsets": t(0)}, "do not match"),
        ({"$": "jagged", "dim": 1, "values": t(0), "offsets": t(1)}, "do not ascend within"),
        ({"$": "jagged", "dim": 1, "values": t(0), "offsets": t(4)}, "do not match|refused"),
        ({"$": "jagged", "dim": 1, "values": 1, "offsets": t(1)}, "values: expected a tensor"),
        ({"$": "subclass", "class": "torch._tensor:Tensor", "size": [], "stride": [], "inner": {},
          "context": None}, "Tensor cannot be put together"),
    ],
)  # fmt: skip
def test_a_node_that_breaks_the_format_is_refused_by_path(node: Any, message: str) -> None:
    with pytest.raises(FormatError, match=rf"'a/0'.*({message})"):
        unflatten({"a": [node]}, TENSORS)


def test_an_unknown_kind_is_a_newer_version() -> None:
    with pytest.raises(VersionError, match="upgrade s4weights"):
        unflatten({"$": "newer"}, [])


def test_out_of_bounds_parts_are_refused_before_torch_believes_them() -> None:
    tables = [torch.tensor([[2]]), torch.tensor([[1]]), torch.tensor([3])]
    nested = {"$": "nested", "parts": [t(0), t(1), t(2), t(3)]}
    with pytest.raises(FormatError, match="a part reaches element 4 of 4"):
        unflatten(nested, [torch.arange(4.0), *tables])
    tables[0][0, 0] = -2
    with pytest.raises(FormatError, match="a size, stride or offset is negative"):
        unflatten(nested, [torch.arange(4.0), *tables])
    jagged = {"$": "jagged", "dim": 1, "values": t(0), "offsets": t(1), "lengths": t(2)}
    offsets, lengths = torch.tensor([0, 2, 4]), torch.tensor([1, 9])
    with pytest.raises(FormatError, match="its lengths reach beyond its values"):
        unflatten(jagged, [torch.arange(4.0), offsets, lengths])


def test_deep_trees_are_refused_without_recursion() -> None:
    tree: Any = []
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(FormatError, match="nests more than 255 levels"):
        unflatten(tree, [])


@pytest.mark.parametrize(
    "node",
    [
        {"$": "pickle", "class": "os:system", "data": {"$": "bytes", "data": ""}},
        {"$": "enum", "class": "os:X", "name": "X"},
        {"$": "dataclass", "class": "os:X", "fields": {}},
        {"$": "subclass", "class": "os:X", "size": [], "stride": [], "inner": {}, "context": 0},
    ],
)
def test_what_names_code_needs_trust(node: Any) -> None:
    with pytest.raises(StateError, match=r"'x': .*os:.* is loaded only with weights_only=False"):
        unflatten({"x": node}, [])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"$": "pickle", "class": "a:B", "data": {"$": "bytes", "data": "AAAA"}}, "a pickled a:B"),
        ({"$": "enum", "class": "no.such:X", "name": "X"}, "no.such:X .*could not be imported"),
        ({"$": "enum", "class": "os:path", "name": "X"}, "os:path is needed and is no Enum"),
        ({"$": "enum", "class": "enum:Enum", "name": "X"}, "no such member"),
        ({"$": "dataclass", "class": "builtins:int", "fields": {}}, "is no dataclass any more"),
    ],
)
def test_trusted_nodes_that_do_not_fit_this_machine_say_so(node: Any, message: str) -> None:
    with pytest.raises(StateError, match=rf"'x': .*{message}"):
        unflatten({"x": node}, [], weights_only=False)


def everything() -> dict[str, Any]:
    """A state with a node of nearly every kind."""
    return {
        "tensor": [torch.arange(3.0), torch.nn.Parameter(torch.ones(2)), torch.ones(2).conj()],
        "sparse": [torch.eye(3).to_sparse(), torch.eye(2).to_sparse_csr()],
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": [
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            torch.quantize_per_channel(
                torch.ones(2, 3), torch.rand(2), torch.zeros(2, dtype=torch.int64), 0, torch.quint8
            ),
        ],
        "numpy": [np.arange(3), np.arange(3, dtype=">i2"), np.float32(1), np.dtype("f4")],
        "keys": {1: 2, (1, 2): {3}, None: frozenset({4.5})},
        "ordered": OrderedDict(a=1),
        "values": [2**2000, float("nan"), 1j, b"xy", bytes(2000), "\ud800", range(3), slice(1)],
        "torch": [torch.Size([1]), torch.int8, torch.device("cpu"), pathlib.PurePosixPath("x")],
    }


JUNK = st.sampled_from([None, True, -1, 0, 7, 1 << 70, 1.5, "", "x", [], {}, [1], {"$": "int"}])


@pytest.fixture(scope="module")
def flat() -> tuple[Any, list[Tensor | None]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse and quantized tensors announce themselves
        found = flatten(everything())
    return json.loads(json.dumps(found.tree)), reload(found.leaves)[1]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in JSON."""
    found = [path] if path else []
    children: Any = node.items() if isinstance(node, dict) else ()
    for key, child in enumerate(node) if isinstance(node, list) else children:
        found += places(child, (*path, key))
    return found


@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_any_change_to_a_tree_loads_or_is_an_s4_error(
    flat: tuple[Any, list[Tensor | None]], data: st.DataObject
) -> None:
    tree, tensors = copy.deepcopy(flat[0]), flat[1]
    for _ in range(data.draw(st.integers(1, 2))):
        *parents, last = data.draw(st.sampled_from(places(tree)))
        target = tree
        for key in parents:
            target = target[key]
        if data.draw(st.booleans()) and isinstance(target, dict):
            del target[last]
        else:
            target[last] = copy.deepcopy(data.draw(JUNK))
    try:
        unflatten(tree, tensors)
    except (FormatError, StateError) as error:
        assert ":" in str(error)  # noqa: PT017 (either outcome is right)
