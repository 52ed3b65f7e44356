"""The checkpoints of a run's directory, as names and steps, without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from s4core.chain import reachable
from s4core.errors import FormatError, KeyNotFoundError
from s4core.refs import read_ref
from s4core.repository import Repository
from s4core.retention import Candidate, Decision, Rules, decide
from s4core.stores import Store

__all__ = ["Catalogue", "step_name"]

_STEP: Final = re.compile(r"step-(\d{8,})\.ckpt")


def step_name(step: int) -> str:
    """Return the name of the ref of a step."""
    return f"step-{step:08d}.ckpt"


@dataclass(frozen=True)
class Catalogue:
    """What a run's directory holds.

    Attributes:
        directory: of the run.
        repository: its manifests.
    """

    directory: Store
    repository: Repository

    def steps(self) -> list[int]:
        """Return the steps of all committed checkpoints, ascending: one listing pass."""
        matches = [_STEP.fullmatch(e.key) for e in self.directory.list("step-", shallow=True)]
        return sorted(int(match[1]) for match in matches if match)

    def find(self, step: int | None) -> str:
        """Return the name of a step's ref; None: of the newest.

        Raises:
            KeyNotFoundError: there is none.
        """
        chosen = max(self.steps(), default=None) if step is None else step
        if chosen is None:
            raise KeyNotFoundError(
                f"{self.directory.url} holds no committed checkpoint of a step; "
                f"`s4weights ls {self.directory.url}` shows what is there"
            )
        return step_name(chosen)

    def decide(self, rules: Rules, *, chains: bool = False) -> list[Decision]:
        """Say what becomes of each step under `rules`.

        Args:
            rules: what is kept.
            chains: also find out whose bytes stay; costs a manifest for each checkpoint.

        Raises:
            StoreError: the store did not answer.
        """
        if not chains and rules.keep_best is None:
            candidates = [Candidate(step_name(step), step) for step in self.steps()]
        else:
            candidates = [self._candidate(step, chains) for step in self.steps()]
        return decide(candidates, rules)

    def _candidate(self, step: int, chains: bool) -> Candidate:
        name = step_name(step)
        plain = Candidate(name, step)
        try:
            identity = read_ref(self.directory, name).checkpoint
            summary = self.repository.summary(identity)
        except (KeyNotFoundError, FormatError):  # gone, or damaged: it has no metric
            return plain
        needs: set[str] = set()
        if chains:
            needs = reachable(summary.needs, self.repository.needs, passing=True)
        return Candidate(name, step, identity, frozenset(needs), summary.meta)
