"""From a manifest to its bytes."""

from __future__ import annotations

import base64
import json

from s4core.errors import StateError
from s4core.manifest.model import FORMAT, VERSION, ArrayEntry, Json, Manifest, TensorEntry
from s4core.manifest.rules import validate

__all__ = ["dump"]


def dump(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest.

    Raises:
        FormatError: it breaks FORMAT.md (a bug of the caller).
        StateError: the state is nested too deeply.
    """
    validate(manifest, "the manifest to be written")
    try:
        text = json.dumps(_to_json(manifest), separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise StateError(
            "the state is nested too deeply to be written: expected at most 256 levels; flatten it"
        ) from None
    except (TypeError, ValueError) as error:
        raise StateError(
            f"step and meta hold integers, finite numbers, strings, None and lists or dicts of "
            f"them: {error}"
        ) from None
    return text.encode("ascii")


def _to_json(m: Manifest) -> Json:
    return {
        "format": FORMAT,
        "version": VERSION,
        "requires": list(m.requires),
        "id": m.id,
        "created": m.created,
        "writer": m.writer,
        "profile": m.profile,
        "step": m.step,
        "base": m.base,
        "depth": m.depth,
        "needs": [{"id": need.id, "digest": need.digest} for need in m.needs],
        "shards": [{"key": shard.key, "bytes": shard.bytes} for shard in m.shards],
        "arrays": [_array_to_json(array) for array in m.arrays],
        "tensors": [_tensor_to_json(tensor) for tensor in m.tensors],
        "tree": m.tree,
        "raw_bytes": m.raw_bytes,
        "stored_bytes": m.stored_bytes,
        "meta": dict(m.meta),
    }


def _array_to_json(a: ArrayEntry) -> Json:
    found: dict[str, Json] = {
        "dtype": a.dtype,
        "words": a.words,
        "digest": a.digest,
        "depth": a.depth,
    }
    if a.data is not None:
        found["data"] = base64.b64encode(a.data).decode("ascii")
    optional = {
        "at": a.at and list(a.at),
        "delta": a.delta,
        "base": a.base and list(a.base),
        "base_digest": a.base_digest,
        "same": a.same and list(a.same),
        "context": a.context,
        "derived": a.derived,
        "of": a.of,
        "exceptions": base64.b64encode(a.exceptions).decode("ascii") or None,
    }
    return found | {key: value for key, value in optional.items() if value is not None}


def _tensor_to_json(t: TensorEntry) -> Json:
    found = {
        "path": t.path,
        "dtype": t.dtype,
        "shape": list(t.shape),
        "stride": list(t.stride),
        "array": t.array,
        "offset": t.offset,
        "device": t.device,
    }
    return found | {"also": list(t.also)} if t.also else found
