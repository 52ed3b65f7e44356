"""What one process knows of its checkpoints: runs, the resume source, removals that wait.

Promises:

1. One `Run` for each directory, so that consecutive checkpoints make a chain.
2. Saves and removals of a directory are executed in the order in which they were asked
   for, and a removal after a save that failed waits for the next commit (`Run.remove`).
3. The *resume source*, the checkpoint loaded last, is not removed before a newer one is
   committed, in whatever directory: until then it may be all there is.
4. A save that fails behind the training is raised once: by the next save or load, or by
   `flush`. Saves after it are not affected.
5. A removal that fails is reported and ends nothing: what remains is space, not data.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import s4weights
from s4_lightning.addresses import link_target
from s4core.errors import FormatError, KeyNotFoundError, S4Error, StateError
from s4core.refs import read_ref, split_url
from s4core.stores import LocalStore, Store
from s4weights import CheckpointInfo, Options, Run, SaveHandle

__all__ = ["Session", "overridden"]

_log = logging.getLogger("s4_lightning")

_HISTORY: Final = 1000


@dataclass(frozen=True)
class _Saving:
    """A save whose outcome nobody has taken yet."""

    where: str
    handle: SaveHandle


class Session:
    """Saves, loads and removes checkpoints by address.

    Args:
        options: for saving, where a save brings none of its own.
        wait: whether a save returns after its commit, or runs behind the training.
    """

    def __init__(self, options: Options, *, wait: bool) -> None:
        self.process = os.getpid()
        self.history: deque[CheckpointInfo] = deque(maxlen=_HISTORY)
        self._options, self._wait = options, wait
        self._runs: dict[str, Run] = {}
        self._saving: deque[_Saving] = deque()
        self._source: str | None = None
        self._waiting: list[str] = []  # addresses whose removal waits for a newer commit
        self._lock = threading.RLock()

    def save(self, checkpoint: Any, where: str, overrides: Any = None) -> None:
        """Save a checkpoint and put its ref at `where`; the state may be mutated on return.

        Args:
            checkpoint: what Lightning made, or any nested state.
            where: address.
            overrides: dict of fields of `Options`, for this save only.

        Raises:
            StateError: it holds something that cannot be stored, or an unknown override.
            StoreError: the store refused; older checkpoints are unharmed.
            S4Error: an earlier save failed behind the training.
        """
        directory, name = split_url(where)
        options = overridden(self._options, overrides, "storage_options")
        with self._lock:
            self._settle(wait=False)
            run = self._run(directory)
            run.options = options
            handle = run.save(checkpoint, _step(checkpoint), name=name, wait=self._wait)
            self._saving.append(_Saving(directory.url_of(name), handle))
            if self._wait:
                self._settle(wait=True)

    def _run(self, directory: Store) -> Run:
        if directory.url not in self._runs:
            self._runs[directory.url] = Run(directory, self._options)
        return self._runs[directory.url]

    def _settle(self, *, wait: bool) -> None:
        """Take the outcome of the saves that have ended, or of all of them; raise a failure."""
        while self._saving and (wait or self._saving[0].handle.done()):
            self._committed(self._saving.popleft().handle.result())

    def _committed(self, info: CheckpointInfo) -> None:
        _log.info("%s", _summary(info))
        self.history.append(info)
        self._release(info)

    def _release(self, info: CheckpointInfo) -> None:
        """Let go of the resume source, now that a newer checkpoint is committed."""
        source, self._source = self._source, None
        directory = None if source is None else split_url(source)[0].url
        if directory in self._runs and directory != split_url(info.url)[0].url:
            # Its own run would protect it until it commits something itself.
            _close(self._runs.pop(directory))
        waiting, self._waiting = self._waiting, []
        for where in waiting:
            if where != info.url:  # that name holds the newer checkpoint now
                self._remove(where)

    def load(self, where: str, map_location: Any, *, weights_only: bool) -> Any:
        """Load a checkpoint, an S4 one or a plain one of another tool.

        What is being saved is waited for: a load right after a save returns the new state.

        Raises:
            KeyNotFoundError: nothing is there (also FileNotFoundError).
            S4Error: as `s4weights.load`; or an earlier save failed behind the training.
        """
        with self._lock:
            self._settle(wait=True)
            where = link_target(where)
            directory, name = split_url(where)
            if _is_ref(directory, name):
                state = self._run(directory).load(
                    name=name, map_location=map_location, weights_only=weights_only
                )
            else:
                state = s4weights.load(where, map_location, weights_only)
            self._source = directory.url_of(name)
            return state

    def remove(self, where: str) -> None:
        """Remove a checkpoint; what is not there is no error."""
        directory, name = split_url(where)
        where = directory.url_of(name)
        with self._lock:
            if where == self._source:
                self._waiting.append(where)
                _log.info("%s stays until a newer checkpoint is committed: resumed from it", where)
            else:
                self._remove(where)

    def _remove(self, where: str) -> None:
        directory, name = split_url(where)
        try:
            if self.is_saving(where):
                self._run(directory).remove(name=name, wait=False)
            elif isinstance(directory, LocalStore) and _remove_local(where):
                return
            elif _is_ref(directory, name):
                self._run(directory).remove(name=name, wait=self._wait)
            else:
                directory.delete([name])
        except KeyNotFoundError:
            return
        except (S4Error, OSError) as error:
            _log.warning(
                "%s could not be removed wholly: %s; `s4weights gc %s` tries again",
                *(where, error, directory.url),
            )

    def is_saving(self, where: str) -> bool:
        """Whether the outcome of a save to that address has not been taken yet."""
        with self._lock:
            return any(saving.where == where for saving in self._saving)

    def flush(self) -> None:
        """Finish what is under way and let go of memory; the session stays usable.

        Raises:
            S4Error: a save failed behind the training, and nobody was told.
        """
        with self._lock:
            errors = self._settle_all()
            for where in self._waiting:
                _log.warning("%s stays: resumed from it, and nothing newer was saved", where)
            for run in self._runs.values():
                _close(run)
            for error in errors[1:]:
                _log.error("another save failed: %s", error)
            if errors:
                raise errors[0]

    def _settle_all(self) -> list[S4Error]:
        errors = []
        while self._saving:
            try:
                self._settle(wait=True)
            except S4Error as error:
                errors.append(error)
        return errors


def _close(run: Run) -> None:
    try:
        run.close()
    except S4Error as error:
        _log.warning("%s: %s; `s4weights gc` tries again", run.url, error)


def overridden(options: Options, overrides: Any, what: str) -> Options:
    """Return `options` with some fields changed.

    Args:
        options: to begin with.
        overrides: dict of fields of `Options`; None: none.
        what: where they come from, for messages.

    Raises:
        StateError: not such a dict, or a value out of range.
    """
    known = [field.name for field in fields(Options)]
    if overrides is None:
        return options
    if not isinstance(overrides, dict) or not set(overrides) <= set(known):
        raise StateError(
            f"{what}: expected a dict with some of {', '.join(known)}; found {overrides!r}"
        )
    return replace(options, **overrides)


def _step(checkpoint: Any) -> int | None:
    step = checkpoint.get("global_step") if isinstance(checkpoint, dict) else None
    return step if type(step) is int and step >= 0 else None


def _is_ref(directory: Store, name: str) -> bool:
    try:
        read_ref(directory, name)
    except FormatError:
        return False  # a file of another tool, or one that `s4weights.load` says more about
    return True


def _remove_local(path: str) -> bool:
    """Remove what only a local directory can hold: links, and directories of shards."""
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        return False
    return True


def _summary(info: CheckpointInfo) -> str:
    step = "" if info.step is None else f"step {info.step}, "
    if info.kind == "alias":
        return f"{info.url}: {step}a ref to checkpoint {info.id}"
    return (
        f"{info.url}: {step}{info.kind}, depth {info.depth}, {info.raw_bytes / 1e6:.1f} MB raw, "
        f"{info.stored_bytes / 1e6:.1f} MB stored ({info.ratio:.2f} to 1) in {info.seconds:.2f} s"
    )
