"""What can be wrong with a blob, and the error that says so.

The native decoder reports a fault as numbers, the numpy reference finds the same
faults in the same order; both turn them into a message here, so that a user
reads the same sentence whichever of them ran.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NoReturn

from s4core.codecs.ids import CodecId
from s4core.errors import FormatError, TruncatedError

__all__ = ["Fault", "raise_fault"]


class Fault(IntEnum):
    """Numbered as in `fault.h` and `context.h`; 0 is no fault."""

    LENGTH = 1
    TRUNCATED = 2
    VERSION = 3
    PROBABILITY_BITS = 4
    SUB_BLOCKS = 5
    RESERVED = 6
    SYMBOLS = 7
    SUB_BLOCK_SIZE = 8
    TABLE_SIZE = 9
    FREQUENCY = 10
    FREQUENCY_SUM = 11
    PADDING = 12
    PATCH_COUNT = 13
    STATE = 14
    PATCH_POSITION = 15
    END = 16
    MASK = 17
    BASE = 18
    PARAM = 19
    CONTEXTS = 20
    THRESHOLD = 21
    TABLES = 22
    TABLE_RANGE = 23
    COLUMNS = 24
    SIDE = 25


_WHAT: Final = {
    Fault.LENGTH: "blob length, bytes",
    Fault.TRUNCATED: "blob length, at least",
    Fault.VERSION: "version of the rANS stream",
    Fault.PROBABILITY_BITS: "probability bits, from 8 to",
    Fault.SUB_BLOCKS: "number of sub-blocks",
    Fault.RESERVED: "reserved field",
    Fault.SYMBOLS: "number of symbols",
    Fault.SUB_BLOCK_SIZE: "symbols per sub-block, a multiple of 128 up to",
    Fault.TABLE_SIZE: "symbols in the table, at least",
    Fault.FREQUENCY: "frequency, from 1 to",
    Fault.FREQUENCY_SUM: "sum of the frequencies",
    Fault.PADDING: "padding",
    Fault.PATCH_COUNT: "patches of a sub-block, at most",
    Fault.STATE: "lane state, from 32768 to",
    Fault.PATCH_POSITION: "patch position, ascending and at most",
    Fault.END: "faulty lanes at the end of a sub-block",
    Fault.MASK: "varying bits, from 1 to",
    Fault.BASE: "varying bits set in the base",
    Fault.PARAM: "param byte",
    Fault.CONTEXTS: "number of tables, up to",
    Fault.THRESHOLD: "thresholds, each above the one before and at least",
    Fault.TABLES: "tables, bytes",
    Fault.TABLE_RANGE: "last symbol of a table, at least",
    Fault.COLUMNS: "columns of the grid and where it starts, up to",
    Fault.SIDE: "row and column values, bytes",
}


def raise_fault(codec: CodecId, fault: Fault, offset: int, expected: int, found: int) -> NoReturn:
    """Raise the `FormatError` for one fault of one blob.

    Args:
        codec: the codec of the blob.
        fault: what is wrong.
        offset: where in the blob, bytes from its start.
        expected: the value, or the bound that the text names.
        found: what is there.

    Raises:
        FormatError: always; `TruncatedError` when bytes are missing.
    """
    error = TruncatedError if fault is Fault.TRUNCATED else FormatError
    raise error(
        f"{codec.name.lower()} blob, byte {offset}: {_WHAT[fault]}: "
        f"expected {expected}, found {found}; the stored bytes are damaged: use another copy"
    )
