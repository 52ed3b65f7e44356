"""The store of a run: manifests and shards below `.s4` (FORMAT.md, section 11).

Data first, manifest last, nothing rewritten: a checkpoint exists when its
manifest does.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from s4core import digests
from s4core.errors import (
    BaseMismatchError,
    BaseNotFoundError,
    FormatError,
    KeyExistsError,
    KeyNotFoundError,
    VersionError,
)
from s4core.manifest import Fields, Manifest, dump, loads_strict, parse
from s4core.refs import Ref
from s4core.stores import Store, open_store

__all__ = ["Repository", "new_id"]

_MARKER: Final = "store.json"
_VERSION: Final = 1


def new_id(now: float | None = None) -> str:
    """Return a fresh checkpoint id: UTC time, so that ids sort, and 48 random bits."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    return f"{stamp}-{secrets.token_hex(6)}"


@dataclass
class Repository:
    """The manifests and shards of one store.

    Attributes:
        store: what is below `.s4`.
    """

    store: Store
    _marked: bool = field(default=False, init=False)

    @classmethod
    def beside(cls, directory: Store, ref: Ref) -> Repository:
        """Return the repository that `ref`, which lies in `directory`, points to."""
        if "://" in ref.store or ref.store.startswith("/"):
            return cls(open_store(ref.store))
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
        self.store.put(self.shard_key(key), data, size_hint=size_hint)

    @staticmethod
    def shard_key(key: str) -> str:
        """Return the key in the store of the shard that a manifest calls `key`."""
        return f"shards/{key}"

    def commit(self, manifest: Manifest) -> str:
        """Put the manifest, which makes the checkpoint exist; return its digest.

        Raises:
            KeyExistsError: a checkpoint of that id exists.
        """
        data = dump(manifest)
        self.store.put(_manifest_key(manifest.id), data)
        return digests.document_digest(data)

    def manifest_bytes(self, identity: str) -> bytes:
        """Return the bytes of a manifest.

        Raises:
            KeyNotFoundError: no such checkpoint.
        """
        return self.store.get(_manifest_key(identity))

    def has(self, identity: str) -> bool:
        """Whether that checkpoint exists."""
        return self.store.exists(_manifest_key(identity))

    def manifest(self, ref: Ref, where: str) -> Manifest:
        """Return the manifest of the checkpoint that `ref` names.

        Args:
            ref: the ref.
            where: its address, for messages.

        Raises:
            BaseNotFoundError: the checkpoint is gone.
            BaseMismatchError: its manifest is not the one the ref was put for.
        """
        address = self.store.url_of(_manifest_key(ref.checkpoint))
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

    def ids(self) -> Iterator[tuple[str, float]]:
        """Yield id and time (seconds since the epoch) of every committed checkpoint."""
        for entry in self.store.list("checkpoints/"):
            name = entry.key.removeprefix("checkpoints/")
            if name.endswith(".json"):
                yield name.removesuffix(".json"), entry.modified


def _manifest_key(identity: str) -> str:
    return f"checkpoints/{identity}.json"
