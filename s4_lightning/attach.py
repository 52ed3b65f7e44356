"""How both Lightning packages come to accept the plugin, whichever is imported, and when.

Their Trainers ask `isinstance(plugin, CheckpointIO)`, each of its own abstract class. A
plugin that derived from one of them would be refused by the other, and importing both
takes seconds. So the plugin derives from neither and is registered on each as soon as
that is imported: at once if it has been, else by a finder on `sys.meta_path` that waits
for these two modules, changes nothing else, and is gone when it has seen both.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

__all__ = ["PACKAGES", "attach", "require_lightning"]

PACKAGES: Final = ("lightning", "pytorch_lightning")

# Where each package (and Fabric on its own) keeps its abstract class.
_HOLDERS: Final = (
    "lightning.fabric.plugins.io.checkpoint_io",
    "lightning_fabric.plugins.io.checkpoint_io",
)


def attach(plugin: type) -> None:
    """Make every Lightning package of this process accept `plugin`."""
    waiting = []
    for name in _HOLDERS:
        module = sys.modules.get(name)
        if module is None:
            waiting.append(name)
        else:
            _register(module, plugin)
    if waiting:
        sys.meta_path.insert(0, _Watcher(waiting, plugin))


def require_lightning(what: str) -> None:
    """Raise unless some Lightning package is installed or imported.

    Raises:
        ImportError: none is; the message says what to install.
    """
    names = (*PACKAGES, "lightning_fabric")
    if any(name in sys.modules or importlib.util.find_spec(name) for name in names):
        return
    raise ImportError(
        f"{what} needs PyTorch Lightning, and neither lightning nor pytorch_lightning is "
        "installed; run: pip install 's4weights[lightning]'"
    )


def _register(module: ModuleType, plugin: type) -> None:
    module.CheckpointIO.register(plugin)


class _Watcher(MetaPathFinder):
    """Finds the modules in `waiting` as others would; they register the plugin when loaded."""

    def __init__(self, waiting: list[str], plugin: type) -> None:
        self.waiting, self.plugin = waiting, plugin

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
        """Register the plugin on `module`, and end the wait when it was the last."""
        _register(module, self.plugin)
        if module.__name__ in self.waiting:
            self.waiting.remove(module.__name__)
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
