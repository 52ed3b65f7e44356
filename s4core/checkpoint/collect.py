"""Garbage: what no ref's chain needs, and deleting it.

Marks from the refs, sweeps the rest after a grace period. A plan is made first
and can be shown; nothing is deleted that the plan does not name. A manifest
goes before its shards, so that an interrupted sweep leaves garbage and never a
checkpoint without its bytes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from s4core.chain import reachable
from s4core.repository import Repository

__all__ = ["Sweep", "plan_sweep", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """What a sweep keeps and deletes.

    Attributes:
        kept: id of each checkpoint that stays, and why.
        swept: id of each checkpoint (or of a save that never committed) that goes, and why.
        keys: the objects that go, manifests first.
        bytes: their size together.
    """

    kept: dict[str, str]
    swept: dict[str, str]
    keys: tuple[str, ...]
    bytes: int


def plan_sweep(
    repository: Repository,
    roots: Collection[str],
    grace_seconds: float,
    only: Collection[str] | None = None,
) -> Sweep:
    """Decide what may go.

    Args:
        repository: to look at.
        roots: ids of the checkpoints that refs name, or that are otherwise needed.
        grace_seconds: whatever is younger stays: a writer may be about to refer to it.
        only: consider only these ids.

    Raises:
        BaseNotFoundError: a needed checkpoint is gone, so that nothing can be decided.
    """
    needed = reachable(roots, repository.manifest_bytes)
    young = time.time() - grace_seconds
    kept, swept, manifests = {}, {}, []
    committed = dict(repository.ids())
    for identity, modified in committed.items():
        if identity in roots:
            kept[identity] = "a ref or the running training names it"
        elif identity in needed:
            kept[identity] = "a newer checkpoint stands on it"
        elif only is not None and identity not in only:
            kept[identity] = "not asked for"
        elif modified > young:
            kept[identity] = f"younger than {grace_seconds:.0f} s"
        else:
            swept[identity] = "no ref's chain needs it"
            manifests.append(f"checkpoints/{identity}.json")
    shards, size = [], 0
    for entry in repository.store.list("shards/"):
        identity = entry.key.split("/")[1]
        orphan = identity not in committed and only is None and entry.modified <= young
        if orphan:
            swept[identity] = "its save never committed"
        if identity in swept:
            shards.append(entry.key)
            size += entry.size
    return Sweep(kept, swept, (*manifests, *shards), size)


def sweep(repository: Repository, plan: Sweep) -> Sweep:
    """Delete what `plan` names and return it."""
    manifests = [key for key in plan.keys if key.startswith("checkpoints/")]
    _delete(repository, manifests)
    _delete(repository, (key for key in plan.keys if not key.startswith("checkpoints/")))
    return plan


def _delete(repository: Repository, keys: Iterable[str]) -> None:
    repository.store.delete(list(keys))
