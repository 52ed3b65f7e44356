"""Staging: what `async_save` may go on with while the training changes its tensors.

Every tensor of the state is copied or encoded on the caller's thread, and a meta tensor of
the same shape takes its place, so that planning sees the same state and nothing is copied
twice. Containers are rebuilt and all other values copied.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor, ShardedTensorBase
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.tensor import DTensor

from s4core.dcp.leaves import plain_leaf
from s4core.errors import StateError
from s4core.tree import TensorLeaf, Way

__all__ = ["Mirror"]


@dataclass
class Mirror:
    """A state being staged.

    Attributes:
        leaves: the tensors met, each once.
        metas: the meta tensors that stand for them.
    """

    leaves: list[TensorLeaf] = field(default_factory=list)
    metas: list[Tensor] = field(default_factory=list)
    _known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state with meta tensors.

        Raises:
            StateError: a tensor that cannot be stored, or a value that cannot be copied.
        """
        return {key: self._value(value, (str(key),)) for key, value in state.items()}

    def _value(self, value: Any, way: Way) -> Any:
        if isinstance(value, DTensor):
            return self._dtensor(value, way)
        if isinstance(value, ShardedTensor):
            return self._sharded(value, way)
        if isinstance(value, Tensor):
            return self._tensor(value, way)
        if isinstance(value, Mapping):
            return {key: self._value(below, (*way, str(key))) for key, below in value.items()}
        if type(value) in (list, tuple):
            items = (self._value(item, (*way, number)) for number, item in enumerate(value))
            return type(value)(items)
        return _copied(value, way)

    def _tensor(self, value: Tensor, way: Way) -> Tensor:
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        (leaf,) = plain_leaf(way, value).leaves
        plain = leaf.tensor
        meta = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device="meta")
        self.leaves.append(leaf)
        self.metas.append(meta)
        found = meta.detach().requires_grad_() if value.requires_grad else meta
        # With the value, so that its id is not given to another one meanwhile.
        self._known[id(value)] = (value, found)
        return found

    def _dtensor(self, value: DTensor, way: Way) -> DTensor:
        # Shape and stride are given, as parts may be uneven.
        made = DTensor.from_local(
            self._tensor(value._local_tensor.detach(), way),
            value.device_mesh,
            value.placements,
            run_check=False,
            shape=value.size(),
            stride=value.stride(),
        )
        made.requires_grad_(value.requires_grad)
        return made

    def _sharded(self, value: ShardedTensor, way: Way) -> ShardedTensorBase:
        shards = []
        for shard in value.local_shards():
            # Without a placement: a meta tensor is on no device of the mesh.
            metadata = ShardMetadata(shard.metadata.shard_offsets, shard.metadata.shard_sizes)
            shards.append(Shard(self._tensor(shard.tensor, way), metadata))
        return ShardedTensorBase._init_from_local_shards_and_global_metadata(
            shards, value.metadata(), value.sharding_spec()
        )


def _copied(value: Any, way: Way) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise StateError(
            f"{'.'.join(map(str, way))}: a {type(value).__name__} cannot be copied, so it could "
            f"change while it is saved: {error}"
        ) from error
