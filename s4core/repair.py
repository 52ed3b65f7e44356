"""Repair: refs put back from the names that manifests record, without torch.

A ref is the only thing of a checkpoint that is ever replaced, and the only thing without a
copy of what it says elsewhere; but its manifest says which name it was saved under. So refs
that were lost or damaged are found again. What was removed and not yet swept comes back too:
nothing tells a removed ref from a lost one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from s4core import digests
from s4core.catalogue import step_name
from s4core.chain import reachable
from s4core.errors import ChainError, FormatError
from s4core.refs import Ref, put_ref, scan_refs
from s4core.repository import Repository, Summary
from s4core.stores import Store

__all__ = ["Repair", "plan_repair", "repair"]


@dataclass(frozen=True)
class Repair:
    """What is to be put back.

    Attributes:
        refs: id of the checkpoint that each name gets.
        replaced: names where a damaged ref lies.
        beyond: id of each checkpoint without a ref that cannot be given one, and why.
    """

    refs: dict[str, str]
    replaced: frozenset[str]
    beyond: dict[str, str]


def plan_repair(
    directory: Store, repository: Repository, names: Collection[str] | None = None
) -> Repair:
    """Find checkpoints that no ref names, and the names they were saved under.

    Of several saved under one name the newest gets it. Names of refs that can be read are
    never touched, and files that do not look like a damaged ref are not either.

    Args:
        directory: of the run.
        repository: its manifests.
        names: only these; None: all.

    Raises:
        StoreError: the store did not answer.
    """
    listing = scan_refs(directory)
    named = {ref.checkpoint for ref in listing.refs.values()}
    found: dict[str, Summary] = {}
    beyond: dict[str, str] = {}
    for identity, _ in repository.ids():
        if identity in named:
            continue
        try:
            summary = repository.summary(identity)
            reachable([identity], repository.needs)
        except (FormatError, ChainError) as error:
            beyond[identity] = str(error)
            continue
        name = _name_of(summary)
        if name in listing.refs or (names is not None and name not in names):
            continue
        if name in listing.others and not _was_ref(directory, name):
            beyond[identity] = f"{name} is a file that is no ref; move it elsewhere"
        elif name not in found or _age(found[name]) < _age(summary):
            found[name] = summary
    refs = {name: summary.id for name, summary in sorted(found.items())}
    return Repair(refs, frozenset(refs) & frozenset(listing.others), beyond)


def _age(summary: Summary) -> tuple[str, str]:
    return summary.created, summary.id


def _name_of(summary: Summary) -> str:
    if summary.name is not None:
        return summary.name
    if summary.step is not None:
        return step_name(summary.step)
    return f"recovered-{summary.id}.ckpt"


def _was_ref(directory: Store, name: str) -> bool:
    """Whether a file that is no ref may once have been one: cut short, or bits flipped."""
    size = directory.size(name)
    (head,) = directory.get_ranges(name, [(0, min(size, 256))])
    return not head.strip(b"\0") or b"ref" in head or b"checkpoint" in head


def repair(directory: Store, repository: Repository, plan: Repair) -> None:
    """Put the refs of `plan`.

    Raises:
        KeyExistsError: a name was taken since; the ref lies beside it.
        StoreError: the store refused.
    """
    for name, identity in plan.refs.items():
        digest = digests.document_digest(repository.manifest_bytes(identity))
        put_ref(directory, name, Ref(identity, digest), was_there=name in plan.replaced)
