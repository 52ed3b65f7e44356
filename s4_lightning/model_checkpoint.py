"""`S4ModelCheckpoint`: Lightning's `ModelCheckpoint`, right on remote paths too.

What Lightning's own does wrong when `dirpath` is a URL, and this does not:

1. `ckpt_path="last"` loses the scheme of what it finds, finds nothing on the local disk,
   and training silently starts from scratch.
2. The checkpoint that training resumed from is deleted when it falls out of the top k.
3. It needs s3fs beside this library's own S3 client. Here `s3://` is seen as `s4://`
   (`s4core.fs`), which uses the latter.
4. `save_last="link"` is refused. Here `last.ckpt` is a second ref, which costs no more.

On local paths it behaves as Lightning's own. `Remote` holds the differences; the classes
for the two packages are in `for_lightning` and `for_pytorch_lightning`.
"""

from __future__ import annotations

import os
import re
from typing import Any

from s4_lightning.addresses import address
from s4_lightning.checkpoint_io import S4CheckpointIO
from s4core.fs import PROTOCOL, register, to_s4

__all__ = ["Remote"]


class Remote:
    """What `S4ModelCheckpoint` changes; stands before `ModelCheckpoint` in its bases."""

    dirpath: Any
    save_last: Any
    _fs: Any

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, *args: Any, **kwargs: Any):
        register()
        seen = None if dirpath is None else _seen(dirpath)
        super().__init__(seen, *args, **kwargs)  # type: ignore[call-arg]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Settle the directory, which may come from the Trainer."""
        directory = _seen(self._ModelCheckpoint__resolve_ckpt_dir(trainer))  # type: ignore[attr-defined]
        if _is_remote(directory):
            self.dirpath = directory
            self.save_last = True if self.save_last == "link" else self.save_last
        super().setup(trainer, pl_module, stage)  # type: ignore[misc]

    def file_exists(self, filepath: Any, trainer: Any) -> bool:
        """Whether a name is taken: by a file, or by a checkpoint that is being saved."""
        plugin = trainer.strategy.checkpoint_io
        if isinstance(plugin, S4CheckpointIO) and plugin.is_saving(filepath):
            taken = True
        else:
            taken = trainer.is_global_zero and self._fs.exists(filepath)
        return bool(trainer.strategy.reduce_boolean_decision(taken, all=False))

    def _find_last_checkpoints(self, trainer: Any) -> set[str]:
        directory = _seen(self._ModelCheckpoint__resolve_ckpt_dir(trainer))  # type: ignore[attr-defined]
        if not _is_remote(directory):
            found: set[str] = super()._find_last_checkpoints(trainer)  # type: ignore[misc]
            return found
        if not self._fs.exists(directory):
            return set()
        pattern = re.compile(rf"{re.escape(self.CHECKPOINT_NAME_LAST)}(-\d+)?")  # type: ignore[attr-defined]
        return {
            self._fs.unstrip_protocol(name)
            for name in self._fs.ls(directory, detail=False)
            if _matches(name, pattern, self.FILE_EXTENSION)  # type: ignore[attr-defined]
        }

    def _should_remove_checkpoint(self, trainer: Any, previous: str, current: str) -> bool:
        if not _is_remote(previous):
            wanted: bool = super()._should_remove_checkpoint(trainer, previous, current)  # type: ignore[misc]
            return wanted
        old = address(previous)
        kept = {address(path) for path in (current, trainer.ckpt_path) if path}
        return old not in kept and old.startswith(f"{address(self.dirpath).rstrip('/')}/")


def _seen(path: str | os.PathLike[str]) -> str:
    """A path as Lightning is to see it: `s3://` as `s4://`, local ones as they are."""
    text = os.fspath(path)
    where = address(text)
    return to_s4(where) if where.startswith(("s3://", f"{PROTOCOL}://")) else text


def _is_remote(path: Any) -> bool:
    return "://" in os.fspath(path)


def _matches(name: str, pattern: re.Pattern[str], extension: str) -> bool:
    stem, ending = os.path.splitext(name.rpartition("/")[2])
    return ending == extension and pattern.match(stem) is not None
