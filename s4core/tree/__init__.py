"""Take a nested state apart into a tree without code and plain tensors, and put it together.

The tree is JSON (FORMAT.md, sections 8 and 8.1): no pickle, no class is imported and
nothing is called because a file says so, unless the caller asks for it.

    writing, reading      what all writers and readers of nodes share
    paths                 where a leaf sits
    scalars, containers   Python's own values
    classes               namedtuples, enums, dataclasses, pickled leaves
    arrays                numpy
    torch_values          sizes, dtypes, devices
    tensors, composites, subclasses   tensors, whole and in parts
    geometry, storages, places        which memory tensors cover, and back
    distributed, tiling               states that several ranks wrote, in parts
"""

from s4core.tree.distributed import (
    DistributedState,
    DistributedTensor,
    DistributedValue,
    Part,
    Way,
    parse_distributed,
)
from s4core.tree.geometry import OPAQUE, empty, torch_dtype
from s4core.tree.places import meta_tensor, place
from s4core.tree.state import FlatState, flatten, unflatten
from s4core.tree.storages import ArrayGroup, Grouping, Place, group_storages
from s4core.tree.writing import Node, TensorLeaf

__all__ = [
    "OPAQUE",
    "ArrayGroup",
    "DistributedState",
    "DistributedTensor",
    "DistributedValue",
    "FlatState",
    "Grouping",
    "Node",
    "Part",
    "Place",
    "TensorLeaf",
    "Way",
    "empty",
    "flatten",
    "group_storages",
    "meta_tensor",
    "parse_distributed",
    "place",
    "torch_dtype",
    "unflatten",
]
