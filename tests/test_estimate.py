"""`estimate` and `s4weights bench`: what they say is what a save costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import s4weights
from s4core.checkpoint.estimate import class_of
from s4core.cli import main
from s4core.manifest import TensorEntry
from s4weights import KeyNotFoundError, StateError


def training(seed: int = 0, far: float = 1e-5) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    w = 0.02 * torch.randn(300, 200, generator=random)
    w = w + far * torch.randn(300, 200, generator=torch.Generator().manual_seed(seed))
    v = 1e-6 * torch.rand(300, 200, generator=random)
    return {
        "model": {"w": w.bfloat16()},
        "master": {"w": w},
        "optimizer": {"state": {0: {"exp_avg_sq": v, "step": torch.tensor(3.0)}}},
    }


def test_it_says_what_a_save_costs(tmp_path: Path) -> None:
    s4weights.save(training(), tmp_path / "x.s4")
    found = s4weights.estimate(training())
    size = (tmp_path / "x.s4").stat().st_size
    assert found.raw_bytes == 10 * 60_000 + 4
    assert abs(found.whole_bytes - size) < 200  # names and dates differ
    assert found.delta_bytes is None


def test_a_delta_costs_what_the_next_save_of_a_run_costs(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    run.save(training(1), 1)
    info = run.save(training(2), 2).result()
    found = s4weights.estimate(training(2), training(1))
    assert found.delta_bytes is not None
    assert abs(found.delta_bytes - info.stored_bytes) < 300
    by_class = {(c.name, c.dtype): c for c in found.classes}
    assert set(by_class) == {
        ("model", "bfloat16"),
        ("master", "float32"),
        ("exp_avg_sq", "float32"),
        ("step", "float32"),
    }
    delta = by_class["exp_avg_sq", "float32"].delta
    assert delta is not None
    assert (delta.bytes, delta.how) == (0, {"same": 1})
    assert by_class["model", "bfloat16"].whole.how == {"rne": 1}
    master = by_class["master", "float32"]
    assert master.delta is not None
    assert master.delta.bytes < master.whole.bytes < master.raw_bytes


def test_it_says_where_it_does_not_help() -> None:
    noise = {"noise": torch.randint(0, 256, (50_000,), dtype=torch.uint8)}
    assert s4weights.estimate(noise).notes == ("noise (uint8): 1.00x whole: hardly compressible",)
    far = s4weights.estimate({"w": torch.randn(50_000)}, {"w": torch.randn(50_000)})
    assert any("too far apart; save more often" in note for note in far.notes)
    assert any("100 % of the bytes are float32 or wider" in note for note in far.notes)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("optimizer/state/12/exp_avg", "exp_avg"),
        ("state/0/momentum_buffer", "momentum_buffer"),
        ("model/layers.0.weight", "model"),
        ("master.b.1.weight", "master"),
        ("", "(tensor)"),
    ],
)
def test_classes_are_slots_or_first_words(path: str, name: str) -> None:
    assert class_of(TensorEntry(path, "float32", (1,), (1,), 0, 0, "cpu")) == name


def test_the_command_prints_bits_by_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(training(1), tmp_path / "a.pt")
    s4weights.save(training(2), tmp_path / "b.s4")
    assert main(["bench", str(tmp_path / "b.s4"), "--against", str(tmp_path / "a.pt")]) == 0
    out = capsys.readouterr().out
    assert "bits whole" in out
    assert "1 zigzag" in out
    assert "everything counted" in out
    assert main(["bench", str(tmp_path / "a.pt"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["raw_bytes"] == 600_004
    assert document["delta_bytes"] is None
    assert {c["name"] for c in document["classes"]} == {"model", "master", "exp_avg_sq", "step"}


def test_what_cannot_be_read_or_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyNotFoundError, match=r"none.pt"):
        s4weights.estimate(tmp_path / "none.pt")
    with pytest.raises(StateError, match="a/x"):
        s4weights.estimate({"a": {"x": object()}})
