"""Names, steps, metadata and refs that no run should believe or keep."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import s4weights
from s4core.errors import FormatError, S4Error, StateError


@pytest.mark.parametrize(
    ("store", "error", "message"),
    [
        ("s3://elsewhere/x", FormatError, "names the store s3://elsewhere/x: expected a relative"),
        ("memory://elsewhere", FormatError, "or a store of the same kind"),
        ("../../..", S4Error, "would leave the store"),
        ("http://elsewhere/x", S4Error, "unknown scheme 'http'"),
        ("\0", S4Error, "NUL"),
    ],
)
def test_a_ref_does_not_lead_to_another_kind_of_store(
    tmp_path: Path, store: str, error: type[S4Error], message: str
) -> None:
    s4weights.open(tmp_path).save({"a": torch.ones(100)}, step=1)
    ref = tmp_path / "step-00000001.ckpt"
    ref.write_text(json.dumps(json.loads(ref.read_text()) | {"store": store}))
    with pytest.raises(error, match=message):
        s4weights.load(ref)


@pytest.mark.parametrize("step", [True, 1 << 64])
def test_what_could_not_be_read_is_not_written(tmp_path: Path, step: int) -> None:
    with pytest.raises(S4Error, match="step .*expected an integer"):
        s4weights.open(tmp_path).save({"a": 1}, name="x", step=step)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, torch.ones(1)])
def test_meta_that_is_no_json_is_a_sentence(tmp_path: Path, value: Any) -> None:
    with pytest.raises(StateError, match="step and meta hold integers, finite numbers"):
        s4weights.open(tmp_path).save({"a": 1}, step=1, meta={"x": value})


def test_a_checkpoint_with_a_slash_in_its_name_survives_gc(tmp_path: Path) -> None:
    try:
        s4weights.open(tmp_path).save({"a": torch.arange(1000.0)}, name="sub/x")
    except S4Error:
        return
    s4weights.open(tmp_path).gc(grace_seconds=0)
    s4weights.open(tmp_path).load(name="sub/x")


def test_a_checkpoint_is_not_named_below_the_store(tmp_path: Path) -> None:
    with pytest.raises(S4Error):
        s4weights.open(tmp_path).save({"a": 1}, name=".s4/checkpoints/x.json")


@pytest.mark.parametrize("asked", [{"step": 1.5}, {"step": "1"}, {"step": 1, "meta": {2: 3}}])
def test_a_step_or_meta_of_another_type_is_a_sentence(tmp_path: Path, asked: Any) -> None:
    with pytest.raises(StateError):
        s4weights.open(tmp_path).save({"a": 1}, **asked)


def test_a_negative_step_is_refused_or_found_again(tmp_path: Path) -> None:
    run = s4weights.open(tmp_path)
    with contextlib.suppress(StateError):
        run.save({"a": 1}, step=-1)
        assert run.steps() == [-1]
