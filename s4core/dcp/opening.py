"""From a URL to a checkpoint as torch.distributed.checkpoint sees it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from s4core import tree
from s4core.checkpoint import Reader, open_reader
from s4core.checkpoint.reader import open_checkpoint
from s4core.errors import FormatError, S4Error
from s4core.manifest import Manifest, TensorEntry
from s4core.refs import Ref, read_ref, split_url
from s4core.repository import Repository
from s4core.tree import DistributedState, DistributedTensor, DistributedValue, Part

__all__ = ["Opened", "open_distributed"]


@dataclass(frozen=True)
class Opened:
    """A checkpoint that was opened: nothing but its manifest was fetched.

    Attributes:
        reader: of it.
        state: what its tree says.
    """

    reader: Reader
    state: DistributedState

    @classmethod
    def of(cls, reader: Reader) -> Opened:
        """Read a checkpoint's tree.

        Raises:
            StateError: it was saved whole, by one process.
            FormatError: it breaks FORMAT.md.
        """
        tensors, where = reader.manifest.tensors, reader.where

        def describe(number: int) -> tuple[str, tuple[int, ...]]:
            entry = tensors[number] if number < len(tensors) else None
            if entry is None or entry.array is None:
                raise FormatError(f"{where}: tensor {number} is not there, or has no bits")
            return entry.dtype, entry.shape

        return cls(reader, tree.parse_distributed(reader.manifest.tree, describe, where))

    @cached_property
    def values(self) -> Mapping[str, DistributedValue]:
        """Its values by name."""
        items = self.state.items
        return {item.name: item for item in items if isinstance(item, DistributedValue)}

    @cached_property
    def parts(self) -> Mapping[tuple[str, tuple[int, ...]], Part]:
        """The parts of its tensors by name and offsets; those without elements left out."""
        return {
            (item.name, part.offsets): part
            for item in self.state.items
            if isinstance(item, DistributedTensor)
            for part in item.parts
            if 0 not in part.sizes
        }

    def entry(self, part: Part) -> TensorEntry:
        """The manifest's entry of a part."""
        return self.reader.manifest.tensors[part.tensor]

    def metadata(self) -> Metadata:
        """What planners want to know."""
        items = self.state.items
        ways = {item.name: item.way for item in items if item.way is not None}
        planner: Any = ways or None
        if self.state.planner is not None:
            planner = tree.unflatten(self.state.planner, [])
        return Metadata(
            state_dict_metadata={item.name: _item_metadata(item) for item in items},
            planner_data=planner,
        )


def _item_metadata(
    item: DistributedTensor | DistributedValue,
) -> TensorStorageMetadata | BytesStorageMetadata:
    if isinstance(item, DistributedValue):
        return BytesStorageMetadata()
    properties = TensorProperties(dtype=tree.torch_dtype(item.dtype), requires_grad=item.grad)
    chunks = [
        ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
        for part in item.parts
    ]
    return TensorStorageMetadata(properties, torch.Size(item.size), chunks)


def open_distributed(url: str | os.PathLike[str], group: dist.ProcessGroup | None = None) -> Opened:
    """Open a checkpoint.

    Args:
        url: its ref, or a self-contained file.
        group: its first rank reads the manifest and tells the others; None: read it here.

    Raises:
        KeyNotFoundError: nothing of that name; on every rank of `group`.
        FormatError, ChainError, StoreError: as `s4weights.load`; on every rank of `group`.
        StateError: it was saved whole, by one process.
    """
    if group is None or dist.get_world_size(group) == 1:
        return Opened.of(open_reader(url))
    box: list[Any] = [_found_or_error(url) if dist.get_rank(group) == 0 else None]
    dist.broadcast_object_list(box, group=group, group_src=0)
    found: tuple[Ref, Manifest] | S4Error | None = box[0]
    if isinstance(found, S4Error):
        raise found
    if found is None:
        return Opened.of(open_reader(url))
    ref, manifest = found
    directory, name = split_url(url)
    repository = Repository.beside(directory, ref)
    return Opened.of(open_checkpoint(repository, manifest, directory.url_of(name)))


def _found_or_error(url: str | os.PathLike[str]) -> tuple[Ref, Manifest] | S4Error | None:
    """The ref and its manifest; None where `url` is no ref, which each rank finds out alone."""
    try:
        directory, name = split_url(url)
        try:
            ref = read_ref(directory, name)
        except FormatError:
            return None
        return ref, Repository.beside(directory, ref).manifest(ref, directory.url_of(name))
    except S4Error as error:
        # A message like any other: the ranks that wait must not wait for ever.
        return error
    except Exception as error:  # noqa: BLE001  # raised on every rank by the caller
        return S4Error(f"{os.fspath(url)}: {type(error).__name__}: {error}")
