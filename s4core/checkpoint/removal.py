"""What a run removes: refs at once, bytes when no chain needs them.

Promises:

1. A removal waits for the next commit after a save that failed, so that the last good
   checkpoint is never what goes.
2. The *resume source*, the checkpoint loaded last, is not removed before a newer one is
   committed: until then it may be all there is.
3. What this run removed is swept at once, and what only that stood on; all else only after
   the grace period (`collect`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from s4core.chain import reachable
from s4core.checkpoint.collect import Roots, Sweep, drop_stale, plan_sweep, sweep
from s4core.errors import FormatError, KeyNotFoundError
from s4core.refs import STORE_DIRECTORY, Ref, list_refs, put_ref, read_ref, scan_refs
from s4core.repository import Repository
from s4core.stores import Store

__all__ = ["Removals"]

_log = logging.getLogger(__name__)


class Removals:
    """The removals of one run. Used under the run's lock.

    Args:
        directory: of the run.
        repository: its manifests and shards.
        in_use: gives the ids that the running training stands on.
    """

    def __init__(
        self, directory: Store, repository: Repository, in_use: Callable[[], Iterable[str]]
    ) -> None:
        self._directory, self._repository, self._in_use = directory, repository, in_use
        self._waiting: list[str] = []
        self._removed: set[str] = set()  # ids whose refs this run removed, not yet swept
        self.source: str | None = None  # id of the resume source
        self.failing = False  # whether the newest save has failed, or is under way

    def ask(self, name: str) -> None:
        """Remove a checkpoint, or have it wait for the next commit."""
        if self.failing or self._is_source(name):
            _log.warning("%s stays until a newer checkpoint is committed", name)
            self._waiting.append(name)
        else:
            self.remove([name])

    def _is_source(self, name: str) -> bool:
        if self.source is None:
            return False
        try:
            return read_ref(self._directory, name).checkpoint == self.source
        except (KeyNotFoundError, FormatError):
            return False

    def committed(self, name: str, replaced: Iterable[str], surplus: Iterable[str]) -> None:
        """Remove what waited for a commit, and what is surplus since.

        Args:
            name: of the ref that was put; it is newer than a removal that waited.
            replaced: ids of the checkpoints whose ref it replaced.
            surplus: names that no rule keeps.
        """
        self.source = None
        self.remove([n for n in (*self._waiting, *surplus) if n != name], replaced)
        self._waiting = []

    def remove(self, names: Iterable[str], replaced: Iterable[str] = ()) -> None:
        """Delete refs, and sweep what they and the `replaced` ones stood for."""
        ids, there = set(replaced), []
        for name in names:
            try:
                ids.add(read_ref(self._directory, name).checkpoint)
            except KeyNotFoundError:
                continue
            except FormatError as error:
                _log.warning("%s is left to `s4weights repair`: %s", name, error)
                continue
            there.append(name)
        self._directory.delete(there)
        self._removed |= ids
        if ids:
            self.sweep_removed()

    def repoint(self, old: str, new: Ref) -> None:
        """Have every ref to checkpoint `old` name `new`, which is equal to it."""
        for name, ref in list_refs(self._directory).items():
            if (ref.checkpoint, ref.store) == (old, STORE_DIRECTORY):
                put_ref(self._directory, name, new, was_there=True)
        self._removed.add(old)

    def sweep_removed(self) -> None:
        """Sweep what this run itself removed, and what only that stood on."""
        if not self._removed:
            return
        present = {identity for identity in self._removed if self._repository.has(identity)}
        candidates = reachable(present, self._repository.needs, passing=True)
        plan = plan_sweep(self._repository, self.roots(), 0.0, only=candidates)
        done = sweep(self._repository, plan, self.roots)
        self._removed = present - set(done.swept)

    def roots(self) -> Roots:
        """Look what must stay."""
        listing = scan_refs(self._directory)
        ids = {r.checkpoint for r in listing.refs.values() if r.store == STORE_DIRECTORY}
        return Roots(frozenset(ids.union(self._in_use())), frozenset(listing.others))

    def collect(self, grace_seconds: float, *, dry_run: bool) -> Sweep:
        """Sweep whatever no ref's chain needs, or only say what would go."""
        roots = self.roots()
        plan = plan_sweep(self._repository, roots, grace_seconds)
        if dry_run:
            return plan
        done = sweep(self._repository, plan, self.roots)
        drop_stale(self._repository, roots, grace_seconds)
        return done

    def say_what_waits(self) -> None:
        """Log the removals that no commit has released."""
        for name in self._waiting:
            _log.warning("%s stays: nothing newer was committed", self._directory.url_of(name))
