"""Rebase: a checkpoint written again whole, so that it stands on nothing."""

from __future__ import annotations

from s4core.checkpoint.options import Options
from s4core.checkpoint.reader import Reader
from s4core.checkpoint.reference import Reference
from s4core.checkpoint.saver import write_checkpoint
from s4core.checkpoint.snapshot import snapshot_of
from s4core.checkpoint.writer import Writer
from s4core.repository import Repository

__all__ = ["rebased"]


def rebased(repository: Repository, reader: Reader, options: Options) -> Reference:
    """Commit the checkpoint of `reader` again, whole, under a new id; no ref changes.

    Its arrays are decoded from the store one batch at a time, each up to its digest.

    Raises:
        FormatError, ChainError: it is damaged, or something it stands on is gone.
        StoreError: the store refused; nothing has changed.
    """
    old = reader.manifest
    writer = Writer(snapshot_of(reader), options.profile, options.verify)
    parts = writer.shard() if writer.has_shard else None
    manifest, digest = write_checkpoint(
        repository, writer, parts, step=old.step, meta=old.meta, progress=lambda _: None
    )
    return Reference(repository, manifest, digest)
