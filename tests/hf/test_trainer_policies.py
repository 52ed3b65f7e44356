"""What a Trainer's checkpoints must survive; public bugs of the Trainer, each a test."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from hf_toy import StopAt, arguments, final, model, trainer
from transformers import Trainer, TrainerCallback

import s4weights
from s4_accelerate.hf import Keep, S4Trainer, S4TrainerCallback, latest, patch_trainer, prepare
from s4core.stores import LocalStore


class Ours(S4Trainer, Trainer):
    pass


def names(url: str | Path) -> list[str]:
    return sorted(s4weights.open(url).names(), key=lambda name: int(name.rpartition("-")[2]))


def test_a_truncated_newest_local_checkpoint_is_not_what_is_resumed(tmp_path: Path) -> None:
    """transformers#35525, #35782: the newest directory, incomplete, ended the run."""
    url, out = tmp_path / "run", tmp_path / "out"
    trainer(out, S4TrainerCallback(url), StopAt(4)).train()
    broken = out / "checkpoint-5"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0")
    again = trainer(out, S4TrainerCallback(url))
    again.train(resume_from_checkpoint=prepare(url, out))
    assert again.state.global_step == 6
    assert latest(url) == str(url / "checkpoint-6")


def test_older_directories_are_never_touched(tmp_path: Path) -> None:
    """Rotation goes by time of change: a late marker made it delete the newest."""
    out, seen = tmp_path / "out", {}

    class Watch(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for path in out.glob("checkpoint-*/**/*"):
                seen.setdefault(str(path), path.stat().st_mtime_ns)
            for path in out.glob("checkpoint-*"):
                seen.setdefault(str(path), path.stat().st_mtime_ns)

    trainer(out, Watch(), S4TrainerCallback(tmp_path / "run")).train()
    prepare(tmp_path / "run", out)
    assert {path: os.stat(path).st_mtime_ns for path in seen} == seen


def test_the_local_limit_does_not_rule_what_s4_keeps(tmp_path: Path) -> None:
    trainer(tmp_path / "1", S4TrainerCallback(tmp_path / "all"), save_total_limit=1).train()
    assert names(tmp_path / "all") == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    keep = Keep(last="save_total_limit")
    trainer(
        tmp_path / "2", S4TrainerCallback(tmp_path / "one", keep=keep), save_total_limit=1
    ).train()
    assert names(tmp_path / "one") == ["checkpoint-6"]
    keep = Keep(last=1, every=4)
    trainer(tmp_path / "3", S4TrainerCallback(tmp_path / "some", keep=keep)).train()
    assert names(tmp_path / "some") == ["checkpoint-4", "checkpoint-6"]
    with pytest.raises(s4weights.StateError, match="expected at least 1"):
        Keep(last=0)


def test_a_checkpoint_that_is_rotated_away_at_once_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stale directories that look newer: the Trainer deletes what it has just written."""
    out, callback = tmp_path / "out", S4TrainerCallback(tmp_path / "run")
    for step in (100, 200):
        (out / f"checkpoint-{step}").mkdir(parents=True)
        os.utime(out / f"checkpoint-{step}", (time.time() + step, time.time() + step))
    done = trainer(out, callback, save_total_limit=1, max_steps=2)
    done.train()
    assert done.state.global_step == 2
    assert "checkpoint-2 is not there" in caplog.text


class WorseAndWorse(Trainer):
    """Step 2 is the best."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = {"eval_loss": float(self.state.global_step)}
        self.log(dict(metrics))
        return metrics


class OursWorse(S4Trainer, WorseAndWorse):
    pass


BEST = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "save_total_limit": 1,
}


def test_the_best_model_is_kept_and_loaded_at_the_end(tmp_path: Path) -> None:
    """transformers#25129: save_total_limit deleted the best."""
    url = tmp_path / "run"
    direct = trainer(tmp_path / "a", kind=OursWorse, extra={"s4_url": url}, **BEST)
    direct.train()
    assert names(url) == ["checkpoint-2", "checkpoint-6"]
    best = s4weights.load(url / "checkpoint-2")["model"]
    assert_same_state(dict(best), dict(direct.model.state_dict()), stride=False)
    mirror = trainer(tmp_path / "b", S4TrainerCallback(tmp_path / "m"), kind=WorseAndWorse, **BEST)
    mirror.train()
    assert_same_state(dict(best), dict(mirror.model.state_dict()), stride=False)


