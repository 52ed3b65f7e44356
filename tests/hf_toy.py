"""A tiny GPT-2 under the Hugging Face Trainer: tied weights, dropout, shuffled data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

STEPS = 6


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = [(index * 7 + n * n) % 50 for n in range(8)]
        return {"input_ids": tokens, "labels": tokens}


def model(seed: int = 0) -> GPT2LMHeadModel:
    set_seed(seed)
    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def arguments(output_dir: str | Path, **changes: Any) -> TrainingArguments:
    chosen: dict[str, Any] = {
        "max_steps": STEPS,
        "save_steps": 2,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(output_dir), **(chosen | changes))


class Noise(TrainerCallback):
    """Makes the training depend on Python's and NumPy's generators too."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            for parameter in kwargs["model"].parameters():
                if parameter.requires_grad:
                    parameter.mul_(1 + 1e-3 * (random.random() + float(np.random.rand())))


class StopAt(TrainerCallback):
    """Stops, or raises, after a step: a run that ends before its time."""

    def __init__(self, step: int, error: Exception | None = None) -> None:
        self.step, self.error = step, error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


def trainer(
    output_dir: str | Path,
    *callbacks: TrainerCallback,
    kind: type = Trainer,
    seed: int = 0,
    network: Any = None,
    extra: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    return kind(
        model=network if network is not None else model(seed),
        args=arguments(output_dir, **changes),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[Noise(), *callbacks],
        **(extra or {}),
    )


def final(done: Any) -> dict[str, Any]:
    """Everything, to be compared bit by bit."""
    return {
        "model": {name: value.clone() for name, value in done.model.state_dict().items()},
        "optimizer": done.optimizer.optimizer.state_dict(),
        "scheduler": done.lr_scheduler.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].copy(),
        "losses": [entry["loss"] for entry in done.state.log_history if "loss" in entry],
    }
