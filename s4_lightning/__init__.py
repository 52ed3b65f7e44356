"""S4 Weights for PyTorch Lightning.

    S4CheckpointIO    Trainer(plugins=[S4CheckpointIO()]): every checkpoint through S4

    checkpoint_io     what Lightning calls
    session           what one process knows: its runs, what it resumed from, what waits
    addresses         which paths are S4's, and what they are called
    attach            how both Lightning packages come to accept the plugin

Importing this imports no Lightning. `lightning` and `pytorch_lightning` are the same
library under two names, with classes of their own; both accept the plugin.
"""

from __future__ import annotations

from s4_lightning.attach import attach
from s4_lightning.checkpoint_io import S4CheckpointIO

__all__ = ["S4CheckpointIO"]

attach(S4CheckpointIO)
