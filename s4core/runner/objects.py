"""JSON objects from places that are not trusted: one way to read them, one error."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_object"]


def parse_object(raw: bytes | str) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        ValueError: It is no JSON, no object, nested too deep, or names a key twice.
    """
    try:
        found = json.loads(raw, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {type(found).__name__}")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found
