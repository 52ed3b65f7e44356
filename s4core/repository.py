"""The store of a run: manifests and shards below `.s4` (FORMAT.md, section 11).

Data first, manifest last, nothing rewritten: a checkpoint exists when its manifest does.
What a writer asks after its commit, `check_standing`, is one half of the agreement with
whoever deletes; `s4core.doomed` says why it is safe.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from s4core import digests, doomed
from s4core.errors import (
    BaseMismatchError,
    BaseNotFoundError,
    FormatError,
    KeyExistsError,
    KeyNotFoundError,
    VersionError,
)
from s4core.manifest import Fields, Json, Manifest, dump, loads_strict, parse
from s4core.refs import Ref
from s4core.stores import Entry, Store, open_store

__all__ = ["NAME_KEY", "OWN_META", "Repository", "Summary", "new_id"]

_MARKER: Final = "store.json"
_VERSION: Final = 1
# Keys of a manifest's `meta` that start so are this project's own.
OWN_META: Final = "s4."
NAME_KEY: Final = "s4.name"  # the ref's name; what `repair` puts back


def new_id(now: float | None = None) -> str:
    """Return a fresh checkpoint id: UTC time, so that ids sort, and 48 random bits."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return f"{stamp}-{secrets.token_hex(6)}"


@dataclass(frozen=True)
class Summary:
    """What upkeep wants to know of a manifest, some hundred bytes of it.

    Attributes:
        id: of the checkpoint.
        step: of the training.
        created: time, as in `2026-12-01T15:31:00Z`.
        depth: number of deltas under it.
        base: id of the checkpoint that it is a delta against.
        needs: ids of all checkpoints that it stands on itself.
        stored_bytes: of its own shards.
        meta: for people.
    """

    id: str
    step: int | None
    created: str
    depth: int
    base: str | None
    needs: tuple[str, ...]
    stored_bytes: int
    meta: Mapping[str, Json]

    @classmethod
    def of(cls, manifest: Manifest) -> Summary:
        """Summarize a manifest."""
        needs = tuple(need.id for need in manifest.needs)
        return cls(
            id=manifest.id,
            step=manifest.step,
            created=manifest.created,
            depth=manifest.depth,
            base=None if manifest.base is None else needs[manifest.base],
            needs=needs,
            stored_bytes=manifest.stored_bytes,
            meta=dict(manifest.meta),
        )

    @property
    def name(self) -> str | None:
        """The name of the ref that it was saved under, if its writer recorded one."""
        found = self.meta.get(NAME_KEY)
        return found if isinstance(found, str) else None


