"""One thread that does a run's work in order, behind the training.

Jobs are taken first in, first out, one at a time. The thread is a daemon, made at
the first job and made anew after a fork (the child's queue is empty: the parent
does the parent's work). What is pending when the interpreter exits is finished
then, with a message.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["Worker"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_alive: weakref.WeakSet[Worker] = weakref.WeakSet()


class Worker:
    """A queue of jobs and the thread that does them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return self._pending

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job; its outcome, or what it raised, is in the future."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._idle:
            self._pending += 1
            self._jobs.put(lambda: self._do(job, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
                _alive.add(self)
        return future

    def _do(self, job: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001  # it is the caller's, through the future
            future.set_exception(error)

    def _work(self) -> None:
        jobs, idle = self._jobs, self._idle
        while True:
            jobs.get()()
            with idle:
                self._pending -= 1
                idle.notify_all()

    def wait(self, at_most: int = 0) -> None:
        """Wait until no more than `at_most` jobs are pending. Never called from a job."""
        with self._idle:
            self._idle.wait_for(lambda: self._pending <= at_most)


def _flush() -> None:
    for worker in list(_alive):
        if worker.pending:
            _log.warning("finishing %d pending checkpoint jobs before exit", worker.pending)
            worker.wait()


# A child has none of its parent's threads and must not wait for them.
os.register_at_fork(after_in_child=_alive.clear)

# Thread pools refuse work as soon as the interpreter begins to shut down, which is
# before atexit; the hook that the pools themselves use comes in time.
getattr(threading, "_register_atexit", atexit.register)(_flush)
