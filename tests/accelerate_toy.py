"""A tiny training under Accelerate in which everything that a checkpoint must hold matters.

Dropout draws from torch's generator, the data loader shuffles, noise comes from Python's
and NumPy's, two weights are tied, one buffer is bfloat16, there are scheduler, scaler and a
custom object: if one of them is not restored, later steps differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from bits import assert_same_state
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, WIDTH = 64, 4, 16


class Net(nn.Module):
    """Tied weights, dropout, a buffer in bfloat16, and a submodule called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bfloat16))

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += 0.01
        return self.head(self.drop(self.module(self.embed(tokens))))


class Counter:
    """A custom object."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def fresh_accelerator(project: Path | None = None, **naming: Any) -> Accelerator:
    """An Accelerator that knows nothing of an earlier one in this process."""
    distributed = torch.distributed.is_initialized()
    if not distributed:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
    configuration = None
    if project is not None:
        configuration = ProjectConfiguration(
            str(project), automatic_checkpoint_naming=True, **naming
        )
    return Accelerator(
        cpu=True,
        project_config=configuration,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7),
    )


class Toy:
    def __init__(self, accelerator: Accelerator, seed: int = 0, *, compiled: bool = False) -> None:
        self.accelerator = accelerator
        set_seed(seed + accelerator.process_index)
        torch.manual_seed(seed)
        net: Any = Net()
        if compiled:
            net = torch.compile(net, backend="eager")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=200)
        tokens = torch.arange(SAMPLES) % 32
        loader = DataLoader(TensorDataset(tokens), batch_size=BATCH, shuffle=True)
        prepared = accelerator.prepare(net, optimizer, schedule, loader)
        self.net, self.optimizer, self.schedule, self.loader = prepared
        torch.manual_seed(seed + 100 + accelerator.process_index)
        # On the CPU, Accelerate makes none itself; its checkpoints take what is there.
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.counter = Counter()
        accelerator.register_for_checkpointing(self.counter)

    def train(self, steps: int) -> None:
        for tokens in self._batches(steps):
            noise = random.random() + float(np.random.rand())
            scores = self.net(tokens)
            loss = nn.functional.cross_entropy(scores, tokens) * (1 + 0.01 * noise)
            self.accelerator.scaler.scale(loss).backward()
            self.accelerator.scaler.step(self.optimizer.optimizer)
            self.accelerator.scaler.update()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.counter.steps += 1

    def _batches(self, steps: int) -> Iterator[Tensor]:
        """The next batches; where in which epoch is told by the counter alone."""
        while steps:
            per_epoch = len(self.loader)
            epoch, skipped = divmod(self.counter.steps, per_epoch)
            self.loader.set_epoch(epoch)
            rest = self.accelerator.skip_first_batches(self.loader, skipped)
            for (tokens,) in rest:
                yield tokens
                steps -= 1
                if not steps:
                    return

    def state(self) -> dict[str, Any]:
        """Everything, to be compared bit by bit."""
        return {
            "net": dict(self.accelerator.unwrap_model(self.net, False, False).state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.accelerator.scaler.state_dict(),
            "counter": self.counter.state_dict(),
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state()[1].copy(),
        }

    def copy(self) -> dict[str, Any]:
        return _cloned(self.state())


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return [_cloned(item) for item in value] if isinstance(value, list) else value


def assert_same_training(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert_same_state(a, b)
