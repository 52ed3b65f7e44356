"""A run: checkpoints of one training, each a base or a delta on the one before.

Owner of: the reference (what the next delta stands on) and the names in the
run's directory. A `Run` may be used from several threads; saves, removals and
loads of one `Run` are taken one at a time, in order.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from s4core.chain import reachable
from s4core.checkpoint.check import Finding, Verifier
from s4core.checkpoint.collect import Sweep, plan_sweep, sweep
from s4core.checkpoint.handle import CheckpointInfo, Progress, SaveHandle
from s4core.checkpoint.reader import MapLocation, Reader, open_checkpoint
from s4core.checkpoint.reference import Reference
from s4core.checkpoint.writer import Snapshot, Writer, take_snapshot
from s4core.errors import ChainError, FormatError, KeyNotFoundError, StateError, StoreError
from s4core.manifest import Json, Manifest, ShardEntry, dump
from s4core.refs import STORE_DIRECTORY, Ref, dump_ref, list_refs, read_ref
from s4core.repository import Repository, new_id
from s4core.stores import Store, open_store

__all__ = ["Options", "Run", "open_run"]

_STEP_NAME: Final = "step-{:08d}.ckpt"
_STEP: Final = re.compile(r"step-(\d{8,})\.ckpt")


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How a run saves.

    Attributes:
        profile: `open` (restores anywhere) or `nvcomp`.
        max_depth: the most deltas that may lie under a checkpoint; then a new base.
        keep_last: after a commit, remove all but so many newest steps; None: keep all.
        verify: decode every chunk again and compare before it counts.
        reference_bytes: host memory for the words that the next delta stands on; a
            larger state's are decoded from the store.
        allow_pickle: store leaves of unknown classes pickled.
        allow_classes: store enums and dataclasses by their class's name.
        grace_seconds: `gc` leaves what is younger than this to writers it cannot see.
    """

    profile: str = "open"
    max_depth: int = 8
    keep_last: int | None = None
    verify: bool = True
    reference_bytes: int = 1 << 30
    allow_pickle: bool = False
    allow_classes: bool = False
    grace_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        if self.profile not in ("open", "nvcomp"):
            raise StateError(f"profile {self.profile!r}: expected 'open' or 'nvcomp'")
        if not 0 <= self.max_depth <= 255:
            raise StateError(f"max_depth {self.max_depth}: expected 0 to 255")
        if self.keep_last is not None and self.keep_last < 1:
            raise StateError(f"keep_last {self.keep_last}: expected at least 1, or None")


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


