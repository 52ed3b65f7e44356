"""From a prepared state to a committed checkpoint that a ref names.

In this order: shards, manifest, a look whether what it stands on is still there, ref, a
look whether it is still there itself (`s4core.doomed`). A checkpoint that stands on what
another process deletes meanwhile is taken back and saved again whole. After the commit
comes what must never make a save fail: removals, and ending the writes that killed
processes left behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from s4core import metrics
from s4core.catalogue import Catalogue
from s4core.checkpoint.handle import CheckpointInfo, SaveHandle
from s4core.checkpoint.removal import Removals
from s4core.checkpoint.saver import Outcome, Prepared, Saver
from s4core.errors import BaseNotFoundError, FormatError, KeyNotFoundError, S4Error
from s4core.manifest import Json
from s4core.refs import Ref, put_ref, read_ref
from s4core.repository import NAME_KEY
from s4core.stores import Store

__all__ = ["Asked", "Committer", "Prepare", "only_once"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """One save, as it was asked for.

    Attributes:
        name: of the ref.
        step: of the training.
        meta: for people.
        handle: what the caller holds.
    """

    name: str
    step: int | None
    meta: Mapping[str, Json]
    handle: SaveHandle


# Gives the plan of a checkpoint; of a new base if its argument is true, None if it cannot.
Prepare = Callable[[bool], Prepared | None]


def only_once(prepared: Prepared, whole: bool) -> Prepared | None:
    """What was encoded ahead cannot be encoded again: the state may have changed since."""
    return None if whole else prepared


class Committer:
    """Commits the checkpoints of one run, one at a time, under the run's lock."""

    def __init__(self, directory: Store, saver: Saver, removals: Removals) -> None:
        self._directory, self._saver, self._removals = directory, saver, removals
        self._catalogue = Catalogue(directory, saver.repository)
        self._swept_unfinished = False

    def commit(self, asked: Asked, prepare: Prepare) -> CheckpointInfo:
        """Commit a checkpoint and put its ref.

        Raises:
            KeyExistsError: another writer took the ref's name meanwhile.
            BaseNotFoundError: what it stands on was deleted meanwhile, and the state is gone.
            StoreError: the store refused; older checkpoints are unharmed.
            CodecError: a chunk did not decode to the words it came from.
        """
        try:
            info, replaced = self._commit(asked, prepare)
        except Exception as error:
            metrics.report_error(f"{self._directory.url_of(asked.name)}: {error}")
            raise
        self._after(asked.name, replaced)
        _report(info)
        return info

    def _commit(self, asked: Asked, prepare: Prepare) -> tuple[CheckpointInfo, set[str]]:
        self._removals.failing = True
        old = self._old_ref(asked.name)
        outcome = self._store(asked, prepare, was_there=old is not None)
        self._removals.failing = False
        info = self._info(asked, outcome)
        return info, {old.checkpoint} - {info.id} if isinstance(old, Ref) else set()

    def _old_ref(self, name: str) -> Ref | FormatError | None:
        """What has the name now: a ref, something that is none, or nothing."""
        try:
            return read_ref(self._directory, name)
        except FormatError as error:
            return error
        except KeyNotFoundError:
            return None

    def _store(self, asked: Asked, prepare: Prepare, *, was_there: bool) -> Outcome:
        first = prepare(False)
        assert first is not None  # a plan that may stand on others is always possible
        try:
            return self._put(asked, first, was_there=was_there)
        except BaseNotFoundError as error:
            self._saver.reference = None
            again = prepare(True)
            if again is None:
                raise
            _log.warning("%s is saved as a new base: %s", asked.name, error)
        # Perhaps the first attempt has put the ref.
        return self._put(asked, again, was_there=was_there or self._old_ref(asked.name) is not None)

    def _put(self, asked: Asked, prepared: Prepared, *, was_there: bool) -> Outcome:
        meta = {**asked.meta, NAME_KEY: asked.name}
        outcome = self._saver.commit(
            prepared, step=asked.step, meta=meta, progress=asked.handle.advance
        )
        manifest = outcome.reference.manifest
        ref = Ref(manifest.id, outcome.reference.digest)
        put_ref(self._directory, asked.name, ref, was_there=was_there)
        # A further ref to an old checkpoint, or a sweep without a grace period, which takes a
        # checkpoint without a ref: here the ref is what the sweeper has to see.
        if not self._saver.repository.usable(manifest.id):
            raise BaseNotFoundError(
                f"{self._directory.url_of(asked.name)}: its checkpoint {manifest.id} was deleted "
                "by another process before it had this ref; save again"
            )
        return outcome

    def _info(self, asked: Asked, outcome: Outcome) -> CheckpointInfo:
        manifest = outcome.reference.manifest
        seconds, pause_seconds = asked.handle.seconds()
        return CheckpointInfo(
            url=self._directory.url_of(asked.name),
            id=manifest.id,
            step=manifest.step,
            kind=outcome.kind,
            depth=manifest.depth,
            raw_bytes=manifest.raw_bytes,
            stored_bytes=outcome.stored_bytes,
            seconds=seconds,
            pause_seconds=pause_seconds,
        )

    def _after(self, name: str, replaced: set[str]) -> None:
        try:
            decisions = self._catalogue.decide(self._saver.options.rules)
            surplus = [decision.name for decision in decisions if not decision.keep]
            self._removals.committed(name, replaced, surplus)
        except S4Error as error:
            # The checkpoint is committed; what remains is space, not data.
            _log.warning("%s: old checkpoints remain: %s", self._directory.url, error)
        if not self._swept_unfinished:
            self._swept_unfinished = True
            self._sweep_unfinished()

    def _sweep_unfinished(self) -> None:
        """End the writes that killed processes left behind in this run, once."""
        seconds = self._saver.options.unfinished_seconds
        try:
            ended = self._saver.repository.store.sweep_unfinished(seconds)
            ended += self._directory.sweep_unfinished(seconds, shallow=True)
        except S4Error as error:
            _log.warning("%s: unfinished writes remain: %s", self._directory.url, error)
            return
        if ended:
            _log.info("%s: ended %d unfinished writes", self._directory.url, ended)


def _report(info: CheckpointInfo) -> None:
    metrics.report_save(
        step=info.step,
        raw_bytes=info.raw_bytes,
        stored_bytes=info.stored_bytes,
        pause_seconds=info.pause_seconds,
        upload_seconds=info.seconds - info.pause_seconds,
    )
