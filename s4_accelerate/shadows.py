"""One-shot shadows: how an optimizer's state goes through S4 and not through `optimizer.bin`.

Accelerate's hooks are given the models only, yet the optimizer holds most of the bytes.
A shadow is an attribute of one optimizer instance that hides a method of its class, acts
when Accelerate calls it, and is gone after that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ["STUB_KEY", "remove_shadows", "shadow_loads", "shadow_saves"]

# What `optimizer.bin` holds instead; plain Accelerate stops on it with a KeyError.
STUB_KEY: Final = "stored by s4weights; load with its hook"
# The only function that may be given a stub. Anyone else who calls `state_dict` gets it all.
_SAVER: Final = "save_accelerator_state"


def shadow_saves(optimizers: Sequence[Any]) -> None:
    """Let Accelerate's next save of each optimizer write a stub."""
    for number, optimizer in enumerate(optimizers):
        optimizer.__dict__["state_dict"] = _saving(optimizer, number)


def _saving(optimizer: Any, number: int) -> Callable[..., Any]:
    def state_dict(*args: Any, **kwargs: Any) -> Any:
        optimizer.__dict__.pop("state_dict", None)
        if sys._getframe(1).f_code.co_name == _SAVER:
            return {STUB_KEY: number}
        return optimizer.state_dict(*args, **kwargs)

    return state_dict


def shadow_loads(optimizers: Sequence[Any], states: Sequence[Any]) -> None:
    """Let the next load of a stub into each optimizer load its state in `states` instead."""
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.__dict__["load_state_dict"] = _loading(optimizer, state)


def _loading(optimizer: Any, state: Any) -> Callable[[Any], Any]:
    def load_state_dict(found: Any) -> Any:
        optimizer.__dict__.pop("load_state_dict", None)
        is_stub = isinstance(found, dict) and STUB_KEY in found
        return optimizer.load_state_dict(state if is_stub else found)

    return load_state_dict


def remove_shadows(optimizers: Sequence[Any]) -> None:
    """Remove what a failed save or load left behind."""
    for optimizer in optimizers:
        optimizer.__dict__.pop("state_dict", None)
        optimizer.__dict__.pop("load_state_dict", None)
