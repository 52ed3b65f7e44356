"""`S4Trainer`: a Trainer's checkpoints go to S4 and nowhere else.

    class MyTrainer(S4Trainer, Trainer): ...          # or SFTTrainer, any that derives from it
    trainer = MyTrainer(..., s4_url="s3://bucket/run")
    trainer.train(resume_from_checkpoint=True)        # the newest committed one

    trainer = patch_trainer(Trainer(...), "s3://bucket/run")    # the same, for one at hand

A save goes through the Trainer's own code, into an empty directory of each rank, with the
weights and the optimizer left out; what lies there is gathered and committed in one piece
together with them. So there is no second local copy, and no local rotation before the
commit. Just-in-time checkpoints (SIGTERM) take the same way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from s4_accelerate.hf.recorder import CHECKPOINT, Keep, Recorder, is_adapter, refuse_arguments
from s4_accelerate.hf.resuming import FOLDER, lay_out_weights, prepare
from s4_accelerate.hf.stub import StubLoader
from s4weights import S4Error, StateError

__all__ = ["S4Trainer", "patch_trainer"]

_log = logging.getLogger("s4_accelerate")

T = TypeVar("T")


class S4Trainer:
    """A mixin, to stand before `Trainer` among the bases.

    Args:
        args: of the Trainer.
        s4_url: directory of the checkpoints: local path, `s3://bucket/run`, ...; None:
            `S4_STORE`.
        s4_keep: which stay; by default as `save_total_limit` says, and the best.
        s4_options: fields of `s4weights.Options`, and `wait` and `allow_cast`.
        kwargs: of the Trainer.

    Raises:
        StateError: an option out of range; FSDP, DeepSpeed, Megatron-LM.
    """

    s4_recorder: Recorder
    _s4_loader: StubLoader | None = None
    _s4_staging: str | None = None  # where the Trainer writes while it saves

    def __init__(
        self,
        *args: Any,
        s4_url: str | os.PathLike[str] | None = None,
        s4_keep: Keep | None = None,
        s4_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._s4_begin(s4_url, s4_keep, s4_options)

    def _s4_begin(self, url: Any, keep: Keep | None, options: dict[str, Any] | None) -> None:
        chosen = dict(options or {})
        self._s4_wait = bool(chosen.pop("wait", False))
        self._s4_allow_cast = bool(chosen.pop("allow_cast", False))
        refuse_arguments(self._s4.args)
        self.s4_recorder = Recorder(url, keep or Keep(last="save_total_limit"), chosen)

    @property
    def _s4(self) -> Any:
        return self  # what the Trainer brings has no types here

    def s4_flush(self) -> None:
        """Wait for the last save.

        Raises:
            S4Error: it was not committed.
        """
        self.s4_recorder.flush()

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does.

        Args:
            resume_from_checkpoint: True: the newest committed checkpoint; the URL of one; a
                directory.
            args: further ones of the Trainer.
            kwargs: likewise.

        Raises:
            ValueError: True, and there is none.
            S4Error: the last checkpoint was not committed.
        """
        self._s4_arm()
        resolved = self._s4_resolve(resume_from_checkpoint)
        try:
            done = super().train(resolved, *args, **kwargs)  # type: ignore[misc]
        except BaseException:
            self._s4_flush_after_an_error()
            raise
        self.s4_flush()
        self._s4_tell()
        return done

    def _s4_arm(self) -> None:
        if self._s4_loader is not None:
            self._s4_loader.remove()
        self._s4_loader = StubLoader(
            self._s4.model, self.s4_recorder.archive, allow_cast=self._s4_allow_cast
        )

    def _s4_resolve(self, wanted: Any) -> Any:
        url = self.s4_recorder.archive.url
        if wanted is True:
            names = self.s4_recorder.ranks.first(
                lambda: self.s4_recorder.archive.names(CHECKPOINT, wait=True)
            )
            if not names:
                raise ValueError(f"No valid checkpoint found: {url} holds no checkpoint-<step>")
            return prepare(f"{url}/{names[-1]}", self._s4.args.output_dir, materialize=False)
        if isinstance(wanted, str | os.PathLike) and "://" in os.fspath(wanted):
            return prepare(wanted, self._s4.args.output_dir, materialize=False)
        return wanted

    def _s4_flush_after_an_error(self) -> None:
        try:
            self.s4_flush()
        except S4Error as error:
            _log.error("and the last checkpoint was not committed: %s", error)

    def _s4_tell(self) -> None:
        for report in self.s4_recorder.archive.new_reports():
            self._s4.log(dict(report.metrics))

    # What the Trainer calls

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        started = time.monotonic()
        if trial is not None:
            raise StateError(
                "S4Trainer saves no hyperparameter search: give each trial its own url"
            )
        with tempfile.TemporaryDirectory(prefix="s4-") as staging:
            directory = Path(staging, f"checkpoint-{self._s4.state.global_step}")
            self.s4_recorder.ranks.gather(lambda: self._s4_stage(staging, directory, model, trial))
            self.s4_recorder.record(
                directory,
                self._s4.model,
                self._s4.optimizer,
                self._s4.args,
                self._s4.state,
                started=started,
                wait=self._s4_wait,
            )
        self._s4_point_to_best()
        self._s4_tell()

    def _s4_stage(self, staging: str, directory: Path, model: Any, trial: Any) -> None:
        directory.mkdir()
        self._s4_staging = staging
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        finally:
            self._s4_staging = None

    def _get_output_dir(self, trial: Any) -> str:
        if self._s4_staging is not None:
            return self._s4_staging
        found: str = super()._get_output_dir(trial)  # type: ignore[misc]
        return found

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self._s4_staging is None or is_adapter(self._s4.model):
            super()._save(output_dir, state_dict)  # type: ignore[misc]
            return
        # An empty state writes everything but the weights; DeepSpeed's way in the Trainer.
        super()._save(output_dir, {})  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._s4_staging is None:
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
            return
        with _without_state(self._s4.optimizer):
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]

    def _s4_point_to_best(self) -> None:
        """Name the best checkpoint by its URL: what the Trainer put there is gone."""
        state, args = self._s4.state, self._s4.args
        step = getattr(state, "best_global_step", None)
        # With this limit the Trainer would look for it among local directories at the end.
        hidden = args.save_total_limit == 1 and not args.load_best_model_at_end
        if step:
            url = f"{self.s4_recorder.archive.url}/checkpoint-{step}"
            state.best_model_checkpoint = None if hidden else url

    def _load_best_model(self) -> None:
        state = self._s4.state
        self.s4_recorder.ranks.first(self.s4_recorder.archive.wait)
        if not os.path.isdir(state.best_model_checkpoint):
            name = state.best_model_checkpoint.rpartition("/")[2]
            folder = Path(self._s4.args.output_dir, FOLDER)
            folder.mkdir(parents=True, exist_ok=True)
            url = f"{self.s4_recorder.archive.url}/{name}"
            state.best_model_checkpoint = str(lay_out_weights(url, folder, full=False))
        super()._load_best_model()  # type: ignore[misc]
        if self._s4_loader is not None:
            self._s4_loader.forget()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if self._s4_loader is not None:
            self._s4_loader.load_optimizer(self._s4.optimizer)


@contextlib.contextmanager
def _without_state(optimizer: Any) -> Iterator[None]:
    """Let `state_dict` give an empty one: nothing of it is meant for the disk."""
    optimizer.__dict__["state_dict"] = dict
    try:
        yield
    finally:
        optimizer.__dict__.pop("state_dict", None)


def patch_trainer(
    trainer: T,
    url: str | os.PathLike[str] | None = None,
    *,
    keep: Keep | None = None,
    **options: Any,
) -> T:
    """Make `trainer` an `S4Trainer`, whatever its class; return it.

    Args:
        trainer: any that derives from transformers' Trainer.
        url: as for `S4Trainer`.
        keep: likewise.
        options: fields of `s4weights.Options`, and `wait` and `allow_cast`.

    Raises:
        StateError: as for `S4Trainer`.
    """
    own = type(trainer)
    made: Any = trainer
    if not isinstance(trainer, S4Trainer):
        made.__class__ = type(f"S4{own.__name__}", (S4Trainer, own), {"__doc__": own.__doc__})
    made._s4_begin(url, keep, options)
    return trainer
