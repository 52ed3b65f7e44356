"""Strict JSON, and typed values out of it; every miss names its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeVar

from s4core.errors import FormatError
from s4core.manifest.model import Json
from s4core.memory import check_available

__all__ = ["SURROGATE", "Fields", "loads_strict"]

T = TypeVar("T")

# What no field counts beyond: sizes and offsets travel as signed 64-bit integers.
_TOO_LARGE: Final = 1 << 63
# Of a JSON value in Python's memory; the smallest ones cost two bytes in a document.
_VALUE_BYTES: Final = 80
# Half a surrogate pair: no character, and no terminal or file takes it.
SURROGATE: Final = re.compile("[\ud800-\udfff]")


def loads_strict(data: bytes, where: str) -> Json:
    """Read JSON, refusing duplicate keys, NaN literals, bad UTF-8 and bottomless nesting.

    Raises:
        FormatError: it is not such JSON.
        StateError: there is not so much memory.
    """
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    check_available(len(data) + values * _VALUE_BYTES, where)
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not valid JSON: {error}; fetch it again") from None


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Json:
    raise ValueError(f"the literal {name}")


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and (value.isascii() or not SURROGATE.search(value))


class Fields:
    """Takes typed values out of JSON objects; every miss names its place."""

    def __init__(self, value: Json, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where}: expected an object, found {type(value).__name__}")
        self._value, self._where = value, where

    def fail(self, key: str, expected: str) -> FormatError:
        """The error for a key that does not hold what was `expected`."""
        value = self._value.get(key)
        found = type(value).__name__ if isinstance(value, list | dict) else json.dumps(value)
        shown = found if len(found) <= 60 else found[:57] + "..."
        return FormatError(f"{self._where}: {key}: expected {expected}, found {shown}")

    def text(self, key: str) -> str:
        """The string under `key`; one with half a surrogate pair is refused."""
        value = self._value.get(key)
        if not _is_text(value):
            raise self.fail(key, "a string")
        return str(value)

    def number(self, key: str, at_least: int = 0) -> int:
        """The integer under `key`."""
        value = self._value.get(key)
        if type(value) is not int or not at_least <= value < _TOO_LARGE:
            raise self.fail(key, f"an integer of at least {at_least}, below 2^63")
        return value

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        """None if `key` is absent or null, else what `read` finds there."""
        return None if self._value.get(key) is None else read(key)

    def items(self, key: str) -> list[Json]:
        """The list under `key`."""
        value = self._value.get(key)
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of strings under `key`."""
        value = self.items(key)
        if not all(_is_text(item) for item in value):
            raise self.fail(key, "a list of strings")
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...]:
        """The list of integers, none negative, under `key`."""
        value = self.items(key)
        if not all(type(item) is int and 0 <= item < _TOO_LARGE for item in value):
            raise self.fail(key, "a list of integers of at least 0, below 2^63")
        return tuple(value)

    def pair(self, key: str) -> tuple[int, int]:
        """The two integers under `key`."""
        value = self.numbers(key)
        if len(value) != 2:
            raise self.fail(key, "two integers")
        return value[0], value[1]

    def raw(self, key: str) -> Json:
        """Whatever is under `key`, which must be there."""
        if key not in self._value:
            raise self.fail(key, "a value")
        return self._value[key]
