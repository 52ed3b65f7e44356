"""Self-contained files: a shard with its manifest inside, and whatever else `load` reads."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import IO, Any, Final

from s4core import digests
from s4core.chain import Chain
from s4core.checkpoint import foreign
from s4core.checkpoint.reader import MapLocation, Reader, open_checkpoint
from s4core.checkpoint.shards import Shard
from s4core.checkpoint.snapshot import Snapshot, snapshot_of, take_snapshot
from s4core.checkpoint.writer import Writer
from s4core.errors import ChainError, FormatError, StateError, StoreError
from s4core.format import MAGIC
from s4core.manifest import Manifest, ShardEntry, dump, parse
from s4core.refs import read_ref, split_url
from s4core.repository import Repository
from s4core.stores import MemoryStore, Store

__all__ = ["Target", "export_state", "load", "open_reader", "save"]

# A path or URL, or a binary file object.
Target = str | os.PathLike[str] | IO[bytes]

_HEAD_BYTES: Final = 16


def save(
    obj: Any,
    target: Target,
    *,
    profile: str = "open",
    verify: bool = True,
    allow_pickle: bool = False,
    allow_classes: bool = False,
) -> None:
    """Write any nested state to one self-contained file.

    The same state gives the same bytes. An existing file is replaced atomically.

    Args:
        obj: nested dicts, lists, tensors, numbers, strings, ... (FORMAT.md, section 8).
        target: local path, URL, or a binary file object that is only written to.
        profile: `open` (restores anywhere) or `nvcomp`.
        verify: decode every chunk again and compare before it counts.
        allow_pickle: store leaves of unknown classes pickled; they then load only with
            `weights_only=False`.
        allow_classes: store enums and dataclasses by their class's name.

    Raises:
        StateError: `obj` holds something that cannot be stored; the message names its path.
        StoreError: the store refused.
        CodecError: a chunk did not decode to the words it came from.
    """
    snapshot = take_snapshot(obj, allow_pickle=allow_pickle, allow_classes=allow_classes)
    _write(snapshot, target, profile=profile, verify=verify)


def _write(snapshot: Snapshot, target: Target, *, profile: str, verify: bool) -> None:
    writer = Writer(snapshot, profile=profile, verify=verify)
    stream = writer.shard(lambda: dump(writer.manifest(shards=(ShardEntry("", 0),))))
    if isinstance(target, str | os.PathLike):
        store, name = split_url(target)
        store.put(name, stream, replace=True, size_hint=snapshot.raw_bytes)
        return
    for part in stream:
        _write_all(target, memoryview(part))


def _write_all(target: IO[bytes], view: memoryview) -> None:
    """Write all of a buffer; raw files and pipes may take a part of it at a time."""
    while view.nbytes:
        try:
            taken = target.write(view)
        except (AttributeError, TypeError) as error:
            raise StateError(
                f"expected a path, a URL or a binary file object to write to, found a "
                f"{type(target).__name__}: {error}"
            ) from error
        if taken is None:  # many wrappers say nothing; what does not block takes all
            return
        if not 0 < taken <= view.nbytes:
            raise StoreError(f"a {type(target).__name__} took {taken} of {view.nbytes} bytes")
        view = view[taken:]


def _read_all(source: IO[bytes]) -> bytes:
    """Read a file object to its end; a raw one may give a part at a time."""
    parts: list[bytes | bytearray | memoryview] = []
    while True:
        try:
            part = source.read()
        except AttributeError:
            part = None
        if not isinstance(part, bytes | bytearray | memoryview):
            raise StateError(
                f"expected a path, a URL or a binary file object that gives bytes, found a "
                f"{type(source).__name__} that gives {type(part).__name__}"
            )
        if not part:
            return b"".join(parts)
        parts.append(part)


def load(
    source: Target,
    map_location: MapLocation = None,
    weights_only: bool = True,
    keys: Sequence[str] | None = None,
) -> Any:
    """Read what `save`, a run, `torch.save` or safetensors wrote.

    Args:
        source: local path, URL or binary file object: a self-contained `.s4` file, a ref
            of a run (`run/epoch=3-step=40.ckpt`), a plain `.pt` or `.safetensors`.
        map_location: as for `torch.load`.
        weights_only: refuse whatever would run code of the file's choosing.
        keys: shell-like patterns of tensor paths (`model/*`): fetch and return only those,
            as a flat dict by path.

    Returns:
        The state, equal to what was saved, bit for bit.

    Raises:
        KeyNotFoundError: nothing is there (also FileNotFoundError).
        FormatError: it is damaged, or no checkpoint.
        ChainError: something it stands on is gone.
        StateError: it needs `weights_only=False`, or `keys` on a foreign file.
    """
    if isinstance(source, str | os.PathLike):
        return _load(*split_url(source), map_location, weights_only, keys)
    # Held under a name of its own for as long as it is read.
    store = MemoryStore(f"file-object-{secrets.token_hex(8)}")
    store.put("file", _read_all(source))
    try:
        return _load(store, "file", map_location, weights_only, keys)
    finally:
        store.delete(["file"])


def _load(
    store: Store,
    name: str,
    map_location: MapLocation,
    weights_only: bool,
    keys: Sequence[str] | None,
) -> Any:
    head = _head(store, name)
    kind = foreign.kind_of(head, store.size(name))
    if not head.startswith((MAGIC, b"{")) and kind is not None:
        if keys is not None:
            raise StateError(f"{store.url_of(name)} is a {kind} file: keys= works on S4 files only")
        data, where = store.get(name), store.url_of(name)
        return foreign.load_foreign(kind, data, where, map_location, weights_only=weights_only)
    reader = _reader(store, name, head)
    if keys is not None:
        return reader.select(keys, map_location)
    return reader.state(map_location, weights_only=weights_only)


def open_reader(source: str | os.PathLike[str]) -> Reader:
    """Open a self-contained file or a ref without loading its tensors.

    Raises:
        KeyNotFoundError, FormatError, ChainError: as `load`.
    """
    store, name = split_url(source)
    return _reader(store, name, _head(store, name))


def export_state(reader: Reader, target: str | os.PathLike[str], *, weights_only: bool) -> None:
    """Write a checkpoint as `.s4`, `.pt` or `.safetensors`, by the ending of `target`.

    Raises:
        StateError: another ending, or a state that the format cannot hold.
    """
    ending = os.path.splitext(os.fspath(target))[1]
    if ending == ".s4":
        _write(snapshot_of(reader), target, profile="open", verify=True)
        return
    if ending == ".safetensors":
        data = foreign.dump_safetensors(reader.select(["*"], "cpu"))
    elif ending in (".pt", ".pth", ".bin", ".ckpt"):
        data = foreign.dump_torch(reader.state("cpu", weights_only=weights_only))
    else:
        raise StateError(f"{target}: expected a name that ends in .s4, .pt or .safetensors")
    store, name = split_url(target)
    store.put(name, data, replace=True)


def _head(store: Store, name: str) -> bytes:
    size = store.size(name)
    (head,) = store.get_ranges(name, [(0, min(size, _HEAD_BYTES))])
    return head


def _reader(store: Store, name: str, head: bytes) -> Reader:
    where = store.url_of(name)
    if head.startswith(MAGIC):
        return _read_single(store, name)
    if head.startswith(b"{"):
        ref = read_ref(store, name)
        repository = Repository.beside(store, ref)
        return open_checkpoint(repository, repository.manifest(ref, where), where)
    raise FormatError(
        f"{where} is no checkpoint that S4 knows: it starts with {head[:8].hex() or 'nothing'}; "
        "expected an S4 file or ref, a torch file or a safetensors file"
    )


def _read_single(store: Store, name: str) -> Reader:
    shard = Shard(store, name)
    footer = shard.footer
    if not footer.manifest_length:
        raise FormatError(
            f"{shard.where} is a shard of a run, without a manifest: load the run's ref instead"
        )
    (data,) = store.get_ranges(name, [(footer.manifest_offset, footer.manifest_length)])
    digests.check(data, footer.manifest_checksum, f"{shard.where}: manifest")
    manifest = parse(data, f"{shard.where}: manifest")
    _check_own(manifest, shard.where)
    return Reader(manifest, Chain(manifest, _no_other), lambda _, __: shard, shard.where)


def _check_own(manifest: Manifest, where: str) -> None:
    if manifest.needs or any(entry.key for entry in manifest.shards):
        raise FormatError(f"{where}: a self-contained file that names other objects")


def _no_other(identity: str) -> bytes:
    raise ChainError(f"a self-contained file has no checkpoint {identity} beside it")
