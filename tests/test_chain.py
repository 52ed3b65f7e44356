"""Following a chain finds exactly what the writer saw, or says what is wrong."""

from __future__ import annotations

import dataclasses

import pytest
from manifests import D, array, manifest, need

from s4core.chain import Chain, reachable
from s4core.errors import (
    BaseMismatchError,
    BaseNotFoundError,
    ChainError,
    FormatError,
    KeyNotFoundError,
)
from s4core.manifest import Manifest, Need, dump, parse

E = "f" * 32
BASE = manifest(id="base")
MIDDLE = manifest(
    (array(delta="xor", base=(0, 0), base_digest=D, depth=1, digest=E),),
    (need(BASE),),
    id="middle",
    base=0,
)
TIP = manifest(
    (
        array(delta="zigzag", base=(0, 0), base_digest=E, depth=2),
        array(at=None, same=(1, 0)),
        array(at=None, data=b"\0\0\0\0", words=1),
    ),
    (need(MIDDLE), need(BASE)),
    id="tip",
    base=0,
)


def fetch_from(*manifests: Manifest):
    known = {m.id: dump(m) for m in manifests}

    def fetch(identity: str) -> bytes:
        if identity not in known:
            raise KeyNotFoundError(f"no {identity}")
        return known[identity]

    return fetch


ALL = fetch_from(BASE, MIDDLE, TIP)


def test_links_run_from_the_base_to_the_tip() -> None:
    links = Chain(TIP, ALL).links(0)
    assert [(link.manifest.id, link.entry.delta) for link in links] == [
        ("base", None),
        ("middle", "xor"),
        ("tip", "zigzag"),
    ]


def test_a_reference_leads_to_the_checkpoint_that_stores_it() -> None:
    assert [link.manifest.id for link in Chain(TIP, ALL).links(1)] == ["base"]


def test_words_in_the_manifest_need_no_link() -> None:
    assert Chain(TIP, ALL).links(2) == []


def test_each_manifest_is_fetched_once() -> None:
    asked = []

    def fetch(identity: str) -> bytes:
        asked.append(identity)
        return ALL(identity)

    chain = Chain(TIP, fetch)
    for _ in range(3):
        chain.links(0)
        chain.links(1)
    assert sorted(asked) == ["base", "middle"]


def test_a_missing_base_is_named_with_what_needs_it() -> None:
    with pytest.raises(BaseNotFoundError, match="checkpoint middle needs checkpoint base, .* gone"):
        Chain(TIP, fetch_from(MIDDLE, TIP)).links(0)


def test_another_manifest_under_the_same_id_is_refused() -> None:
    other = dataclasses.replace(BASE, step=99)
    with pytest.raises(BaseMismatchError, match="checkpoint base is not the one that middle was"):
        Chain(TIP, fetch_from(other, MIDDLE, TIP)).links(0)


def test_a_base_array_with_other_words_is_refused() -> None:
    for change in ({"base_digest": E}, {"words": 99}, {"dtype": "int32"}):
        entry = dataclasses.replace(MIDDLE.arrays[0], **change)
        tip = manifest((entry,), MIDDLE.needs, id="tip", tensors=())
        with pytest.raises(BaseMismatchError, match="array 0 of checkpoint base is not what tip"):
            Chain(tip, ALL).links(0)


def test_a_link_that_leads_nowhere_is_an_error() -> None:
    entry = dataclasses.replace(MIDDLE.arrays[0], base=(0, 5))
    tip = manifest((entry,), MIDDLE.needs, id="tip")
    with pytest.raises(ChainError, match="tip stands on array 5 of base, which has 1"):
        Chain(tip, ALL).links(0)


def test_a_link_to_a_reference_is_an_error() -> None:
    entry = array(delta="xor", base=(0, 1), base_digest=D, depth=1)
    top = manifest((entry,), (need(TIP),), id="top")
    with pytest.raises(ChainError, match="array 1 of checkpoint tip is stood on by top but is not"):
        Chain(top, fetch_from(BASE, MIDDLE, TIP)).links(0)


def test_depth_must_fall_by_one_so_that_no_cycle_is_possible() -> None:
    entry = dataclasses.replace(MIDDLE.arrays[0], depth=7)
    tip = manifest((entry,), MIDDLE.needs, id="tip")
    with pytest.raises(ChainError, match="has depth 7 but its base .* has 0: expected 6"):
        Chain(tip, ALL).links(0)


def test_a_manifest_that_lies_about_its_id_is_refused() -> None:
    impostor = dataclasses.replace(BASE, id="other")
    tip = manifest((array(at=None, same=(0, 0)),), (Need("base", need(impostor).digest),), id="tip")
    with pytest.raises(FormatError, match="checkpoint base says that its id is 'other'"):
        Chain(tip, lambda _: dump(impostor)).links(0)


def needs_from(*manifests: Manifest):
    fetch = fetch_from(*manifests)
    return lambda identity: [need.id for need in parse(fetch(identity), identity).needs]


def test_reachable_is_everything_a_root_stands_on() -> None:
    needs = needs_from(BASE, MIDDLE, TIP)
    assert reachable(["tip"], needs) == {"tip", "middle", "base"}
    assert reachable(["middle"], needs) == {"middle", "base"}
    assert reachable([], needs) == set()


def test_a_gap_below_a_root_stops_the_marking_unless_it_may_be_passed() -> None:
    with pytest.raises(BaseNotFoundError, match="checkpoint base, needed by .*, is gone"):
        reachable(["tip"], needs_from(MIDDLE, TIP))
    found = reachable(["tip"], needs_from(MIDDLE, TIP), passing=True)
    assert found == {"tip", "middle", "base"}
