"""Paths: where a leaf sits in the saved state, as in `optimizer/state/0/exp_avg`.

A path is made of the keys on the way down, joined by `/`. Inside a key `~0` stands for
`~`, `~1` for `/` (as in JSON pointers), `~uXXXX` for half a surrogate pair, and a lone
`~` for the empty key. Keys of one container that look alike (0 and "0") are told apart
by `~2`, `~3`, ... at the end. `~.name` is an attribute, `~k3` the key of entry 3. So
paths are unique and survive JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = [
    "MAX_DECIMAL_BITS",
    "SURROGATE",
    "attribute",
    "below",
    "key_of",
    "segments",
    "shown",
]

# Half a surrogate pair. JSON cannot tell two halves from the character they make.
SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Longer integers go in hexadecimal: Python limits decimal ones to 4300 digits.
MAX_DECIMAL_BITS: Final = 1024


def below(path: str, segment: str) -> str:
    """The path of what lies under `segment` of what lies at `path` ("" is the top)."""
    return f"{path}/{segment}" if path else segment


def attribute(path: str, name: str) -> str:
    """The path of an attribute of the object at `path`."""
    return below(path, f"~.{_escape(name)}")


def key_of(path: str, number: int) -> str:
    """The path of the key itself of entry `number` of the mapping at `path`."""
    return below(path, f"~k{number}")


def shown(path: str) -> str:
    """A path for a message."""
    return repr(path) if path else "the top of the state"


def segments(keys: Iterable[object]) -> list[str]:
    """One segment for each key of a container, no two the same."""
    found: dict[str, None] = {}
    numbers: dict[str, int] = {}  # the last one that was given out
    for key in keys:
        text = _text(key)
        name, number = text, numbers.get(text, 1)
        while name in found:
            number += 1
            name = f"{text}~{number}"
        numbers[text] = number
        found[name] = None
    return list(found)


def _text(key: object) -> str:
    if type(key) is str:
        return _escape(key) or "~"
    if type(key) is int and key.bit_length() > MAX_DECIMAL_BITS:
        return hex(key)
    if key is None or type(key) in (bool, int, float):
        return str(key)
    return type(key).__name__


def _escape(text: str) -> str:
    escaped = text.replace("~", "~0").replace("/", "~1")
    return SURROGATE.sub(lambda half: f"~u{ord(half[0]):04x}", escaped)
