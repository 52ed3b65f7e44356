"""S4 Weights for PyTorch Lightning.

    S4CheckpointIO       Trainer(plugins=[S4CheckpointIO()]): every checkpoint through S4
    S4ModelCheckpoint    Trainer(callbacks=[S4ModelCheckpoint("s3://bucket/run")])

    checkpoint_io        what Lightning calls
    session              what one process knows: its runs, what it resumed from, what waits
    model_checkpoint     names, "last" and removal on remote paths
    addresses            which paths are S4's, and what they are called
    hooks, attach        what is done to Lightning's modules, and when

Importing this imports no Lightning. `lightning` and `pytorch_lightning` are the same
library under two names, with classes of their own; both accept the plugin. After the
import, `MyModule.load_from_checkpoint(path)` reads S4's checkpoints.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from s4_lightning.attach import installed, require_lightning
from s4_lightning.checkpoint_io import S4CheckpointIO
from s4_lightning.hooks import hook, unhook_load_from_checkpoint

if TYPE_CHECKING:
    from s4_lightning.for_lightning import S4ModelCheckpoint

__all__ = ["S4CheckpointIO", "S4ModelCheckpoint", "unhook_load_from_checkpoint"]

hook(S4CheckpointIO)


def __getattr__(name: str) -> Any:
    """Find what derives from Lightning's classes, of the package that is in use.

    Where both packages are imported, that is `lightning`; the other's classes are in
    `s4_lightning.for_pytorch_lightning`.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_lightning(name)
    if "lightning.pytorch" in sys.modules:
        holder = "for_lightning"
    elif "pytorch_lightning" in sys.modules or not installed("lightning"):
        holder = "for_pytorch_lightning"
    else:
        holder = "for_lightning"
    return getattr(importlib.import_module(f"{__name__}.{holder}"), name)
