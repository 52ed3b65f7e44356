"""What derives from classes of the package `lightning`, which this file alone imports."""

from __future__ import annotations

from lightning.pytorch.callbacks import ModelCheckpoint

from s4_lightning.model_checkpoint import Remote

__all__ = ["S4ModelCheckpoint"]


class S4ModelCheckpoint(Remote, ModelCheckpoint):
    """`ModelCheckpoint` of `lightning`, right on remote paths too; the same arguments."""
