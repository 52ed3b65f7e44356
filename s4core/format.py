"""The shard: header, blobs, index at the end (FORMAT.md, section 6).

A shard knows arrays, chunks, planes and blobs. What an array means (a tensor, a
delta, against what) is the manifest's matter. `pack` turns a description into
bytes and `unpack` turns bytes back; both run the same `validate`, so nothing is
written that would not be read, and nothing is allocated before it is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s4core import digests
from s4core.dtypes import Layout
from s4core.errors import FormatError, TruncatedError, VersionError

__all__ = [
    "ALIGNMENT",
    "ARRAY_BYTES",
    "BLOB_DTYPE",
    "CODEC_NAMES",
    "FOOTER_BYTES",
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "ArrayRecord",
    "BlobSpan",
    "Footer",
    "ShardIndex",
    "index_bytes",
    "pack_footer",
    "pack_index",
    "pad16",
    "unpack_footer",
    "unpack_index",
]

MAGIC: Final = b"\x89S4WTS\r\n"
END_MAGIC: Final = b"S4WTSEND"
VERSION: Final = 1
ALIGNMENT: Final = 16
HEADER_BYTES: Final = 16
FOOTER_BYTES: Final = 64
HEADER: Final = struct.pack("<8sHHI", MAGIC, VERSION, 0, 0)

MAX_CHUNK_WORDS: Final = 1 << 24
# An index larger than this is refused before it is read; 2^31 bytes describe
# about 16 TB of blobs at the smallest usual chunk.
MAX_INDEX_BYTES: Final = 1 << 31
# More than a manifest of its largest size can name; each costs a reader some 200 bytes.
MAX_ARRAYS: Final = 1 << 22
MAX_MANIFEST_BYTES: Final = 1 << 30

CODEC_NAMES: Final = {
    1: "raw",
    2: "const",
    3: "bitpack",
    4: "rans",
    5: "zstd",
    6: "gdeflate",
    7: "nvcomp.ans",
    8: "rans.ctx",
    9: "rans.grid",
}
_RAW, _CONST = 1, 2
# Codecs whose param counts the padding bytes after a foreign stream.
_PADDED_CODECS: Final = (5, 6, 7)

_INDEX_HEAD: Final = struct.Struct("<IIQ")
_ARRAY: Final = struct.Struct("<QIBBBB")
ARRAY_BYTES: Final = _ARRAY.size
_FOOTER: Final = struct.Struct("<QQQQQQQ8s")
BLOB_DTYPE: Final = np.dtype(
    [("checksum", "<u8"), ("length", "<u4"), ("codec", "u1"), ("param", "u1"), ("zero", "<u2")]
)


def pad16(length: int) -> int:
    """Round `length` up to a multiple of 16."""
    return (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@dataclass(frozen=True)
class ArrayRecord:
    """How one array lies in a shard.

    Attributes:
        words: number of (coded) words.
        chunk_words: words in a chunk; the last chunk may be shorter.
        layout: how a word is cut into planes.
        word_bytes: bytes of a word: 1, 2, 4 or 8.
        planes: planes a word is cut into.
    """

    words: int
    chunk_words: int
    layout: Layout
    word_bytes: int
    planes: int

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.words // self.chunk_words)

    @property
    def blobs(self) -> int:
        """Number of blobs: one for each plane of each chunk."""
        return self.planes * self.chunks

    def words_in_chunk(self, chunk: int) -> int:
        """Number of words of chunk number `chunk`."""
        return min(self.chunk_words, self.words - chunk * self.chunk_words)

    def plane_bytes(self, chunk: int) -> int:
        """Bytes of each plane of chunk number `chunk`, before encoding."""
        scale = self.word_bytes if self.layout is Layout.WORDS else 1
        return self.words_in_chunk(chunk) * scale


@dataclass(frozen=True)
class BlobSpan:
    """Where the blobs of one array lie: rows of the index and bytes of the shard."""

    first: int
    count: int
    offset: int
    length: int


@dataclass(frozen=True)
class ShardIndex:
    """The index of a shard.

    Attributes:
        arrays: one record for each array, in order.
        blobs: BLOB_DTYPE, shape (number of blobs,), in the order they lie in the shard.
    """

    arrays: tuple[ArrayRecord, ...]
    blobs: NDArray[np.void]

    @property
    def data_bytes(self) -> int:
        """Length of all blobs together."""
        return int(self.blobs["length"].sum(dtype=np.uint64))

    def spans(self) -> list[BlobSpan]:
        """Return the place of each array's blobs, in the order of `arrays`."""
        ends = np.zeros(len(self.blobs) + 1, np.uint64)
        np.cumsum(self.blobs["length"], dtype=np.uint64, out=ends[1:])
        spans, first = [], 0
        for record in self.arrays:
            start, stop = int(ends[first]), int(ends[first + record.blobs])
            spans.append(BlobSpan(first, record.blobs, HEADER_BYTES + start, stop - start))
            first += record.blobs
        return spans


