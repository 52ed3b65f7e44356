"""A resume through S4 is the resume through Accelerate's own files, bit for bit."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate_toy import Toy, fresh_accelerator
from bits import assert_same_state

import s4_accelerate
import s4weights
from s4_accelerate import S4Accelerate

STEPS = 3


def resumed(url: str | Path | None, where: str, *, through: str) -> dict[str, Any]:
    """Train, save, forget, load, train on."""
    first = Toy(fresh_accelerator())
    wrapped = wrap(first, url, through)
    first.train(STEPS)
    first.accelerator.save_state(where)
    if wrapped is not None:
        wrapped.close()  # what another process would find
    second = Toy(fresh_accelerator(), seed=9)
    wrap(second, url, through)
    second.accelerator.load_state(where)
    second.train(STEPS)
    return second.copy()


def wrap(toy: Toy, url: str | Path | None, through: str) -> S4Accelerate | None:
    if through == "s4":
        return S4Accelerate(toy.accelerator, url)
    if through == "hooks":
        toy.accelerator.register_save_state_pre_hook(s4_accelerate.save_hook)
        toy.accelerator.register_load_state_pre_hook(s4_accelerate.load_hook)
    return None


@pytest.fixture
def uninterrupted() -> dict[str, Any]:
    toy = Toy(fresh_accelerator())
    # In two parts, as a data loader that starts anew draws from torch's generator.
    toy.train(STEPS)
    toy.train(STEPS)
    return toy.copy()


def test_the_native_path_is_exact_so_that_ours_has_something_to_equal(
    uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    assert_same_state(uninterrupted, resumed(None, str(tmp_path / "native"), through="nothing"))


def test_resume_below_a_url(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    assert_same_state(uninterrupted, resumed(tmp_path / "run", "step_3", through="s4"))
    assert sorted(os.listdir(tmp_path / "run")) == [".s4", "step_3"]
    assert s4_accelerate.latest(tmp_path / "run") == str(tmp_path / "run" / "step_3")


def test_resume_at_a_path_of_its_own(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    assert_same_state(uninterrupted, resumed(None, str(tmp_path / "step_3"), through="s4"))


@pytest.mark.s3
def test_resume_from_s3(
    uninterrupted: dict[str, Any],
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_same_state(uninterrupted, resumed(None, f"{s3_url}/step_3", through="s4"))
    assert_same_state(uninterrupted, resumed(s3_url, "step_4", through="s4"))
    assert os.listdir(tmp_path) == [], "a URL became a local directory"
    assert s4_accelerate.latest(s3_url) == f"{s3_url}/step_4"


def test_resume_through_the_bare_hooks(
    uninterrupted: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "s4_accelerate")
    where = tmp_path / "hooked"
    assert_same_state(uninterrupted, resumed(None, str(where), through="hooks"))
    assert "what stays in plain files beside it: schedulers, samplers" in caplog.text
    assert not (where / "model.safetensors").exists()
    assert (where / "optimizer.bin").stat().st_size < 2000
    state = s4weights.load(where / "state.s4")
    weights = state["models"][0]
    assert weights["head.weight"].data_ptr() == weights["embed.weight"].data_ptr()
    assert state["optimizers"][0]["state"][0]["exp_avg"].shape == (32, 16)


def test_hooks_leave_a_directory_of_plain_accelerate_to_it(
    uninterrupted: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Toy(fresh_accelerator())
    first.train(STEPS)
    first.accelerator.save_state(tmp_path / "plain")
    for through in ("hooks", "s4"):
        second = Toy(fresh_accelerator(), seed=9)
        wrap(second, None, through)
        second.accelerator.load_state(str(tmp_path / "plain"))
        second.train(STEPS)
        assert_same_state(uninterrupted, second.copy())
    assert "no state.s4 in" in caplog.text


def test_s4_accelerate_reads_what_the_bare_hooks_wrote(
    uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    first = Toy(fresh_accelerator())
    wrap(first, None, "hooks")
    first.train(STEPS)
    first.accelerator.save_state(tmp_path / "hooked")
    second = Toy(fresh_accelerator(), seed=9)
    wrap(second, tmp_path / "elsewhere", "s4")
    second.accelerator.load_state(str(tmp_path / "hooked"))
    second.train(STEPS)
    assert_same_state(uninterrupted, second.copy())


def test_nothing_is_left_behind_on_the_objects(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path)
    toy.train(1)
    toy.accelerator.save_state("a")
    toy.accelerator.load_state("a")
    assert not {"state_dict", "load_state_dict"} & set(toy.optimizer.__dict__)
    s4.close()
    assert "save_state" not in vars(toy.accelerator)
    assert not toy.accelerator._save_model_state_pre_hook
    toy.accelerator.save_state(tmp_path / "plain")
    assert (tmp_path / "plain" / "model.safetensors").exists()


def test_a_failed_save_leaves_optimizers_whole(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, tmp_path)
    toy.train(1)
    toy.accelerator.save_state("a")

    def fail() -> dict[str, Any]:
        raise RuntimeError("no state today")

    toy.counter.state_dict = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no state today"):
        toy.accelerator.save_state("b")
    assert set(toy.optimizer.state_dict()) == {"state", "param_groups"}
    assert s4.latest() == str(tmp_path / "a")


def test_a_bare_hook_stub_is_given_to_accelerate_only(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    wrap(toy, None, "hooks")
    failing = toy.accelerator.register_save_state_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        toy.accelerator.save_state(tmp_path / "a")
    failing.remove()
    assert set(toy.optimizer.state_dict()) == {"state", "param_groups"}


@pytest.mark.parametrize(("saved", "loaded"), [(True, False), (False, True), (True, True)])
def test_compiled_and_plain_models_read_each_other(
    tmp_path: Path, saved: bool, loaded: bool
) -> None:
    first = Toy(fresh_accelerator(), compiled=saved)
    s4 = S4Accelerate(first.accelerator, tmp_path)
    first.train(2)
    first.accelerator.save_state("a")
    s4.flush()
    names = list(s4weights.load(tmp_path / "a")["models"][0])
    assert "module.0.weight" in names
    assert not any("_orig_mod" in name for name in names)
    second = Toy(fresh_accelerator(), seed=9, compiled=loaded)
    S4Accelerate(second.accelerator, tmp_path)
    second.accelerator.load_state("a")
    assert_same_state(first.copy()["net"], second.copy()["net"], stride=False)


def test_another_dtype_is_refused_unless_asked_for(tmp_path: Path) -> None:
    toy = Toy(fresh_accelerator())
    S4Accelerate(toy.accelerator, tmp_path)
    toy.accelerator.save_state("a")
    toy.net.embed.to(torch.float64)
    with pytest.raises(s4weights.StateError, match="holds torch.float32, the model torch.float64"):
        toy.accelerator.load_state("a")
    assert not {"state_dict", "load_state_dict"} & set(toy.optimizer.__dict__)
