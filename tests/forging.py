"""Files with valid checksums over whatever a test puts in them: what a liar would write."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import s4weights
from s4core import digests
from s4core import format as shard_format
from s4core.dtypes import Layout
from s4core.format import BLOB_DTYPE, FOOTER_BYTES, HEADER, HEADER_BYTES, ArrayRecord, Footer

T0 = {"$": "tensor", "t": 0}


def forge(
    manifest: dict[str, Any] | bytes,
    records: Sequence[ArrayRecord] = (),
    rows: NDArray[np.void] | None = None,
    data: bytes = b"",
) -> bytes:
    """A self-contained file of these parts; nothing is validated."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    text += b" " * (-len(text) % 16)
    blobs = np.zeros(0, BLOB_DTYPE) if rows is None else rows
    index = shard_format._INDEX_HEAD.pack(len(records), len(blobs), int(blobs["length"].sum()))
    for r in records:
        index += shard_format._ARRAY.pack(
            r.words, r.chunk_words, r.layout, r.word_bytes, r.planes, 0
        )
    index += blobs.tobytes()
    at = HEADER_BYTES + len(data)
    footer = Footer(
        at + len(text), len(index), digests.checksum(index), at, len(text), digests.checksum(text)
    )
    return HEADER + data + text + index + shard_format.pack_footer(footer)


def taken_apart(file: bytes) -> tuple[dict[str, Any], Sequence[ArrayRecord], Any, bytes]:
    """The arguments of `forge` that make `file`."""
    ends = file[:HEADER_BYTES], file[-FOOTER_BYTES:]
    footer = shard_format.unpack_footer(*ends, len(file), "file")
    stop = footer.manifest_offset + footer.manifest_length
    index = file[footer.index_offset : footer.index_offset + footer.index_length]
    found = shard_format.unpack_index(index, footer, "file")
    document = json.loads(file[footer.manifest_offset : stop])
    return document, found.arrays, found.blobs.copy(), file[HEADER_BYTES : footer.manifest_offset]


def manifest(**changes: Any) -> dict[str, Any]:
    """The JSON of an empty manifest, but for the changes."""
    return {
        "format": "s4-manifest", "version": 1, "requires": [], "id": "", "created": "",
        "writer": "", "profile": "open", "step": None, "base": None, "depth": 0, "needs": [],
        "shards": [{"key": "", "bytes": 0}], "arrays": [], "tensors": [], "tree": None,
        "raw_bytes": 0, "stored_bytes": 0, "meta": {}, **changes,
    }  # fmt: skip


def inline(data: bytes, dtype: str, words: int) -> dict[str, Any]:
    """An array whose words lie in the manifest."""
    text, digest = base64.b64encode(data).decode(), digests.digest(data).hex()
    return {"dtype": dtype, "words": words, "digest": digest, "depth": 0, "data": text}


def stored(words: int, dtype: str = "uint8", digest: str = "0" * 32) -> dict[str, Any]:
    """An array at entry 0 of the shard."""
    return {"dtype": dtype, "words": words, "digest": digest, "depth": 0, "at": [0, 0]}


def tensor(dtype: str, shape: Any, stride: Any, **changes: Any) -> dict[str, Any]:
    """A tensor over array 0."""
    found = {"path": "w", "dtype": dtype, "shape": shape, "stride": stride, "array": 0}
    return {**found, "offset": 0, "device": "cpu", **changes}


def constant(words: int, chunk_words: int = 1 << 24) -> tuple[list[ArrayRecord], NDArray[np.void]]:
    """An array of bytes, all zero: 16 bytes of index for each chunk."""
    record = ArrayRecord(words, chunk_words, Layout.BYTES, 1, 1)
    rows = np.zeros(record.blobs, BLOB_DTYPE)
    rows["codec"], rows["checksum"] = 2, digests.checksum(b"")
    return [record], rows


def saved(state: Any, **options: Any) -> bytes:
    """The bytes of a self-contained file."""
    file = io.BytesIO()
    s4weights.save(state, file, **options)
    return file.getvalue()


def load(file: bytes, **options: Any) -> Any:
    """Load a self-contained file."""
    return s4weights.load(io.BytesIO(file), **options)
