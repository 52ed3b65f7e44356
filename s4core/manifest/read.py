"""From bytes to a manifest, believing nothing."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from s4core.dtypes import Layout
from s4core.errors import FormatError, VersionError
from s4core.format import CODEC_NAMES, MAX_MANIFEST_BYTES
from s4core.manifest.fields import Fields, loads_strict
from s4core.manifest.model import (
    DELTAS,
    DERIVATIONS,
    FORMAT,
    VERSION,
    ArrayEntry,
    Json,
    Manifest,
    Need,
    ShardEntry,
    TensorEntry,
)
from s4core.manifest.rules import validate

__all__ = ["parse"]

_KNOWN: Final = frozenset(
    {f"codec:{name}" for name in CODEC_NAMES.values()}
    | {f"layout:{layout.name.lower()}" for layout in Layout}
    | {f"delta:{kind}" for kind in DELTAS}
    | {f"derived:{how}" for how in DERIVATIONS}
    | {"context:exponent"}
)


def parse(data: bytes, where: str) -> Manifest:
    """Read and check the bytes of a manifest.

    Args:
        data: the whole document.
        where: its name, for messages.

    Raises:
        VersionError: a newer version, or something this release does not know.
        FormatError: the document breaks FORMAT.md.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise FormatError(f"{where}: manifest of {len(data)} bytes: at most 2^30")
    reader = Fields(loads_strict(data, where), where)
    _check_version(reader, where)
    manifest = _from_json(reader, where)
    validate(manifest, where)
    return manifest


def _check_version(reader: Fields, where: str) -> None:
    if reader.text("format") != FORMAT:
        raise FormatError(f"{where} is not a manifest: its format is {reader.text('format')!r}")
    version = reader.number("version")
    if version != VERSION:
        raise VersionError(
            f"{where} has manifest version {version}: this release reads version {VERSION}; "
            "upgrade s4weights"
        )


def _from_json(r: Fields, where: str) -> Manifest:
    requires = r.texts("requires")
    _check_requires(requires, where)
    meta = r.raw("meta")
    if not isinstance(meta, dict):
        raise r.fail("meta", "an object")
    return Manifest(
        requires=requires,
        id=r.text("id"),
        created=r.text("created"),
        writer=r.text("writer"),
        profile=r.text("profile"),
        step=r.optional("step", lambda key: r.number(key, -(1 << 63))),
        base=r.optional("base", r.number),
        depth=r.number("depth"),
        needs=tuple(_need(item, f"{where}: needs[{i}]") for i, item in enumerate(r.items("needs"))),
        shards=tuple(
            _shard(item, f"{where}: shards[{i}]") for i, item in enumerate(r.items("shards"))
        ),
        arrays=tuple(
            _array(item, f"{where}: arrays[{i}]") for i, item in enumerate(r.items("arrays"))
        ),
        tensors=tuple(
            _tensor(item, f"{where}: tensors[{i}]") for i, item in enumerate(r.items("tensors"))
        ),
        tree=r.raw("tree"),
        raw_bytes=r.number("raw_bytes"),
        stored_bytes=r.number("stored_bytes"),
        meta=meta,
    )


def _check_requires(requires: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(requires) - _KNOWN)
    if unknown:
        raise VersionError(
            f"{where} needs {', '.join(unknown)}, which this release does not know; "
            "upgrade s4weights"
        )


def _need(value: Json, where: str) -> Need:
    r = Fields(value, where)
    return Need(r.text("id"), r.text("digest"))


def _shard(value: Json, where: str) -> ShardEntry:
    r = Fields(value, where)
    return ShardEntry(r.text("key"), r.number("bytes"))


def _array(value: Json, where: str) -> ArrayEntry:
    r = Fields(value, where)
    return ArrayEntry(
        dtype=r.text("dtype"),
        words=r.number("words"),
        digest=r.text("digest"),
        depth=r.number("depth"),
        at=r.optional("at", r.pair),
        delta=r.optional("delta", r.text),
        base=r.optional("base", r.pair),
        base_digest=r.optional("base_digest", r.text),
        same=r.optional("same", r.pair),
        data=r.optional("data", lambda key: _base64(r, key)),
        context=r.optional("context", r.number),
        derived=r.optional("derived", r.text),
        of=r.optional("of", r.number),
        exceptions=r.optional("exceptions", lambda key: _base64(r, key)) or b"",
    )


def _base64(reader: Fields, key: str) -> bytes:
    try:
        return base64.b64decode(reader.text(key), validate=True)
    except (binascii.Error, ValueError):
        raise reader.fail(key, "base64") from None


def _tensor(value: Json, where: str) -> TensorEntry:
    r = Fields(value, where)
    return TensorEntry(
        path=r.text("path"),
        dtype=r.text("dtype"),
        shape=r.numbers("shape"),
        stride=r.numbers("stride"),
        array=r.optional("array", r.number),
        offset=r.number("offset"),
        device=r.text("device"),
        also=r.optional("also", r.texts) or (),
    )
