"""What real training states cost: the goals stay reached, and no delta is larger than a base.

All is deterministic; `bench/ratio.py` prints the same figures. Bit-exactness of the same files
is `test_save_load.py`'s matter, and of their chains that of the last test here.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import torch
from bits import assert_same_state

import s4weights
from s4core.checkpoint import Estimate

CORPUS = Path(os.environ.get("S4_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"no corpus of real checkpoints in {CORPUS}"
)
State = dict[str, torch.Tensor]


@cache
def state(name: str) -> State:
    found: State = s4weights.load(CORPUS / f"{name}.safetensors")
    return found


@cache
def cost(name: str, before: str | None = None, only: str = "") -> Estimate:
    def part(name: str) -> State:
        return {key: tensor for key, tensor in state(name).items() if key.startswith(only)}

    return s4weights.estimate(part(name), None if before is None else part(before))


def bits(found: Estimate, name: str) -> float:
    line = next(line for line in found.classes if line.name == name)
    return 8 * (line.delta or line.whole).bytes / line.elements


@pytest.mark.parametrize(
    ("name", "goal"),
    [("A_resemblyzer_full_ckpt_fp32_adam", 1.22), ("B_mixed_s0600", 1.43), ("B_bf16_s0600", 1.60)],
)
def test_whole_checkpoints_reach_their_goals(name: str, goal: float) -> None:
    found = cost(name)
    assert found.raw_bytes / found.whole_bytes >= goal


@pytest.mark.parametrize(
    ("before", "name", "goal"),
    [
        ("B_mixed_s0600", "B_mixed_s0610", 1.62),
        ("B_mixed_s0600", "B_mixed_s0700", 1.54),
        ("B_bf16_s0600", "B_bf16_s0700", 2.22),
    ],
)
def test_deltas_reach_their_goals_and_are_never_larger(before: str, name: str, goal: float) -> None:
    found = cost(name, before)
    assert found.delta_bytes is not None
    assert found.delta_bytes <= found.whole_bytes
    assert found.raw_bytes / found.delta_bytes >= goal
    for line in found.classes:
        assert line.delta is not None
        assert line.delta.bytes <= 1.002 * line.whole.bytes, line.name


def test_classes_reach_their_goals() -> None:
    assert bits(cost("B_mixed_s0600", only="w."), "w") <= 10.60
    assert bits(cost("B_mixed_s0600"), "master") <= 26.60
    assert bits(cost("B_mixed_s0610", "B_mixed_s0600", only="w."), "w") <= 2.80
    assert bits(cost("A_resemblyzer_full_ckpt_fp32_adam"), "v") <= 24.7


def test_states_that_have_nothing_in_common_cost_what_they_cost_alone() -> None:
    random = torch.Generator().manual_seed(0)
    states = [
        {
            "f": torch.randn(70_000, generator=random),
            "h": torch.randn(70_000, generator=random).bfloat16(),
            "i": torch.randint(0, 99, (20_000,), generator=random),
            "tiny": torch.randn(50, generator=random),
        }
        for _ in range(2)
    ]
    found = s4weights.estimate(states[1], states[0])
    assert found.delta_bytes is not None
    assert found.delta_bytes <= found.whole_bytes + 64


def test_a_chain_of_real_states_loads_bit_for_bit_at_every_step(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    names = ["B_mixed_s0600", "B_mixed_s0610", "B_mixed_s0700", "B_mixed_s0600"]
    for step, name in enumerate(names):
        run.save(state(name), step)
    fresh = s4weights.open(tmp_path)
    for step, name in enumerate(names):
        assert_same_state(state(name), fresh.load(step))