class Run:
    """The checkpoints of one training below one directory of a store."""

    def __init__(self, directory: Store, options: Options | None = None) -> None:
        self.options = options or Options()
        self.directory = directory
        self.repository = Repository(directory.child(STORE_DIRECTORY))
        self._reference: Reference | None = None
        self._removed: set[str] = set()  # ids whose refs this run removed, not yet swept
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["directory"], state["options"])  # type: ignore[misc]

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
        meta: dict[str, Json] | None = None,
    ) -> SaveHandle:
        """Save a state as the next checkpoint; when this returns the state may be mutated.

        Args:
            state: nested dicts, lists, tensors, numbers, ...
            step: of the training.
            name: of the ref; by default made from `step`.
            wait: accepted for the asynchronous saves to come; this release has always
                committed when it returns.
            meta: strings and numbers for people, kept in the manifest.

        Raises:
            StateError: no name and no step, or something that cannot be stored.
            StoreError: the store refused; older checkpoints are unharmed.
            CodecError: a chunk did not decode to the words it came from.
        """
        del wait
        if name is None and step is None:
            raise StateError("a checkpoint needs a step or a name: save(state, step=100)")
        chosen = name if name is not None else _STEP_NAME.format(step)  # type: ignore[str-format]
        with self._lock:
            info = self._save(state, chosen, step, meta)
            self._retain()
        done: Future[CheckpointInfo] = Future()
        done.set_result(info)
        progress = Progress(info.raw_bytes, info.raw_bytes)
        return SaveHandle(done, lambda: progress)

    def _save(
        self, state: Any, name: str, step: int | None, meta: dict[str, Json] | None
    ) -> CheckpointInfo:
        started = time.monotonic()
        snapshot = take_snapshot(
            state,
            allow_pickle=self.options.allow_pickle,
            allow_classes=self.options.allow_classes,
        )
        writer = self._writer(snapshot)
        known = self._known_equal(writer, step, meta)
        if known is not None:
            self._put_ref(name, known)
            return self._info(name, known.manifest, "alias", 0, started)
        manifest, digest, stored = self._commit(writer, step, meta)
        reference = Reference(self.repository, manifest, digest)
        reference.keep(snapshot, self.options.reference_bytes, self._reference)
        self._reference = reference
        self._put_ref(name, reference)
        kind = "delta" if manifest.depth else "base"
        return self._info(name, manifest, kind, stored, started)

    def _writer(self, snapshot: Snapshot) -> Writer:
        reference = self._current_reference()
        previous = None if reference is None else reference.previous(self.options.max_depth)
        return Writer(snapshot, self.options.profile, self.options.verify, previous)

    def _current_reference(self) -> Reference | None:
        if self._reference is None:
            newest = self.latest()
            if newest is not None:
                self._reference = self._newest_reference(_STEP_NAME.format(newest))
        elif not self.repository.has(self._reference.manifest.id):
            # Someone else removed it: a delta against it could never be loaded.
            self._reference = None
        return self._reference

    def _newest_reference(self, name: str) -> Reference | None:
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

    def _known_equal(
        self, writer: Writer, step: int | None, meta: dict[str, Json] | None
    ) -> Reference | None:
        reference = self._reference
        if reference is None or writer.has_shard:
            return None
        old = reference.manifest
        same = (
            old.tree == writer.snapshot.tree
            and old.tensors == writer.snapshot.tensors
            and [array.digest for array in old.arrays] == writer.digests
            and (old.step, dict(old.meta)) == (step, dict(meta or {}))
        )
        return reference if same else None

    def _commit(
        self, writer: Writer, step: int | None, meta: dict[str, Json] | None
    ) -> tuple[Manifest, str, int]:
        self.repository.ensure_marker()
        identity = new_id()
        shards: tuple[ShardEntry, ...] = ()
        if writer.has_shard:
            key = f"{identity}/0-0.s4"
            self.repository.put_shard(key, writer.shard(), writer.snapshot.raw_bytes)
            shards = (ShardEntry(key, writer.stream.bytes),)
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        manifest = writer.manifest(
            identity=identity, created=created, step=step, shards=shards, meta=meta
        )
        digest = self.repository.commit(manifest)
        return manifest, digest, writer.stream.bytes + len(dump(manifest))

    def _put_ref(self, name: str, reference: Reference) -> None:
        ref = Ref(reference.manifest.id, reference.digest)
        self.directory.put(name, dump_ref(ref), replace=True)

    def _info(
        self, name: str, manifest: Manifest, kind: str, stored: int, started: float
    ) -> CheckpointInfo:
        return CheckpointInfo(
            url=self.directory.url_of(name),
            id=manifest.id,
            step=manifest.step,
            kind=kind,
            depth=manifest.depth,
            raw_bytes=manifest.raw_bytes,
            stored_bytes=stored,
            seconds=time.monotonic() - started,
        )

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
        with self._lock:
            reader, ref = self._open(self._name(step, name))
            if keys is not None:
                return reader.select(keys, map_location)
            state = reader.state(map_location, weights_only=weights_only)
            self._reference = Reference(self.repository, reader.manifest, ref.digest)
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

    def remove(self, step: int | None = None, *, name: str | None = None) -> None:
        """Remove a checkpoint: its ref at once, its bytes when no chain needs them.

        Removing what is not there is no error.
        """
        if step is None and name is None:
            raise StateError("remove needs a step or a name")
        with self._lock:
            chosen = self._name(step, name)
            try:
                self._removed.add(read_ref(self.directory, chosen).checkpoint)
            except KeyNotFoundError:
                return
            self.directory.delete([chosen])
            self._sweep_removed()

    def _retain(self) -> None:
        if self.options.keep_last is None:
            return
        for step in self.steps()[: -self.options.keep_last]:
            self.remove(step)

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
        if self._reference is not None:
            roots.add(self._reference.manifest.id)
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
        """Forget the reference, and sweep what was kept only for it; the run stays usable."""
        with self._lock:
            self._reference = None
            if self._removed:
                self._sweep_removed()
