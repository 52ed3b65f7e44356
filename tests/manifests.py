"""Small manifests for tests of the manifest and of chains."""

from __future__ import annotations

from typing import Any

from s4core import digests
from s4core.manifest import ArrayEntry, Manifest, Need, ShardEntry, TensorEntry, dump

D = "0123456789abcdef" * 2


def array(**changes: Any) -> ArrayEntry:
    """A whole float32 array of 100 words."""
    return ArrayEntry(**{"dtype": "float32", "words": 100, "digest": D, "at": (0, 0), **changes})


def manifest(
    arrays: tuple[ArrayEntry, ...] = (array(),), needs: tuple[Need, ...] = (), **changes: Any
) -> Manifest:
    """A manifest with one tensor over the first array."""
    fields: dict[str, Any] = {
        "requires": ("codec:rans",),
        "id": "one",
        "created": "2026-12-01T15:31:00Z",
        "writer": "s4weights 0.1.0",
        "profile": "open",
        "step": 3,
        "base": None,
        "depth": max((a.depth for a in arrays), default=0),
        "needs": needs,
        "shards": (ShardEntry("one/0-0.s4", 1000),),
        "arrays": arrays,
        "tensors": (TensorEntry("w", "float32", (10, 10), (10, 1), 0, 0, "cpu"),),
        "tree": {"w": {"$": "tensor", "t": 0}},
        "raw_bytes": 400,
        "stored_bytes": 300,
        "meta": {},
    }
    return Manifest(**{**fields, **changes})


def need(m: Manifest) -> Need:
    """What a later manifest records of `m`."""
    return Need(m.id, digests.document_digest(dump(m)))
