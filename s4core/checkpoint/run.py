"""A run: checkpoints of one training, each a base or a delta on the one before.

Threads. The caller's thread takes snapshots and copies their words; one worker thread
for a run encodes, uploads, commits and removes, in the order in which it was asked.
Loads wait for it. The lock is held while saver, removals or names change hands; any
thread may call.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from s4core.catalogue import Catalogue, step_name
from s4core.checkpoint.asking import check_meta, check_name, check_step
from s4core.checkpoint.check import Finding, Verifier
from s4core.checkpoint.collect import Sweep
from s4core.checkpoint.committer import Asked, Committer, Prepare, only_once
from s4core.checkpoint.handle import CheckpointInfo, SaveHandle
from s4core.checkpoint.options import Options
from s4core.checkpoint.reader import MapLocation, Reader, open_checkpoint
from s4core.checkpoint.rebase import rebased
from s4core.checkpoint.reference import Reference
from s4core.checkpoint.removal import Removals
from s4core.checkpoint.saver import Prepared, Saver, freeze
from s4core.checkpoint.snapshot import Snapshot, take_snapshot
from s4core.checkpoint.worker import Worker
from s4core.errors import (
    ChainError,
    FormatError,
    KeyNotFoundError,
    StateError,
)
from s4core.manifest import Json
from s4core.refs import STORE_DIRECTORY, Ref, list_refs, read_ref
from s4core.repository import OWN_META, Repository
from s4core.retention import Decision, Rules
from s4core.stores import Store

__all__ = ["Run"]

_log = logging.getLogger(__name__)


_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def _after_fork() -> None:
    for run in list(_runs):
        run.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Run:
    """The checkpoints of one training below one directory of a store."""

    def __init__(self, directory: Store, options: Options | None = None) -> None:
        self.directory = directory
        self.repository = Repository(directory.child(STORE_DIRECTORY))
        self.catalogue = Catalogue(directory, self.repository)
        self._saver = Saver(self.repository, options or Options())
        self._begin()
        _runs.add(self)

    def _begin(self) -> None:
        self._worker = Worker(f"s4-run {self.url}")
        self._lock = threading.RLock()  # held by whoever uses saver, removals or handles
        self._handles: list[SaveHandle] = []
        self._removals = Removals(self.directory, self.repository, self._in_use)
        self._committer = Committer(self.directory, self._saver, self._removals)

    def _in_use(self) -> list[str]:
        reference = self._saver.reference
        return [] if reference is None else [reference.manifest.id]

    def after_fork(self) -> None:
        """Begin anew in the child of a fork; the parent finishes what the parent began."""
        self._saver.reference = None  # a thread that is not here may have been changing it
        self._saver.buffers.after_fork()
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["directory"], state["options"])  # type: ignore[misc]

    @property
    def options(self) -> Options:
        """How it saves; set it to change the saves that follow."""
        return self._saver.options

    @options.setter
    def options(self, options: Options) -> None:
        self._saver.options = options

    @property
    def url(self) -> str:
        """Its directory."""
        return self.directory.url

    def save(
        self,
        state: Any,
        step: int | None = None,
        *,
        name: str | None = None,
        wait: bool = True,
        meta: Mapping[str, Json] | None = None,
    ) -> SaveHandle:
        """Save a state as the next checkpoint; when this returns the state may be mutated.

        Args:
            state: nested dicts, lists, tensors, numbers, ...
            step: of the training.
            name: of the ref; by default made from `step`.
            wait: return after the commit. If not, return as soon as the state is safe to
                mutate: host tensors copied, or a state on GPUs encoded into host memory;
                the rest runs behind, in order. At most `max_in_flight` such saves are
                under way, then the next one waits.
            meta: strings and numbers for people, kept in the manifest.

        Raises:
            StateError: no name and no step, or something that cannot be stored.
            StoreError: the store refused; older checkpoints are unharmed.
            CodecError: a chunk did not decode to the words it came from.
            S4Error: an earlier save failed behind the training, and nobody was told.
        """
        if name is None and step is None:
            raise StateError("a checkpoint needs a step or a name: save(state, step=100)")
        step, about = check_step(step), check_meta(meta, OWN_META)
        chosen = step_name(step) if name is None else check_name(name)  # type: ignore[arg-type]
        self.raise_pending()
        self._worker.wait(0 if wait else self.options.max_in_flight - 1)
        handle = SaveHandle()
        snapshot = take_snapshot(
            state,
            allow_pickle=self.options.allow_pickle,
            allow_classes=self.options.allow_classes,
        )
        handle.total_bytes = snapshot.raw_bytes
        asked = Asked(chosen, step, about, handle)
        if wait or snapshot.raw_bytes > self.options.host_bytes:
            self._worker.wait()
            return handle.ended(self._finish(asked, partial(self._prepare, snapshot)))
        if snapshot.on_gpu:
            self._worker.wait()
            prepared = self._prepare(snapshot, ahead=True)
            prepare: Prepare = partial(only_once, prepared)
        else:
            prepare = partial(self._prepare, freeze(snapshot, self._saver.buffers))
        handle.release()
        future = self._worker.submit(partial(self._finish, asked, prepare))
        self._handles.append(handle.follow(future))
        return handle

    def _prepare(self, snapshot: Snapshot, whole: bool = False, *, ahead: bool = False) -> Prepared:
        """Plan a checkpoint, of a new base if it must be `whole`."""
        with self._lock:
            if self._saver.reference is None and not whole:
                self._saver.reference = self._newest_reference()
            return self._saver.prepare(snapshot, ahead=ahead)

    def _finish(self, asked: Asked, prepare: Prepare) -> CheckpointInfo:
        with self._lock:
            return self._committer.commit(asked, prepare)

    def _newest_reference(self) -> Reference | None:
        newest = self.latest()
        if newest is None:
            return None
        name = step_name(newest)
        try:
            reader, ref = self._open(name)
        except (FormatError, ChainError, KeyNotFoundError) as error:
            # An old checkpoint that is damaged must not stop the new one.
            _log.warning("%s cannot be stood on; saving a new base: %s", name, error)
            return None
        return Reference(self.repository, reader.manifest, ref.digest)

    def _open(self, name: str) -> tuple[Reader, Ref]:
        ref, where = read_ref(self.directory, name), self.directory.url_of(name)
        return open_checkpoint(self.repository, self.repository.manifest(ref, where), where), ref

    def flush(self) -> None:
        """Wait until everything that was asked for is done.

        Raises:
            S4Error: something failed behind the training, and nobody was told.
        """
        self._worker.wait()
        self.raise_pending()

    def raise_pending(self) -> None:
        """Raise, once, what failed behind the training; later saves are not affected.

        Raises:
            S4Error: the oldest such failure.
        """
        ended = [handle for handle in self._handles if handle.done()]
        self._handles = [handle for handle in self._handles if not handle.done()]
        errors = [error for handle in ended if (error := handle.unreported_error())]
        for error in errors[1:]:
            _log.error("%s: a save failed: %s", self.url, error)
        if errors:
            raise errors[0]

    def load(
        self,
        step: int | None = None,
        *,
        name: str | None = None,
        map_location: MapLocation = None,
        weights_only: bool = True,
        keys: Sequence[str] | None = None,
    ) -> Any:
        """Load a checkpoint; the next save may be a delta against it.

        What is being saved is waited for: a load right after a save returns the new state.

        Args:
            step: which; None: the newest committed.
            name: of a ref, instead of a step.
            map_location: as for `torch.load`.
            weights_only: refuse whatever would run code of the file's choosing.
            keys: patterns of tensor paths; only those, as a flat dict.

        Raises:
            KeyNotFoundError: no such checkpoint.
            FormatError, ChainError, StateError: as `s4weights.load`.
        """
        self._worker.wait()
        with self._lock:
            reader, ref = self._open(self._name(step, name))
            self._removals.source = ref.checkpoint
            if keys is not None:
                return reader.select(keys, map_location)
            state = reader.state(map_location, weights_only=weights_only)
            self._saver.reference = Reference(self.repository, reader.manifest, ref.digest)
            return state

    def reader(self, step: int | None = None, *, name: str | None = None) -> Reader:
        """Open a checkpoint without loading its tensors."""
        return self._open(self._name(step, name))[0]

    def _name(self, step: int | None, name: str | None) -> str:
        return self.catalogue.find(step) if name is None else name

    def names(self) -> dict[str, Ref]:
        """Return every ref in the run's directory, by name.

        Raises:
            StoreError: the directory could not be listed; an error is never an empty run.
        """
        return list_refs(self.directory)

    def steps(self) -> list[int]:
        """Return the steps of all committed checkpoints, ascending."""
        return self.catalogue.steps()

    def latest(self) -> int | None:
        """Return the newest step, None if there is none."""
        return max(self.steps(), default=None)

    def remove(
        self, step: int | None = None, *, name: str | None = None, wait: bool = True
    ) -> None:
        """Remove a checkpoint: its ref first, its bytes when no chain needs them.

        A removal is taken in turn with the saves. After a save that failed it waits for the
        next commit, and so does that of the checkpoint that was loaded last, so that the last
        good checkpoint is never what goes. Removing what is not there is no error.

        Args:
            step: which.
            name: of a ref, instead of a step.
            wait: return when it is done; else it is done behind the training.
        """
        if step is None and name is None:
            raise StateError("remove needs a step or a name")
        done = self._worker.submit(partial(self._remove, self._name(step, name)))
        if wait:
            done.result()
        else:
            done.add_done_callback(_log_failure)

    def _remove(self, name: str) -> None:
        with self._lock:
            self._removals.ask(name)

    def retention(self, rules: Rules | None = None) -> list[Decision]:
        """Say which steps the rules keep and why; nothing is removed.

        Args:
            rules: None: those of the run's options.

        Raises:
            StoreError: the store did not answer.
        """
        return self.catalogue.decide(rules or self.options.rules, chains=True)

    def rebase(
        self, step: int | None = None, *, name: str | None = None, wait: bool = True
    ) -> Future[str]:
        """Write a checkpoint again, whole, and have every ref to it name that one.

        The old one goes when nothing stands on it any more.

        Args:
            step: which; None: the newest.
            name: of a ref, instead of a step.
            wait: return when it is done; else it is done behind the training.

        Returns:
            The id of the new checkpoint; the old one's if it stood on nothing.

        Raises:
            FormatError, ChainError: it is damaged, or something it stands on is gone.
            StoreError: the store refused; nothing is lost.
        """
        done = self._worker.submit(partial(self._rebase, self._name(step, name)))
        if wait:
            done.result()
        return done

    def _rebase(self, name: str) -> str:
        with self._lock:
            reader, ref = self._open(name)
            if not reader.manifest.needs:
                return ref.checkpoint
            new = rebased(self.repository, reader, self.options)
            self._removals.repoint(ref.checkpoint, Ref(new.manifest.id, new.digest))
            if self._in_use() == [ref.checkpoint]:
                self._saver.reference = new
            self._removals.sweep_removed()
            return new.manifest.id

    def gc(self, *, dry_run: bool = False, grace_seconds: float | None = None) -> Sweep:
        """Delete the shards and manifests that no ref's chain needs.

        Args:
            dry_run: only say what would be done.
            grace_seconds: leave what is younger; None: the run's option.

        Returns:
            What is kept, what is swept, and why.
        """
        grace = self.options.grace_seconds if grace_seconds is None else grace_seconds
        with self._lock:
            return self._removals.collect(grace, dry_run=dry_run)

    def verify(
        self, *, full: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> list[Finding]:
        """Check every checkpoint of the run.

        Args:
            full: decode every array too, up to its digest; else checksums only.
            progress: called with the number of bytes read so far.

        Returns:
            One verdict for each ref, by name.

        Raises:
            StoreError: the store did not answer.
        """
        verifier = Verifier(full, progress)
        return [
            verifier.check(name, partial(self.reader, name=name)) for name in sorted(self.names())
        ]

    def close(self) -> None:
        """Finish what is pending, and forget the reference; the run stays usable.

        Raises:
            S4Error: something failed behind the training, and nobody was told.
        """
        self._worker.wait()
        with self._lock:
            self._saver.reference = None
            self._removals.sweep_removed()
            self._removals.say_what_waits()
        self.raise_pending()


def _log_failure(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("a removal behind the training failed: %s", error)
