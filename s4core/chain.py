"""From a checkpoint's manifest to every link that its arrays stand on.

A delta names its base by checkpoint id and by digest, never by a path, and a
manifest pins the manifests it needs by their digests. So a chain can be
followed with nothing but a way to fetch a manifest by id, and whatever is
found is either exactly what the writer saw or an error. Depths fall by one at
each delta, which is what makes cycles impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from s4core import digests
from s4core.errors import (
    BaseMismatchError,
    BaseNotFoundError,
    ChainError,
    FormatError,
    KeyNotFoundError,
)
from s4core.manifest import ArrayEntry, Manifest, Need, parse

__all__ = ["Chain", "Fetch", "Link", "reachable"]

# Returns the bytes of the manifest with that id; raises KeyNotFoundError if there is none.
Fetch = Callable[[str], bytes]


@dataclass(frozen=True)
class Link:
    """An array of a manifest; in a list of steps, one that has `at`."""

    manifest: Manifest
    array: int

    @property
    def entry(self) -> ArrayEntry:
        """The entry itself."""
        return self.manifest.arrays[self.array]

    @property
    def companion(self) -> Link | None:
        """The array of the same manifest that it cannot be read without."""
        number = self.entry.companion
        return None if number is None else Link(self.manifest, number)


class Chain:
    """The manifests under one checkpoint, fetched when they are needed and kept.

    Args:
        tip: the checkpoint to follow.
        fetch: gives the bytes of a manifest by id.
    """

    def __init__(self, tip: Manifest, fetch: Fetch) -> None:
        self.tip = tip
        self._fetch = fetch
        self._known: dict[tuple[str, str], Manifest] = {}

    def links(self, array: int) -> list[Link]:
        """Return the steps that make an array of the tip: `links_of`."""
        return self.links_of(Link(self.tip, array))

    def links_of(self, link: Link) -> list[Link]:
        """Return the steps that make an array, the whole one first.

        An array whose words lie in the manifest, or that is derived, has no links. The
        first link may have a companion.

        Raises:
            BaseNotFoundError: a checkpoint it needs is gone.
            BaseMismatchError: a checkpoint it needs is not the one it was written against.
            ChainError: a link leads nowhere.
        """
        entry = link.entry
        if entry.data is not None or entry.derived is not None:
            return []
        if entry.same is not None:
            link = self._follow(link.manifest, entry.same, entry, entry.digest)
        found = [link]
        while link.entry.delta is not None:
            base, digest = link.entry.base, link.entry.base_digest
            assert base is not None  # validate() saw to it
            assert digest is not None
            below = self._follow(link.manifest, base, link.entry, digest)
            if below.entry.depth != link.entry.depth - 1:
                raise ChainError(
                    f"{_name(link)} has depth {link.entry.depth} but its base {_name(below)} has "
                    f"{below.entry.depth}: expected {link.entry.depth - 1}"
                )
            found.append(below)
            link = below
        return found[::-1]

    def _follow(
        self, holder: Manifest, target: tuple[int, int], entry: ArrayEntry, digest: str
    ) -> Link:
        need, array = target
        manifest = self.manifest(holder, holder.needs[need])
        if array >= len(manifest.arrays):
            raise ChainError(
                f"checkpoint {holder.id} stands on array {array} of {manifest.id}, which has "
                f"{len(manifest.arrays)}"
            )
        link = Link(manifest, array)
        found = link.entry
        if found.at is None:
            raise ChainError(f"{_name(link)} is stood on by {holder.id} but is not stored there")
        if (found.dtype, found.words, found.digest) != (entry.dtype, entry.words, digest):
            raise BaseMismatchError(
                f"{_name(link)} is not what {holder.id} was written against: expected "
                f"{entry.words} words of {entry.dtype} with digest {digest}, found {found.words} "
                f"of {found.dtype} with {found.digest}"
            )
        return link

    def manifest(self, holder: Manifest, need: Need) -> Manifest:
        """Return the manifest that `holder` needs, checked against the digest it recorded."""
        known = self._known.get((need.id, need.digest))
        if known is None:
            known = _fetch_checked(self._fetch, holder.id, need)
            self._known[need.id, need.digest] = known
        return known


def _name(link: Link) -> str:
    return f"array {link.array} of checkpoint {link.manifest.id}"


def _fetch_checked(fetch: Fetch, holder: str, need: Need) -> Manifest:
    try:
        data = fetch(need.id)
    except KeyNotFoundError as error:
        raise BaseNotFoundError(
            f"checkpoint {holder} needs checkpoint {need.id}, which is gone ({error}); "
            "load an older checkpoint, or restore that one from a copy of the store"
        ) from error
    found = digests.document_digest(data)
    if found != need.digest:
        raise BaseMismatchError(
            f"checkpoint {need.id} is not the one that {holder} was written against: expected "
            f"manifest digest {need.digest}, found {found}"
        )
    manifest = parse(data, f"manifest of checkpoint {need.id}")
    if manifest.id != need.id:
        raise FormatError(f"manifest of checkpoint {need.id} says that its id is {manifest.id!r}")
    return manifest


def reachable(
    roots: Iterable[str], needs: Callable[[str], Iterable[str]], *, passing: bool = False
) -> set[str]:
    """Return the ids of all checkpoints that the checkpoints `roots` stand on, and theirs.

    Args:
        roots: ids of checkpoints that must stay loadable.
        needs: gives the ids that a checkpoint needs; raises KeyNotFoundError if it is gone.
        passing: pass over what is gone.

    Raises:
        BaseNotFoundError: one of them is gone, so that what it needs cannot be known.
    """
    found: set[str] = set()
    waiting = [(root, "a ref") for root in roots]
    while waiting:
        identity, holder = waiting.pop()
        if identity in found:
            continue
        found.add(identity)
        try:
            waiting += [(need, identity) for need in needs(identity)]
        except KeyNotFoundError as error:
            if not passing:
                raise BaseNotFoundError(
                    f"checkpoint {identity}, needed by {holder}, is gone ({error})"
                ) from error
    return found
