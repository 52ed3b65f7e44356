"""torch.distributed.checkpoint's storage, writing side.

Every rank puts its own shard, the coordinator one manifest and the ref: data first,
manifest last. A rank that fails, or dies, leaves shards that nothing names (`gc` sweeps
them) and no checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from s4core import metrics
from s4core.checkpoint import CheckpointInfo
from s4core.checkpoint.buffers import Buffers
from s4core.dcp.commit import assemble
from s4core.dcp.contribution import Contribution, Parts, gather_pieces
from s4core.dcp.leaves import Rules, resolve
from s4core.dcp.sources import Encoder, Staged
from s4core.dcp.staging import Mirror
from s4core.errors import StateError, StoreError
from s4core.manifest import Json, Manifest, dump
from s4core.refs import STORE_DIRECTORY, Ref, dump_ref, split_url
from s4core.repository import Repository, new_id

__all__ = ["S4StorageWriter"]


@dataclass(frozen=True)
class _Assignment:
    """What the coordinator tells a rank: the checkpoint, and the rank's number in it."""

    checkpoint: str
    rank: int


@dataclass
class _Save:
    """One save, from `stage` or the first call of `dcp.save` on.

    Attributes:
        staged: what was staged.
        started: when, by the monotonic clock.
        pause_seconds: that the caller waited; None: until it is committed.
        checkpoint: its id, on the coordinator.
        failure: what went wrong in `stage`.
    """

    staged: Staged = field(default_factory=Staged)
    started: float = field(default_factory=time.monotonic)
    pause_seconds: float | None = None
    checkpoint: str = ""
    failure: Exception | None = None


