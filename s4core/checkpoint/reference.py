"""The reference: the checkpoint that the next delta stands on.

Its words come from host memory where the budget allowed a copy at save time,
else they are decoded from the store. There is one reference for a run, and it
is protected from being swept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from torch import Tensor

from s4core.checkpoint.buffers import Buffers
from s4core.checkpoint.reader import open_checkpoint
from s4core.checkpoint.snapshot import Snapshot, array_keys
from s4core.checkpoint.writer import Previous
from s4core.errors import ChainError, FormatError, KeyNotFoundError
from s4core.manifest import Manifest
from s4core.repository import Repository

__all__ = ["Reference"]


_log = logging.getLogger(__name__)


@dataclass
class Reference:
    """A committed checkpoint and whatever of its words is in memory.

    Attributes:
        repository: where it lies.
        manifest: of it.
        digest: of the manifest.
    """

    repository: Repository
    manifest: Manifest
    digest: str
    _words: dict[int, Tensor] = field(default_factory=dict)

    def keep(
        self, snapshot: Snapshot, budget_bytes: int, buffers: Buffers, older: Reference | None
    ) -> None:
        """Keep the words of `snapshot`, which was just saved, in host memory.

        A frozen snapshot's words are taken over, others are copied.

        Args:
            snapshot: the state this checkpoint was made of.
            budget_bytes: arrays beyond it are not kept.
            buffers: where copies come from, and where those of `older` go.
            older: the reference before this one; it forgets its words.
        """
        spare = {} if older is None else older.give_up_words()
        if not snapshot.frozen:
            buffers.give_back(spare)
        for number, array in enumerate(snapshot.arrays):
            words = array.gather()
            # Nothing is ever a delta against an array that is derived.
            if array.bytes > budget_bytes or self.manifest.arrays[number].derived:
                if snapshot.frozen:
                    spare[array.key] = words
                continue
            if words.device.type != "cpu":
                continue  # raw words would cost more than the compressed ones in the store
            budget_bytes -= array.bytes
            self._words[number] = words if snapshot.frozen else buffers.copy(array.key, words)
        if snapshot.frozen:
            buffers.give_back(spare)

    def give_up_words(self) -> dict[str, Tensor]:
        """Return the words in memory, by the key of their array, and forget them."""
        keys = {number: key for key, number in array_keys(self.manifest).items()}
        words, self._words = self._words, {}
        return {keys[number]: copy for number, copy in words.items()}

    def words(self, number: int) -> Tensor | None:
        """Return the words of array `number` on the CPU: 1-D, contiguous.

        None if they had to be decoded and are damaged or gone: then nothing may stand on them.

        Raises:
            StoreError: the store did not answer.
        """
        known = self._words.get(number)
        if known is not None:
            return known
        try:
            return open_checkpoint(self.repository, self.manifest, self.manifest.id).array(number)
        except (FormatError, ChainError, KeyNotFoundError) as error:
            key = next(t.path for t in self.manifest.tensors if t.array == number)
            _log.warning("%s is stored whole: its base is damaged: %s", key, error)
            return None

    def previous(self, max_depth: int) -> Previous:
        """Return it as what a `Writer` may refer to, with deltas while depth allows."""
        deltas = self.manifest.depth < max_depth
        return Previous(self.manifest, self.digest, self.words, deltas)
