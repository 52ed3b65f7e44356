"""torch.distributed.checkpoint's storage, reading side.

A rank fetches the parts that its own tensors overlap, whatever ranks wrote them. Each part
is decoded whole, checked against its digest, and the piece that was asked for copied into
its place; memory is bounded by the reader's batches, not by the checkpoint.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from s4core import tree
from s4core.dcp.opening import Opened, open_distributed
from s4core.errors import S4Error, StateError
from s4core.refs import split_url
from s4core.tree import OPAQUE, DistributedValue, Part

__all__ = ["S4StorageReader"]


class S4StorageReader(StorageReader):
    """Loads a checkpoint through `torch.distributed.checkpoint`, onto any number of ranks.

    `dcp.load(state, storage_reader=S4StorageReader("s3://bucket/run/step-00000100.ckpt"))`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        allow_cast: bool = False,
        weights_only: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Choose what to load; nothing is read yet.

        Args:
            url: the checkpoint: its ref, or a self-contained file.
            allow_cast: load a tensor of another dtype than the target's, converted.
            weights_only: refuse values that would run code of the checkpoint's choosing.
            process_group: its first rank alone reads the manifest and tells the others;
                None: every rank reads it. The ranks that load, and nobody else, and used by
                no other thread meanwhile.
        """
        self._allow_cast, self._weights_only = allow_cast, weights_only
        self._group = process_group
        self._opened: Opened | None = None
        self._fresh = False  # opened, and not yet read
        self.reset(url)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Load another checkpoint from now on; None: the same one."""
        if checkpoint_id is not None:
            self.url = os.fspath(checkpoint_id)
            self._opened, self._fresh = None, False

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether `checkpoint_id` names a checkpoint in a store."""
        try:
            split_url(checkpoint_id)
        except S4Error:
            return False
        return True

    def open(self) -> None:
        """Open the checkpoint now, so that what is wrong with it is raised as it is.

        The next `read_metadata` goes on with it. On all ranks of the group.

        Raises:
            KeyNotFoundError, FormatError, ChainError, StoreError, StateError: as `read_metadata`.
        """
        self._opened = open_distributed(self.url, self._group)
        self._fresh = True

    # With an argument called `kwargs`, dcp would ask again for metadata of each rank.
    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Read the manifest; on all ranks, and anew for each load.

        Raises:
            KeyNotFoundError: no such checkpoint.
            FormatError, ChainError, StoreError: as `s4weights.load`.
            StateError: it was saved whole, by one process.
        """
        if self._opened is None or not self._fresh:
            self._opened = open_distributed(self.url, self._group)
        self._fresh = False
        return self._opened.metadata()

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to set up: `read_metadata` opened the checkpoint."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to change: what is read does not depend on other ranks."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to change: every rank reads for itself."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill this rank's tensors and values.

        Raises:
            StateError: a target has another dtype, or a value needs `weights_only=False`.
            FormatError: something is damaged.
            ChainError, StoreError: something is gone.
        """
        opened = self._opened or open_distributed(self.url)
        tensors = [item for item in plan.items if item.type is LoadItemType.TENSOR]
        if not self._allow_cast:
            _check_dtypes(opened, tensors, planner)
        _read_tensors(opened, tensors, planner)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                self._read_value(opened, item, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_value(self, opened: Opened, item: ReadItem, planner: LoadPlanner) -> None:
        name = item.storage_index.fqn
        found = opened.values.get(name)
        if found is None:
            raise StateError(f"{opened.reader.where}: {name} is no value of this checkpoint")
        value = tree.unflatten(
            found.value, _tensors_of(opened, found), weights_only=self._weights_only
        )
        # The planner takes values as bytes of torch.save, made here, never read from a store.
        data = io.BytesIO()
        torch.save(value, data)
        data.seek(0)
        planner.load_bytes(item, data)


def _tensors_of(opened: Opened, value: DistributedValue) -> list[Tensor]:
    entries = [opened.reader.manifest.tensors[number] for number in value.tensors]
    wanted = sorted({entry.array for entry in entries if entry.array is not None})
    words = dict(opened.reader.arrays(wanted, lambda _: torch.device("cpu")))
    return [
        tree.place(words[entry.array or 0], entry.dtype, entry.shape, entry.stride, entry.offset)
        for entry in entries
    ]


def _part_of(opened: Opened, item: ReadItem) -> Part:
    index = item.storage_index
    part = opened.parts.get((index.fqn, tuple(index.offset or ())))
    if part is None:
        raise StateError(
            f"{opened.reader.where}: {index.fqn} has no part at {tuple(index.offset or ())}: the "
            "plan was made for another checkpoint"
        )
    return part


def _check_dtypes(opened: Opened, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
    for item in items:
        stored = tree.torch_dtype(opened.entry(_part_of(opened, item)).dtype)
        wanted = planner.resolve_tensor(item).dtype
        if stored != wanted:
            raise StateError(
                f"{opened.reader.where}: {item.storage_index.fqn} is stored as {stored}, to be "
                f"loaded into {wanted}: make the target {stored}, or pass allow_cast=True"
            )


def _read_tensors(opened: Opened, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
    by_array: defaultdict[int, list[ReadItem]] = defaultdict(list)
    for item in items:
        by_array[opened.entry(_part_of(opened, item)).array or 0].append(item)

    def device(array: int) -> torch.device:
        return planner.resolve_tensor(by_array[array][0]).device

    for array, words in opened.reader.arrays(sorted(by_array), device):
        for item in by_array[array]:
            entry = opened.entry(_part_of(opened, item))
            source = tree.place(words, entry.dtype, entry.shape, entry.stride, entry.offset)
            for dim, start in enumerate(item.storage_offsets):
                source = source.narrow(dim, start, item.lengths[dim])
            target = planner.resolve_tensor(item)
            _copy(source, target.detach())
            planner.commit_tensor(item, target)


def _copy(source: Tensor, target: Tensor) -> None:
    if source.shape != target.shape:
        raise StateError(
            f"the planner gave a target of shape {tuple(target.shape)} for {tuple(source.shape)}"
        )
    if source.dtype == target.dtype and not (target.is_conj() or target.is_neg()):
        # As integers: torch's copy of a bool turns any byte but zero into 1.
        words = OPAQUE[source.element_size()]
        source, target = source.view(words), target.view(words)
    target.copy_(source)
