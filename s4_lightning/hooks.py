"""What is done to Lightning's modules: two things, here and nowhere else.

1. The plugin is registered on the abstract class `CheckpointIO` of each package: their
   Trainers ask `isinstance(plugin, CheckpointIO)`, each of its own. With it, fsspec is told
   of `s4://`.
2. `LightningModule.load_from_checkpoint` and `LightningDataModule.load_from_checkpoint`
   ask no plugin: they call the function that their module `core.saving` knows as
   `pl_load`. That name is bound to a function that loads S4's checkpoints and leaves all
   others to the original. `unhook_load_from_checkpoint` binds it back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any, Final

import s4weights
from s4_lightning.addresses import address, link_target
from s4_lightning.attach import Action, when_imported
from s4core.errors import FormatError, KeyNotFoundError
from s4core.format import MAGIC
from s4core.refs import read_ref, split_url

__all__ = ["hook", "unhook_load_from_checkpoint"]

_INTERFACES: Final = (
    "lightning.fabric.plugins.io.checkpoint_io",
    "lightning_fabric.plugins.io.checkpoint_io",
)
_SAVING: Final = ("lightning.pytorch.core.saving", "pytorch_lightning.core.saving")
_SCHEMES: Final = ("s3", "s4", "memory")


def hook(plugin: type) -> None:
    """Do both, now or when the modules are imported."""
    actions: dict[str, Action] = dict.fromkeys(_INTERFACES, partial(_register, plugin))
    when_imported(actions | dict.fromkeys(_SAVING, _hook_loading))


def _register(plugin: type, module: ModuleType) -> None:
    module.CheckpointIO.register(plugin)
    from s4core import fs  # here: Lightning has imported fsspec already

    fs.register()


def _hook_loading(module: ModuleType) -> None:
    original = getattr(module, "pl_load", None)
    if original is not None and not hasattr(original, "__wrapped__"):
        module.pl_load = _loading(original)  # type: ignore[attr-defined]


def unhook_load_from_checkpoint() -> None:
    """Make `load_from_checkpoint` Lightning's own again; `s4_lightning` stays usable."""
    for name in _SAVING:
        module = sys.modules.get(name)
        original = getattr(getattr(module, "pl_load", None), "__wrapped__", None)
        if module is not None and original is not None:
            module.pl_load = original  # type: ignore[attr-defined]


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def load(
        path: Any, map_location: Any = None, weights_only: bool | None = None, **others: Any
    ) -> Any:
        if isinstance(path, str | os.PathLike) and _is_checkpoint(path):
            only = True if weights_only is None else weights_only
            return s4weights.load(link_target(address(path)), map_location, only)
        if weights_only is not None:
            others["weights_only"] = weights_only
        return original(path, map_location=map_location, **others)

    return load


def _is_checkpoint(path: str | os.PathLike[str]) -> bool:
    where = link_target(address(path))
    if "://" in where and where.partition("://")[0] not in _SCHEMES:
        return False
    directory, name = split_url(where)
    try:
        (head,) = directory.get_ranges(name, [(0, min(directory.size(name), len(MAGIC)))])
        if head != MAGIC:
            read_ref(directory, name)
    except (FormatError, KeyNotFoundError):
        return False  # Lightning says what it is, or that it is missing
    return True
