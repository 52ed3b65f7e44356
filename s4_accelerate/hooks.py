"""The bare hooks: `accelerator.register_save_state_pre_hook(s4_accelerate.save_hook)`.

With both hooks registered, `save_state` writes models and optimizers to one
self-contained file, `state.s4`, in the directory that it was given, and `load_state`
reads them from there. Everything else (schedulers, samplers, scaler, random number
generators, custom objects) is written by Accelerate beside it, as always. `S4Accelerate`
does more: URLs, chains of deltas, side files, one commit for all.

Accelerate's contract (1.x): a save hook gets the models, their state dicts, which it may
take away by emptying the list, and the directory; a load hook gets the models, which it
may take away likewise, and the directory. Both run on every rank.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from torch import nn

import s4weights
from s4_accelerate.canonical import canonical_state
from s4_accelerate.restore import load_model, placed_on
from s4_accelerate.shadows import remove_shadows, shadow_loads, shadow_saves
from s4_accelerate.support import refuse_sharded
from s4weights import StateError

__all__ = ["FILE_NAME", "give", "load_hook", "save_hook", "take"]

FILE_NAME: Final = "state.s4"

_log = logging.getLogger("s4_accelerate")


def save_hook(models: list[nn.Module], weights: list[dict[str, Any]], output_dir: str) -> None:
    """Write models and optimizers to `state.s4` in `output_dir`; for Accelerate to call.

    Raises:
        StateError: FSDP, DeepSpeed, Megatron-LM or XLA; or a state that cannot be stored.
        StoreError: it could not be written.
    """
    accelerator = _calling_accelerator()
    refuse_sharded(accelerator.distributed_type)
    state = take(accelerator, models, weights)
    if accelerator.is_main_process:
        path = os.path.join(output_dir, FILE_NAME)
        s4weights.save(state, path)
        _log.info(
            "%s: models and optimizers; what stays in plain files beside it: schedulers, "
            "samplers, scaler, random number generators, custom objects",
            path,
        )


def load_hook(models: list[nn.Module], input_dir: str) -> None:
    """Load models and optimizers from `state.s4` in `input_dir`; for Accelerate to call.

    A directory without that file was written by plain Accelerate, and is left to it.

    Raises:
        FormatError: the file is damaged.
        StateError: a dtype differs from the model's.
    """
    accelerator = _calling_accelerator()
    refuse_sharded(accelerator.distributed_type)
    path = os.path.join(input_dir, FILE_NAME)
    if not os.path.exists(path):
        _log.warning("no %s in %s: Accelerate loads its own files", FILE_NAME, input_dir)
        return
    state = s4weights.load(path, placed_on(accelerator.device))
    give(accelerator, models, state)


def _calling_accelerator() -> Any:
    """The Accelerator whose `save_state` or `load_state` is running: hooks are not told it."""
    frame = sys._getframe(2)
    while frame is not None:
        found = frame.f_locals.get("self")
        if hasattr(found, "_save_model_state_pre_hook") and hasattr(found, "_optimizers"):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise StateError(
        "S4's hooks work when Accelerator.save_state or load_state calls them; found no "
        "Accelerator among the callers"
    )


def take(
    accelerator: Any, models: Sequence[nn.Module], weights: list[dict[str, Any]]
) -> dict[str, Any]:
    """Take models and optimizers out of Accelerate's hands; return their state.

    Its tensors are the live ones. Afterwards Accelerate writes no weights, and a stub for
    each optimizer.
    """
    if len(weights) > len(models):
        raise StateError(f"{len(weights)} states of {len(models)} models: another hook added some")
    optimizers = accelerator._optimizers
    remove_shadows(optimizers)
    state = {
        "models": [canonical_state(m, w) for m, w in zip(models, weights, strict=False)],
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    weights.clear()
    shadow_saves(optimizers)
    return state


def give(
    accelerator: Any,
    models: list[nn.Module],
    state: dict[str, Any],
    *,
    allow_cast: bool = False,
    **options: Any,
) -> None:
    """Load models now, and optimizers when Accelerate comes to them.

    Args:
        accelerator: whose they are.
        models: what Accelerate means to load; emptied.
        state: as `take` gave it.
        allow_cast: see `load_model`.
        options: arguments of `load_state_dict`.

    Raises:
        StateError: other numbers of models or optimizers, or a dtype that differs.
    """
    optimizers = accelerator._optimizers
    remove_shadows(optimizers)
    for what, here in (("models", models), ("optimizers", optimizers)):
        if len(state[what]) != len(here):
            raise StateError(
                f"the checkpoint holds {len(state[what])} {what}, the Accelerator {len(here)}: "
                "prepare the same ones as when it was saved"
            )
    for model, stored in zip(models, state["models"], strict=True):
        load_model(model, stored, allow_cast=allow_cast, **options)
    models.clear()
    shadow_loads(optimizers, state["optimizers"])
