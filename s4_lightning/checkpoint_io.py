"""`S4CheckpointIO`: Lightning's checkpoints, written and read by S4.

    trainer = Trainer(plugins=[S4CheckpointIO()])

What Lightning promises its users stays true: checkpoints lie at the paths they are
configured to, `ckpt_path="last"` and "best" resume, `save_top_k` removes. A path holds a
ref of some hundred bytes; the bytes lie in `.s4` beside it (FORMAT.md, section 11).

Lightning's contract, in the order of its calls, is in `lightning.fabric.plugins.io.
checkpoint_io` and in the Strategies that call it. Save and remove come from rank 0, load
and teardown from all; the same instance is used again after teardown; it is pickled to
spawned processes.
"""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import replace
from typing import Any, Final

import s4weights
from s4_lightning.addresses import address, is_temporary
from s4_lightning.attach import require_lightning
from s4_lightning.session import Session, overridden
from s4core.checkpoint.foreign import dump_torch
from s4core.refs import split_url
from s4weights import CheckpointInfo, Options

__all__ = ["S4CheckpointIO"]

_Path = str | os.PathLike[str]

# Two in flight: `last.ckpt` of the same step does not wait for the checkpoint before it.
_DEFAULTS: Final = Options(allow_pickle=True, allow_classes=True, max_in_flight=2)


class S4CheckpointIO:
    """A checkpoint plugin for the Trainers of `lightning` and of `pytorch_lightning`.

    Args:
        profile: `open` (restores anywhere) or `nvcomp`.
        max_depth: the most deltas that may lie under a checkpoint; then a new base.
        wait: return from a save after its commit. If not, return as soon as the state may
            be mutated; the rest runs behind the training, and a failure is raised by the
            next save or load, or at the end of training.
        weights_only: for loading, where the caller says nothing.
        options: further fields of `s4weights.Options`. Objects of unknown classes (in
            hyperparameters, say) are stored pickled, enums and dataclasses by name, so that
            saving succeeds; they load only with `weights_only=False`. `allow_pickle=False`
            and `allow_classes=False` refuse them at once.

    Raises:
        StateError: an option that is unknown or out of range.
        ImportError: no Lightning is installed.
    """

    def __init__(
        self,
        *,
        profile: str = "open",
        max_depth: int = 8,
        wait: bool = True,
        weights_only: bool = True,
        **options: Any,
    ) -> None:
        require_lightning("S4CheckpointIO")
        chosen = replace(_DEFAULTS, profile=profile, max_depth=max_depth)
        self.options = overridden(chosen, options, "S4CheckpointIO")
        self.wait, self.weights_only = wait, weights_only
        self._session: Session | None = None
        self._advised = False

    def __getstate__(self) -> dict[str, Any]:
        # Locks and clients stay in their process.
        return {**self.__dict__, "_session": None}

    def _here(self) -> Session:
        """The session of this process: after a fork the parent's locks are useless."""
        if self._session is None or self._session.process != os.getpid():
            self._session = Session(self.options, wait=self.wait)
        return self._session

    def _advise(self) -> None:
        """Say once that `AsyncCheckpointIO`, which calls from a pool of its own, is no help."""
        if not self._advised and threading.current_thread().name.startswith("ThreadPoolExecutor"):
            self._advised = True
            warnings.warn(
                "S4CheckpointIO(wait=False) saves behind the training by itself. It is called "
                "from a thread pool, as by AsyncCheckpointIO, which copies the whole state "
                "first: pass it to the Trainer without a wrapper",
                stacklevel=2,
            )

    @property
    def history(self) -> list[CheckpointInfo]:
        """What this process committed, oldest first; the newest thousand."""
        return list(self._here().history)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _Path, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint; when this returns it is committed, or with `wait=False` safe.

        Args:
            checkpoint: any nested state; its `global_step` becomes the step.
            path: local path, `s3://`, ...
            storage_options: dict of fields of `Options`, for this save only.

        Raises:
            StateError: it holds something that cannot be stored; the message names its path.
            StoreError: the store refused; older checkpoints are unharmed.
            S4Error: an earlier save failed behind the training.
        """
        where = address(path)
        self._advise()
        if is_temporary(where):
            _save_plainly(checkpoint, where)
        else:
            self._here().save(checkpoint, where, storage_options)

    def load_checkpoint(
        self, path: _Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint of S4, or a plain one that Lightning itself wrote.

        Args:
            path: of the checkpoint.
            map_location: as for `torch.load`; None: the CPU.
            weights_only: refuse whatever would run code of the file's choosing; None: as
                the plugin was told.

        Raises:
            KeyNotFoundError: nothing is there (also FileNotFoundError).
            StateError: it needs `weights_only=False`; the message names path and class.
            FormatError, ChainError: it is damaged, or something it stands on is gone.
        """
        where = address(path)
        mapped = "cpu" if map_location is None else map_location
        only = self.weights_only if weights_only is None else weights_only
        if is_temporary(where):
            return s4weights.load(where, mapped, only)  # type: ignore[no-any-return]
        return self._here().load(where, mapped, weights_only=only)  # type: ignore[no-any-return]

    def remove_checkpoint(self, path: _Path) -> None:
        """Remove a checkpoint; its bytes go when no other checkpoint stands on them.

        What is not there is no error. What this process resumed from stays until a newer
        checkpoint is committed.
        """
        where = address(path)
        if is_temporary(where):
            directory, name = split_url(where)
            directory.delete([name])
        else:
            self._here().remove(where)

    def is_saving(self, path: _Path) -> bool:
        """Whether a checkpoint of that path is being saved behind the training."""
        return self._here().is_saving(address(path))

    def teardown(self) -> None:
        """Finish what is under way; the plugin may be used again.

        Raises:
            S4Error: a save failed behind the training, and nobody was told.
        """
        if self._session is not None and self._session.process == os.getpid():
            self._session.flush()


def _save_plainly(checkpoint: Any, where: str) -> None:
    directory, name = split_url(where)
    directory.put(name, dump_torch(checkpoint), replace=True)