@dataclass(frozen=True)
class Footer:
    """Where index and manifest lie in a shard (manifest_length 0: there is none)."""

    index_offset: int
    index_length: int
    index_checksum: int
    manifest_offset: int = 0
    manifest_length: int = 0
    manifest_checksum: int = 0

    @property
    def data_bytes(self) -> int:
        """Bytes between the header and what follows the blobs."""
        end = self.manifest_offset if self.manifest_length else self.index_offset
        return end - HEADER_BYTES


def index_bytes(arrays: int, blobs: int) -> int:
    """Length of an index."""
    return _INDEX_HEAD.size + _ARRAY.size * arrays + BLOB_DTYPE.itemsize * blobs


def pack_index(index: ShardIndex) -> bytes:
    """Return the bytes of an index.

    Raises:
        FormatError: `index` breaks FORMAT.md (a bug of the caller).
    """
    validate_index(index, "the index to be written")
    head = _INDEX_HEAD.pack(len(index.arrays), len(index.blobs), index.data_bytes)
    records = b"".join(
        _ARRAY.pack(a.words, a.chunk_words, a.layout, a.word_bytes, a.planes, 0)
        for a in index.arrays
    )
    return head + records + index.blobs.tobytes()


def unpack_index(data: bytes, footer: Footer, where: str) -> ShardIndex:
    """Check and read the index of a shard.

    Args:
        data: the bytes of the index.
        footer: the shard's footer.
        where: the shard, for messages.

    Raises:
        ChecksumError: the bytes are not those that were written.
        FormatError: the bytes break FORMAT.md.
        VersionError: a layout or codec of a newer writer.
    """
    digests.check(data, footer.index_checksum, f"{where}: index")
    if len(data) < _INDEX_HEAD.size:
        raise TruncatedError(f"{where}: index of {len(data)} bytes: expected at least 16")
    arrays, blobs, data_length = _INDEX_HEAD.unpack_from(data)
    expected = index_bytes(arrays, blobs)
    if arrays > MAX_ARRAYS:
        raise FormatError(f"{where}: index of {arrays} arrays: at most 2^22")
    if len(data) != expected:
        raise FormatError(
            f"{where}: index of {arrays} arrays and {blobs} blobs: expected {expected} bytes, "
            f"found {len(data)}"
        )
    records = tuple(_unpack_arrays(data, arrays, where))
    rows = np.frombuffer(data, BLOB_DTYPE, blobs, _INDEX_HEAD.size + _ARRAY.size * arrays)
    index = ShardIndex(records, rows)
    validate_index(index, where)
    if not index.data_bytes == data_length == footer.data_bytes:
        raise FormatError(
            f"{where}: blobs of {index.data_bytes} bytes together: the index says {data_length}, "
            f"the footer leaves room for {footer.data_bytes}"
        )
    return index


