"""`S4TrainerCallback`: a mirror of a Trainer's checkpoints in S4.

    s4 = S4TrainerCallback("s3://bucket/run")
    trainer = Trainer(..., callbacks=[s4])
    trainer.train()                                             # or, on a fresh machine:
    trainer.train(resume_from_checkpoint=prepare("s3://bucket/run", args.output_dir))

The Trainer goes on writing its own checkpoints; each is committed to S4 as well, from the
live model and optimizer and the side files of all ranks. Nothing is ever written to a
local checkpoint, whose time of change the Trainer's rotation goes by. What S4 keeps is
ruled by `Keep`, never by what is left in the local directory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from s4_accelerate.archive import Report
from s4_accelerate.hf.recorder import Keep, Recorder, refuse_arguments
from s4_accelerate.hf.stub import StubLoader
from s4_accelerate.hf.transformers_api import TrainerCallback
from s4weights import S4Error, StateError, StoreError

__all__ = ["S4TrainerCallback"]

_log = logging.getLogger("s4_accelerate")


class S4TrainerCallback(TrainerCallback):  # type: ignore[misc]  # its base has no types here
    """Commits every checkpoint of a Trainer to S4, and loads stubs that `prepare` laid out.

    A store that refuses does not end the training: the local checkpoint is there, the error
    is in the log, and the next checkpoint is tried again.

    Args:
        url: directory of the checkpoints: local path, `s3://bucket/run`, ...; None: `S4_STORE`.
        keep: which stay; by default all.
        report: called with numbers for a tracker (`s4/ratio`, `s4/pause_seconds`, ...) and
            the step, after each commit; `wandb.log`, say.
        wait: let every save return after its commit.
        allow_cast: let loading round values to the model's dtype.
        options: fields of `s4weights.Options`.

    Raises:
        StateError: an option out of range.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        keep: Keep | None = None,
        report: Callable[[dict[str, float], int | None], None] | None = None,
        wait: bool = False,
        allow_cast: bool = False,
        **options: Any,
    ) -> None:
        self.recorder = Recorder(url, keep or Keep(), options)
        self._report, self._wait, self._allow_cast = report, wait, allow_cast
        self._loader: StubLoader | None = None
        self._stale: dict[str, int] = {}  # trainer states that were there before, by path
        self._recorded: int | None = None

    @property
    def reports(self) -> list[Report]:
        """What was committed by this process (rank 0), oldest first."""
        return list(self.recorder.archive.reports)

    def flush(self) -> None:
        """Wait for the last save.

        Raises:
            S4Error: it was not committed.
        """
        self.recorder.flush()

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse what cannot be saved, and make the model able to load stubs."""
        del state, control
        refuse_arguments(args)
        model = kwargs.get("model")
        if model is not None:
            self._loader = StubLoader(model, self.recorder.archive, allow_cast=self._allow_cast)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the optimizer that belongs to a stub."""
        del control
        refuse_arguments(args)
        self._recorded = None
        if self._loader is not None:
            self._loader.load_optimizer(kwargs["optimizer"])
        self._stale = {str(path): _changed(path) for path in _trainer_states(args.output_dir)}
        del state

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit the checkpoint that the Trainer has just written."""
        del control
        self._record(args, state, kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit a just-in-time checkpoint (SIGTERM), which no `on_save` follows."""
        self._record_just_in_time(args, state, control, kwargs)

    on_pre_optimizer_step = on_step_begin
    on_step_end = on_step_begin
    on_epoch_end = on_step_begin

    def _record_just_in_time(self, args: Any, state: Any, control: Any, live: Any) -> None:
        # The Trainer's own callback, which saved it, is called before this one, in the
        # same event: the model is still what was saved.
        if not getattr(args, "enable_jit_checkpoint", False) or not control.should_training_stop:
            return
        path = Path(args.output_dir, f"checkpoint-{state.global_step}", "trainer_state.json")
        fresh = path.exists() and self._stale.get(str(path)) != _changed(path)
        if fresh and self._recorded != state.global_step:
            self._record(args, state, live)

    def _record(self, args: Any, state: Any, live: dict[str, Any]) -> None:
        started = time.monotonic()
        directory = Path(args.output_dir, f"checkpoint-{state.global_step}")
        try:
            self.recorder.record(
                directory,
                live["model"],
                live["optimizer"],
                args,
                state,
                started=started,
                wait=self._wait,
            )
        except StoreError as error:
            _log.error("%s was not committed to S4, and stays local: %s", directory, error)
        self._recorded = int(state.global_step)
        self._tell()

    def _tell(self) -> None:
        for report in self.recorder.archive.new_reports():
            if self._report is not None:
                self._report(report.metrics, report.info.step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for what is under way; an error is in the log, and `flush` does not hide it."""
        del args, state, control, kwargs
        if self._loader is not None:
            self._loader.forget()
        try:
            self.recorder.flush()
        except StateError:
            raise
        except S4Error as error:
            _log.error("the last checkpoint was not committed to S4, and stays local: %s", error)
        self._tell()


def _trainer_states(output_dir: str) -> list[Path]:
    return list(Path(output_dir).glob("checkpoint-*/trainer_state.json"))


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns
