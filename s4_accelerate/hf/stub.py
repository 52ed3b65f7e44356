"""Stub checkpoints: a directory that a Trainer resumes from, whose weights stay in S4.

A stub holds a checkpoint's side files as they were, and in the place of its weights a
`model.safetensors` that says where they are. `StubLoader`, a hook on the model, puts the
real ones in their place as the Trainer loads it, straight to the model's device. Without
that hook loading fails: the stub gives every weight a shape that does not fit. A stub
must never be mistaken for a checkpoint with nothing in it.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import s4weights
from s4_accelerate.archive import Archive
from s4_accelerate.restore import live_weights, placed_on
from s4core.checkpoint.foreign import dump_safetensors, dump_torch
from s4core.refs import split_url

__all__ = [
    "StubLoader",
    "any_armed",
    "key_of",
    "replace_file",
    "weights_of",
    "write_optimizer",
    "write_stub",
]

_MARKER: Final = "s4weights: stub; add S4TrainerCallback, or prepare with materialize=True"
_armed: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def write_stub(directory: Path, url: str, names: list[str], *, alone: bool = False) -> None:
    """Write the stub of a model file.

    Args:
        directory: the stub's.
        url: of the checkpoint.
        names: of all the model's weights.
        alone: nobody will want the optimizer's state.
    """
    text = json.dumps({"url": url, "alone": alone}).encode()
    marker = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    nothing = {name: torch.empty(0) for name in names}
    data = dump_safetensors({**nothing, _MARKER: marker})
    replace_file(directory / "model.safetensors", data)


def write_optimizer(directory: Path, state: Mapping[str, Any]) -> None:
    """Write an `optimizer.pt`."""
    replace_file(directory / "optimizer.pt", dump_torch(dict(state)))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, path)


def any_armed() -> bool:
    """Whether some model of this process can load stubs."""
    return len(_armed) > 0


class StubLoader:
    """Loads stubs into one model, and keeps the optimizer's state until that is asked for.

    Args:
        model: unwrapped.
        archive: if the checkpoint lies there, its next one may be a delta.
        allow_cast: let values be rounded to the model's dtype.
    """

    def __init__(self, model: nn.Module, archive: Archive, *, allow_cast: bool = False) -> None:
        self._model = weakref.ref(model)
        self._archive = archive
        self._allow_cast = allow_cast
        self._optimizer: Any = None
        register: Any = model._register_load_state_dict_pre_hook
        self._handle = register(self)
        _armed.add(model)

    def __reduce__(self) -> Any:
        return (_idle_hook, ())  # a copy of the model in another process is not armed

    def __deepcopy__(self, memo: Any) -> Any:
        return _no_hook

    def __call__(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Replace a stub by what it stands for; called by `load_state_dict`."""
        marker = state.get(prefix + _MARKER)
        model = self._model()
        if marker is None or model is None:
            return
        stored = self._load(json.loads(marker.cpu().numpy().tobytes()), model)
        weights = live_weights(model, stored["model"], allow_cast=self._allow_cast)
        state.clear()
        state.update({prefix + name: value for name, value in weights.items()})
        self._optimizer = stored.get("optimizer")

    def _load(self, marker: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        directory, name = split_url(marker["url"])
        here = directory.url == self._archive.url
        run = self._archive.run if here else s4weights.open(directory.url)
        if marker["alone"]:
            found = run.load(name=name, keys=["model/*"], map_location=placed_on(device))
            return {"model": {key_of(path): value for path, value in found.items()}}
        state: dict[str, Any] = run.load(name=name, map_location=placed_on(device))
        return state

    def load_optimizer(self, optimizer: Any) -> None:
        """Load the state that belongs to the stub that was loaded last, if one was."""
        state, self._optimizer = self._optimizer, None
        if state is not None:
            optimizer.load_state_dict(state)

    def forget(self) -> None:
        """Let go of the optimizer's state: only weights were wanted."""
        self._optimizer = None

    def remove(self) -> None:
        """Take the hook off the model."""
        self._handle.remove()
        model = self._model()
        if model is not None:
            _armed.discard(model)


def _no_hook(*_: Any) -> None:
    return None


def _idle_hook() -> Any:
    return _no_hook


def key_of(path: str) -> str:
    """The last key of a stored path."""
    return path.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def weights_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a stored model by name, one name for those that are tied.

    safetensors holds no two names for one memory; a Trainer loads without the others, as
    the model ties them.
    """
    found: dict[tuple[Any, ...], str] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            where = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
            found.setdefault(where if value.numel() else (name,), name)
    return {name: state[name].contiguous() for name in found.values()}
