"""A run: checkpoints of one training, each a base or a delta on the one before.

Threads. The caller's thread takes snapshots and copies their words; one worker thread
for a run encodes, uploads, commits and removes, in the order in which it was asked.
Loads wait for it. The lock is held while saver, removals or names change hands; any
thread may call.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from s4core import metrics
from s4core.chain import reachable
from s4core.checkpoint.check import Finding, Verifier
from s4core.checkpoint.collect import Sweep, plan_sweep, sweep
from s4core.checkpoint.handle import CheckpointInfo, SaveHandle
from s4core.checkpoint.options import Options
from s4core.checkpoint.reader import MapLocation, Reader, open_checkpoint
from s4core.checkpoint.reference import Reference
from s4core.checkpoint.saver import Outcome, Prepared, Saver, freeze
from s4core.checkpoint.worker import Worker
from s4core.checkpoint.writer import Snapshot, take_snapshot
from s4core.errors import (
    ChainError,
    FormatError,
    KeyNotFoundError,
    S4Error,
    StateError,
    StoreError,
)
from s4core.manifest import Json
from s4core.refs import STORE_DIRECTORY, Ref, dump_ref, list_refs, read_ref
from s4core.repository import Repository
from s4core.stores import Store, open_store

__all__ = ["Run", "open_run"]

_STEP_NAME: Final = "step-{:08d}.ckpt"
_STEP: Final = re.compile(r"step-(\d{8,})\.ckpt")


_log = logging.getLogger(__name__)


def open_run(url: str | os.PathLike[str] | None = None, **options: Any) -> Run:
    """Open a run; nothing is written before the first save.

    Args:
        url: its directory: a local path, `file://`, `s3://` or `memory://`; None: the
            environment variable `S4_STORE`.
        options: the fields of `Options`.

    Raises:
        StoreError: no URL, or one that no store has.
        StateError: an option out of range.
    """
    where = url if url is not None else os.environ.get("S4_STORE", "")
    if not os.fspath(where):
        raise StoreError("no store is named: pass a path or URL, or set S4_STORE to one")
    return Run(open_store(where), Options(**options))


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
        self._saver = Saver(self.repository, options or Options())
        self._begin()
        _runs.add(self)

    def _begin(self) -> None:
        self._worker = Worker(f"s4-run {self.url}")
        self._lock = threading.RLock()  # held by whoever uses saver, removals or handles
        self._handles: list[SaveHandle] = []
        self._removals: list[str] = []  # names whose removal waits for the next commit
        self._removed: set[str] = set()  # ids whose refs this run removed, not yet swept
        self._last_save_failed = False

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
        chosen = name if name is not None else _STEP_NAME.format(step)  # type: ignore[str-format]
        self.raise_pending()
        self._worker.wait(0 if wait else self.options.max_in_flight - 1)
        handle = SaveHandle()
        snapshot = take_snapshot(
            state,
            allow_pickle=self.options.allow_pickle,
            allow_classes=self.options.allow_classes,
        )
        handle.total_bytes = snapshot.raw_bytes
        finish = partial(self._finish, chosen, step, dict(meta or {}), handle)
        if wait or snapshot.raw_bytes > self.options.host_bytes:
            self._worker.wait()
            return handle.follow(_done(finish(partial(self._prepare, snapshot))))
        if snapshot.on_gpu:
            self._worker.wait()
            prepared = self._prepare(snapshot, ahead=True)
            handle.release()
            future = self._worker.submit(partial(finish, lambda: prepared))
        else:
            frozen = freeze(snapshot, self._saver.buffers)
            handle.release()
            future = self._worker.submit(partial(finish, partial(self._prepare, frozen)))
        self._handles.append(handle.follow(future))
        return handle

    def _prepare(self, snapshot: Snapshot, *, ahead: bool = False) -> Prepared:
        with self._lock:
            if self._saver.reference is None:
                self._saver.reference = self._newest_reference()
            return self._saver.prepare(snapshot, ahead=ahead)

    def _finish(
        self,
        name: str,
        step: int | None,
        meta: Mapping[str, Json],
        handle: SaveHandle,
        prepare: Callable[[], Prepared],
    ) -> CheckpointInfo:
        try:
            with self._lock:
                info = self._commit(name, step, meta, handle, prepare)
        except Exception as error:
            metrics.report_error(f"{self.directory.url_of(name)}: {error}")
            raise
        _report(info)
        return info

    def _commit(
        self,
        name: str,
        step: int | None,
        meta: Mapping[str, Json],
        handle: SaveHandle,
        prepare: Callable[[], Prepared],
    ) -> CheckpointInfo:
        self._last_save_failed = True
        outcome = self._saver.commit(prepare(), step=step, meta=meta, progress=handle.advance)
        replaced = self._replace_ref(name, outcome.reference)
        self._last_save_failed = False
        info = self._info(name, outcome, handle)
        self._after_commit(replaced)
        return info

    def _after_commit(self, replaced: set[str]) -> None:
        """Remove what waited for this commit, and the checkpoints whose ref it replaced."""
        names, self._removals = self._removals, []
        try:
            if self.options.keep_last is not None:
                old = self.steps()[: -self.options.keep_last]
                names += [_STEP_NAME.format(step) for step in old]
            self._remove(names, replaced)
        except S4Error as error:
            # The checkpoint is committed; what remains is space, not data.
            _log.warning("%s: old checkpoints remain, gc removes them: %s", self.url, error)

    def _newest_reference(self) -> Reference | None:
        newest = self.latest()
        if newest is None:
            return None
        name = _STEP_NAME.format(newest)
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

    def _replace_ref(self, name: str, reference: Reference) -> set[str]:
        """Put a ref; return the id of the other checkpoint that had its name, if one had."""
        try:
            old = {read_ref(self.directory, name).checkpoint}
        except (KeyNotFoundError, FormatError):
            old = set()
        ref = Ref(reference.manifest.id, reference.digest)
        self.directory.put(name, dump_ref(ref), replace=True)
        return old - {ref.checkpoint}

    def _info(self, name: str, outcome: Outcome, handle: SaveHandle) -> CheckpointInfo:
        manifest = outcome.reference.manifest
        seconds, pause_seconds = handle.seconds()
        return CheckpointInfo(
            url=self.directory.url_of(name),
            id=manifest.id,
            step=manifest.step,
            kind=outcome.kind,
            depth=manifest.depth,
            raw_bytes=manifest.raw_bytes,
            stored_bytes=outcome.stored_bytes,
            seconds=seconds,
            pause_seconds=pause_seconds,
        )

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
            if keys is not None:
                return reader.select(keys, map_location)
            state = reader.state(map_location, weights_only=weights_only)
            self._saver.reference = Reference(self.repository, reader.manifest, ref.digest)
            return state

    def reader(self, step: int | None = None, *, name: str | None = None) -> Reader:
        """Open a checkpoint without loading its tensors."""
        return self._open(self._name(step, name))[0]

    def _name(self, step: int | None, name: str | None) -> str:
        if name is not None:
            return name
        chosen = self.latest() if step is None else step
        if chosen is None:
            raise KeyNotFoundError(
                f"{self.url} holds no committed checkpoint of a step; `s4weights ls {self.url}` "
                "shows what is there"
            )
        return _STEP_NAME.format(chosen)

    def names(self) -> dict[str, Ref]:
        """Return every ref in the run's directory, by name.

        Raises:
            StoreError: the directory could not be listed; an error is never an empty run.
        """
        return list_refs(self.directory)

    def steps(self) -> list[int]:
        """Return the steps of all committed checkpoints, ascending."""
        matches = [_STEP.fullmatch(entry.key) for entry in self.directory.list("step-")]
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> int | None:
        """Return the newest step, None if there is none."""
        return max(self.steps(), default=None)

    def remove(
        self, step: int | None = None, *, name: str | None = None, wait: bool = True
    ) -> None:
        """Remove a checkpoint: its ref first, its bytes when no chain needs them.

        A removal is taken in turn with the saves. After a save that failed it waits for the
        next commit, so that the last good checkpoint is never what goes. Removing what is
        not there is no error.

        Args:
            step: which.
            name: of a ref, instead of a step.
            wait: return when it is done; else it is done behind the training.
        """
        if step is None and name is None:
            raise StateError("remove needs a step or a name")
        chosen = name if name is not None else _STEP_NAME.format(step)  # type: ignore[str-format]
        done = self._worker.submit(partial(self._remove_in_turn, chosen))
        if wait:
            done.result()

    def _remove_in_turn(self, name: str) -> None:
        with self._lock:
            if self._last_save_failed:
                _log.warning("%s stays until a newer checkpoint is committed", name)
                self._removals.append(name)
            else:
                self._remove([name])

    def _remove(self, names: Iterable[str], replaced: Iterable[str] = ()) -> None:
        """Delete refs, and sweep what they and the `replaced` ones stood for."""
        removed = set(replaced)
        for name in names:
            try:
                removed.add(read_ref(self.directory, name).checkpoint)
            except KeyNotFoundError:
                continue
            self.directory.delete([name])
        if removed:
            self._removed |= removed
            self._sweep_removed()

    def _sweep_removed(self) -> None:
        """Sweep what this run itself removed, and what only that stood on.

        Nothing else is touched without the grace period: another writer may be about
        to commit it.
        """
        present = {identity for identity in self._removed if self.repository.has(identity)}
        candidates = reachable(present, self.repository.manifest_bytes)
        plan = plan_sweep(self.repository, self._roots(), 0.0, only=candidates)
        sweep(self.repository, plan)
        self._removed = present - set(plan.swept)

    def _roots(self) -> set[str]:
        roots = {ref.checkpoint for ref in self.names().values()}
        if self._saver.reference is not None:
            roots.add(self._saver.reference.manifest.id)
        return roots

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
            plan = plan_sweep(self.repository, self._roots(), grace)
            return plan if dry_run else sweep(self.repository, plan)

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
            StoreError: the directory could not be listed.
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
            if self._removed:
                self._sweep_removed()
        self.raise_pending()


def _report(info: CheckpointInfo) -> None:
    metrics.report_save(
        step=info.step,
        raw_bytes=info.raw_bytes,
        stored_bytes=info.stored_bytes,
        pause_seconds=info.pause_seconds,
        upload_seconds=info.seconds - info.pause_seconds,
    )


def _done(info: CheckpointInfo) -> Future[CheckpointInfo]:
    future: Future[CheckpointInfo] = Future()
    future.set_result(info)
    return future
