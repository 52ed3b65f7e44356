"""One Trainer's checkpoints on the way to S4: gathered from all ranks, committed by rank 0.

A checkpoint is called `checkpoint-<global step>`, as on disk. It holds the model's state
under canonical names, the optimizer's, and the side files of every rank (scheduler,
scaler, random number generators, trainer state, configuration, tokenizer). A PEFT model
is its adapter files, as in native checkpoints: the base model is not stored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from s4_accelerate.archive import Archive, superfluous
from s4_accelerate.canonical import canonical_state
from s4_accelerate.files import as_leaves, read_files
from s4_accelerate.ranks import Ranks
from s4_accelerate.support import refuse_sharded
from s4core.checkpoint.foreign import dump_torch
from s4weights import KeyNotFoundError, StateError

__all__ = [
    "CHECKPOINT",
    "FORMAT",
    "GROUPS",
    "NAMES",
    "Keep",
    "Recorder",
    "is_adapter",
    "refuse_arguments",
]

FORMAT: Final = "s4-trainer"
NAMES: Final = ".s4-weights.json"  # names of the model's weights; null: adapters in files
GROUPS: Final = ".s4-optimizer.pt"  # the optimizer without its state
CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")

# What goes through S4 as tensors: weights as transformers names them, and the optimizer.
_HEAVY: Final = (
    *("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json"),
    *("optimizer.pt", "checkpoint-is-incomplete.txt"),
)
_OF_A_RANK: Final = "rng_state_*.pth"


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay, in S4; what is in the local directory does not matter.

    Attributes:
        last: so many newest; `save_total_limit`: as that argument says; None: all.
        every: and those whose step is a multiple of this.
        best: and the best one, where the Trainer knows it.
    """

    last: int | Literal["save_total_limit"] | None = None
    every: int | None = None
    best: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.last, int) and self.last < 1:
            raise StateError(f"Keep(last={self.last}): expected at least 1, or None")
        if self.every is not None and self.every < 1:
            raise StateError(f"Keep(every={self.every}): expected at least 1, or None")

    def given_up(self, args: Any, state: Any) -> Callable[[list[str]], list[str]]:
        """Return the rule as it stands now: from names, oldest first, to those to remove."""
        limit = args.save_total_limit if self.last == "save_total_limit" else self.last
        last = limit if limit and limit > 0 else None
        step = getattr(state, "best_global_step", None) if self.best else None
        pinned = {f"checkpoint-{step}"} if step else set()
        return lambda names: superfluous(names, last, keep_every=self.every, pinned=pinned)


class Recorder:
    """Commits a Trainer's checkpoints below one URL.

    Args:
        url: directory of the checkpoints; None: `S4_STORE`.
        keep: which stay.
        options: fields of `s4weights.Options`.
    """

    def __init__(self, url: Any, keep: Keep, options: dict[str, Any]) -> None:
        self.archive = Archive(url, options)
        self.ranks = Ranks()
        self.keep = keep

    def record(
        self,
        directory: str | Path,
        model: Any,
        optimizer: Any,
        args: Any,
        state: Any,
        *,
        started: float,
        wait: bool = False,
    ) -> None:
        """Commit one checkpoint; called by every rank.

        Args:
            directory: where this rank's side files lie.
            model: unwrapped, live.
            optimizer: live; stored unless `save_only_model`.
            args: TrainingArguments.
            state: TrainerState.
            started: when the pause began (`time.monotonic`).
            wait: return after the commit.

        Raises:
            StateError: something cannot be stored.
            KeyNotFoundError: `directory` is not there.
            StoreError: the store refused; older checkpoints are unharmed.
            S4Error: another rank failed.
        """
        found = self.ranks.gather(lambda: self._side_files(directory))

        def commit() -> None:
            step, rule = int(state.global_step), self.keep.given_up(args, state)
            self.archive.save(
                _everything(model, None if args.save_only_model else optimizer, found, step),
                f"checkpoint-{step}",
                step=step,
                meta={"trainer": "transformers", "ranks": len(found)},
                wait=wait,
                started=started,
                then=lambda _: self.archive.prune(rule(self.archive.names(CHECKPOINT))),
            )

        self.ranks.first(commit)

    def _side_files(self, directory: str | Path) -> dict[str, bytes]:
        if not os.path.isdir(directory):
            raise KeyNotFoundError(
                f"{directory} is not there: the Trainer wrote it elsewhere, or its rotation has "
                "removed it already (are there older directories with higher steps?)"
            )
        rank = self.ranks.index
        own = f"rng_state_{rank}.pth"
        if rank:
            return read_files(directory, lambda name: name == own)
        return read_files(directory, lambda name: name == own or _is_light(name))

    def has(self, step: int) -> bool:
        """Whether that step is committed; waits for the last save."""
        return f"checkpoint-{step}" in self.archive.names(CHECKPOINT, wait=True)

    def flush(self) -> None:
        """Wait for the last save; rank 0's matter only.

        Raises:
            S4Error: it was not committed. Said once.
        """
        self.archive.flush()


def _everything(
    model: Any, optimizer: Any, found: list[dict[str, bytes]], step: int
) -> dict[str, Any]:
    weights = None if is_adapter(model) else canonical_state(model, model.state_dict())
    moments = None if optimizer is None else optimizer.state_dict()
    # What a stub needs, so that it can be made without fetching a tensor.
    found[0][NAMES] = json.dumps(None if weights is None else list(weights)).encode()
    if moments is not None:
        found[0][GROUPS] = dump_torch({"state": {}, "param_groups": moments["param_groups"]})
    return {
        "format": FORMAT,
        "version": 1,
        "global_step": step,
        "model": weights,
        "optimizer": moments,
        "files": {str(rank): as_leaves(files) for rank, files in enumerate(found)},
    }


def _is_light(name: str) -> bool:
    return not any(fnmatchcase(name, pattern) for pattern in (*_HEAVY, _OF_A_RANK))


def is_adapter(model: Any) -> bool:
    """Whether a native checkpoint of `model` is PEFT adapter files, not weights."""
    return hasattr(model, "peft_config") and hasattr(model, "active_adapters")


def refuse_arguments(args: Any) -> None:
    """Raise if TrainingArguments or the launcher ask for a training that S4 cannot save.

    Raises:
        StateError: FSDP, DeepSpeed, Megatron-LM.
    """
    asked = {
        "FSDP": bool(getattr(args, "fsdp", None)) or _launched("FSDP"),
        "DEEPSPEED": bool(getattr(args, "deepspeed", None)) or _launched("DEEPSPEED"),
        "MEGATRON_LM": _launched("MEGATRON_LM"),
    }
    for kind, wanted in asked.items():
        if wanted:
            refuse_sharded(kind)


def _launched(kind: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{kind}", "false").lower() in ("1", "true", "yes")
