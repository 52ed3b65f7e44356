"""A state, flattened once: its tree, its tensors' places, its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from s4core import dtypes, tree
from s4core.checkpoint.reader import Reader
from s4core.checkpoint.relations import Array
from s4core.manifest import Json, Manifest, TensorEntry

__all__ = ["Snapshot", "array_keys", "snapshot_of", "take_snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """A state, flattened.

    Attributes:
        tree: its typed tree.
        tensors: its tensors' places.
        arrays: its arrays.
        frozen: whether the words are copies in host memory that nobody else changes;
            otherwise they are the caller's.
    """

    tree: Json
    tensors: tuple[TensorEntry, ...]
    arrays: tuple[Array, ...]
    frozen: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether any of its words lie on a GPU."""
        return any(tensor.device.startswith("cuda") for tensor in self.tensors)

    @property
    def raw_bytes(self) -> int:
        """Length of all arrays."""
        return sum(array.bytes for array in self.arrays)


def take_snapshot(
    state: Any, *, allow_pickle: bool = False, allow_classes: bool = False
) -> Snapshot:
    """Flatten `state`.

    Raises:
        StateError: it holds something S4 cannot store; the message names its path.
    """
    flat = tree.flatten(state, allow_pickle=allow_pickle, allow_classes=allow_classes)
    grouped = tree.group_storages(flat.leaves)
    arrays = []
    for group in grouped.arrays:
        dtype = dtypes.lookup(group.dtype)
        arrays.append(Array(group.key, dtype, group.numel * dtype.words_per_element, group.gather))
    tensors = tuple(
        TensorEntry(
            path=leaf.path,
            dtype=place.dtype,
            shape=place.shape,
            stride=place.stride,
            array=place.array,
            offset=place.offset,
            device="host" if leaf.host else str(leaf.tensor.device),
            also=tuple(leaf.also),
        )
        for leaf, place in zip(flat.leaves, grouped.places, strict=True)
    )
    return Snapshot(flat.tree, tensors, tuple(arrays))


def snapshot_of(reader: Reader) -> Snapshot:
    """Return a stored checkpoint as a snapshot, its arrays decoded when they are gathered."""
    manifest = reader.manifest
    keys = {number: key for key, number in array_keys(manifest).items()}
    arrays = tuple(
        Array(
            keys.get(number, f"array {number}"),
            dtypes.lookup(entry.dtype),
            entry.words,
            partial(reader.array, number),
            entry.companion,
        )
        for number, entry in enumerate(manifest.arrays)
    )
    return Snapshot(manifest.tree, manifest.tensors, arrays)


def array_keys(manifest: Manifest) -> dict[str, int]:
    """Return the number of each array of `manifest` by its key."""
    keys: dict[int, str] = {}
    for tensor in manifest.tensors:
        if tensor.array is not None:
            keys.setdefault(tensor.array, tensor.path)
    return {key: number for number, key in keys.items()}
