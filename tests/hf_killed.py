"""A Trainer that is killed (SIGKILL), or terminated (SIGTERM), at a chosen moment, by itself.

    hf_killed.py url output-directory kind moment

Kinds: `mirror`, `direct`. Moments: `side-files` (weights taken, the Trainer is writing the
rest), `put-<n>` (as the n-th object of the second save is written), `rotation` (after the
commit, before what save_total_limit gives up is removed), `sigterm`, `never`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from typing import Any

import torch
from accelerate_killed import dying, kill
from hf_toy import trainer
from transformers import Trainer, TrainerCallback
from transformers.trainer_jit_checkpoint import CheckpointManager

from s4_accelerate.hf import Keep, S4Trainer, S4TrainerCallback
from s4core.checkpoint import Run
from s4core.stores import LocalStore, S3Store


class Ours(S4Trainer, Trainer):
    pass


class Arm(TrainerCallback):
    def __init__(self, moment: str) -> None:
        self.moment, self.made = moment, None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        moment = self.moment
        if state.global_step != 3:
            return
        for callback in self.made.callback_handler.callbacks:
            if isinstance(callback, S4TrainerCallback):
                callback.flush()
        if isinstance(self.made, S4Trainer):
            self.made.s4_flush()
        if moment == "side-files":
            self.made._save_rng_state = lambda _: kill()
        elif moment == "rotation":
            Run.remove = lambda *_, **__: kill()  # type: ignore[method-assign,assignment]
        elif moment == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        elif moment.startswith("put-"):
            for store in (LocalStore, S3Store):
                store._put = dying(store._put, int(moment[4:]))  # type: ignore[method-assign]


def main(url: str, output_dir: str, kind: str, moment: str) -> None:
    torch.set_num_threads(1)
    arm, keep = Arm(moment), Keep(last=1)
    if moment == "sigterm":
        begin = CheckpointManager.__init__
        # A shorter grace than the three seconds that tell SIGTERM from SIGKILL.
        CheckpointManager.__init__ = lambda self, trainer, kill_wait=0: begin(self, trainer, 0.01)
    changes = {"enable_jit_checkpoint": moment == "sigterm"}
    if kind == "mirror":
        arm.made = trainer(output_dir, arm, S4TrainerCallback(url, keep=keep), **changes)
    else:
        extra = {"s4_url": url, "s4_keep": keep}
        arm.made = trainer(output_dir, arm, kind=Ours, extra=extra, **changes)
    arm.made.train()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
