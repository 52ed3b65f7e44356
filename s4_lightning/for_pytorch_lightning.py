"""What derives from classes of the package `pytorch_lightning`, which this file alone imports."""

from __future__ import annotations

from pytorch_lightning.callbacks import ModelCheckpoint

from s4_lightning.model_checkpoint import Remote

__all__ = ["S4ModelCheckpoint"]


class S4ModelCheckpoint(Remote, ModelCheckpoint):
    """`ModelCheckpoint` of `pytorch_lightning`, right on remote paths too; the same arguments."""
