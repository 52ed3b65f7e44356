"""Small trainings under Lightning, and what they left in a store, read without s4weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from s4core.stores import open_store


def make_model(package: ModuleType, **hyperparameters: Any) -> Any:
    """A small model of `package` whose training is the same every time."""

    class Model(package.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self, **hyperparameters: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            torch.manual_seed(7)
            self.layers = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 1))
            self.at_step: Callable[[int], None] = lambda step: None

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            self.at_step(self.global_step)
            self.log("falling", -float(self.global_step))
            return (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()

        def train_dataloader(self) -> DataLoader[Tensor]:
            random = torch.Generator().manual_seed(self.current_epoch)
            return DataLoader(torch.randn(8, 32, generator=random), batch_size=4)  # type: ignore[arg-type]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    return Model(**hyperparameters)


def make_trainer(package: ModuleType, *plugins: Any, **options: Any) -> Any:
    """A quiet Trainer on one CPU."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    options = quiet | {"accelerator": "cpu", "devices": 1} | options
    options.setdefault("reload_dataloaders_every_n_epochs", 1)
    return package.Trainer(plugins=list(plugins), **options)


def save_every_epoch(package: ModuleType, dirpath: str | Path, **options: Any) -> Any:
    """Lightning's callback as the call order of its contract was recorded."""
    chosen = {"monitor": "falling", "save_top_k": 2, "save_last": True} | options
    return package.callbacks.ModelCheckpoint(dirpath, **chosen)


def stored(place: str) -> tuple[set[str], set[str], set[str]]:
    """The names of refs, the ids of manifests and the ids of shards at `place`."""
    keys = [entry.key for entry in open_store(place).list()]
    below = {
        kind: {key.split("/")[2].removesuffix(".json") for key in keys if key.startswith(prefix)}
        for kind, prefix in (("manifests", ".s4/checkpoints/"), ("shards", ".s4/shards/"))
    }
    names = {key for key in keys if not key.startswith(".s4/")}
    return names, below["manifests"], below["shards"]


def needed(place: str, *, shallow: bool = False) -> set[str]:
    """The ids of the checkpoints that the refs at `place` stand on, each followed by hand."""
    store, found = open_store(place), set()
    names = [e.key for e in store.list(shallow=shallow) if not e.key.startswith(".s4/")]
    waiting = [json.loads(store.get(name))["checkpoint"] for name in names]
    while waiting:
        identity = waiting.pop()
        if identity not in found:
            found.add(identity)
            manifest = json.loads(store.get(f".s4/checkpoints/{identity}.json"))
            waiting += [need["id"] for need in manifest["needs"]]
    return found


def save_in_child(plugin: Any, state: Any, path: str) -> None:
    """What a spawned process does; here, since it must be able to import it."""
    plugin.save_checkpoint(state, path)
    plugin.teardown()
