"""The checksum that S3 checks on receipt and keeps with the object.

CRC-64/NVME where the AWS common runtime is installed: S3's own default, and with carryless
multiplication almost free. CRC-32 of zlib elsewhere.
"""

from __future__ import annotations

import importlib
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Checksum", "best_checksum"]


@dataclass(frozen=True)
class Checksum:
    """One algorithm, as S3 names it.

    Attributes:
        algorithm: Value of S3's ChecksumAlgorithm.
        width_bytes: Size of a value.
        update: Of more bytes and the value so far; starts at 0.
    """

    algorithm: str
    width_bytes: int
    update: Callable[[memoryview, int], int]

    @property
    def parameter(self) -> str:
        """Name of the request parameter that carries a value."""
        return f"Checksum{self.algorithm}"

    def extend(self, value: int, views: Iterable[memoryview]) -> int:
        """The value after `views`, end to end."""
        for view in views:
            value = self.update(view, value)
        return value

    def text(self, value: int) -> str:
        """`value` as S3 writes it: base64 of big-endian bytes."""
        return b64encode(value.to_bytes(self.width_bytes, "big")).decode()


def best_checksum() -> Checksum:
    """CRC64NVME if it can be computed fast here, else CRC32."""
    try:
        crc64nvme = importlib.import_module("awscrt.checksums").crc64nvme
    except (ImportError, AttributeError):  # not installed, or older than the algorithm
        return Checksum("CRC32", 4, zlib.crc32)
    return Checksum("CRC64NVME", 8, crc64nvme)
