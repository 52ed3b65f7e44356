"""What one process knows of its checkpoints: runs, the resume source, removals that wait.

Promises:

1. One `Run` for each directory, so that consecutive checkpoints make a chain.
2. The *resume source*, the checkpoint loaded last, is not removed before a newer one is
   committed: until then it may be all there is. A removal asked for earlier waits.
3. A removal that fails is reported and ends nothing: what remains is space, not data.

Saves are synchronous in this release: `save` returns when its checkpoint is committed,
and so saves and removals are executed in the order in which they were asked for.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import deque
from dataclasses import fields, replace
from typing import Any, Final

import s4weights
from s4_lightning.addresses import link_target
from s4core.errors import FormatError, KeyNotFoundError, S4Error, StateError
from s4core.refs import read_ref, split_url
from s4core.stores import LocalStore, Store
from s4weights import CheckpointInfo, Options, Run

__all__ = ["Session"]

_log = logging.getLogger("s4_lightning")

_HISTORY: Final = 1000


class Session:
    """Saves, loads and removes checkpoints by address.

    Args:
        options: for saving, where a save brings none of its own.
    """

    def __init__(self, options: Options) -> None:
        self.process = os.getpid()
        self.history: deque[CheckpointInfo] = deque(maxlen=_HISTORY)
        self._options = options
        self._runs: dict[str, Run] = {}
        self._source: str | None = None
        self._waiting: list[str] = []  # addresses whose removal waits for a newer commit
        self._lock = threading.RLock()

    def save(self, checkpoint: Any, where: str, overrides: Any = None) -> None:
        """Commit a checkpoint and put its ref at `where`.

        Args:
            checkpoint: what Lightning made, or any nested state.
            where: address.
            overrides: dict of fields of `Options`, for this save only.

        Raises:
            StateError: it holds something that cannot be stored, or an unknown override.
            StoreError: the store refused; older checkpoints are unharmed.
        """
        directory, name = split_url(where)
        options = _overridden(self._options, overrides)
        with self._lock:
            run = self._run(directory)
            run.options = options
            info = run.save(checkpoint, _step(checkpoint), name=name).result()
            self.history.append(info)
            self._committed(info)

    def _run(self, directory: Store) -> Run:
        return self._runs.setdefault(directory.url, Run(directory, self._options))

    def _committed(self, info: CheckpointInfo) -> None:
        _log.info("%s", _summary(info))
        self._source = None
        waiting, self._waiting = self._waiting, []
        for where in waiting:
            if where != info.url:  # that name holds the newer checkpoint now
                self._remove(where)

    def load(self, where: str, map_location: Any, *, weights_only: bool) -> Any:
        """Load a checkpoint, an S4 one or a plain one of another tool.

        Raises:
            KeyNotFoundError: nothing is there (also FileNotFoundError).
            S4Error: as `s4weights.load`.
        """
        where = link_target(where)
        directory, name = split_url(where)
        with self._lock:
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
            if isinstance(directory, LocalStore) and _remove_local(where):
                return
            if _is_ref(directory, name):
                self._run(directory).remove(name=name)
            else:
                directory.delete([name])
        except KeyNotFoundError:
            return
        except (S4Error, OSError) as error:
            _log.warning(
                "%s could not be removed wholly: %s; `s4weights gc %s` tries again",
                *(where, error, directory.url),
            )

    def flush(self) -> None:
        """Finish what is under way and let go of memory; the session stays usable."""
        with self._lock:
            for where in self._waiting:
                _log.warning("%s stays: resumed from it, and nothing newer was saved", where)
            for run in self._runs.values():
                _close(run)


def _close(run: Run) -> None:
    try:
        run.close()
    except S4Error as error:
        _log.warning("%s: %s; `s4weights gc` tries again", run.url, error)


def _overridden(options: Options, overrides: Any) -> Options:
    known = [field.name for field in fields(Options)]
    if overrides is None:
        return options
    if not isinstance(overrides, dict) or not set(overrides) <= set(known):
        raise StateError(
            f"storage_options is {overrides!r}: expected a dict with some of {', '.join(known)}; "
            "access to a store is configured by its environment variables"
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
