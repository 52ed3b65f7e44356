"""Canonical names: what a parameter is called when no wrapper is around it.

DistributedDataParallel and DataParallel put `module.` before every key of a state dict,
`torch.compile` puts `_orig_mod.`, at the top or anywhere inside. On disk stand the names
without them, so that a checkpoint of a compiled model on eight GPUs loads into a plain
one on the CPU, and the reverse. Only what a wrapper really added is taken away: a model
may have a submodule of its own called `module`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import nn

from s4weights import StateError

__all__ = ["canonical_name", "canonical_state", "live_state"]

_DATA_PARALLEL: Final = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def canonical_name(model: nn.Module, name: str) -> str:
    """Return the canonical name of what `model` calls `name` (a key, or a module's path)."""
    kept: list[str] = []
    module: nn.Module | None = model
    for part in name.split(".") if name else []:
        if module is None or part != _wrapped_as(module):
            kept.append(part)
        module = None if module is None else module._modules.get(part)
    return ".".join(kept)


def _wrapped_as(module: nn.Module) -> str | None:
    """The name under which a wrapper holds the module it wraps; None: it is no wrapper."""
    if isinstance(module, _DATA_PARALLEL):
        return "module"
    return "_orig_mod" if "_orig_mod" in module._modules else None


def canonical_state(model: nn.Module, state: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict of `model` under canonical names; tensors are not copied."""
    return _renamed(state, lambda name: canonical_name(model, name))


def live_state(model: nn.Module, stored: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a canonical state dict under the names that `model` uses now.

    Names that the model does not have stay as they are, for `load_state_dict` to judge.
    """
    here = model.state_dict()
    names = {canonical_name(model, name): name for name in here}
    renamed = _renamed(stored, lambda name: names.get(name, name))
    # Versions of modules: the stored ones, under every name that the model has for them.
    versions = getattr(stored, "_metadata", None)
    if versions is not None:
        paths = getattr(here, "_metadata", {})
        live = {path: versions.get(canonical_name(model, path)) for path in paths}
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (path, version) for path, version in live.items() if version is not None
        )
    return renamed


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str]) -> OrderedDict[str, Any]:
    renamed: OrderedDict[str, Any] = OrderedDict()
    for name, value in state.items():
        new = rename(name)
        if new in renamed:
            raise StateError(f"two entries of the model's state are both called {new!r}")
        renamed[new] = value
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (rename(path), version) for path, version in versions.items()
        )
    return renamed
