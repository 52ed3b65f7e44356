"""States back into live models and optimizers, in place, bit for bit.

`load_state_dict` casts silently where dtypes differ; that loses bits, so it is refused
unless the caller asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from s4_accelerate.canonical import live_state
from s4weights import StateError

__all__ = ["live_weights", "load_model", "placed_on"]


def load_model(
    model: nn.Module,
    stored: Mapping[str, Any],
    *,
    allow_cast: bool = False,
    strict: bool = True,
    **options: Any,
) -> None:
    """Load a canonical state dict into `model`, whatever wraps it now.

    Args:
        model: wrapped or not.
        stored: canonical state dict.
        allow_cast: let floating point values be rounded to the model's dtype.
        strict: as for `load_state_dict`.
        options: more arguments of `load_state_dict`.

    Raises:
        StateError: a dtype differs.
        RuntimeError: names or shapes differ, as `load_state_dict` says.
    """
    model.load_state_dict(
        live_weights(model, stored, allow_cast=allow_cast), strict=strict, **options
    )


def live_weights(
    model: nn.Module, stored: Mapping[str, Any], *, allow_cast: bool = False
) -> OrderedDict[str, Any]:
    """Return a canonical state dict under the names that `model` uses now.

    Raises:
        StateError: a dtype differs from the model's, and `allow_cast` is not set.
    """
    state = live_state(model, stored)
    if not allow_cast:
        _refuse_casts(model.state_dict(), state)
    return state


def _refuse_casts(here: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    for name, value in stored.items():
        live = here.get(name)
        if isinstance(live, Tensor) and isinstance(value, Tensor) and live.dtype != value.dtype:
            raise StateError(
                f"{name}: the checkpoint holds {value.dtype}, the model {live.dtype}; loading "
                "would change its bits: build the model in the checkpoint's dtype, or pass "
                "allow_cast=True"
            )


def placed_on(device: torch.device | str) -> Callable[[Any, str], Any]:
    """Return a `map_location`: what lay on an accelerator goes to `device`, the rest stays.

    An optimizer's `step` counters lie on the CPU although its parameters do not, and
    must come back there.
    """
    target = torch.empty(0, device=device).untyped_storage()
    return lambda storage, saved: storage if saved.startswith("cpu") else target
