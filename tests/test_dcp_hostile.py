"""Distributed checkpoints that are damaged or forged: errors of ours, never wrong data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from dcp_plans import group_of_one, manifest_of  # noqa: F401

import s4core.dcp as s4dcp
import s4weights
from s4core import digests
from s4core.refs import Ref, dump_ref
from s4weights import FormatError, S4Error, VersionError


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a checkpoint's manifest, and its ref, as an attacker with write access could."""
    file = manifest_of(path)
    document = json.loads(file.read_bytes())
    change(document)
    data = json.dumps(document).encode()
    file.write_bytes(data)
    path.write_bytes(dump_ref(Ref(document["id"], digests.document_digest(data))))


def test_damaged_shards_are_errors(tmp_path: Path) -> None:
    s4dcp.save({"w": torch.randn(100, 100)}, tmp_path / "x")
    (shard,) = tmp_path.glob(".s4/shards/*/*")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(FormatError, match="expected|damaged"):
        s4dcp.load({"w": torch.zeros(100, 100)}, tmp_path / "x")


def node(document: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = document["tree"]["items"][number]
    return found


def quantize(document: dict[str, Any]) -> None:
    document["tensors"][0].update(dtype="qint32")
    node(document).update(dtype="qint32")


TENSOR = {"$": "tensor", "t": 7}
Change = Callable[[dict[str, Any]], Any]
CHANGES: list[tuple[str, Change]] = [
    ("kind", lambda d: d["tree"].update({"$": "dcp2"})),
    ("unknown key", lambda d: d["tree"].update(more=1)),
    ("unknown key of an item", lambda d: node(d).update(more=1)),
    ("no items", lambda d: d["tree"].pop("items")),
    ("items of another type", lambda d: d["tree"].update(items=[3])),
    ("a name twice", lambda d: d["tree"]["items"].append(node(d))),
    ("no name", lambda d: node(d).pop("name")),
    ("no way", lambda d: node(d).pop("way")),
    ("an empty way", lambda d: node(d).update(way=[])),
    ("a way from a list", lambda d: node(d).update(way=[0])),
    ("a way of floats", lambda d: node(d).update(way=["a", 0.5])),
    ("a way through a value", lambda d: node(d).update(way=["v", "n", "x"])),
    ("the way of another", lambda d: node(d).update(way=["v", "n"])),
    ("a way far into a list", lambda d: node(d).update(way=["l", 1 << 60])),
    ("a way into a list and a dict", lambda d: node(d).update(way=["v", 0])),
    ("a dtype that is another's", lambda d: node(d).update(dtype="int32")),
    ("an unknown dtype", lambda d: node(d).update(dtype="float1")),
    ("a larger tensor", lambda d: node(d).update(size=[1 << 40, 4])),
    ("a negative size", lambda d: node(d).update(size=[-1, 4])),
    ("another number of dimensions", lambda d: node(d).update(size=[16])),
    ("a part that is missing", lambda d: node(d)["parts"].pop()),
    ("a part twice", lambda d: node(d)["parts"].append(node(d)["parts"][0])),
    ("an unknown tensor", lambda d: node(d)["parts"].append([99, 0, 0])),
    ("a negative tensor", lambda d: node(d)["parts"].append([-1, 0, 0])),
    ("a true tensor", lambda d: node(d)["parts"].append([True, 0, 0])),
    ("parts of another type", lambda d: node(d).update(parts=[{}])),
    ("an offset outside", lambda d: node(d)["parts"].__setitem__(0, [0, 1, 0])),
    ("a gradient of integers", lambda d: node(d, 1).update(grad=True)),
    ("a tensor that is no number", lambda d: node(d, 2).update(tensors=["0"])),
    ("an unknown tensor in a value", lambda d: node(d, 2).update(tensors=[99])),
    ("a value out of its tensors", lambda d: node(d, 2)["value"]["items"].append(TENSOR)),
    ("one inside another", lambda d: node(d, 2).update(value=d["tree"] | {"items": []})),
    ("a part without bits", lambda d: d["tensors"][0].update(array=None, device="meta")),
    ("a part that is quantized", lambda d: quantize(d)),
]


@pytest.mark.parametrize(("what", "change"), CHANGES, ids=[what for what, _ in CHANGES])
def test_hostile_manifests_are_refused(tmp_path: Path, what: str, change: Change) -> None:
    url = tmp_path / "x"
    tensor = torch.arange(16, dtype=torch.float32).view(4, 4)
    state = {"a": tensor, "i": torch.arange(3), "v": {"n": (1, torch.ones(40))}}
    s4dcp.save(state, url)
    rewrite(url, lambda _: None)
    assert_same_state(state, s4weights.load(url))
    rewrite(url, change)
    target = {"a": torch.zeros(4, 4), "i": torch.zeros(3, dtype=torch.int64), "v": {"n": None}}
    for load in (lambda: s4dcp.load(target, url), lambda: s4weights.load(url)):
        with pytest.raises(S4Error):
            load()


def test_a_kind_of_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    s4dcp.save({"w": torch.ones(2)}, tmp_path / "x")
    rewrite(tmp_path / "x", lambda d: d["tree"].update({"$": "dcp2"}))
    with pytest.raises(VersionError, match="a node of kind 'dcp2' is not known"):
        s4weights.load(tmp_path / "x")
