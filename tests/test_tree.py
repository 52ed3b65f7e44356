"""A tree of nodes gives back the same state: every class, every bit, no code."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import pathlib
import random
import struct
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from bits import assert_same_state
from hypothesis import HealthCheck, given, settings
from strategies import states
from trips import flat_trip, round_trip

from s4core.errors import StateError
from s4core.tree import flatten


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Mode(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    layers: list[int]


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: int
    y: Any


class Point(NamedTuple):
    x: float
    y: Any

    def norm(self) -> float:
        return math.hypot(self.x, self.y)


class Foreign:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and other.value == self.value

    def __hash__(self) -> int:
        return self.value


class SubDict(dict):  # type: ignore[type-arg]
    pass


def nan(bits: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(states())
def test_any_state_comes_back(state: Any) -> None:
    assert_same_state(state, round_trip(state), aliasing=True)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, (2, None)], "b": {"c": True}},
        {7: "int", "7": "str", 2.5: "float", None: 0, (1, "x"): 1, b"k": 2, True: 3},
        {"$": "a key of its own", "x": 1},
        {"\ud800": "half", "\ud83d\ude00": "two halves"},
        {nan("7ff8000000000001"): 1, nan("7ff8000000000002"): 2, -0.0: 3},
        "\ud83d\ude00",
        "\U0001f600",
        2**70,
        -(2**20000),
        [math.inf, -math.inf, -0.0, 5e-324, 1e308, 0.1],
        [nan("7ff8000000000000"), nan("fff8dead0000beef"), nan("7ff0000000000001")],
        complex(nan("7ff8000000000007"), -0.0),
        b"",
        b"\x00" * 1024,
        bytes(range(256)) * 5,
        bytearray(b"x" * 3000),
        [set(), {1, "a", None, (1, 2)}, frozenset({2.5, b"z"}), {frozenset({1})}],
        [range(2, -9, -3), slice(None, 2**80, None), slice("a", (1,), 2)],
        [pathlib.PurePosixPath("a/\udcff"), pathlib.PureWindowsPath("C:/x"), pathlib.Path("/x")],
        datetime.datetime(2024, 5, 6, 7, 8, 9, 10, fold=1),
        datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.time(1, 2, 3, 4, datetime.timezone(datetime.timedelta(hours=-5), "EST")),
        [datetime.date(9999, 12, 31), datetime.timedelta(-3, 4, 5)],
        [torch.Size([2, 0]), torch.bfloat16, torch.uint4 if hasattr(torch, "uint4") else 0],
        [torch.strided, torch.sparse_csr, torch.channels_last, torch.per_channel_affine],
        [torch.device("cpu"), torch.device("cuda:3"), torch.device("meta")],
        defaultdict(list, {"a": [1]}),
        defaultdict(None, {1: 2}),
        [defaultdict(kind) for kind in (dict, set, tuple, int, float, bool, str)],
        random.Random(3).getstate(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_python_and_torch_values_come_back(value: object) -> None:
    assert_same_state(value, round_trip(value))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.array(1.5),
        np.zeros((0, 3), np.uint16),
        np.arange(10, dtype=np.uint32)[::3],
        np.arange(10)[::-1],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.arange(6, dtype=">f4"),
        np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
        np.array([True, False]),
        np.array(["2024-01-01", "NaT"], dtype="M8[s]"),
        np.array([1, 2], dtype="m8[25us]"),
        np.array([(1, 2.5, b"ab")], dtype=[("a", "i4"), ("b", "f8", (2, 2)), ("c", "S3")]),
        np.zeros(3, np.dtype({"names": ["x"], "formats": ["i2"], "offsets": [3], "itemsize": 9})),
        np.array(["a", "béé\ud800"]),
        np.array([b"x\0", b"yy"]),
        np.zeros(2, np.longdouble),
        np.zeros(4, [("a", "i1"), ("b", "<f4")])["b"],
        np.frombuffer(b"12345", dtype=np.uint8, offset=1),
        [np.float32(-0.0), np.float64("nan"), np.int64(-1), np.bool_(True), np.complex64(1j)],
        [
            np.str_("a\0"),
            np.str_(""),
            np.bytes_(b"\0"),
            np.datetime64("2024-01-01T00"),
            np.void(b"x"),
        ],
        [np.dtype("f4"), np.dtype([("a", ">i2")])],
        np.random.RandomState(1).get_state(),
    ],
    ids=lambda value: getattr(value, "dtype", type(value)).__class__.__name__,
)
def test_numpy_comes_back(value: object) -> None:
    assert_same_state(value, round_trip(value))


def test_numpy_is_kept_on_the_host_and_shares_memory_when_it_is_one_object() -> None:
    array = np.arange(4.0)
    flat = flatten({"a": array, "b": array, "t": torch.zeros(1)})
    assert [(leaf.path, leaf.host) for leaf in flat.leaves] == [("a", True), ("t", False)]
    loaded = flat_trip(flat)
    assert loaded["a"] is loaded["b"]


def test_a_state_dict_keeps_its_metadata() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    loaded = round_trip(state)
    assert type(loaded) is OrderedDict
    assert loaded._metadata == state._metadata  # type: ignore[attr-defined]
    assert_same_state(state, loaded)


def test_an_optimizer_comes_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    flat = flatten({"optimizer": optimizer.state_dict()})
    assert [leaf.path for leaf in flat.leaves if leaf.host] == [
        f"optimizer/state/{i}/step" for i in (0, 1)
    ]
    assert "optimizer/state/0/exp_avg" in [leaf.path for leaf in flat.leaves]
    assert_same_state({"optimizer": optimizer.state_dict()}, flat_trip(flat))


def test_paths_are_unique_and_readable() -> None:
    one = torch.zeros(1)
    state = {
        "a/b": one.clone(), "a": {"b": one.clone(), "": one.clone()}, "": one.clone(),
        "m": {0: one.clone(), "0": one.clone(), (1,): one.clone(), (2,): one.clone()},
        "~": [one.clone()], "\ud800": one.clone(), "s": {frozenset({1}): one.clone()},
    }  # fmt: skip
    found = [leaf.path for leaf in flatten(state).leaves]
    assert found == [
        "a~1b", "a/b", "a/~", "~", "m/0", "m/0~2", "m/tuple", "m/tuple~2", "~0/0", "~ud800",
        "s/frozenset",
    ]  # fmt: skip


def test_the_same_state_gives_the_same_tree() -> None:
    names = [f"name{i}" for i in range(50)]
    shuffled = random.Random(1).sample(names, len(names))
    assert json.dumps(flatten(set(names)).tree) == json.dumps(flatten(set(shuffled)).tree)


def test_a_namedtuple_comes_back_without_its_class_unless_trusted() -> None:
    state = [Point(1.0, torch.ones(1)), Point(2.0, None)]
    fresh = round_trip(state)
    assert_same_state(state, fresh)
    assert type(fresh[0]) is type(fresh[1]) is not Point
    assert not hasattr(fresh[0], "norm")
    trusted = round_trip(state, weights_only=False)
    assert type(trusted[0]) is Point
    local = namedtuple("local", "a b")
    assert round_trip(local(1, 2), weights_only=False) == (1, 2)


def test_enums_and_dataclasses_need_leave_on_both_sides() -> None:
    state = {"e": Color.BLUE, "f": Mode.A | Mode.B, "d": Config(0.1, [1]), "s": Slotted(1, "y")}
    for value in state.values():
        with pytest.raises(StateError, match=r"'x'.*pass allow_classes=True"):
            flatten({"x": value})
    flat = flatten(state, allow_classes=True)
    loaded = flat_trip(flat, weights_only=False)
    assert loaded == state
    assert loaded["e"] is Color.BLUE
    with pytest.raises(
        StateError, match=r"'e': the enum .*:Color is loaded only with weights_only"
    ):
        flat_trip(flat)
    with pytest.raises(StateError, match=r"the dataclass .*:Config is loaded only"):
        round_trip([Config(0.1, [])], allow_classes=True)


@pytest.mark.parametrize("value", [Foreign(3), SubDict(a=1), Foreign, len, np.array([None])])
def test_a_leaf_of_any_other_class_is_pickled_only_with_leave(value: Any) -> None:
    with pytest.raises(StateError, match=r"'a/0': a .* cannot be stored: .*allow_pickle=True"):
        flatten({"a": [value]})
    flat = flatten({"a": [value]}, allow_pickle=True)
    with pytest.raises(StateError, match=r"'a/0': a pickled .* is loaded only with weights_only=F"):
        flat_trip(flat)
    assert_same_state({"a": [value]}, flat_trip(flat, weights_only=False))


def test_a_big_pickle_is_a_tensor_of_its_own() -> None:
    value = Foreign(0)
    value.blob = bytes(5000)  # type: ignore[attr-defined]
    flat = flatten({"a": value}, allow_pickle=True)
    assert [leaf.path for leaf in flat.leaves] == ["a"]
    assert flat_trip(flat, weights_only=False)["a"] == value


def test_what_cannot_be_pickled_is_refused_by_path() -> None:
    with pytest.raises(StateError, match=r"'f': a .*function cannot be pickled"):
        flatten({"f": lambda: 0}, allow_pickle=True)


def test_advice_fits_the_object() -> None:
    with pytest.raises(
        StateError, match=r"'m': a torch.*:Linear.*store its state_dict\(\) instead"
    ):
        flatten({"m": torch.nn.Linear(1, 1)})
    with pytest.raises(StateError, match=r"'g'.*store its get_state\(\) instead"):
        flatten({"g": torch.Generator()})
    with pytest.raises(StateError, match=r"'o': a numpy array of object cannot be stored"):
        flatten({"o": np.array([{}])})

    class Hidden(enum.Enum):
        X = 1

    with pytest.raises(StateError, match="define it at the top of a module"):
        flatten(Hidden.X, allow_classes=True)


def test_a_state_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {"a": [1]}
    loop["a"].append({"back": loop})
    with pytest.raises(StateError, match=r"'a/1/back': a dict contains itself"):
        flatten(loop)


def test_a_list_that_is_there_twice_is_no_cycle() -> None:
    shared = [1]
    assert round_trip({"a": shared, "b": shared}) == {"a": [1], "b": [1]}


@pytest.mark.parametrize(("wrap", "deepest"), [(lambda x: [x], 254), (lambda x: (x,), 127)])
def test_too_deep_a_state_is_refused_and_the_deepest_comes_back(wrap: Any, deepest: int) -> None:
    state: Any = []
    for _ in range(deepest):
        state = wrap(state)
    assert round_trip(state) == state
    with pytest.raises(StateError, match="255"):
        flatten(wrap(wrap(state)))
    for _ in range(5000):
        state = wrap(state)
    with pytest.raises(StateError, match="deeply"):
        flatten(state)


def test_loading_imports_nothing() -> None:
    flat = flatten(Point(1.0, 2))
    flat.tree["class"] = "antigravity:Point"
    assert flat_trip(flat) == (1.0, 2)
    assert "antigravity" not in __import__("sys").modules
