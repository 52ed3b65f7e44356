"""The order in which arrays are read: an array's companion before the array.

A companion is the array that another one is derived from, or whose exponents are its
context (FORMAT.md, section 7). It may be wanted itself, or be read for the other's sake only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from s4core.chain import Chain, Link
from s4core.errors import ChainError
from s4core.manifest import ArrayEntry

__all__ = ["Node", "plan", "stored_links"]

# More companions of companions than any writer makes.
_MAX_NESTING = 255


@dataclass(eq=False)
class Node:
    """One array to be read.

    Attributes:
        link: the array.
        steps: its stored steps, the whole one first.
        number: in the tip, None if it is read for another one's sake only.
        companion: what must be read before it.
        rank: 0 without a companion, else one more than its.
        users: how many nodes still need its words.
    """

    link: Link
    steps: Sequence[Link]
    number: int | None = None
    companion: Node | None = None
    rank: int = 0
    users: int = 0

    @property
    def entry(self) -> ArrayEntry:
        """The array's entry in its manifest."""
        return self.link.entry


@dataclass
class _Planner:
    chain: Chain
    nodes: list[Node] = field(default_factory=list)
    wanted: dict[tuple[str, int], int] = field(default_factory=dict)
    _by_number: dict[int, Node] = field(default_factory=dict)
    _by_place: dict[tuple[str, int], Node] = field(default_factory=dict)

    def visit(self, number: int) -> Node:
        """The node of an array of the tip that is wanted."""
        if number not in self._by_number:
            node = self._add(Link(self.chain.tip, number), 0)
            node.number = number
            self._by_number[number] = node
        return self._by_number[number]

    def _add(self, link: Link, nesting: int) -> Node:
        steps = self.chain.links_of(link)
        node = Node(link, steps)
        beside = steps[0].companion if steps else link.companion
        if beside is not None:
            node.companion = self._companion(beside, nesting + 1)
            node.companion.users += 1
            node.rank = node.companion.rank + 1
        self.nodes.append(node)
        return node

    def _companion(self, link: Link, nesting: int) -> Node:
        if nesting > _MAX_NESTING:
            raise ChainError(
                f"checkpoint {self.chain.tip.id}: arrays are read with others, {nesting} deep: "
                f"expected at most {_MAX_NESTING}"
            )
        place = place_of(self.chain, link)
        if place in self.wanted:
            return self.visit(self.wanted[place])
        if place not in self._by_place:
            self._by_place[place] = self._add(link, nesting)
        return self._by_place[place]


def place_of(chain: Chain, link: Link) -> tuple[str, int]:
    """Where the words of an array are stored: id of the checkpoint, and number there."""
    steps = chain.links_of(link)
    end = steps[-1] if steps else link
    return end.manifest.id, end.array


def plan(chain: Chain, wanted: Sequence[int]) -> list[Node]:
    """Return what is to be read for the arrays `wanted` of the chain's tip, in order.

    Raises:
        ChainError: a link leads nowhere.
    """
    planner = _Planner(chain)
    for number in reversed(wanted):
        planner.wanted[place_of(chain, Link(chain.tip, number))] = number
    for number in wanted:
        planner.visit(number)
    return planner.nodes


def stored_links(chain: Chain) -> list[Link]:
    """Return every stored step that the arrays of the tip are read with, companions included."""
    nodes = plan(chain, range(len(chain.tip.arrays)))
    return [link for node in nodes for link in node.steps]
