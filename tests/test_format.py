"""The shard's index and ends: what is packed unpacks, and every MUST of FORMAT.md is kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s4core import digests
from s4core import format as f
from s4core.dtypes import Layout
from s4core.errors import ChecksumError, FormatError, S4Error, TruncatedError, VersionError

RAW, CONST, BITPACK, RANS, ZSTD = 1, 2, 3, 4, 5


def rows(*blobs: tuple[int, int, int]) -> np.ndarray:
    """Rows of an index from (codec, length, param)."""
    found = np.zeros(len(blobs), f.BLOB_DTYPE)
    for row, (codec, length, param) in zip(found, blobs, strict=True):
        row["codec"], row["length"], row["param"] = codec, length, param
    return found


def bf16(words: int = 100, chunk: int = 64) -> f.ArrayRecord:
    return f.ArrayRecord(words, chunk, Layout.FLOAT, 2, 2)


def small_index() -> f.ShardIndex:
    return f.ShardIndex((bf16(),), rows((RANS, 48, 0), (RAW, 64, 0), (CONST, 0, 7), (RAW, 48, 0)))


def footer_for(data: bytes, index: f.ShardIndex, manifest: int = 0) -> f.Footer:
    offset = f.HEADER_BYTES + index.data_bytes
    return f.Footer(
        offset + manifest, len(data), digests.checksum(data), offset if manifest else 0, manifest
    )


def unpack(data: bytes, index: f.ShardIndex) -> f.ShardIndex:
    return f.unpack_index(data, footer_for(data, index), "x.s4")


def test_an_index_comes_back_as_it_was() -> None:
    index = small_index()
    found = unpack(f.pack_index(index), index)
    assert found.arrays == index.arrays
    assert found.blobs.tobytes() == index.blobs.tobytes()


def test_spans_are_sums_of_lengths_behind_the_header() -> None:
    two = f.ShardIndex(
        (bf16(), f.ArrayRecord(0, 64, Layout.BYTES, 8, 8), bf16(64)),
        rows((RAW, 64, 0), (RAW, 64, 0), (RAW, 48, 0), (RAW, 48, 0), (RAW, 64, 0), (CONST, 0, 1)),
    )
    spans = two.spans()
    assert [(s.first, s.count, s.offset, s.length) for s in spans] == [
        (0, 4, 16, 224),
        (4, 0, 240, 0),
        (4, 2, 240, 64),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(1, 2**21), st.sampled_from(list(Layout))),
        max_size=4,
    )
)
@settings(max_examples=50, deadline=None)
def test_any_valid_description_round_trips(
    described: list[tuple[int, int, Layout]],
) -> None:
    records = tuple(
        f.ArrayRecord(min(words, 100 * chunk * 8), chunk * 8, layout, 4, _planes(layout))
        for words, chunk, layout in described
    )
    blobs = rows(*[(CONST, 0, i % 256) for i in range(sum(r.blobs for r in records))])
    index = f.ShardIndex(records, blobs)
    assert unpack(f.pack_index(index), index).arrays == records


def _planes(layout: Layout) -> int:
    return {Layout.WORDS: 1, Layout.FIELDS: 5}.get(layout, 4)


BAD_RECORDS = {
    "word of 3 bytes": {"word_bytes": 3},
    "12 words in a chunk": {"chunk_words": 12},
    "0 words in a chunk": {"chunk_words": 0},
    "16777224 words in a chunk": {"chunk_words": (1 << 24) + 8},
    "3 planes in layout float: expected 2": {"planes": 3},
    "layout float with words of 1 byte": {"word_bytes": 1, "planes": 1},
    "more than any machine holds": {"words": 1 << 62},
    "4 blobs: the arrays need 2": {"words": 64},
}


@pytest.mark.parametrize("message", BAD_RECORDS)
def test_a_bad_array_record_is_refused_on_write_and_on_read(message: str) -> None:
    index = small_index()
    bad = dataclasses.replace(index.arrays[0], **BAD_RECORDS[message])
    with pytest.raises(FormatError, match=message):
        f.pack_index(f.ShardIndex((bad,), index.blobs))


BAD_BLOBS = {
    "length is not a multiple of 16": (RANS, 47, 0),
    "param is not 0": (RAW, 64, 1),
    "padding of 16 bytes or more": (ZSTD, 32, 16),
    "stream is empty": (ZSTD, 0, 0),
    "raw blob of another length": (RAW, 48, 0),
    "const blob that is not empty": (CONST, 16, 0),
    "blob longer than its plane": (RANS, 80, 0),
}


@pytest.mark.parametrize("message", BAD_BLOBS)
def test_a_bad_blob_row_is_refused(message: str) -> None:
    index = small_index()
    blobs = index.blobs.copy()
    blobs[0] = rows(BAD_BLOBS[message])[0]
    with pytest.raises(FormatError, match=f"blob 0: {message}"):
        f.pack_index(f.ShardIndex(index.arrays, blobs))


def test_reserved_fields_must_be_zero() -> None:
    index = small_index()
    data = bytearray(f.pack_index(index))
    data[16 + 15] = 1
    with pytest.raises(FormatError, match="array 0: reserved byte is 1"):
        unpack(bytes(data), index)
    data = bytearray(f.pack_index(index))
    data[-1] = 1
    with pytest.raises(FormatError, match="blob 3: reserved field is not 0"):
        unpack(bytes(data), index)


def test_an_unknown_codec_or_layout_asks_for_an_upgrade() -> None:
    index = small_index()
    data = bytearray(f.pack_index(index))
    data[16 + 12] = 9
    with pytest.raises(VersionError, match="array 0 has layout 9: expected one of .*upgrade"):
        unpack(bytes(data), index)
    data = bytearray(f.pack_index(index))
    data[32 + 12] = 99
    with pytest.raises(VersionError, match="blob 0 has codec 99: expected one of .*upgrade"):
        unpack(bytes(data), index)


def test_every_flipped_bit_of_an_index_is_an_error() -> None:
    index = small_index()
    good = f.pack_index(index)
    footer = footer_for(good, index)
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError, match=r"x\.s4: index is damaged"):
            f.unpack_index(bytes(data), footer, "x.s4")


def test_flipped_bits_that_a_checksum_would_not_see_never_crash_the_reader() -> None:
    index = small_index()
    good = f.pack_index(index)
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        try:
            found = unpack(bytes(data), index)
        except S4Error:
            continue
        assert found.data_bytes == index.data_bytes


def ends() -> tuple[bytes, bytes, int]:
    index = small_index()
    data = f.pack_index(index)
    footer = footer_for(data, index)
    size = footer.index_offset + footer.index_length + f.FOOTER_BYTES
    return f.HEADER, f.pack_footer(footer), size


def test_the_two_ends_come_back_as_they_were() -> None:
    header, footer, size = ends()
    found = f.unpack_footer(header, footer, size, "x.s4")
    assert f.pack_footer(found) == footer
    assert found.data_bytes == small_index().data_bytes


def test_every_flipped_bit_of_the_two_ends_is_an_error() -> None:
    header, footer, size = ends()
    for bit in range(8 * len(header)):
        bad = bytearray(header)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            f.unpack_footer(bytes(bad), footer, size, "x.s4")
    for bit in range(8 * len(footer)):
        bad = bytearray(footer)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            f.unpack_footer(header, bytes(bad), size, "x.s4")


def test_a_foreign_file_and_a_newer_version_are_told_apart() -> None:
    header, footer, size = ends()
    with pytest.raises(FormatError, match=r"x is not an S4 file: it starts with 504b0304"):
        f.unpack_footer(b"PK\x03\x04" + header[4:], footer, size, "x")
    newer = header[:8] + b"\x02" + header[9:]
    with pytest.raises(VersionError, match=r"x has format version 2\.0 .*upgrade s4weights"):
        f.unpack_footer(newer, footer, size, "x")


def test_a_missing_end_says_how_much_is_there() -> None:
    header, _footer, _size = ends()
    with pytest.raises(TruncatedError, match="x: 40 bytes: a shard has at least 80"):
        f.unpack_footer(header, b"", 40, "x")
    with pytest.raises(TruncatedError, match="the last 8 of 200 bytes are 0+: expected"):
        f.unpack_footer(header, bytes(64), 200, "x")


@pytest.mark.parametrize("change", [-16, -1, 1, 16])
def test_sections_must_tile_the_object_exactly(change: int) -> None:
    header, footer, size = ends()
    with pytest.raises(FormatError, match="do not fill the .* bytes exactly"):
        f.unpack_footer(header, footer, size + change, "x")


def test_a_manifest_section_must_be_there_wholly_or_not_at_all() -> None:
    index = small_index()
    data = f.pack_index(index)
    plain = footer_for(data, index)
    stray = f.pack_footer(dataclasses.replace(plain, manifest_offset=16))
    size = plain.index_offset + plain.index_length + f.FOOTER_BYTES
    with pytest.raises(FormatError, match="manifest of no bytes with an offset"):
        f.unpack_footer(f.HEADER, stray, size, "x")


def test_a_shard_whose_blobs_leave_a_gap_is_refused() -> None:
    index = small_index()
    data = f.pack_index(index)
    footer = dataclasses.replace(footer_for(data, index), index_offset=16 + index.data_bytes + 16)
    with pytest.raises(FormatError, match="the footer leaves room for"):
        f.unpack_index(data, footer, "x")
