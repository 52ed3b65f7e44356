"""TRL's trainers derive from Trainer: SFTTrainer was tried, mirrored and direct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bits import assert_same_state
from hf_toy import StopAt, final, model

from s4_accelerate.hf import S4TrainerCallback, patch_trainer, prepare

trl = pytest.importorskip("trl", reason="TRL is tried where it is installed")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # TRL warns of itself in many ways


def sft(output_dir: Path, *callbacks: Any, seed: int = 0) -> Any:
    tokens = [[(row * 7 + n * n) % 50 for n in range(8)] for row in range(16)]
    arguments = trl.SFTConfig(
        str(output_dir), max_steps=6, save_steps=2, per_device_train_batch_size=2,
        use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, seed=3, bf16=False,
        learning_rate=1e-2, dataloader_pin_memory=False, max_length=8,
        dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    return trl.SFTTrainer(
        model(seed), arguments, processing_class=tokenizer(),
        train_dataset=datasets.Dataset.from_dict({"input_ids": tokens, "labels": tokens}),
        callbacks=list(callbacks),
    )  # fmt: skip


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(49)} | {"<pad>": 49}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<pad>")


@pytest.mark.parametrize("direct", [True, False])
def test_an_sft_trainer_resumes_bit_for_bit(tmp_path: Path, direct: bool) -> None:
    undisturbed = sft(tmp_path / "n")
    undisturbed.train()
    url = tmp_path / "run"
    if direct:
        patch_trainer(sft(tmp_path / "a", StopAt(4)), url).train()
        again = patch_trainer(sft(tmp_path / "b", seed=9), url)
        again.train(resume_from_checkpoint=True)
    else:
        sft(tmp_path / "a", S4TrainerCallback(url), StopAt(4)).train()
        again = sft(tmp_path / "b", S4TrainerCallback(url), seed=9)
        again.train(resume_from_checkpoint=prepare(url, tmp_path / "b"))
    a, b = final(undisturbed), final(again)
    for part in ("model", "optimizer", "scheduler", "torch"):
        assert_same_state(a[part], b[part], where=part)
