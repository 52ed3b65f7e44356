"""A manifest comes back as it was, and nothing that breaks FORMAT.md gets through."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import D, array, manifest

from s4core.errors import FormatError, S4Error, StateError, VersionError
from s4core.manifest import Need, ShardEntry, TensorEntry, dump, parse

RICH = manifest(
    arrays=(
        array(),
        array(at=None, data=b"\x00\x00\x80\x3f", words=1),
        array(delta="zigzag", base=(0, 4), base_digest=D, depth=2),
        array(at=None, same=(1, 0), depth=1),
    ),
    needs=(Need("zero", D), Need("older", D)),
    base=0,
    tensors=(
        TensorEntry("w", "float32", (10, 10), (10, 1), 0, 0, "cpu", ("tied", "again")),
        TensorEntry("view", "float32", (5,), (1,), 0, 95, "cuda:0"),
        TensorEntry("lone", "float32", (10, 10), (400, 2), 3, 0, "cpu"),
        TensorEntry("step", "float32", (), (), 1, 0, "host"),
        TensorEntry("meta", "bfloat16", (7,), (1,), None, 0, "meta"),
    ),
    meta={"note": "by hand", "loss": 1.5, "none": None},
)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert parse(dump(RICH), "m") == RICH


def test_the_same_manifest_gives_the_same_bytes() -> None:
    assert dump(parse(dump(RICH), "m")) == dump(RICH)


def test_every_truncation_is_a_format_error() -> None:
    data = dump(RICH)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            parse(data[:size], "m")


def test_every_flipped_bit_is_an_error_or_harmless_but_never_another_exception() -> None:
    # What a flipped bit turns into another valid manifest is caught by the manifest's
    # digest, one level up; here nothing may crash.
    data = dump(RICH)
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            parse(bytes(bad), "m")
        except S4Error as error:
            assert "m" in str(error)  # noqa: PT017  # both outcomes are allowed


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=10,
    ),
    st.sampled_from(list(json.loads(dump(RICH)))),
)
@settings(max_examples=300, deadline=None)
def test_any_json_in_any_field_is_refused_or_read(value: Any, key: str) -> None:
    document = json.loads(dump(RICH))
    document[key] = value
    try:
        parse(json.dumps(document).encode(), "m")
    except S4Error:
        return


BAD: dict[str, dict[str, Any]] = {
    "id 'a/b': expected 1 to 128": {"id": "a/b"},
    r"needs\[0\]: id '..!'": {"needs": (Need("..!", D),)},
    r"needs\[0\]: digest 'xx': expected 32 hex": {"needs": (Need("a", "xx"),)},
    "base 0: there are 0 needs": {"base": 0},
    r"shards\[0\]: key '\.\./x'": {"shards": (ShardEntry("../x", 1),)},
    r"shards\[0\]: key '/x'": {"shards": (ShardEntry("/x", 1),)},
    "depth 3: the arrays' largest is 0": {"depth": 3},
    r"arrays\[0\]: expected exactly one of at, same, data and": {"arrays": (array(at=None),)},
    r"arrays\[0\]: at shard 1: there are 1": {"arrays": (array(at=(1, 0)),)},
    r"arrays\[0\]: digest 'q'": {"arrays": (array(digest="q"),)},
    r"arrays\[0\]: dtype 'float3' is not known.*upgrade": {"arrays": (array(dtype="float3"),)},
    r"arrays\[0\]: delta 'sum' is not known.*upgrade": {"arrays": (array(delta="sum"),)},
    "a delta needs at, base and a depth": {"arrays": (array(delta="xor"),)},
    "base_digest: digest ''": {
        "arrays": (array(delta="xor", base=(0, 0), depth=1),),
        "needs": (Need("a", D),),
    },
    "a base without a delta": {"arrays": (array(base=(0, 0)),)},
    "depth 4 without a delta": {"arrays": (array(depth=4),)},
    "same in need 2: there are 0": {"arrays": (array(at=None, same=(2, 0)),)},
    "data of 3 bytes: expected 400, at most 64": {"arrays": (array(at=None, data=b"abc"),)},
    "2 sizes but 1 strides": {"tensors": (TensorEntry("w", "float32", (2, 2), (1,), 0, 0, "cpu"),)},
    "array 7: there are 1": {"tensors": (TensorEntry("w", "float32", (2,), (1,), 7, 0, "cpu"),)},
    "no array, and its device is 'cpu'": {
        "tensors": (TensorEntry("w", "float32", (2,), (1,), None, 0, "cpu"),)
    },
    r"\(w\): reaches element 101: its array holds 100": {
        "tensors": (TensorEntry("w", "float32", (100,), (1,), 0, 1, "cpu"),)
    },
}


@pytest.mark.parametrize("message", BAD)
def test_what_breaks_the_rules_is_refused_on_write_and_on_read(message: str) -> None:
    changes = dict(BAD[message])
    arrays = changes.get("arrays", (array(),))
    changes.setdefault("depth", max(a.depth for a in arrays))
    bad = manifest(**changes)
    with pytest.raises(FormatError, match=message):
        dump(bad)


def test_newer_versions_and_unknown_needs_ask_for_an_upgrade() -> None:
    document = json.loads(dump(RICH))
    with pytest.raises(VersionError, match="m has manifest version 2: .*upgrade"):
        parse(json.dumps({**document, "version": 2}).encode(), "m")
    with pytest.raises(VersionError, match="m needs codec:magic, which .*upgrade"):
        parse(json.dumps({**document, "requires": ["codec:magic"]}).encode(), "m")


def test_json_that_is_not_plain_is_refused() -> None:
    for text in (b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff", b"[", b"[" * 100_000, b""):
        with pytest.raises(FormatError, match="m is not valid JSON"):
            parse(text, "m")
    with pytest.raises(FormatError, match="m: expected an object, found list"):
        parse(b"[]", "m")
    with pytest.raises(FormatError, match="m is not a manifest: its format is 's4-ref'"):
        parse(b'{"format":"s4-ref"}', "m")


def test_a_bottomless_state_is_a_state_error() -> None:
    node: Any = 0
    for _ in range(100_000):
        node = [node]
    with pytest.raises(StateError, match="nested too deeply"):
        dump(dataclasses.replace(RICH, tree=node))
    while isinstance(node, list):  # torn down flat: nested destructors would overflow
        node = node.pop()
