"""Retention as a pure function of the catalogue: laws, and what a run does with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s4core.checkpoint import Options, Run
from s4core.retention import Candidate, Rules, decide
from s4core.stores import MemoryStore
from s4weights import StateError

COUNTS = st.none() | st.integers(1, 6)
RULES = st.builds(
    Rules,
    keep_last=COUNTS,
    keep_every=COUNTS,
    keep_best=COUNTS,
    metric=st.just("loss"),
    mode=st.sampled_from(["min", "max"]),
    pinned=st.sampled_from([(), ("step-3",), ("*2",)]),
)
METRICS = st.none() | st.sampled_from([0.0, 0.5, 1.0, 2, float("nan"), True, "low"])


@st.composite
def catalogues(draw: st.DrawFn) -> list[Candidate]:
    steps = draw(st.lists(st.integers(0, 40), unique=True, max_size=15))
    found: list[Candidate] = []
    for step in steps:
        below = draw(st.lists(st.sampled_from(found), max_size=3)) if found else []
        needs = frozenset(n for item in below for n in (item.id, *item.needs))
        meta = {"loss": draw(METRICS)}
        found.append(Candidate(f"step-{step}", step, f"id-{step}", needs, meta))
    return found


Catalogue = catalogues()


def kept(catalogue: list[Candidate], rules: Rules) -> set[int]:
    steps = {item.name: item.step for item in catalogue}
    return {steps[d.name] for d in decide(catalogue, rules) if d.keep}


@given(catalogue=Catalogue, rules=RULES)
def test_every_checkpoint_gets_one_decision_and_the_newest_stays(
    catalogue: list[Candidate], rules: Rules
) -> None:
    decisions = decide(catalogue, rules)
    assert [d.name for d in decisions] == [item.name for item in catalogue]
    assert all(d.reason for d in decisions if d.keep)
    if catalogue:
        assert max(item.step for item in catalogue) in kept(catalogue, rules)


@given(catalogue=Catalogue, rules=RULES)
def test_what_is_kept_does_not_depend_on_the_order_of_the_catalogue(
    catalogue: list[Candidate], rules: Rules
) -> None:
    assert kept(catalogue, rules) == kept(catalogue[::-1], rules)


@given(catalogue=Catalogue, rules=RULES)
def test_deciding_again_removes_nothing_more(catalogue: list[Candidate], rules: Rules) -> None:
    once = kept(catalogue, rules)
    assert kept([item for item in catalogue if item.step in once], rules) == once


@given(catalogue=Catalogue, rules=RULES)
def test_each_rule_keeps_what_it_says(catalogue: list[Candidate], rules: Rules) -> None:
    steps = sorted(item.step for item in catalogue)
    found = kept(catalogue, rules)
    if not rules.any:
        assert found == set(steps)
        return
    expected = set(steps[-1:])
    expected |= set(steps[-(rules.keep_last or 0) :]) if rules.keep_last else set()
    expected |= {s for s in steps if rules.keep_every and s % rules.keep_every == 0}
    pinned = {"step-3"} if rules.pinned == ("step-3",) else set()
    pinned |= {i.name for i in catalogue if rules.pinned == ("*2",) and i.name.endswith("2")}
    expected |= {item.step for item in catalogue if item.name in pinned}
    assert expected <= found
    if rules.keep_best is None:
        assert found == expected
    else:
        assert len(found - expected) <= rules.keep_best


@given(catalogue=Catalogue, count=st.integers(1, 4), mode=st.sampled_from(["min", "max"]))
def test_nothing_removed_is_better_than_what_the_best_rule_keeps(
    catalogue: list[Candidate], count: int, mode: str
) -> None:
    rules = Rules(keep_best=count, metric="loss", mode=mode)
    found = kept(catalogue, rules)
    newest = max((item.step for item in catalogue), default=None)
    metrics = {item.step: item.metric("loss") for item in catalogue}
    best = [m for s, m in metrics.items() if m is not None and s in found and s != newest]
    gone = [m for s, m in metrics.items() if m is not None and s not in found]
    measured = [m for m in metrics.values() if m is not None]
    assert len(found) >= min(count, len(measured))
    for metric in gone:
        assert all(b <= metric if mode == "min" else b >= metric for b in best)


@given(catalogue=Catalogue, rules=RULES)
def test_what_a_kept_checkpoint_stands_on_keeps_its_bytes(
    catalogue: list[Candidate], rules: Rules
) -> None:
    decisions = {d.name: d for d in decide(catalogue, rules)}
    needed = {n for item in catalogue if decisions[item.name].keep for n in item.needs}
    for item in catalogue:
        decision = decisions[item.name]
        assert decision.stood_on == (not decision.keep and item.id in needed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, "keep_last 0: expected at least 1, or None"),
        ({"keep_every": -1}, "keep_every -1: expected at least 1"),
        ({"keep_best": 2}, "keep_best needs metric"),
        ({"mode": "best"}, "mode 'best': expected 'min' or 'max'"),
    ],
)
def test_rules_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(StateError, match=message):
        Options(**options)  # type: ignore[arg-type]


def test_a_run_keeps_what_its_rules_name_and_every_kept_step_loads() -> None:
    rules = {"keep_last": 2, "keep_every": 5, "keep_best": 1, "metric": "loss"}
    run = Run(MemoryStore("retained"), Options(max_depth=3, pinned=("*-00000003.ckpt",), **rules))
    w = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    losses = {4: 0.1, 6: 0.3, 12: 0.2}
    for step in range(1, 15):
        run.save({"w": w + 1e-6 * step}, step, meta={"loss": losses.get(step, 1.0)})
    assert run.steps() == [3, 4, 5, 10, 13, 14]
    assert all(finding.ok for finding in run.verify(full=True))
    reasons = {d.name: d.reason for d in run.retention()}
    assert reasons["step-00000004.ckpt"] == "one of the best 1 by loss"
    assert reasons["step-00000003.ckpt"] == "pinned"
    tighter = {d.name: d for d in run.retention(Rules(keep_last=1))}
    assert tighter["step-00000013.ckpt"].stood_on
    assert run.steps() == [3, 4, 5, 10, 13, 14]  # asking removes nothing
