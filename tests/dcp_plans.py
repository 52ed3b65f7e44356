"""Several ranks of torch.distributed.checkpoint in one process: plans without collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from s4core.dcp import S4StorageReader, S4StorageWriter
from s4core.refs import read_ref
from s4core.stores import open_store

Offsets = tuple[int, ...]
# (offsets, sizes) of a part.
Box = tuple[Offsets, Offsets]


@pytest.fixture(autouse=True, scope="module")
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def manifest_of(path: Path) -> Path:
    ref = read_ref(open_store(path.parent), path.name)
    return path.parent / ".s4" / "checkpoints" / f"{ref.checkpoint}.json"


def cut(tensor: Tensor, box: Box) -> Tensor:
    for dim, (start, size) in enumerate(zip(*box, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor


class GridPlanner(SavePlanner):
    """One rank that holds some boxes of tensors."""

    def __init__(self, tensors: Mapping[str, Tensor], boxes: Sequence[tuple[str, Box]]) -> None:
        self.tensors, self.boxes = tensors, boxes

    def set_up_planner(self, *_: Any, **__: Any) -> None: ...

    def create_local_plan(self) -> SavePlan:
        return SavePlan([self._item(name, box) for name, box in self.boxes])

    def _item(self, name: str, box: Box) -> WriteItem:
        tensor = self.tensors[name]
        chunk = ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1]))
        properties = TensorProperties(dtype=tensor.dtype)
        data = TensorWriteData(chunk, properties, tensor.size())
        return WriteItem(MetadataIndex(name, box[0]), WriteItemType.SHARD, tensor_data=data)

    def create_global_plan(self, all_plans: list[SavePlan]) -> Any:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        assert write_item.tensor_data is not None
        chunk = write_item.tensor_data.chunk
        box = (tuple(chunk.offsets), tuple(chunk.sizes))
        return cut(self.tensors[write_item.index.fqn], box)


def save_ranks(
    url: str | Path, tensors: Mapping[str, Tensor], ranks: Sequence[Sequence[tuple[str, Box]]]
) -> None:
    """Save as `len(ranks)` ranks would, each with its boxes."""
    planners = [GridPlanner(tensors, boxes) for boxes in ranks]
    writers = [S4StorageWriter(url) for _ in ranks]
    for number, writer in enumerate(writers):
        writer.set_up_storage_writer(number == 0, rank=number)
    local = [w.prepare_local_plan(p.create_local_plan()) for w, p in zip(writers, planners)]  # noqa: B905
    plans, metadata = planners[0].create_global_plan(local)
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(plan, planner).value()
        for writer, plan, planner in zip(writers, plans, planners, strict=True)
    ]
    writers[0].finish(metadata, results)


class BoxLoader(LoadPlanner):
    """One rank that wants some boxes of one tensor."""

    def __init__(self, targets: Mapping[Offsets, Tensor]) -> None:
        self.targets = targets

    def set_up_planner(self, *_: Any, **__: Any) -> None: ...

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise NotImplementedError

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        assert read_item.dest_index.offset is not None
        target = self.targets[tuple(read_item.dest_index.offset)]
        return cut(target, (tuple(read_item.dest_offsets), tuple(read_item.lengths)))

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None: ...


def load_box(url: str | Path, name: str, dtype: torch.dtype, box: Box) -> Tensor:
    """Load one box of one tensor."""
    reader = S4StorageReader(url)
    metadata: Any = reader.read_metadata().state_dict_metadata[name]
    wanted = ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1]))
    items = create_read_items_for_chunk_list(name, metadata, [wanted])
    target = torch.zeros(box[1], dtype=dtype)
    reader.read_data(LoadPlan(items), BoxLoader({box[0]: target}))
    return target
