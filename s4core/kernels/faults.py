"""What the decoder on the device can find wrong, and the sentence that says so.

The numbers are those of `enum Fault` in decode.cu; a status is fault | plane << 8.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NoReturn

from s4core.errors import ChecksumError, CodecError, FormatError

__all__ = ["Fault", "raise_fault"]


class Fault(IntEnum):
    """What is wrong with a chunk."""

    OK = 0
    LENGTH = 1
    CODEC = 2
    HEADER = 3
    TABLE = 4
    DIRECTORY = 5
    STATES = 6
    PATCHES = 7
    END = 8
    PADDING = 9
    MISMATCH = 10
    CHECKSUM = 11


_FOUND: Final = {
    Fault.LENGTH: "its length is not the one its codec gives it",
    Fault.CODEC: "its codec or the codec's parameter is not one that this decoder knows",
    Fault.HEADER: "its header is not valid",
    Fault.TABLE: "its frequencies are out of range or do not add up",
    Fault.DIRECTORY: "its directory does not fill it",
    Fault.STATES: "a state is out of range",
    Fault.PATCHES: "its patches are out of range or out of order",
    Fault.END: "its words do not lead back to the starting states",
    Fault.PADDING: "its padding is not zero",
}


def raise_fault(status: int, name: str, chunk: int) -> NoReturn:
    """Raise the error for a chunk's status.

    Raises:
        CodecError: the chunk did not decode to the words it came from.
        ChecksumError: a blob was damaged.
        FormatError: a blob breaks FORMAT.md.
    """
    fault, plane = Fault(status & 0xFF), status >> 8
    where = f"{name}: chunk {chunk}"
    if fault is Fault.MISMATCH:
        raise CodecError(
            f"{where} does not decode to the words it came from; nothing was written. Either the "
            "tensor was changed while it was being saved, or this GPU or its memory is faulty"
        )
    if fault is Fault.CHECKSUM:
        raise ChecksumError(
            f"{where}, plane {plane} is damaged: its XXH3-64 is not the one in the index; "
            "restore the object from another copy"
        )
    raise FormatError(
        f"{where}, plane {plane}: the blob breaks FORMAT.md, section 4: {_FOUND[fault]}; "
        "its checksum is right, so its writer is at fault"
    )