class S4StorageWriter(StorageWriter, AsyncStager):
    """Saves one checkpoint, or one after another, through `torch.distributed.checkpoint`.

    `dcp.save(state, storage_writer=S4StorageWriter("s3://bucket/run/step-00000100.ckpt"))`,
    and the same with `dcp.async_save(..., process_group=group)`, where `group` is a gloo
    group that nothing else uses: when it returns the state may be mutated.

    Attributes:
        info: what the last save committed; None on other ranks than the coordinator.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        meta: Mapping[str, Json] | None = None,
        profile: str = "open",
        verify: bool = True,
        allow_pickle: bool = False,
        allow_classes: bool = False,
    ) -> None:
        """Choose where and how to save; nothing is written yet.

        Args:
            url: the checkpoint's name: a path or URL whose last part is the ref. One that
                exists is replaced when the new one is committed.
            step: of the training.
            meta: strings and numbers for people, kept in the manifest.
            profile: `open` (restores anywhere) or `nvcomp`.
            verify: decode every chunk again and compare before it counts.
            allow_pickle: store values of unknown classes pickled; they then load only with
                `weights_only=False`.
            allow_classes: store enums and dataclasses by their class's name.

        Raises:
            StoreError: `url` has no name in it, or a scheme that no store has.
        """
        self.info: CheckpointInfo | None = None
        self.step, self.meta = step, dict(meta or {})
        self._rules = Rules(allow_pickle, allow_classes)
        self._encoder = Encoder(profile, verify)
        self._buffers = Buffers()
        self._save = _Save()
        self._next: _Save | None = None
        self.reset(url)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Save to another name from now on; None: to the same one."""
        if checkpoint_id is not None:
            self.url = os.fspath(checkpoint_id)
            self._directory, self._name = split_url(self.url)
            self._repository = Repository(self._directory.child(STORE_DIRECTORY))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether `checkpoint_id` names a checkpoint in a store."""
        try:
            split_url(checkpoint_id)
        except StoreError:
            return False
        return True

    def storage_meta(self) -> StorageMeta | None:
        """Where the checkpoint goes, for planners that want to know."""
        return StorageMeta(checkpoint_id=self.url)

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy or encode every tensor: when this returns the state may be mutated.

        Tensors on GPUs are encoded into host memory, others copied. One save at a time: a
        state staged before is forgotten.

        What goes wrong is raised by the save that follows, on every rank: the others are
        about to wait for this one.

        Returns:
            The state with meta tensors, for `dcp.save`.
        """
        started, mirror = time.monotonic(), Mirror()
        try:
            mirrored = mirror.state(state_dict)
            staged = Staged.of(mirror.leaves, mirror.metas, self._encoder, self._buffers)
        except Exception as error:  # noqa: BLE001  # raised by set_up_storage_writer
            self._next = _Save(failure=error)
            return {}
        self._next = _Save(staged, started, time.monotonic() - started)
        return mirrored

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for when `stage` has returned."""

    def close(self) -> None:
        """Forget what was staged and the memory kept for the next save."""
        self._buffers, self._save, self._next = Buffers(), _Save(), None

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin a save; called on all ranks.

        Raises:
            StateError: `use_collectives=False`: no rank would know of the others' shards. Or
                what was to be staged holds something that cannot be stored.
            CodecError: in staging, a chunk did not decode to the words it came from.
        """
        self.info = None
        self._save, self._next = self._next or _Save(), None
        if self._save.failure is not None:
            raise self._save.failure
        if not kwargs.get("use_collectives", True):
            raise StateError(
                "use_collectives=False makes a checkpoint of each rank's own: S4 writes one for "
                "all; leave it out"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add: the planner's mapping travels with the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give the checkpoint its id and every rank its shard; on the coordinator only.

        Raises:
            StateError: the planner caches its plans, which would be those of another save.
            StoreError: the store refused.
        """
        if not all(plan.usable for plan in plans):
            raise StateError(
                "the planner caches plans, by its class and for all writers of the process: use "
                "DefaultSavePlanner(enable_plan_caching=False)"
            )
        self._repository.ensure_marker()
        checkpoint = self._save.checkpoint = new_id()
        return [
            replace(plan, storage_data=_Assignment(checkpoint, rank))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items to its shard.

        Raises:
            StateError: an item cannot be stored.
            CodecError: a chunk did not decode to the words it came from.
            StoreError: the store refused.
        """
        staged = self._save.staged
        try:
            with _errors_reported(self.url):
                done = self._write(plan, planner, staged)
        finally:
            self._buffers.give_back(staged.copies)
            self._save.staged = Staged()
        future: Future[list[WriteResult]] = Future()
        future.set_result(done)
        return future

    def _write(self, plan: SavePlan, planner: SavePlanner, staged: Staged) -> list[WriteResult]:
        given = plan.storage_data
        if not isinstance(given, _Assignment):
            raise StateError("this plan was not made with an S4StorageWriter on the coordinator")
        resolved = [resolve(item, planner, plan.planner_data, self._rules) for item in plan.items]
        pieces = gather_pieces(resolved, staged)
        key = f"{given.checkpoint}/{given.rank}-0.s4"
        contribution = pieces.write(given.checkpoint, key, self._encoder, self._put)
        # One object for all of them: it travels to the coordinator once.
        return [
            WriteResult(item.index, item.tensor_storage_size() or 0, contribution)
            for item in plan.items
        ]

    def _put(self, key: str, parts: Parts, size_hint: int) -> None:
        self._repository.put_shard(key, parts, size_hint)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit: put the manifest, then the ref; on the coordinator only.

        Raises:
            StateError: what was written is not what was planned, or not all of a tensor.
            StoreError: the store refused; the checkpoint that had the name is unharmed.
        """
        written = [rank[0].storage_data for rank in results if rank]
        with _errors_reported(self.url):
            manifest = self._commit(metadata, written)
        self.info = self._report(manifest, written)

    def _commit(self, metadata: Metadata, written: Sequence[Contribution]) -> Manifest:
        manifest = assemble(
            metadata,
            written,
            identity=self._save.checkpoint,
            profile=self._encoder.profile,
            step=self.step,
            meta=self.meta,
        )
        ref = Ref(manifest.id, self._repository.commit(manifest))
        self._directory.put(self._name, dump_ref(ref), replace=True)
        return manifest

    def _report(self, manifest: Manifest, written: Sequence[Contribution]) -> CheckpointInfo:
        seconds, waited = time.monotonic() - self._save.started, self._save.pause_seconds
        pause_seconds = seconds if waited is None else waited
        stored_bytes = sum(one.shard_bytes for one in written) + len(dump(manifest))
        metrics.report_save(
            step=manifest.step,
            raw_bytes=manifest.raw_bytes,
            stored_bytes=stored_bytes,
            pause_seconds=pause_seconds,
            upload_seconds=seconds - pause_seconds,
        )
        return CheckpointInfo(
            url=self._directory.url_of(self._name),
            id=manifest.id,
            step=manifest.step,
            kind="base",
            depth=0,
            raw_bytes=manifest.raw_bytes,
            stored_bytes=stored_bytes,
            seconds=seconds,
            pause_seconds=pause_seconds,
        )


@contextmanager
def _errors_reported(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        metrics.report_error(f"{url}: {error}")
        raise
