"""Distributed checkpoints: torch.distributed.checkpoint's storage over S4.

    save, async_save, load             all ranks call them; errors, groups and order are ours
    S4StorageWriter, S4StorageReader   for torch.distributed.checkpoint's own functions

    writer, contribution, commit       one shard a rank, one manifest for all
    leaves, sources, staging           from the items of a plan to words, now or behind
    reader, opening                    the way back, onto any number of ranks
    group                              the process group that nobody else uses

What was saved is loaded bit for bit, by any number of ranks. The format is FORMAT.md,
section 13.
"""

from s4core.dcp.functions import async_save, load, save
from s4core.dcp.reader import S4StorageReader
from s4core.dcp.writer import S4StorageWriter

__all__ = ["S4StorageReader", "S4StorageWriter", "async_save", "load", "save"]