@dataclass
class Repository:
    """The manifests and shards of one store.

    Attributes:
        store: what is below `.s4`.
    """

    store: Store
    _marked: bool = field(default=False, init=False)
    _summaries: dict[str, Summary] = field(default_factory=dict, init=False)

    @classmethod
    def beside(cls, directory: Store, ref: Ref) -> Repository:
        """Return the repository that `ref`, which lies in `directory`, points to.

        Raises:
            FormatError: it points to a store of another kind. A file must not make this
                process send its credentials to a bucket, or a bucket read this disk.
        """
        if "://" in ref.store or ref.store.startswith("/"):
            elsewhere = open_store(ref.store)
            if type(elsewhere) is not type(directory):
                raise FormatError(
                    f"a ref in {directory.url} names the store {ref.store}: expected a relative "
                    "path or a store of the same kind; load from that store by its own URL"
                )
            return cls(elsewhere)
        return cls(directory.child(ref.store))

    def ensure_marker(self) -> None:
        """Write the store's marker, or check the one that is there.

        Raises:
            VersionError: a newer store.
        """
        if self._marked:
            return
        document = {"format": "s4-store", "version": _VERSION, "id": secrets.token_hex(8)}
        try:
            self.store.put(_MARKER, json.dumps(document).encode("ascii") + b"\n")
        except KeyExistsError:
            self._check_marker()
        self._marked = True

    def _check_marker(self) -> None:
        where = self.store.url_of(_MARKER)
        fields = Fields(loads_strict(self.store.get(_MARKER), where), where)
        if fields.text("format") != "s4-store":
            raise FormatError(f"{where} is not the marker of a store")
        if fields.number("version") != _VERSION:
            raise VersionError(
                f"{where} has store version {fields.number('version')}: this release knows "
                f"version {_VERSION}; upgrade s4weights"
            )

    def put_shard(self, key: str, data: Iterable[bytes | memoryview], size_hint: int) -> None:
        """Write shard `key`, as a manifest will name it."""
        self.store.put(self.shard_key(key), data, size_hint=size_hint, unique=True)

    @staticmethod
    def shard_key(key: str) -> str:
        """Return the key in the store of the shard that a manifest calls `key`."""
        return f"shards/{key}"

    @staticmethod
    def manifest_key(identity: str) -> str:
        """Return the key in the store of a checkpoint's manifest."""
        return f"checkpoints/{identity}.json"

    def commit(self, manifest: Manifest) -> str:
        """Put the manifest, which makes the checkpoint exist; return its digest.

        Raises:
            KeyExistsError: a checkpoint of that id exists.
            BaseNotFoundError: something it stands on was deleted meanwhile; it was not
                committed.
        """
        data = dump(manifest)
        self.store.put(self.manifest_key(manifest.id), data)
        try:
            self.check_standing(manifest)
        except BaseNotFoundError:
            self.delete_manifests([manifest.id])
            raise
        self._summaries[manifest.id] = Summary.of(manifest)
        return digests.document_digest(data)

    def check_standing(self, manifest: Manifest) -> None:
        """Check that all a committed checkpoint stands on is there, and will not be deleted.

        Raises:
            BaseNotFoundError: it is not, or not for long.
        """
        going = doomed.announced(self.store)  # first: see `s4core.doomed`
        gone = [need.id for need in manifest.needs if not self.has(need.id)]
        for identity in (manifest.id, *(need.id for need in manifest.needs)):
            if identity in going or identity in gone:
                raise BaseNotFoundError(
                    f"checkpoint {manifest.id} stands on {identity}, which another process "
                    "deletes at this moment; save again"
                )
        for shard in manifest.shards:
            self._check_shard(manifest, shard.key, shard.bytes)

    def _check_shard(self, manifest: Manifest, key: str, size: int) -> None:
        address = self.store.url_of(self.shard_key(key))
        try:
            found = self.store.size(self.shard_key(key))
        except KeyNotFoundError as error:
            raise BaseNotFoundError(
                f"{address} was deleted while checkpoint {manifest.id} was written; save again"
            ) from error
        if found != size:
            raise BaseNotFoundError(f"{address} has {found} bytes: {size} were written; save again")

    def usable(self, identity: str) -> bool:
        """Whether a new checkpoint may stand on this one, or a new ref name it."""
        return identity not in doomed.announced(self.store) and self.has(identity)

    def delete_manifests(self, ids: Collection[str]) -> None:
        """Make checkpoints cease to exist; their shards stay."""
        self.store.delete([self.manifest_key(identity) for identity in ids])
        for identity in ids:
            self._summaries.pop(identity, None)

    def manifest_bytes(self, identity: str) -> bytes:
        """Return the bytes of a manifest.

        Raises:
            KeyNotFoundError: no such checkpoint.
        """
        return self.store.get(self.manifest_key(identity))

    def has(self, identity: str) -> bool:
        """Whether that checkpoint exists."""
        return self.store.exists(self.manifest_key(identity))

    def manifest(self, ref: Ref, where: str) -> Manifest:
        """Return the manifest of the checkpoint that `ref` names.

        Args:
            ref: the ref.
            where: its address, for messages.

        Raises:
            BaseNotFoundError: the checkpoint is gone.
            BaseMismatchError: its manifest is not the one the ref was put for.
        """
        address = self.store.url_of(self.manifest_key(ref.checkpoint))
        try:
            data = self.manifest_bytes(ref.checkpoint)
        except KeyNotFoundError as error:
            raise BaseNotFoundError(
                f"{where} names checkpoint {ref.checkpoint}, whose manifest {address} is gone; "
                "load another checkpoint, or restore it from a copy of the store"
            ) from error
        found = digests.document_digest(data)
        if found != ref.digest:
            raise BaseMismatchError(
                f"{address} is not the manifest that {where} was put for: expected digest "
                f"{ref.digest}, found {found}; restore it from another copy"
            )
        return parse(data, address)

    def summary(self, identity: str) -> Summary:
        """Return what a manifest says, in short; each is fetched once.

        Raises:
            KeyNotFoundError: no such checkpoint.
            FormatError: its manifest is damaged.
        """
        known = self._summaries.get(identity)
        if known is None:
            address = self.store.url_of(self.manifest_key(identity))
            known = Summary.of(parse(self.manifest_bytes(identity), address))
            self._summaries[identity] = known
        return known

    def needs(self, identity: str) -> tuple[str, ...]:
        """Return the ids that a checkpoint stands on itself; for `chain.reachable`."""
        return self.summary(identity).needs

    def ids(self) -> Iterator[tuple[str, Entry]]:
        """Yield id and manifest (size in bytes, time) of every committed checkpoint."""
        for entry in self.store.list("checkpoints/", shallow=True):
            name = entry.key.removeprefix("checkpoints/")
            if name.endswith(".json"):
                yield name.removesuffix(".json"), entry
