"""Checksums and digests are the ones FORMAT.md names, whatever the length."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from s4core import digests
from s4core.errors import ChecksumError


@pytest.mark.parametrize("size", [0, 1, 16, 240, 241, 65535, 65536, 65537, 200_000])
def test_digest_is_xxh3_128_over_the_xxh3_64_of_64_kib_pieces(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    hashes = b"".join(
        xxhash.xxh3_64_intdigest(data[i : i + 65536].tobytes()).to_bytes(8, "little")
        for i in range(0, size, 65536)
    )
    assert digests.digest(data) == xxhash.xxh3_128(hashes).digest()


def test_known_answers_never_change() -> None:
    assert digests.checksum(b"") == 0x2D06800538D394C2
    assert digests.digest(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert digests.digest(bytes(range(256)) * 300).hex() == _KNOWN


# Written down from the first release; a change would orphan every checkpoint.
_KNOWN = "065024c1d8555a167c9091d9755cc243"


def test_every_flipped_bit_changes_the_digest() -> None:
    data = bytearray(np.random.default_rng(0).integers(0, 256, 300, dtype=np.uint8).tobytes())
    whole = digests.digest(data)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert digests.digest(data) != whole
        data[bit // 8] ^= 1 << bit % 8


def test_a_damaged_blob_is_named_with_both_checksums() -> None:
    with pytest.raises(ChecksumError, match=r"x\.s4: blob 3 is damaged: expected XXH3-64 0+1,"):
        digests.check(b"abc", 1, "x.s4: blob 3")


def test_read_only_and_typed_views_are_digested_as_bytes() -> None:
    words = np.arange(1000, dtype=np.float32)
    words.flags.writeable = False
    assert digests.digest(memoryview(words)) == digests.digest(words.tobytes())
