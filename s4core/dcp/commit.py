"""From the contributions of all ranks to one manifest; putting it is the commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from s4core import tree
from s4core.dcp.contribution import Contribution
from s4core.dcp.leaves import way_of
from s4core.errors import StateError
from s4core.manifest import ArrayEntry, Json, Manifest, ShardEntry, TensorEntry
from s4core.tree import DistributedState, DistributedTensor, DistributedValue, Node
from s4core.version import __version__

__all__ = ["assemble"]


def assemble(
    metadata: Metadata,
    contributions: Sequence[Contribution],
    *,
    identity: str,
    profile: str,
    step: int | None,
    meta: Mapping[str, Json],
) -> Manifest:
    """Return the manifest of a checkpoint that every rank has written its share of.

    Args:
        metadata: what the plan says the checkpoint holds.
        contributions: of the ranks that had something to write.
        identity: id of the checkpoint.
        profile: that the writers used.
        step: of the training.
        meta: for people.

    Raises:
        StateError: what was written is not what was planned, or not all of a tensor.
    """
    merged = _Merged()
    for one in contributions:
        if one.checkpoint != identity:
            raise StateError(
                f"a rank wrote for checkpoint {one.checkpoint}, the coordinator commits "
                f"{identity}: every rank needs a writer of its own, used for one save at a time"
            )
        merged.add(one)
    state = DistributedState(merged.in_order(metadata), _planner_node(metadata))
    return Manifest(
        requires=tuple(sorted({name for one in contributions for name in one.requires})),
        id=identity,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        writer=f"s4weights {__version__}",
        profile=profile,
        step=step,
        base=None,
        depth=0,
        needs=(),
        shards=tuple(merged.shards),
        arrays=tuple(merged.arrays),
        tensors=tuple(merged.tensors),
        tree=state.node(),
        raw_bytes=sum(array.bytes for array in merged.arrays),
        stored_bytes=sum(one.data_bytes for one in contributions),
        meta=dict(meta),
    )


@dataclass
class _Merged:
    shards: list[ShardEntry] = field(default_factory=list)
    arrays: list[ArrayEntry] = field(default_factory=list)
    tensors: list[TensorEntry] = field(default_factory=list)
    items: dict[str, DistributedTensor | DistributedValue] = field(default_factory=dict)

    def add(self, one: Contribution) -> None:
        shard, array, tensor = len(self.shards), len(self.arrays), len(self.tensors)
        if one.key:
            self.shards.append(ShardEntry(one.key, one.shard_bytes))
        for entry in one.arrays:
            at = None if entry.at is None else (shard, entry.at[1])
            self.arrays.append(replace(entry, at=at))
        for place in one.tensors:
            self.tensors.append(replace(place, array=(place.array or 0) + array))
        for item in one.items:
            self._add_item(item.shifted(tensor))

    def _add_item(self, item: DistributedTensor | DistributedValue) -> None:
        known = self.items.get(item.name)
        if known is None:
            self.items[item.name] = item
            return
        if not (isinstance(known, DistributedTensor) and isinstance(item, DistributedTensor)):
            raise StateError(f"{item.name}: two ranks wrote it, and it is not a tensor in parts")
        if (known.dtype, known.size) != (item.dtype, item.size):
            raise StateError(
                f"{item.name}: one rank wrote parts of {known.dtype} {list(known.size)}, another "
                f"of {item.dtype} {list(item.size)}"
            )
        self.items[item.name] = replace(known, parts=known.parts + item.parts)

    def in_order(self, metadata: Metadata) -> tuple[DistributedTensor | DistributedValue, ...]:
        """The items, complete, in the order of the state where the planner kept it."""
        wanted = metadata.state_dict_metadata
        if set(wanted) != set(self.items):
            differing = sorted(set(wanted) ^ set(self.items))
            raise StateError(f"planned and written items differ: {', '.join(differing[:5])}")
        for name, expected in wanted.items():
            _check(self.items[name], expected)
        data = metadata.planner_data
        known = [name for name in data if name in wanted] if _is_mapping_of_ways(data) else []
        return tuple(self.items[name] for name in dict.fromkeys([*known, *wanted]))


def _check(item: DistributedTensor | DistributedValue, expected: object) -> None:
    if isinstance(item, DistributedTensor) is not isinstance(expected, TensorStorageMetadata):
        raise StateError(f"{item.name}: planned as one kind of item and written as another")
    if isinstance(item, DistributedTensor) and not item.tiled:
        held = sum(_volume(part.sizes) for part in item.parts)
        raise StateError(
            f"{item.name}: the ranks that saved hold {held} of {_volume(item.size)} elements of "
            "it, or some twice: save with all ranks that hold a part, and one replica"
        )


def _volume(sizes: Sequence[int]) -> int:
    volume = 1
    for size in sizes:
        volume *= size
    return volume


def _planner_node(metadata: Metadata) -> Node:
    """What the planner wants to be kept; the ways to the items are kept with them."""
    data = metadata.planner_data
    if data is None or _is_mapping_of_ways(data):
        return None
    flat = tree.flatten(data)
    if flat.leaves:
        raise StateError("the planner's own data hold tensors; keep them in the state")
    return flat.tree


def _is_mapping_of_ways(data: object) -> bool:
    return isinstance(data, Mapping) and all(way_of(data, str(name)) for name in data)
