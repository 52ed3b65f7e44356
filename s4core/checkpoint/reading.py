"""Batches of arrays that are decoded together, companions first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s4core import dtypes, tree
from s4core.checkpoint.plan import Node
from s4core.errors import ChecksumError
from s4core.pipeline import Companion, Step, Task, array_digests, decompress, derive

__all__ = ["Reading"]


@dataclass(frozen=True)
class _Waiting:
    """An array of the batch: where it goes, and where its words are made."""

    node: Node
    task: Task
    target: torch.device


@dataclass
class Reading:
    """Decodes arrays in batches, and keeps the words that others are read with.

    Attributes:
        where: the checkpoint, for messages.
    """

    where: str
    waiting_bytes: int = 0
    _waiting: list[_Waiting] = field(default_factory=list)
    _kept: dict[Node, Tensor] = field(default_factory=dict)

    def add(self, node: Node, steps: Sequence[Step], target: torch.device) -> None:
        """Put an array into the batch, after its companion.

        Args:
            node: the array.
            steps: its stored steps, with their bytes.
            target: the device it is wanted on.
        """
        # Words are made where they can be looked at; `meta` and others come last.
        device = target if target.type in ("cpu", "cuda") else torch.device("cpu")
        entry, dtype = node.entry, dtypes.lookup(node.entry.dtype)
        out = tree.empty(entry.dtype, entry.words // dtype.words_per_element, device)
        if entry.data:
            data = torch.frombuffer(bytearray(entry.data), dtype=torch.uint8)
            out.view(torch.uint8).copy_(data)
        beside = None
        if node.companion is not None:
            kept = self._kept[node.companion]
            beside = Companion(kept, dtypes.lookup(node.companion.entry.dtype))
        if node.users:
            self._kept[node] = out
        name = f"{self.where}: array {node.link.array if node.number is None else node.number}"
        task = Task(name, steps, dtype, out, entry.digest, beside)
        self._waiting.append(_Waiting(node, task, target))
        self.waiting_bytes += task.bytes

    def decoded(self) -> Iterator[tuple[int, Tensor]]:
        """Decode the batch; yield (number, words) of each array that is wanted.

        Raises:
            FormatError: damage; see `decompress`.
        """
        batch, self._waiting, self.waiting_bytes = self._waiting, [], 0
        for rank in sorted({item.node.rank for item in batch}):
            level = [item for item in batch if item.node.rank == rank]
            # Words that lie in the manifest are under its digest and have no steps.
            decompress([item.task for item in level if item.task.steps])
            for item in level:
                if item.node.entry.derived is not None:
                    _derive(item.node, item.task)
        for item in batch:
            self._release(item.node)
            if item.node.number is not None:
                yield item.node.number, item.task.out.to(item.target)

    def _release(self, node: Node) -> None:
        """Forget the companion of a node that is read, unless others need it."""
        if node.companion is None:
            return
        node.companion.users -= 1
        if not node.companion.users:
            del self._kept[node.companion]


def _derive(node: Node, task: Task) -> None:
    entry, beside = node.entry, task.beside
    assert entry.derived is not None  # the caller saw to it
    assert beside is not None  # and plan() to this
    source = beside.words
    made = (
        task.out
        if task.out.device == source.device
        else torch.empty_like(task.out, device=source.device)
    )
    derive(entry.derived, source, made, beside.dtype, task.dtype, entry.exceptions)
    (found,) = array_digests([made])
    if found.hex() != task.digest:
        raise ChecksumError(
            f"{task.where}: the words derived from array {entry.of} have digest {found.hex()}: "
            f"expected {task.digest}; restore the checkpoint from another copy"
        )
    if made is not task.out:
        task.out.copy_(made)
