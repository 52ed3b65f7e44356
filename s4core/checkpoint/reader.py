"""From a manifest to tensors: follow the chain, fetch, check, decode, place."""

from __future__ import annotations

import fnmatch
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from s4core import digests, dtypes, tree
from s4core.chain import Chain, Link
from s4core.checkpoint.fetch import Request, fetch
from s4core.checkpoint.plan import plan, stored_links
from s4core.checkpoint.reading import Reading
from s4core.checkpoint.shards import Shard
from s4core.checkpoint.slices import LazyTensors, read_slice
from s4core.errors import ChecksumError, FormatError, KeyNotFoundError, StateError
from s4core.format import BlobSpan
from s4core.manifest import Manifest, TensorEntry
from s4core.memory import check_available
from s4core.pipeline import Step
from s4core.repository import Repository

__all__ = ["MapLocation", "Reader", "device_of", "open_checkpoint"]

MapLocation = Any  # None, str, torch.device, dict of these, or callable, as torch.load takes them
ShardOf = Callable[[Manifest, int], Shard]

# Arrays are decoded in batches of about this many bytes of words.
_BATCH_BYTES: Final = 256 << 20

_log = logging.getLogger(__name__)


@dataclass
class Reader:
    """Reads one checkpoint.

    Attributes:
        manifest: of the checkpoint.
        chain: to what it stands on.
        shard_of: gives shard number n of a manifest.
        where: its name, for messages.
    """

    manifest: Manifest
    chain: Chain
    shard_of: ShardOf
    where: str

    def state(self, map_location: MapLocation = None, *, weights_only: bool = True) -> Any:
        """Return the whole state.

        Args:
            map_location: where tensors go, as `torch.load` understands it; None: to the
                device they were saved from, or the CPU where this machine lacks it.
            weights_only: refuse whatever would need a class of the user's.

        Raises:
            FormatError, ChainError, StoreError, CodecError: see each.
            StateError: the state needs `weights_only=False`.
        """
        tensors = self._place(range(len(self.manifest.tensors)), map_location)
        placed = [tensors[number] for number in range(len(self.manifest.tensors))]
        return tree.unflatten(self.manifest.tree, placed, weights_only=weights_only)

    def select(self, keys: Sequence[str], map_location: MapLocation = None) -> dict[str, Tensor]:
        """Return the tensors whose path matches one of the patterns `keys`, by path.

        Only their arrays are fetched. Patterns are shell-like: `model/*`, `*/exp_avg`.

        Raises:
            KeyNotFoundError: a pattern that matches nothing.
        """
        numbers = self._numbers()
        chosen: dict[str, int] = {}
        for pattern in keys:
            found = {path: n for path, n in numbers.items() if fnmatch.fnmatchcase(path, pattern)}
            if not found:
                shown = ", ".join(list(numbers)[:5])
                raise KeyNotFoundError(
                    f"{self.where}: no tensor's path matches {pattern!r}; there are "
                    f"{len(numbers)}, such as {shown}"
                )
            chosen |= found
        tensors = self._place(sorted(set(chosen.values())), map_location)
        return {path: tensors[number] for path, number in chosen.items()}

    def slice(self, path: str, start: int, stop: int) -> Tensor:
        """Return elements `start` to `stop` of one tensor; see `slices.read_slice`."""
        return read_slice(self, path, start, stop)

    def lazy(self, map_location: MapLocation = None) -> LazyTensors:
        """Return the tensors by path, each read when it is asked for."""
        return LazyTensors(self, map_location)

    def _numbers(self) -> dict[str, int]:
        """The number of the tensor at each path.

        Raises:
            FormatError: a path stands twice, so that nobody knows which one is meant.
        """
        found: dict[str, int] = {}
        for number, tensor in enumerate(self.manifest.tensors):
            for path in tensor.paths:
                if path in found:
                    raise FormatError(
                        f"{self.where}: path {path!r} stands twice, at tensors[{found[path]}] and "
                        f"tensors[{number}]: expected one; load the whole state"
                    )
                found[path] = number
        return found

    def array(self, number: int) -> Tensor:
        """Return the words of one array on the CPU: 1-D, of its dtype."""
        (found,) = self.arrays([number], lambda _: torch.device("cpu"))
        return found[1]

    def arrays(
        self, wanted: Sequence[int], device: Callable[[int], torch.device]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (number, words) of each array in `wanted`, fetched ahead within a budget.

        Those that others are read with come before them.

        Args:
            wanted: numbers of arrays.
            device: gives the device an array is decoded to.
        """
        self._check_arrays(wanted)
        nodes = plan(self.chain, wanted)
        requests = [Request([self.span(link) for link in n.steps]) for n in nodes if n.steps]
        fetched = fetch(requests)
        reading = Reading(self.where)
        for node in nodes:
            steps = self._steps(node.steps, next(fetched)) if node.steps else []
            target = torch.device("cpu") if node.number is None else device(node.number)
            reading.add(node, steps, target)
            if reading.waiting_bytes >= _BATCH_BYTES:
                yield from reading.decoded()
        yield from reading.decoded()

    def stored_spans(self) -> Iterator[tuple[tuple[str, int], Request]]:
        """Yield every stored array this checkpoint stands on, once: its place and its blobs."""
        seen = set()
        for link in stored_links(self.chain):
            shard, span = self.span(link)
            # By number: an array whose blobs are all constant ends where it begins.
            place = (shard.where, (link.entry.at or (0, 0))[1])
            if place not in seen:
                seen.add(place)
                yield place, Request([(shard, span)])

    def span(self, link: Link) -> tuple[Shard, BlobSpan]:
        """Return the shard that holds a stored array, and where its blobs lie in it."""
        number, entry = link.entry.at or (0, 0)
        shard = self.shard_of(link.manifest, number)
        return shard, shard.span(entry)

    def _steps(self, links: Sequence[Link], payloads: Sequence[bytes]) -> list[Step]:
        steps = []
        for link, payload in zip(links, payloads, strict=True):
            shard, span = self.span(link)
            _, entry = link.entry.at or (0, 0)
            rows = shard.index.blobs[span.first : span.first + span.count]
            record = shard.index.arrays[entry]
            where = f"{shard.where}: array {entry}"
            steps.append(Step(where, record, rows, payload, link.entry.delta))
        return steps

    def _check_arrays(self, wanted: Sequence[int]) -> None:
        """Check what can be checked before anything is fetched or allocated.

        Raises:
            ChecksumError: the words of an array that lies in the manifest are not its own.
            StateError: an array does not fit in memory.
        """
        for number in wanted:
            entry, where = self.manifest.arrays[number], f"{self.where}: array {number}"
            check_available(entry.bytes, where)
            if entry.data is not None and digests.digest(entry.data).hex() != entry.digest:
                raise ChecksumError(f"{where}: its words have not the digest {entry.digest}")

    def _check_memory(self, arrays: Collection[int], tensors: Sequence[TensorEntry]) -> None:
        """Refuse what can never fit: arrays on the CPU, and tensors spread over their gaps."""
        sizes = {array: self.manifest.arrays[array].bytes for array in arrays}
        spread = sum(_spread_bytes(tensor, sizes[tensor.array or 0]) for tensor in tensors)
        check_available(sum(sizes.values()) + spread, self.where)

    def _place(self, numbers: Sequence[int], map_location: MapLocation) -> dict[int, Tensor]:
        entries = [(number, self.manifest.tensors[number]) for number in numbers]
        devices = {
            entry.array: device_of(entry.device, map_location)
            for _, entry in entries
            if entry.array is not None
        }
        here = {array for array, device in devices.items() if device.type == "cpu"}
        self._check_memory(here, [entry for _, entry in entries if entry.array in here])
        words = dict(self.arrays(list(devices), lambda array: devices[array]))
        return {number: _place(entry, words) for number, entry in entries}


def open_checkpoint(repository: Repository, manifest: Manifest, where: str) -> Reader:
    """Open a checkpoint of a run by its manifest.

    Args:
        repository: holds the manifests and shards.
        manifest: of the checkpoint.
        where: its name, for messages.
    """
    shards: dict[str, Shard] = {}

    def shard_of(holder: Manifest, number: int) -> Shard:
        entry = holder.shards[number]
        shard = Shard(repository.store, repository.shard_key(entry.key), entry.bytes)
        return shards.setdefault(entry.key, shard)

    return Reader(manifest, Chain(manifest, repository.manifest_bytes), shard_of, where)


def _spread_bytes(entry: TensorEntry, array_bytes: int) -> int:
    """Memory of its own that a tensor needs whose array is compact (FORMAT.md, section 7)."""
    itemsize = dtypes.lookup(entry.dtype).itemsize
    beyond = (entry.offset + entry.span) * itemsize > array_bytes
    return entry.span * itemsize if beyond else 0


def _place(entry: TensorEntry, words: dict[int, Tensor]) -> Tensor:
    if entry.array is None:
        return tree.meta_tensor(entry.dtype, entry.shape, entry.stride)
    return tree.place(words[entry.array], entry.dtype, entry.shape, entry.stride, entry.offset)


def device_of(saved: str, map_location: MapLocation) -> torch.device:
    """Return where a tensor saved from device `saved` goes.

    `host` tensors (random number generator states, numpy arrays) always stay on the CPU.

    Raises:
        FormatError: `saved` is no device.
        StateError: `map_location` is none, or none that this machine has.
    """
    if saved == "host":
        return torch.device("cpu")
    try:
        origin = torch.device(saved)
    except (RuntimeError, UnicodeError):
        raise FormatError(
            f"a tensor's device is {saved!r}: expected cpu, cuda:0 or alike"
        ) from None
    mapped = _mapped(saved, map_location)
    if mapped is not None:
        return mapped
    # What can be looked for is; a device of a kind that is here must be the very one.
    missing = not torch.cuda.is_available() if origin.type == "cuda" else not _is_here(origin)
    if missing:
        _log.warning("no device %s here: tensors saved from it are loaded to the CPU", saved)
        return torch.device("cpu")
    return origin


@functools.lru_cache(maxsize=64)
def _is_here(device: torch.device) -> bool:
    """Whether memory can be had on a device."""
    try:
        torch.empty(0, device=device)
    except Exception:  # noqa: BLE001  # RuntimeError, AssertionError, ImportError: any backend's
        return False
    return True


def _mapped(saved: str, map_location: MapLocation) -> torch.device | None:
    if map_location is None:
        return None
    if isinstance(map_location, dict):
        target = map_location.get(saved)
        return None if target is None else _asked(target)
    if callable(map_location) and not isinstance(map_location, torch.device):
        storage = map_location(torch.empty(0).untyped_storage(), saved)
        return None if storage is None else storage.device
    return _asked(map_location)


def _asked(target: Any) -> torch.device:
    try:
        device = torch.device(target)
    except (RuntimeError, TypeError) as error:
        raise StateError(f"map_location {target!r} is no device: {error}") from None
    if not _is_here(device):
        raise StateError(f"map_location {target!r}: this machine has no such device")
    return device
