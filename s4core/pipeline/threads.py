"""The worker threads that encode and decode chunks on the host.

One pool for the process, made at first use and made anew after a fork, so that
nothing is started by an import and a child never waits for its parent's threads.
The codecs release the GIL, so threads scale.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

import torch

from s4core.errors import StateError

__all__ = ["map_chunks", "worker_count"]

T = TypeVar("T")
R = TypeVar("R")

# Chunks under way for each worker: enough that none waits for the one that is slowest.
_AHEAD: Final = 4

_lock = threading.Lock()
_pool: tuple[int, int, ThreadPoolExecutor] | None = None  # (pid, workers, pool)


def worker_count() -> int:
    """Return how many threads encode and decode: `S4_THREADS`, else torch's own setting.

    torch's setting is 1 in DataLoader workers and under torchrun (OMP_NUM_THREADS),
    so nothing is oversubscribed there.
    """
    asked = os.environ.get("S4_THREADS", "")
    if not asked:
        return max(1, torch.get_num_threads())
    if not asked.isdigit() or int(asked) == 0:
        raise StateError(f"S4_THREADS is {asked!r}: expected a number of threads from 1")
    return int(asked)


def _executor(workers: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool[:2] != (os.getpid(), workers):
            pool = ThreadPoolExecutor(workers, thread_name_prefix="s4-codec")
            _pool = (os.getpid(), workers, pool)
        return _pool[2]


def map_chunks(function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
    """Apply `function` to each chunk on the worker threads; yield the outcomes in order.

    A few chunks are under way ahead of the one that is waited for, no more. With one
    worker everything runs on the caller's thread. When a chunk raises, or the caller
    stops, what is under way is waited for.
    """
    workers = worker_count()
    if workers == 1:
        yield from map(function, chunks)
        return
    pool, ahead = _executor(workers), deque[Future[R]]()
    try:
        for chunk in chunks:
            ahead.append(pool.submit(function, chunk))
            if len(ahead) > _AHEAD * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()
        wait(ahead)


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child.
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


os.register_at_fork(after_in_child=_after_fork)
