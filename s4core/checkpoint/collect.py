"""Garbage: what no ref's chain needs, and deleting it.

Marks from the refs, sweeps the rest after a grace period. A plan is made first and can be
shown; nothing is deleted that the plan does not name, and what a writer came to need since
is spared (`s4core.doomed`). A manifest goes before its shards, so that an interrupted sweep
leaves garbage and never a checkpoint without its bytes.

The *grace period* is not what makes sweeping safe: the agreement in `s4core.doomed` is, and
it asks no clock. It saves work. A save whose shards are put and whose manifest is not yet
looks like garbage; sweeping it costs the writer that whole save, though no data. So garbage
stays for longer than any save takes, a day by default. What a run removes itself goes at
once: it knows that it is not about to stand on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from s4core import doomed
from s4core.chain import reachable
from s4core.errors import S4Error, StoreError
from s4core.repository import Repository
from s4core.stores import Entry

__all__ = ["Roots", "Sweep", "drop_stale", "plan_sweep", "sweep"]

# A sweep that takes longer between its second look and its end gives up: announcements
# are held for dead after a grace period, which is never shorter than this.
MAX_SWEEP_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class Roots:
    """What must stay.

    Attributes:
        ids: of checkpoints that refs name, or that the running training stands on.
        damaged: names in the run's directory that are no ref that can be read. The
            checkpoint that was saved under such a name stays: `repair` restores its ref.
    """

    ids: frozenset[str]
    damaged: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sweep:
    """What a sweep keeps and deletes.

    Attributes:
        kept: id of each checkpoint that stays, and why.
        swept: id of each checkpoint (or of a save that never committed) that goes, and why.
        objects: the keys that go, manifests first, and their size in bytes.
    """

    kept: dict[str, str]
    swept: dict[str, str]
    objects: dict[str, int]

    @property
    def keys(self) -> tuple[str, ...]:
        """The objects that go."""
        return tuple(self.objects)

    @property
    def bytes(self) -> int:
        """Their size together."""
        return sum(self.objects.values())

    @property
    def manifests(self) -> list[str]:
        """The ids whose manifests go."""
        return [i for i in self.swept if Repository.manifest_key(i) in self.objects]


def plan_sweep(
    repository: Repository,
    roots: Roots,
    grace_seconds: float,
    only: Collection[str] | None = None,
) -> Sweep:
    """Decide what may go.

    Args:
        repository: to look at.
        roots: what must stay.
        grace_seconds: whatever is younger stays, and all that it stands on.
        only: consider only these ids.

    Raises:
        BaseNotFoundError: a needed checkpoint is gone, so that nothing can be decided.
        FormatError: a manifest is damaged, so that nothing can be decided.
    """
    needed = reachable(roots.ids, repository.needs)
    young = time.time() - grace_seconds
    kept: dict[str, str] = {}
    committed = dict(repository.ids())
    for identity, entry in committed.items():
        if identity in roots.ids:
            kept[identity] = "a ref or the running training names it"
        elif identity in needed:
            kept[identity] = "a newer checkpoint stands on it"
        elif only is not None and identity not in only:
            kept[identity] = "not asked for"
        elif entry.modified > young:
            kept[identity] = f"younger than {grace_seconds:.0f} s"
        elif _name_of(repository, identity) in roots.damaged:
            kept[identity] = "its ref is damaged; `s4weights repair` restores it"
    below = reachable(kept, repository.needs, passing=True)
    kept |= dict.fromkeys(
        committed.keys() & below - set(kept), "a checkpoint that stays stands on it"
    )
    swept = {i: "no ref's chain needs it" for i in committed if i not in kept}
    objects = {Repository.manifest_key(i): committed[i].size for i in swept}
    for entry in _shards(repository, None if only is None else list(swept)):
        identity = entry.key.split("/")[1]
        if identity not in committed and entry.modified <= young:
            swept[identity] = "its save never committed"
        if identity in swept:
            objects[entry.key] = entry.size
    return Sweep(kept, swept, objects)


def _name_of(repository: Repository, identity: str) -> str | None:
    try:
        return repository.summary(identity).name
    except S4Error as error:
        if isinstance(error, StoreError):
            raise
        return None  # a damaged manifest that nothing needs


def _shards(repository: Repository, ids: Collection[str] | None) -> Iterator[Entry]:
    if ids is None:
        yield from repository.store.list("shards/")
        return
    for identity in ids:
        yield from repository.store.list(f"shards/{identity}/")


def sweep(repository: Repository, plan: Sweep, roots: Callable[[], Roots]) -> Sweep:
    """Delete what `plan` names and nothing has come to need since.

    Args:
        repository: to delete from.
        plan: what may go.
        roots: looks anew what must stay.

    Returns:
        What was deleted.

    Raises:
        StoreError: the store refused; what is left is swept next time.
    """
    if not plan.swept:
        return plan
    announcement = doomed.announce(repository.store, plan.swept)
    started = time.monotonic()
    final = _spare(repository, plan, roots())
    if time.monotonic() - started > MAX_SWEEP_SECONDS:
        raise StoreError(f"{repository.store.url}: the sweep took too long; run it again")
    repository.delete_manifests(final.manifests)
    repository.store.delete([key for key in final.objects if key.startswith("shards/")])
    # Not if anything failed: of two that stand on each other only one may be gone.
    doomed.withdraw(repository.store, [announcement])
    return final


def _spare(repository: Repository, plan: Sweep, roots: Roots) -> Sweep:
    """Take from a plan what is needed now, by refs or by checkpoints that it does not name."""
    since = dict(repository.ids()).keys() - set(plan.manifests)
    needed = since | reachable(roots.ids, repository.needs)
    needed |= reachable(since, repository.needs, passing=True)
    spared = {i: "it came to be needed meanwhile" for i in plan.swept if i in needed}
    if not spared:
        return plan
    swept = {i: reason for i, reason in plan.swept.items() if i not in spared}
    objects = {key: size for key, size in plan.objects.items() if _id_of(key) in swept}
    return Sweep(plan.kept | spared, swept, objects)


def _id_of(key: str) -> str:
    return key.split("/")[1].removesuffix(".json")


def drop_stale(repository: Repository, roots: Roots, grace_seconds: float) -> None:
    """Withdraw the announcements of sweepers that died, where they protect from nothing now.

    An announcement stays while a checkpoint that it names is there, and nothing vouches for
    all that it stands on.
    """
    older = max(grace_seconds, 2 * MAX_SWEEP_SECONDS)
    whole = reachable(roots.ids, repository.needs)
    suspect = dict(repository.ids()).keys() - whole
    stale = [
        item.key
        for item in doomed.announcements(repository.store)
        if item.modified < time.time() - older and not item.ids & suspect
    ]
    doomed.withdraw(repository.store, stale)
