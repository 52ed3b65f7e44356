"""Announcing what is about to be deleted, so that no writer comes to stand on it.

A *sweeper* deletes checkpoints that nothing needs; a *writer* commits a checkpoint that
stands on older ones. Neither can lock the other out, so each says what it does before it
looks at what the other does (Dekker's algorithm, as in Dijkstra, "Cooperating sequential
processes", 1965; every store reads its own and others' finished writes at once):

    writer   1 puts its manifest, or its ref      sweeper  1 puts the ids it will delete
             2 looks what is announced                     2 looks again what is needed
             3 looks whether its needs are there           3 deletes what still is not
             4 takes the manifest back if not              4 takes the announcement back

Whichever of the two first steps comes second, its owner sees the other's. If the writer's
does, it finds its need announced, or gone, and saves whole instead. If the sweeper's does,
it finds the new checkpoint and spares what it needs. No clock is asked. A sweeper that dies
leaves an announcement: what it names still loads, only nothing new stands on it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from s4core.errors import FormatError, KeyNotFoundError, VersionError
from s4core.manifest import Fields, check_id, loads_strict
from s4core.stores import Store

__all__ = ["Announcement", "announce", "announced", "announcements", "withdraw"]

_PREFIX: Final = "doomed/"
_VERSION: Final = 1


def announce(store: Store, ids: Collection[str]) -> str:
    """Say that the checkpoints `ids` are about to be deleted; return the key to withdraw."""
    key = f"{_PREFIX}{secrets.token_hex(16)}.json"
    document = {"format": "s4-doomed", "version": _VERSION, "checkpoints": sorted(ids)}
    store.put(key, json.dumps(document).encode("ascii") + b"\n", unique=True)
    return key


def withdraw(store: Store, keys: Collection[str]) -> None:
    """Take announcements back: what they named is deleted, or stays."""
    store.delete(keys)


@dataclass(frozen=True)
class Announcement:
    """One announcement: where it is, since when (seconds since the epoch), and of what."""

    key: str
    modified: float
    ids: frozenset[str]


def announcements(store: Store) -> Iterator[Announcement]:
    """Yield every announcement.

    Raises:
        FormatError: one is damaged, so that nothing can be relied on.
        StoreError: the store did not answer.
    """
    for entry in store.list(_PREFIX, shallow=True):
        try:
            data = store.get(entry.key)
        except KeyNotFoundError:
            continue  # withdrawn meanwhile
        yield Announcement(entry.key, entry.modified, _parse(data, store.url_of(entry.key)))


def announced(store: Store) -> set[str]:
    """Return the ids of all checkpoints that are about to be deleted.

    Raises:
        FormatError, StoreError: as `announcements`.
    """
    return {identity for item in announcements(store) for identity in item.ids}


def _parse(data: bytes, where: str) -> frozenset[str]:
    fields = Fields(loads_strict(data, where), where)
    if fields.text("format") != "s4-doomed":
        raise FormatError(f"{where} is no announcement of a deletion; move it elsewhere")
    if fields.number("version") != _VERSION:
        raise VersionError(
            f"{where} has version {fields.number('version')}: this release knows {_VERSION}; "
            "upgrade s4weights"
        )
    ids = fields.texts("checkpoints")
    for identity in ids:
        check_id(identity, where)
    return frozenset(ids)
