"""What a save may be asked for: checked before anything is read or written."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from s4core.errors import StateError
from s4core.manifest import Json
from s4core.refs import STORE_DIRECTORY

__all__ = ["check_meta", "check_name", "check_step"]


def check_step(step: int | None) -> int | None:
    """Return `step` as a plain integer of at least 0, or None.

    Raises:
        StateError: it is something else.
    """
    if step is None:
        return None
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0 or isinstance(step, bool):
        raise StateError(f"step {step!r}: expected an integer of at least 0")
    return number


def check_name(name: str) -> str:
    """Return `name` if it may name a ref in the run's directory.

    Raises:
        StateError: it leads elsewhere, or into the store's own directory.
    """
    if not name or "/" in name or name in (".", "..", STORE_DIRECTORY):
        raise StateError(
            f"name {name!r}: expected a name in the run's own directory, without '/' and not "
            f"{STORE_DIRECTORY!r}; open the run at the directory the checkpoint is to lie in"
        )
    return name


def check_meta(meta: Mapping[str, Json] | None, own: str) -> dict[str, Json]:
    """Return `meta` as a dict; its values are checked when the manifest is written.

    Args:
        meta: as the caller gave it.
        own: what the writer's own keys start with.

    Raises:
        StateError: a key that is no string, or one of the writer's own.
    """
    found = dict(meta or {})
    for key in found:
        if not isinstance(key, str):
            raise StateError(f"meta: key {key!r}: expected a string")
        if key.startswith(own):
            raise StateError(f"meta: keys that start with {own!r} are the writer's own")
    return found
