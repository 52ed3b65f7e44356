"""Which bytes of memory a state's tensors cover: arrays, and the tensors' places in them.

An array is a run of elements that is stored as one (FORMAT.md, section 1). The rules:

1. Tensors whose bytes overlap on one storage (tied weights, a flat buffer and its parts)
   share one array: the contiguous run from their lowest byte to their highest. Its
   dtype is theirs; where they differ, it is uint8, and starts at a multiple of the
   largest itemsize so that every offset is whole in its own elements. So sharing of
   memory survives. Tensors that merely touch, or lie elsewhere on a storage, are arrays
   of their own: nobody can tell through the tensors, and each keeps its own dtype,
   delta and chunks.
2. A tensor alone is stored as it lies when its elements fill the run from first to last
   (contiguous, `.t()`, channels_last, expanded), or overlap each other (windows).
3. A tensor alone with gaps (`[::2]`, a column) is stored *compact*: its distinct
   elements without the gaps, in storage order, offset 0. The recorded strides are the
   original ones; loading spreads the elements again over a run with zeros between. An
   array is compact iff offset is 0, the tensor's span exceeds the array, and its
   distinct elements are exactly the array's.
4. An empty tensor is an array of 0 words of its own; a meta tensor has none.

Copies go through integers: torch's copy of a bool turns any non-zero byte into 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s4core import dtypes
from s4core.tree.geometry import OPAQUE, Geometry, torch_dtype, typed
from s4core.tree.writing import TensorLeaf

__all__ = ["ArrayGroup", "Grouping", "Place", "group_storages"]


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: offset and strides in its elements; `array` None for meta."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    array: int | None
    offset: int


@dataclass(frozen=True)
class ArrayGroup:
    """One array: a run of memory that is still the caller's.

    Attributes:
        key: the path of its first tensor.
        dtype: of its elements, torch's name.
        numel: number of elements.
    """

    key: str
    dtype: str
    numel: int
    _source: Tensor
    _start: int  # in elements of dtype, on the source's storage
    _compact: bool

    def gather(self) -> Tensor:
        """Return the array: 1-D, stride 1, of its dtype, on the tensors' device.

        Shares the caller's memory unless the array is compact.
        """
        dtype = torch_dtype(self.dtype)
        if self._compact:
            return _compacted(self._source).view(dtype)
        storage = self._source.untyped_storage()
        return typed(storage, dtype, self._start, (self.numel,), (1,))


@dataclass(frozen=True)
class Grouping:
    """All arrays of a state, and the place of each leaf, in the leaves' order."""

    arrays: list[ArrayGroup]
    places: list[Place]


@dataclass(frozen=True)
class _Extent:
    """The bytes of one leaf on its storage."""

    leaf: int
    dtype: dtypes.DType
    start: int
    stop: int


def group_storages(leaves: Sequence[TensorLeaf]) -> Grouping:
    """Find the arrays that hold all leaves, by the rules of this module.

    Returns:
        Arrays in the order of their first leaves, and every leaf's place.
    """
    members = sorted(_overlapping(leaves), key=lambda group: group[0].leaf)
    arrays: list[ArrayGroup] = []
    places: dict[int, Place] = {}
    for group in members:
        start, array = _array(leaves, group)
        for extent in group:
            offset = (extent.start - start) // extent.dtype.itemsize
            places[extent.leaf] = _place_of(leaves[extent.leaf].tensor, len(arrays), offset)
        arrays.append(array)
    for number, leaf in enumerate(leaves):
        if leaf.tensor.is_meta:
            places[number] = _place_of(leaf.tensor, None, 0)
    return Grouping(arrays, [places[number] for number in range(len(leaves))])


def _place_of(tensor: Tensor, array: int | None, offset: int) -> Place:
    geometry = Geometry.of(tensor)
    return Place(_name(tensor), geometry.shape, geometry.stride, array, offset)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _overlapping(leaves: Sequence[TensorLeaf]) -> list[list[_Extent]]:
    """Leaves that have memory, grouped by overlap; each group in the leaves' order."""
    alone: list[list[_Extent]] = []
    storages: dict[tuple[str, int], list[_Extent]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.tensor.is_meta:
            continue
        extent = _extent(number, leaf.tensor)
        if extent.start == extent.stop:
            alone.append([extent])
            continue
        # By address: two tensors that numpy lent have two storages over one memory.
        key = (str(leaf.tensor.device), leaf.tensor.untyped_storage().data_ptr())
        storages.setdefault(key, []).append(extent)
    return alone + [group for extents in storages.values() for group in _sweep(extents)]


def _extent(number: int, tensor: Tensor) -> _Extent:
    dtype = dtypes.lookup(_name(tensor))
    start = int(tensor.storage_offset()) * dtype.itemsize
    return _Extent(number, dtype, start, start + Geometry.of(tensor).span * dtype.itemsize)


def _sweep(extents: list[_Extent]) -> list[list[_Extent]]:
    groups: list[list[_Extent]] = []
    reach = -1
    for extent in sorted(extents, key=lambda extent: extent.start):
        if extent.start >= reach:
            groups.append([])
        groups[-1].append(extent)
        reach = max(reach, extent.stop)
    return [sorted(group, key=lambda extent: extent.leaf) for group in groups]


def _array(leaves: Sequence[TensorLeaf], group: list[_Extent]) -> tuple[int, ArrayGroup]:
    """The array of a group, and the byte of the storage at which it starts."""
    first = leaves[group[0].leaf]
    names = {extent.dtype.name for extent in group}
    dtype = group[0].dtype if len(names) == 1 else dtypes.lookup("uint8")
    geometry = Geometry.of(first.tensor)
    if len(group) == 1 and geometry.has_gaps:
        start, numel, compact = group[0].start, geometry.covered, True
    else:
        align = max(extent.dtype.itemsize for extent in group)
        start = min(extent.start for extent in group) // align * align
        stop = max(extent.stop for extent in group)
        numel, compact = (stop - start) // dtype.itemsize, False
    sources = [leaves[extent.leaf].tensor for extent in group]
    source = max(sources, key=lambda tensor: tensor.untyped_storage().nbytes())
    return start, ArrayGroup(
        first.path, dtype.name, numel, source, start // dtype.itemsize, compact
    )


def _compacted(tensor: Tensor) -> Tensor:
    """The distinct elements in storage order: a new 1-D tensor of an opaque dtype."""
    geometry = Geometry.of(tensor)
    source = typed(
        tensor.untyped_storage(),
        OPAQUE[tensor.element_size()],
        int(tensor.storage_offset()),
        geometry.distinct_shape,
        geometry.stride,
    )
    out = torch.empty(geometry.covered, dtype=source.dtype, device=source.device)
    in_order = source.permute(geometry.order)
    out.view(in_order.shape).copy_(in_order)
    return out