def _unpack_arrays(data: bytes, count: int, where: str) -> Iterator[ArrayRecord]:
    known = {int(layout) for layout in Layout}
    for number in range(count):
        words, chunk, layout, word_bytes, planes, zero = _ARRAY.unpack_from(
            data, _INDEX_HEAD.size + _ARRAY.size * number
        )
        if layout not in known:
            raise VersionError(
                f"{where}: array {number} has layout {layout}: expected one of {sorted(known)}; "
                "upgrade s4weights"
            )
        if zero:
            raise FormatError(f"{where}: array {number}: reserved byte is {zero}: expected 0")
        record = ArrayRecord(words, chunk, Layout(layout), word_bytes, planes)
        _validate_array(record, f"{where}: array {number}")  # before the next one costs memory
        yield record


def validate_index(index: ShardIndex, where: str) -> None:
    """Check everything that FORMAT.md, section 6, asks of an index.

    Raises:
        FormatError: naming the array or blob, what was expected and what was found.
    """
    for number, record in enumerate(index.arrays):
        _validate_array(record, f"{where}: array {number}")
    expected = sum(record.blobs for record in index.arrays)
    if expected != len(index.blobs):
        raise FormatError(f"{where}: {len(index.blobs)} blobs: the arrays need {expected}")
    _validate_blobs(index.blobs, where)
    lengths = _plane_lengths(index.arrays)
    _validate_lengths(index.blobs, lengths, where)


def _validate_array(record: ArrayRecord, where: str) -> None:
    if record.word_bytes not in (1, 2, 4, 8):
        raise FormatError(f"{where}: word of {record.word_bytes} bytes: expected 1, 2, 4 or 8")
    if record.chunk_words % 8 or not 8 <= record.chunk_words <= MAX_CHUNK_WORDS:
        raise FormatError(
            f"{where}: {record.chunk_words} words in a chunk: expected a multiple of 8 up to 2^24"
        )
    planes = {
        Layout.WORDS: (1,),
        Layout.FIELDS: {2: (3, 4), 4: (5,)}.get(record.word_bytes, ()),
    }.get(record.layout, (record.word_bytes,))
    if record.planes not in planes:
        raise FormatError(
            f"{where}: {record.planes} planes in layout {record.layout.name.lower()}: "
            f"expected {' or '.join(map(str, planes)) or 'words of another length'}"
        )
    if record.layout is Layout.FLOAT and record.word_bytes == 1:
        raise FormatError(f"{where}: layout float with words of 1 byte: expected 2, 4 or 8")
    if record.words > (1 << 62) // record.word_bytes:
        raise FormatError(f"{where}: {record.words} words: more than any machine holds")


def _validate_blobs(blobs: NDArray[np.void], where: str) -> None:
    unknown = np.flatnonzero(~np.isin(blobs["codec"], list(CODEC_NAMES)))
    if unknown.size:
        codec = int(blobs["codec"][unknown[0]])
        raise VersionError(
            f"{where}: blob {unknown[0]} has codec {codec}: expected one of "
            f"{sorted(CODEC_NAMES)}; upgrade s4weights"
        )
    _refuse(blobs["length"] % ALIGNMENT != 0, "length is not a multiple of 16", where)
    _refuse(blobs["zero"] != 0, "reserved field is not 0", where)
    plain = ~np.isin(blobs["codec"], (_CONST, *_PADDED_CODECS))
    _refuse(plain & (blobs["param"] != 0), "param is not 0", where)
    padded = np.isin(blobs["codec"], _PADDED_CODECS)
    _refuse(padded & (blobs["param"] >= ALIGNMENT), "padding of 16 bytes or more", where)
    _refuse(padded & (blobs["length"] == 0), "stream is empty", where)


