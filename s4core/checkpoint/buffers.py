"""Host memory for copies of a state's words, used again from save to save.

Fresh memory costs a page fault for every 4 KiB, which can take longer than the copy
itself; a run's states have the same shapes each time.
"""

from __future__ import annotations

import threading

from torch import Tensor

__all__ = ["Buffers"]


class Buffers:
    """Copies that nobody reads any more, by the key of their array. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: dict[str, Tensor] = {}

    def copy(self, key: str, words: Tensor) -> Tensor:
        """Return a copy of `words` in host memory: 1-D, contiguous."""
        with self._lock:
            into = self._spare.pop(key, None)
        if into is None or (into.dtype, into.shape) != (words.dtype, words.shape):
            return words.cpu() if words.device.type != "cpu" else words.clone()
        return into.copy_(words)

    def give_back(self, copies: dict[str, Tensor]) -> None:
        """Take copies that nobody reads any more; those of unknown shapes are forgotten later."""
        with self._lock:
            self._spare = dict(copies)

    def after_fork(self) -> None:
        """Begin anew in the child of a fork."""
        self._lock = threading.Lock()
        self._spare = {}