@pytest.mark.parametrize("direct", [True, False])
def test_the_best_model_is_found_again_on_a_fresh_machine(tmp_path: Path, direct: bool) -> None:
    """The Trainer forgets it with a warning: it is named by a path that is gone."""
    url, first, second = tmp_path / "run", tmp_path / "a", tmp_path / "b"
    changes = {**BEST, "save_total_limit": None}
    if direct:
        trainer(first, StopAt(4), kind=OursWorse, extra={"s4_url": url}, **changes).train()
        again = trainer(second, kind=OursWorse, extra={"s4_url": url}, seed=9, **changes)
        again.train(resume_from_checkpoint=True)
    else:
        trainer(first, S4TrainerCallback(url), StopAt(4), kind=WorseAndWorse, **changes).train()
        first.rename(tmp_path / "gone")
        again = trainer(second, S4TrainerCallback(url), kind=WorseAndWorse, seed=9, **changes)
        again.train(resume_from_checkpoint=prepare(url, second))
    best = s4weights.load(url / "checkpoint-2")["model"]
    assert_same_state(dict(best), dict(again.model.state_dict()), stride=False)


class Terminated(TrainerCallback):
    """As SIGTERM does after its grace period; the signal itself is in test_hf_killed."""

    def __init__(self, event: str, step: int) -> None:
        self.event, self.step, self.trainer = event, step, None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            for callback in self.trainer.callback_handler.callbacks:
                manager = getattr(callback, "jit_manager", None)
                if manager is not None and not manager.is_checkpoint_requested:
                    manager.is_checkpoint_requested = True


@pytest.mark.parametrize("direct", [True, False])
def test_a_just_in_time_checkpoint_is_committed(tmp_path: Path, direct: bool) -> None:
    """No on_save follows it."""
    url, out = tmp_path / "run", tmp_path / "out"
    requests = Terminated("", 3)
    extra = {"s4_url": url} if direct else None
    callbacks = [requests] if direct else [requests, S4TrainerCallback(url)]
    first = trainer(
        out, *callbacks, kind=Ours if direct else Trainer, extra=extra, enable_jit_checkpoint=True
    )
    requests.trainer = first
    first.train()
    # The step that had begun is finished, and saved in its turn.
    assert names(url) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    # The Trainer makes an empty directory for it before it saves; nothing comes to lie there.
    assert bool(list((out / "checkpoint-3").iterdir())) is not direct
    assert s4weights.load(url / "checkpoint-3")["optimizer"]["state"][0]["step"] == 3


def test_a_stale_directory_is_no_just_in_time_checkpoint(tmp_path: Path) -> None:
    """Side files of an earlier run beside live weights would be a mixture."""
    out = tmp_path / "out"
    trainer(out, max_steps=3, save_steps=3).train()
    url = tmp_path / "run"
    trainer(
        out, S4TrainerCallback(url), StopAt(3), save_steps=2, enable_jit_checkpoint=True
    ).train()
    assert names(url) == ["checkpoint-2"]


