"""save, async_save and load: torch.distributed.checkpoint over S4, without its traps.

They use a process group of their own, one save at a time, and raise our errors on every
rank instead of a `CheckpointException`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner

from s4core.checkpoint import CheckpointInfo
from s4core.dcp.group import OwnGroup
from s4core.dcp.reader import S4StorageReader
from s4core.dcp.writer import S4StorageWriter
from s4core.errors import S4Error

__all__ = ["async_save", "load", "save"]

_own = OwnGroup()


def save(
    state_dict: dict[str, Any],
    url: str | os.PathLike[str],
    *,
    planner: SavePlanner | None = None,
    **options: Any,
) -> CheckpointInfo | None:
    """Save a state that the ranks of this training hold together; all ranks call this.

    Args:
        state_dict: nested dicts of tensors, DTensors, ShardedTensors and values, or objects
            with `state_dict()`. Keys that all ranks have are one item: what differs from rank
            to rank (states of random number generators) needs the rank in its key.
        url: the checkpoint's name; one that exists is replaced at the commit.
        planner: as for `torch.distributed.checkpoint.save`.
        options: further ones of `S4StorageWriter`.

    Returns:
        What was committed, on rank 0; None on the others.

    Raises:
        StateError: the state holds something that cannot be stored; on every rank.
        StoreError: the store refused; older checkpoints are unharmed. On every rank.
    """
    writer, group = S4StorageWriter(url, **options), _own.get()
    with _own_errors():
        state_dict_saver.save(
            state_dict, storage_writer=writer, planner=planner, process_group=group
        )
    return writer.info


def async_save(
    state_dict: dict[str, Any],
    url: str | os.PathLike[str],
    *,
    planner: SavePlanner | None = None,
    **options: Any,
) -> Future[CheckpointInfo | None]:
    """Save behind the training: when this returns, the state may be mutated.

    All ranks call this. It first waits for the one before. Arguments as for `save`.

    Returns:
        What `save` returns or raises, when it is committed: also that the state holds
        something that cannot be stored, on whichever rank.
    """
    writer, group = S4StorageWriter(url, **options), _own.get()
    running: Any = state_dict_saver.async_save(
        state_dict, storage_writer=writer, planner=planner, process_group=group
    )
    _own.lend(running)
    done: Future[CheckpointInfo | None] = Future()
    running.add_done_callback(partial(_pass_on, done, lambda: writer.info))
    return done


def _pass_on(
    done: Future[CheckpointInfo | None],
    info: Callable[[], CheckpointInfo | None],
    running: Future[Any],
) -> None:
    try:
        with _own_errors():
            running.result()
    except BaseException as error:  # noqa: BLE001  # it is the caller's, through the future
        done.set_exception(error)
    else:
        done.set_result(info())


def load(
    state_dict: dict[str, Any],
    url: str | os.PathLike[str],
    *,
    planner: LoadPlanner | None = None,
    allow_cast: bool = False,
    weights_only: bool = True,
) -> None:
    """Load into the tensors of `state_dict`, in place; all ranks call this.

    Any number of ranks may have saved, in any sharding. What is being saved is waited for.

    Args:
        state_dict: as for `torch.distributed.checkpoint.load`: what is not in it is not
            loaded; what is, must be in the checkpoint (unless the planner says otherwise).
        url: of the checkpoint.
        planner: as for `torch.distributed.checkpoint.load`.
        allow_cast: load a tensor of another dtype than the target's, converted.
        weights_only: refuse values that would run code of the checkpoint's choosing.

    Raises:
        KeyNotFoundError: no such checkpoint; on every rank.
        StateError: a target has another dtype; on every rank.
        FormatError, ChainError, StoreError: as `s4weights.load`; on every rank.
        CheckpointException: torch refused the plan (a missing key, another size).
    """
    group = _own.get()
    reader = S4StorageReader(
        url, allow_cast=allow_cast, weights_only=weights_only, process_group=group
    )
    reader.open()
    with _own_errors():
        state_dict_loader.load(
            state_dict, storage_reader=reader, planner=planner, process_group=group
        )


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what failed on a rank as our own error, where it is one."""
    try:
        yield
    except CheckpointException as error:
        for rank, (cause, _) in sorted(error.failures.items()):
            if isinstance(cause, S4Error):
                raise type(cause)(f"rank {rank}: {cause}") from error
        raise