def _plane_lengths(arrays: Sequence[ArrayRecord]) -> NDArray[np.int64]:
    """Return n, the bytes of the plane before encoding, of every blob in order."""
    runs: list[NDArray[np.int64]] = []
    for record in arrays:
        if record.chunks:
            full = np.full(record.blobs - record.planes, record.plane_bytes(0), np.int64)
            last = np.full(record.planes, record.plane_bytes(record.chunks - 1), np.int64)
            runs += [full, last]
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _validate_lengths(blobs: NDArray[np.void], plane: NDArray[np.int64], where: str) -> None:
    padded = (plane + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    length = blobs["length"].astype(np.int64)
    _refuse((blobs["codec"] == _RAW) & (length != padded), "raw blob of another length", where)
    _refuse((blobs["codec"] == _CONST) & (length != 0), "const blob that is not empty", where)
    _refuse(length > padded, "blob longer than its plane", where)


def _refuse(bad: NDArray[np.bool_], what: str, where: str) -> None:
    found = np.flatnonzero(bad)
    if found.size:
        raise FormatError(f"{where}: blob {found[0]}: {what}")


def pack_footer(footer: Footer) -> bytes:
    """Return the 64 bytes that end a shard."""
    fields = (
        footer.index_offset,
        footer.index_length,
        footer.index_checksum,
        footer.manifest_offset,
        footer.manifest_length,
        footer.manifest_checksum,
    )
    body = struct.pack("<QQQQQQ", *fields)
    return _FOOTER.pack(*fields, digests.checksum(HEADER + body), END_MAGIC)


def unpack_footer(header: bytes, footer: bytes, size: int, where: str) -> Footer:
    """Read and check the two ends of a shard.

    Args:
        header: its first 16 bytes.
        footer: its last 64 bytes.
        size: its length in bytes.
        where: its name, for messages.

    Raises:
        TruncatedError: too short, or the end is missing.
        VersionError: a newer version.
        FormatError: the two ends break FORMAT.md, or the sections do not tile the object.
    """
    _check_header(header, where)
    if size < HEADER_BYTES + FOOTER_BYTES or len(footer) != FOOTER_BYTES:
        raise TruncatedError(f"{where}: {size} bytes: a shard has at least 80; fetch it again")
    if footer[-8:] != END_MAGIC:
        raise TruncatedError(
            f"{where}: the last 8 of {size} bytes are {footer[-8:].hex()}: expected "
            f"{END_MAGIC.hex()} (the end of a shard); fetch it again"
        )
    *fields, checksum, _ = _FOOTER.unpack(footer)
    digests.check(header + footer[:48], checksum, f"{where}: footer")
    found = Footer(*fields)
    _check_tiling(found, size, where)
    return found


def _check_header(header: bytes, where: str) -> None:
    if len(header) < HEADER_BYTES:
        raise TruncatedError(f"{where}: {len(header)} bytes of header: expected 16")
    magic, version, minor, flags = struct.unpack("<8sHHI", header)
    if magic != MAGIC:
        raise FormatError(
            f"{where} is not an S4 file: it starts with {magic.hex()}, expected {MAGIC.hex()}"
        )
    if (version, minor, flags) != (VERSION, 0, 0):
        raise VersionError(
            f"{where} has format version {version}.{minor} (flags {flags:#x}): this release reads "
            f"version {VERSION}; upgrade s4weights"
        )


def _check_tiling(footer: Footer, size: int, where: str) -> None:
    if footer.index_length > MAX_INDEX_BYTES:
        raise FormatError(f"{where}: index of {footer.index_length} bytes: at most 2^31")
    if footer.manifest_length > MAX_MANIFEST_BYTES:
        raise FormatError(f"{where}: manifest of {footer.manifest_length} bytes: at most 2^30")
    has_manifest = footer.manifest_length > 0
    if not has_manifest and (footer.manifest_offset or footer.manifest_checksum):
        raise FormatError(f"{where}: manifest of no bytes with an offset or checksum: expected 0")
    blobs_end = footer.manifest_offset if has_manifest else footer.index_offset
    tiles = (
        blobs_end >= HEADER_BYTES
        and blobs_end % ALIGNMENT == 0
        and (not has_manifest or blobs_end + footer.manifest_length == footer.index_offset)
        and footer.index_offset + footer.index_length + FOOTER_BYTES == size
        and footer.index_offset % ALIGNMENT == 0
    )
    if not tiles:
        raise FormatError(
            f"{where}: blobs, manifest ({footer.manifest_length} bytes at "
            f"{footer.manifest_offset}), index ({footer.index_length} at {footer.index_offset}) "
            f"and footer do not fill the {size} bytes exactly; fetch the object again"
        )
