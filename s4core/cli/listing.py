"""`ls` and `show`: from refs and manifests alone, without torch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from s4core import digests
from s4core import format as shard_format
from s4core.cli.table import human_bytes, print_table, ratio
from s4core.errors import FormatError, KeyNotFoundError, S4Error
from s4core.format import FOOTER_BYTES, HEADER_BYTES, MAGIC
from s4core.manifest import ArrayEntry, Manifest, parse
from s4core.refs import STORE_DIRECTORY, list_refs, read_ref, split_url
from s4core.repository import Repository
from s4core.stores import Store, open_store

__all__ = ["list_run", "show"]


def list_run(args: argparse.Namespace) -> int:
    """Print one line for each checkpoint of a run."""
    directory = open_store(args.url)
    repository = Repository(directory.child(STORE_DIRECTORY))
    rows, broken = [], 0
    for name, ref in list_refs(directory).items():
        try:
            manifest = repository.manifest(ref, directory.url_of(name))
        except S4Error as error:
            rows.append({"name": name, "id": ref.checkpoint, "error": str(error)})
            broken += 1
        else:
            rows.append({"name": name, **_summary(manifest)})
    if args.json:
        print(json.dumps({"url": directory.url, "checkpoints": rows}))
    elif rows:
        _print_run(rows)
    else:
        print(f"{directory.url}: no checkpoints")
    return 1 if broken else 0


def _summary(m: Manifest) -> dict[str, Any]:
    return {
        "id": m.id,
        "step": m.step,
        "created": m.created,
        "kind": "delta" if m.depth else "base",
        "depth": m.depth,
        "raw_bytes": m.raw_bytes,
        "stored_bytes": m.stored_bytes,
        "profile": m.profile,
    }


def _print_run(rows: list[dict[str, Any]]) -> None:
    header = ("name", "step", "kind", "depth", "raw", "stored", "ratio", "created")
    table = [
        (row["name"], "-", f"broken: {row['error']}", "", "", "", "", "")
        if "error" in row
        else (
            row["name"],
            "-" if row["step"] is None else str(row["step"]),
            row["kind"],
            str(row["depth"]),
            human_bytes(row["raw_bytes"]),
            human_bytes(row["stored_bytes"]),
            ratio(row["raw_bytes"], row["stored_bytes"]),
            row["created"],
        )
        for row in rows
    ]
    print_table(header, table)


def show(args: argparse.Namespace) -> int:
    """Print what one checkpoint holds and what it stands on."""
    manifest = _manifest_at(*split_url(args.url))
    if args.json:
        document = {**_summary(manifest), "needs": [asdict(need) for need in manifest.needs]}
        if args.tensors:
            document["tensors"] = [asdict(tensor) for tensor in manifest.tensors]
        print(json.dumps(document))
        return 0
    for key, value in _facts(manifest):
        print(f"{key:<10} {value}")
    print()
    _print_classes(manifest)
    if args.tensors:
        print()
        _print_tensors(manifest)
    return 0


def _manifest_at(store: Store, name: str) -> Manifest:
    where, size = store.url_of(name), store.size(name)
    (head,) = store.get_ranges(name, [(0, min(size, HEADER_BYTES))])
    if head.startswith(b"{"):
        ref = read_ref(store, name)
        return Repository.beside(store, ref).manifest(ref, where)
    if not head.startswith(MAGIC):
        raise FormatError(f"{where} is neither a ref nor an S4 file; `load` also reads torch files")
    tail = (size - FOOTER_BYTES, FOOTER_BYTES) if size > FOOTER_BYTES else (0, 0)
    (end,) = store.get_ranges(name, [tail])
    footer = shard_format.unpack_footer(head, end, size, where)
    if not footer.manifest_length:
        raise KeyNotFoundError(f"{where} is a shard of a run, without a manifest: show the ref")
    (data,) = store.get_ranges(name, [(footer.manifest_offset, footer.manifest_length)])
    digests.check(data, footer.manifest_checksum, f"{where}: manifest")
    return parse(data, f"{where}: manifest")


def _facts(m: Manifest) -> list[tuple[str, str]]:
    base = "none" if m.base is None else m.needs[m.base].id
    return [
        ("id", m.id or "(self-contained file)"),
        ("step", "-" if m.step is None else str(m.step)),
        ("created", m.created or "-"),
        ("writer", f"{m.writer}, profile {m.profile}"),
        ("kind", f"delta of depth {m.depth} on {base}" if m.depth else "base"),
        ("needs", ", ".join(need.id for need in m.needs) or "nothing"),
        ("tensors", f"{sum(len(t.paths) for t in m.tensors)} in {len(m.arrays)} arrays"),
        ("raw", human_bytes(m.raw_bytes)),
        ("stored", f"{human_bytes(m.stored_bytes)} ({ratio(m.raw_bytes, m.stored_bytes)})"),
    ]


def _kind_of(array: ArrayEntry) -> str:
    return "same" if array.same else "inline" if array.data else "whole"


def _print_classes(m: Manifest) -> None:
    counts: dict[tuple[str, str], list[int]] = {}
    for array in m.arrays:
        how = array.delta or array.derived or _kind_of(array)
        line = counts.setdefault((array.dtype, how), [0, 0])
        line[0] += 1
        line[1] += array.bytes
    rows = [
        (dtype, how, str(number), human_bytes(size))
        for (dtype, how), (number, size) in sorted(counts.items())
    ]
    print_table(("dtype", "stored as", "arrays", "raw"), rows)


def _print_tensors(m: Manifest) -> None:
    rows = [
        (path, tensor.dtype, str(list(tensor.shape)), tensor.device)
        for tensor in m.tensors
        for path in tensor.paths
    ]
    print_table(("path", "dtype", "shape", "device"), rows)