@pytest.mark.parametrize("direct", [True, False])
def test_what_was_saved_before_an_exception_is_committed(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_train_end is not called then."""
    url, put = tmp_path / "run", LocalStore.put

    def slow(store: LocalStore, key: str, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.2)
        put(store, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "put", slow)
    error = StopAt(5, ArithmeticError("loss is NaN"))
    callback = S4TrainerCallback(url)
    done = trainer(
        tmp_path / "out",
        *([error] if direct else [error, callback]),
        kind=Ours if direct else Trainer,
        extra={"s4_url": url} if direct else None,
    )
    with pytest.raises(ArithmeticError, match="loss is NaN"):
        done.train()
    if not direct:
        callback.flush()
    assert names(url) == ["checkpoint-2", "checkpoint-4"]


def refuse(*_: Any, **__: Any) -> None:
    raise s4weights.StoreUnavailableError("the store did not answer")


def test_a_store_that_fails_does_not_end_a_mirrored_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LocalStore, "put", refuse)
    callback = S4TrainerCallback(tmp_path / "run")
    done = trainer(tmp_path / "out", callback)
    done.train()
    assert done.state.global_step == 6
    assert (tmp_path / "out" / "checkpoint-6").exists()
    assert "the store did not answer" in caplog.text
    assert "was not committed to S4, and stays local" in caplog.text
    assert not (tmp_path / "run").exists()


def test_a_store_that_fails_ends_a_direct_training_at_the_latest_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "put", refuse)
    done = trainer(tmp_path / "out", kind=Ours, extra={"s4_url": tmp_path / "run"})
    with pytest.raises(s4weights.StoreUnavailableError, match="did not answer"):
        done.train()


def test_save_only_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, out = tmp_path / "run", tmp_path / "out"
    trainer(out, S4TrainerCallback(url), StopAt(4), save_only_model=True).train()
    assert s4weights.load(url / "checkpoint-4")["optimizer"] is None
    again = trainer(out, S4TrainerCallback(url), save_only_model=True, seed=9)
    again.train(resume_from_checkpoint=prepare(url, out))
    assert "optimizer and scheduler start anew" in caplog.text
    assert again.state.global_step == 6


@pytest.mark.parametrize("direct", [True, False])
def test_peft_adapters(tmp_path: Path, direct: bool) -> None:
    peft = pytest.importorskip("peft")
    url = tmp_path / "run"

    def network(seed: int) -> Any:
        torch.manual_seed(seed)
        lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(model(0), lora)

    def run(where: str, *callbacks: Any, seed: int = 0, url: Any = url, resume: Any = None) -> Any:
        kind, extra = (Ours, {"s4_url": url}) if direct and url else (Trainer, None)
        mirror = [S4TrainerCallback(url)] if url and not direct else []
        made = trainer(
            tmp_path / where, *mirror, *callbacks, network=network(seed), kind=kind, extra=extra
        )
        made.train(resume_from_checkpoint=resume)
        return final(made)

    expected = run("n", url=None)
    run("a", StopAt(4))
    files = s4weights.load(url / "checkpoint-4")
    assert files["model"] is None
    assert "adapter_model.safetensors" in files["files"]["0"]
    resume = True if direct else prepare(url, tmp_path / "b")
    found = run("b", seed=9, resume=resume)
    for part in ("model", "optimizer", "scheduler", "torch"):
        assert_same_state(expected[part], found[part])


def test_sharded_trainings_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(tmp_path)
    callback = S4TrainerCallback(tmp_path / "run")
    for name, value, message in (
        ("fsdp", ["full_shard"], "FSDP and FSDP2 need sharded checkpoints"),
        ("deepspeed", {"zero": 3}, "use DeepSpeed's own checkpoints"),
    ):
        monkeypatch.setattr(args, name, value)
        with pytest.raises(s4weights.StateError, match=message):
            callback.on_init_end(args, None, None)
        monkeypatch.undo()
    done = trainer(tmp_path / "out")
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    with pytest.raises(s4weights.StateError, match="Megatron-LM"):
        callback.on_init_end(args, None, None)
    with pytest.raises(s4weights.StateError, match="Megatron-LM"):
        patch_trainer(done, tmp_path / "run")


def test_ratio_and_pause_reach_the_users_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "s4_accelerate")
    told: list[tuple[dict[str, float], int | None]] = []
    callback = S4TrainerCallback(
        tmp_path / "run", report=lambda numbers, step: told.append((numbers, step))
    )
    trainer(tmp_path / "out", callback).train()
    assert [step for _, step in told] == [2, 4, 6]
    assert told[0][0]["s4/ratio"] > 0
    assert "training paused" in caplog.text
    assert len(callback.reports) == 3
