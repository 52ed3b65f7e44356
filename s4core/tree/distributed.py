"""The node of a state that several ranks wrote (FORMAT.md, section 13).

Such a state is a flat table of items: tensors in *parts*, each the box of the tensor that
one rank held, and values. The parts tile the tensor exactly. Where the state was nested,
an item says on which way it lies, so that the whole state can be put together without
`torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from s4core import dtypes
from s4core.errors import FormatError, StateError
from s4core.tree import paths
from s4core.tree.geometry import OPAQUE, empty
from s4core.tree.reading import Fields, Read, Reader
from s4core.tree.tiling import tiles
from s4core.tree.writing import Node

__all__ = [
    "KIND",
    "READERS",
    "DistributedState",
    "DistributedTensor",
    "DistributedValue",
    "Part",
    "Way",
    "parse_distributed",
]

KIND: Final = "dcp"
# Empty places in lists of one state: containers that held nothing are not stored.
_MAX_GAPS: Final = 1 << 16

# Keys of dicts (str) and positions in lists (int) from the top to an item.
Way = tuple[str | int, ...]
# Gives dtype and shape of a tensor by its number.
Describe = Callable[[int], tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Part:
    """What one rank wrote of a tensor: tensor number `tensor` of the manifest, at `offsets`."""

    tensor: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def _named(name: str, way: Way | None) -> dict[str, Node]:
    return {"name": name, "way": None if way is None else list(way)}


@dataclass(frozen=True)
class DistributedTensor:
    """A tensor in parts that tile it.

    Attributes:
        name: unique in the state.
        way: to it, None where the state was flat.
        dtype: of the tensor, torch's name.
        size: of the tensor.
        grad: whether it wanted a gradient.
        parts: its parts.
    """

    name: str
    way: Way | None
    dtype: str
    size: tuple[int, ...]
    grad: bool
    parts: tuple[Part, ...]

    @property
    def tiled(self) -> bool:
        """Whether the parts cover the tensor completely and nothing twice."""
        return tiles(self.size, [(part.offsets, part.sizes) for part in self.parts])

    def shifted(self, by: int) -> DistributedTensor:
        """The same with `by` added to the numbers of tensors."""
        parts = tuple(replace(part, tensor=part.tensor + by) for part in self.parts)
        return replace(self, parts=parts)

    def node(self) -> Node:
        """Its entry in the node."""
        found = _named(self.name, self.way)
        found |= {"dtype": self.dtype, "size": list(self.size)}
        found |= {"grad": True} if self.grad else {}
        return found | {"parts": [[part.tensor, *part.offsets] for part in self.parts]}


@dataclass(frozen=True)
class DistributedValue:
    """A value: any node, which counts its tensors within `tensors`."""

    name: str
    way: Way | None
    value: Node
    tensors: tuple[int, ...]

    def shifted(self, by: int) -> DistributedValue:
        """The same with `by` added to the numbers of tensors."""
        return replace(self, tensors=tuple(number + by for number in self.tensors))

    def node(self) -> Node:
        """Its entry in the node."""
        found = _named(self.name, self.way)
        found |= {"value": self.value}
        return found | ({"tensors": list(self.tensors)} if self.tensors else {})


@dataclass(frozen=True)
class DistributedState:
    """A whole state.

    Attributes:
        items: its tensors and values.
        planner: what the planner wanted to be kept, other than the items' ways.
    """

    items: tuple[DistributedTensor | DistributedValue, ...]
    planner: Node = None

    def node(self) -> Node:
        """The node; `parse_distributed` is the way back."""
        items = [item.node() for item in self.items]
        return {"$": KIND, "planner": self.planner, "items": items}


def parse_distributed(node: Node, describe: Describe, where: str) -> DistributedState:
    """Read the node of a distributed state.

    Args:
        node: the whole tree of a manifest.
        describe: gives dtype and shape of a tensor of the manifest; raises `FormatError` for
            a number that none has.
        where: name of the checkpoint, for messages.

    Raises:
        StateError: the state was saved whole, by one process.
        FormatError: the node breaks FORMAT.md.
    """
    if not (type(node) is dict and node.get("$") == KIND):
        raise StateError(
            f"{where} was not saved through s4core.dcp, and has no parts: load it with "
            "s4weights.load"
        )
    fields = Fields(node, "")
    try:
        state = _parse(fields, describe)
        fields.finish()
    except FormatError as error:
        raise type(error)(f"{where}: {error}") from None
    return state


def _parse(fields: Fields, describe: Describe) -> DistributedState:
    items = []
    names = set()
    for number, entry in enumerate(fields.items("items")):
        if type(entry) is not dict:
            raise fields.fail(f"item {number}: expected an object")
        item = _item(Fields({"$": KIND} | entry, f"item {number}"), describe)
        if item.name in names:
            raise fields.fail(f"{item.name!r} stands twice in items")
        names.add(item.name)
        items.append(item)
    # Nobody is told a way that leads nowhere; torch too would follow it.
    _Nest(fields, [(item.way or (item.name,), None) for item in items]).state()
    return DistributedState(tuple(items), fields.raw("planner"))


def _item(entry: Fields, describe: Describe) -> DistributedTensor | DistributedValue:
    name, way = entry.text("name"), _way(entry)
    found: DistributedTensor | DistributedValue
    if entry.has("value"):
        tensors = entry.sizes("tensors") if entry.has("tensors") else []
        for number in tensors:
            describe(number)
        value = entry.raw("value")
        if type(value) is dict and value.get("$") == KIND:
            raise entry.fail("expected as the whole tree only")
        found = DistributedValue(name, way, value, tuple(tensors))
    else:
        found = _tensor(entry, name, way, describe)
    entry.finish()
    return found


def _way(entry: Fields) -> Way | None:
    if entry.raw("way") is None:
        return None
    steps = entry.items("way")
    good = all(type(step) is str or (type(step) is int and step >= 0) for step in steps)
    if not good or not steps or type(steps[0]) is not str:
        raise entry.fail("way: expected a key, then keys and positions")
    return tuple(steps)


def _tensor(entry: Fields, name: str, way: Way | None, describe: Describe) -> DistributedTensor:
    dtype, size = entry.text("dtype"), tuple(entry.sizes("size"))
    parts = tuple(_part(entry, item, dtype, describe) for item in entry.items("parts"))
    found = DistributedTensor(name, way, dtype, size, entry.flag("grad"), parts)
    if dtype not in dtypes.BY_NAME or dtype.startswith(("qint", "quint")):
        raise entry.fail(f"{name!r}: no tensor of dtype {dtype!r} can lie in parts")
    if found.grad and not dtypes.lookup(dtype).is_float:
        raise entry.fail(f"{name!r}: a gradient of {dtype}")
    if not found.tiled:
        raise entry.fail(f"{name!r}: its parts do not tile a tensor of size {list(size)}")
    return found


def _part(entry: Fields, item: Node, dtype: str, describe: Describe) -> Part:
    numbers = item if type(item) is list else []
    if not numbers or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise entry.fail("parts: expected lists of a tensor's number and its offsets")
    found, shape = describe(numbers[0])
    if found != dtype:
        raise entry.fail(f"tensor {numbers[0]} is a part of it, but has dtype {found}")
    return Part(numbers[0], tuple(numbers[1:]), shape)


def _read(reader: Reader, fields: Fields) -> Any:
    """The whole state, nested as it was, with every tensor whole."""
    if fields.path:
        raise fields.fail("expected as the whole tree only")

    def describe(number: int) -> tuple[str, tuple[int, ...]]:
        tensor = _tensor_of(reader, fields, number)
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)

    state = _parse(fields, describe)
    entries = [(item.way or (item.name,), _value(reader, fields, item)) for item in state.items]
    return _Nest(fields, entries).state()


def _tensor_of(reader: Reader, fields: Fields, number: int) -> Tensor:
    if number >= len(reader.tensors):
        raise fields.fail(f"tensor {number}: there are {len(reader.tensors)}")
    tensor = reader.tensors[number]
    if tensor is None:
        raise fields.fail(f"tensor {number} was not loaded")
    if tensor.is_meta:
        raise fields.fail(f"tensor {number} has no bits")
    return tensor


def _value(reader: Reader, fields: Fields, item: DistributedTensor | DistributedValue) -> Any:
    if isinstance(item, DistributedValue):
        tensors = [_tensor_of(reader, fields, number) for number in item.tensors]
        below = Reader(reader.table, reader.shared, tensors, reader.weights_only)
        return below.value(item.value, paths.below(fields.path, item.name))
    tensors = [_tensor_of(reader, fields, part.tensor) for part in item.parts]
    whole = tensors[0] if len(tensors) == 1 else _assembled(item, tensors)
    return whole.detach().requires_grad_() if item.grad else whole


def _assembled(item: DistributedTensor, tensors: Sequence[Tensor]) -> Tensor:
    device = tensors[0].device if tensors else "cpu"
    numel = 1
    for size in item.size:
        numel *= size
    whole = empty(item.dtype, numel, device).view(item.size)
    # As integers: torch's copy of a bool turns any byte but zero into 1.
    words = whole.view(OPAQUE[whole.element_size()])
    for part, tensor in zip(item.parts, tensors, strict=True):
        target = words
        for dim, (offset, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
            target = target.narrow(dim, offset, size)
        target.copy_(tensor.view(words.dtype))
    return whole


class _Level(dict[Any, Any]):
    """A dict or list under construction; told from values by its class."""


@dataclass
class _Nest:
    """Nests a flat state again."""

    fields: Fields
    entries: Iterable[tuple[Way, Any]]
    gaps: int = 0

    def state(self) -> Any:
        top = _Level()
        for way, value in self.entries:
            level = top
            for step in way[:-1]:
                level = level.setdefault(step, _Level())
                if type(level) is not _Level:
                    raise self.fields.fail(f"way {list(way)} leads through a value")
            if way[-1] in level:
                raise self.fields.fail(f"way {list(way)} leads to two values")
            level[way[-1]] = value
        return self._finish(top)

    def _finish(self, level: _Level) -> Any:
        done = {
            key: self._finish(value) if type(value) is _Level else value
            for key, value in level.items()
        }
        kinds = {type(key) for key in done}
        if kinds <= {str}:
            return done
        if kinds != {int}:
            raise self.fields.fail("ways go through a list and a dict in the same place")
        length = max(done) + 1
        self.gaps += length - len(done)
        if self.gaps > _MAX_GAPS:
            raise self.fields.fail(f"a list of {length} places holds {len(done)} values")
        return [done.get(position) for position in range(length)]


READERS: Final[dict[str, Read]] = {KIND: _read}
