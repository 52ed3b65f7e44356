"""A Trainer resumed through S4 ends where one resumed from its own files ends, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from hf_toy import StopAt, final, model, trainer
from transformers import GPT2LMHeadModel, Trainer

import s4weights
from s4_accelerate.hf import S4Trainer, S4TrainerCallback, latest, patch_trainer, prepare


class Ours(S4Trainer, Trainer):
    pass


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = trainer(tmp_path_factory.mktemp("native"), save_strategy="no")
    done.train()
    return final(done)


@pytest.fixture
def native(tmp_path: Path) -> dict[str, Any]:
    """Stopped after step 4, and resumed from the Trainer's own files."""
    trainer(tmp_path / "native", StopAt(4)).train()
    again = trainer(tmp_path / "native", seed=9)
    again.train(resume_from_checkpoint=True)
    return final(again)


def mirrored(url: str, output_dir: Path) -> None:
    """The first half, mirrored; nothing of it stays on this machine."""
    callback = S4TrainerCallback(url)
    trainer(output_dir, callback, StopAt(4)).train()
    shutil.rmtree(output_dir)


def test_the_native_resume_is_exact(uninterrupted: dict[str, Any], native: dict[str, Any]) -> None:
    assert_same_state(uninterrupted, native)


@pytest.mark.parametrize("materialize", [None, True])
def test_mirror_and_resume_on_a_fresh_machine(
    uninterrupted: dict[str, Any], tmp_path: Path, materialize: bool | None
) -> None:
    url, out = str(tmp_path / "run"), tmp_path / "out"
    mirrored(url, out)
    assert latest(url) == f"{url}/checkpoint-4"
    again = trainer(out, S4TrainerCallback(url), seed=9)
    directory = Path(prepare(url, out, materialize=materialize))
    small = (directory / "model.safetensors").stat().st_size < 5000
    assert small is (materialize is None)
    again.train(resume_from_checkpoint=str(directory))
    assert_same_state(uninterrupted, final(again))
    assert s4weights.load(f"{url}/checkpoint-6")["global_step"] == 6


def test_a_plain_trainer_resumes_from_what_prepare_wrote(
    uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    url, out = str(tmp_path / "run"), tmp_path / "out"
    mirrored(url, out)
    directory = prepare(url, out)
    again = trainer(out, seed=9)
    again.train(resume_from_checkpoint=directory)
    assert_same_state(uninterrupted, final(again))
    alone = GPT2LMHeadModel.from_pretrained(directory)
    stored = s4weights.load(f"{url}/checkpoint-4")["model"]
    assert_same_state(dict(stored), dict(alone.state_dict()), stride=False)


def test_a_stub_is_never_mistaken_for_a_checkpoint(tmp_path: Path) -> None:
    """An empty model.safetensors would train from fresh weights, silently."""
    url, out = str(tmp_path / "run"), tmp_path / "out"
    mirrored(url, out)
    directory = prepare(url, out, materialize=False)
    with pytest.raises(RuntimeError, match="size mismatch for transformer.wte.weight"):
        trainer(out, seed=9).train(resume_from_checkpoint=directory)
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        trainer(out, seed=9).train(resume_from_checkpoint=True)


@pytest.mark.s3
def test_direct_to_s3_and_back(uninterrupted: dict[str, Any], tmp_path: Path, s3_url: str) -> None:
    out = tmp_path / "out"
    trainer(out, StopAt(4), kind=Ours, extra={"s4_url": s3_url}).train()
    assert not list(out.glob("**/*")), "a second local copy"
    again = trainer(out, kind=Ours, extra={"s4_url": s3_url}, seed=9)
    again.train(resume_from_checkpoint=True)
    assert_same_state(without_losses(uninterrupted), without_losses(final(again)))
    assert sorted(s4weights.open(s3_url).names()) == [f"checkpoint-{n}" for n in (2, 4, 6)]
    assert any("s4/ratio" in entry for entry in again.state.log_history)
    direct = patch_trainer(trainer(tmp_path / "other", seed=8), s3_url)
    direct.train(resume_from_checkpoint=f"{s3_url}/checkpoint-2")
    assert_same_state(without_losses(uninterrupted), without_losses(final(direct)))


def without_losses(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "losses"}


def test_a_mirror_has_what_a_direct_checkpoint_has(tmp_path: Path) -> None:
    trainer(tmp_path / "a", S4TrainerCallback(tmp_path / "mirror")).train()
    trainer(tmp_path / "b", kind=Ours, extra={"s4_url": tmp_path / "direct"}).train()
    a = s4weights.load(tmp_path / "mirror" / "checkpoint-6")
    b = s4weights.load(tmp_path / "direct" / "checkpoint-6")
    assert_same_state(a["model"], b["model"])
    assert_same_state(a["optimizer"], b["optimizer"])
    assert sorted(a["files"]["0"]) == sorted(b["files"]["0"])
    for name in ("scheduler.pt", "rng_state.pth", "config.json", ".s4-weights.json"):
        assert bytes(a["files"]["0"][name].numpy()) == bytes(b["files"]["0"][name].numpy()), name
    assert not {"optimizer.pt", "model.safetensors"} & set(b["files"]["0"])
    assert torch.equal(a["model"]["lm_head.weight"], a["model"]["transformer.wte.weight"])


def test_true_without_a_checkpoint_does_not_start_from_scratch(tmp_path: Path) -> None:
    """NeMo#14994: training silently restarted from zero."""
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        trainer(tmp_path / "o", kind=Ours, extra={"s4_url": tmp_path / "run"}).train(
            resume_from_checkpoint=True
        )
    with pytest.raises(s4weights.KeyNotFoundError, match="holds no committed checkpoint-<step>"):
        prepare(tmp_path / "run", tmp_path / "o")


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    url, out = str(tmp_path / "run"), tmp_path / "out"
    mirrored(url, out)
    again = trainer(out, S4TrainerCallback(url), network=model().bfloat16())
    with pytest.raises(s4weights.StateError, match="holds torch.float32, the model torch.bfloat16"):
        again.train(resume_from_checkpoint=prepare(url, out))
