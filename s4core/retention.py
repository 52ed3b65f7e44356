"""Which checkpoints of a run may go: a pure function of its catalogue.

The rules keep, and what none of them keeps is removed; the newest step always stays. A
removal takes the ref. The bytes of a checkpoint that a kept one stands on stay with it:
`Decision.stood_on` says so, and no rule needs to know of chains to be safe.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from s4core.errors import StateError

__all__ = ["Candidate", "Decision", "Rules", "decide"]


@dataclass(frozen=True)
class Rules:
    """What is kept; a checkpoint that any of them names stays.

    Attributes:
        keep_last: so many newest steps; None: no such rule.
        keep_every: steps that are multiples of it.
        keep_best: so many with the best metric; those without one do not compete.
        metric: key of that metric in the `meta` of a save.
        mode: `min` or `max`: which end is best.
        pinned: shell-like patterns of names (`step-00001000.ckpt`, `*-final.ckpt`).
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: int | None = None
    metric: str = ""
    mode: str = "min"
    pinned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_every", "keep_best"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StateError(f"{name} {value}: expected at least 1, or None")
        if self.mode not in ("min", "max"):
            raise StateError(f"mode {self.mode!r}: expected 'min' or 'max'")
        if self.keep_best is not None and not self.metric:
            raise StateError("keep_best needs metric, the key of a number in the meta of saves")

    @property
    def any(self) -> bool:
        """Whether there is a rule that removes at all: `pinned` alone keeps everything."""
        return any(r is not None for r in (self.keep_last, self.keep_every, self.keep_best))


@dataclass(frozen=True)
class Candidate:
    """A checkpoint as the rules see it.

    Attributes:
        name: of the ref.
        step: of the training.
        id: of the checkpoint.
        needs: ids that it stands on, directly or through others.
        meta: of the save.
    """

    name: str
    step: int
    id: str = ""
    needs: frozenset[str] = frozenset()
    meta: Mapping[str, object] = field(default_factory=dict)

    def metric(self, key: str) -> float | None:
        """The number under `key` in its meta; None: none, or not a number."""
        found = self.meta.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or math.isnan(found):
            return None
        return float(found)


@dataclass(frozen=True)
class Decision:
    """What becomes of one checkpoint.

    Attributes:
        name: of the ref.
        keep: whether the ref stays.
        reason: of keeping, "" if none.
        stood_on: whether the bytes stay though the ref goes.
    """

    name: str
    keep: bool
    reason: str = ""
    stood_on: bool = False


def decide(catalogue: Sequence[Candidate], rules: Rules) -> list[Decision]:
    """Decide about every checkpoint, in the order of the catalogue."""
    if not rules.any:
        return [Decision(item.name, keep=True, reason="no rule removes") for item in catalogue]
    reasons = _reasons(catalogue, rules)
    needed = {need for item in catalogue if item.name in reasons for need in item.needs}
    needed |= {item.id for item in catalogue if item.name in reasons}
    return [
        Decision(item.name, keep=True, reason=reasons[item.name])
        if item.name in reasons
        else Decision(item.name, keep=False, stood_on=item.id in needed)
        for item in catalogue
    ]


def _reasons(catalogue: Sequence[Candidate], rules: Rules) -> dict[str, str]:
    by_step = sorted(catalogue, key=lambda item: item.step)
    found: dict[str, str] = {}

    def keep(items: Iterable[Candidate], reason: str) -> None:
        for item in items:
            found.setdefault(item.name, reason)

    keep(by_step[-1:], "the newest")
    if rules.keep_last is not None:
        keep(by_step[-rules.keep_last :], f"one of the last {rules.keep_last}")
    if rules.keep_every is not None:
        every = [item for item in by_step if item.step % rules.keep_every == 0]
        keep(every, f"a multiple of {rules.keep_every}")
    if rules.keep_best is not None:
        best = _best(by_step, rules)[: rules.keep_best]
        keep(best, f"one of the best {rules.keep_best} by {rules.metric}")
    keep((item for item in by_step if _pinned(item.name, rules)), "pinned")
    return found


def _best(by_step: Sequence[Candidate], rules: Rules) -> list[Candidate]:
    """Those that have the metric, best first; of equals the newer first."""
    sign = 1.0 if rules.mode == "min" else -1.0
    measured = [
        (sign * value, -item.step, item)
        for item in by_step
        if (value := item.metric(rules.metric)) is not None
    ]
    return [item for _, _, item in sorted(measured, key=lambda entry: entry[:2])]


def _pinned(name: str, rules: Rules) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in rules.pinned)
