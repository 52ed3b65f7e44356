"""Changing Lightning's modules once they are imported, whichever are, and when.

`lightning` and `pytorch_lightning` are one library under two names; importing either
takes seconds, and a process mostly needs one. So what has to be done to a module of
theirs is done as soon as that module is imported: at once if it has been, else by a finder
on `sys.meta_path` that waits for those modules only, and is gone when it has seen all.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

__all__ = ["Action", "installed", "require_lightning", "when_imported"]

Action = Callable[[ModuleType], None]

_PACKAGES: Final = ("lightning", "pytorch_lightning", "lightning_fabric")


def when_imported(actions: dict[str, Action]) -> None:
    """Call each action with its module, as soon as that has been imported."""
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is None:
            _watcher.wait_for(name, action)
        else:
            action(module)


def installed(package: str) -> bool:
    """Whether a package is imported or could be."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


def require_lightning(what: str) -> None:
    """Raise unless some Lightning package is installed or imported.

    Raises:
        ImportError: none is; the message says what to install.
    """
    if any(installed(name) for name in _PACKAGES):
        return
    raise ImportError(
        f"{what} needs PyTorch Lightning, and neither lightning nor pytorch_lightning is "
        "installed; run: pip install 's4weights[lightning]'"
    )


class _Watcher(MetaPathFinder):
    """Finds the modules that are waited for as others would, so as to know of their loading."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Action]] = {}

    def wait_for(self, name: str, action: Action) -> None:
        """Call `action` when the module has been loaded."""
        self.waiting.setdefault(name, []).append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (_ask(finder, name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def loaded(self, module: ModuleType) -> None:
        """Do what waited for `module`, and end the wait when it was the last."""
        for action in self.waiting.pop(module.__name__, []):
            action(module)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def _ask(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    find_spec = getattr(finder, "find_spec", None)
    found: ModuleSpec | None = None if find_spec is None else find_spec(name, path, target)
    return found


class _Loader(Loader):
    """Loads one module as `loader` would, leaves no trace of itself in it, and tells."""

    def __init__(self, loader: Loader, watcher: _Watcher) -> None:
        self.loader, self.watcher = loader, watcher

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.watcher.loaded(module)


_watcher: Final = _Watcher()  # one: two would ask each other for ever
