"""What each of two ranks does in `test_trainer_ranks.py`.

hf_ranks.py directory url-of-a-mirror url-of-direct-checkpoints
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from bits import assert_same_state
from hf_toy import StopAt, final, trainer
from transformers import Trainer

from s4_accelerate.hf import S4Trainer, S4TrainerCallback, prepare

RANK = int(os.environ["RANK"])


class Ours(S4Trainer, Trainer):
    pass


def main(directory: str, mirror: str, direct: str) -> None:
    base = Path(directory)
    native = trainer(base / "native", save_strategy="no")
    native.train()
    assert native.args.world_size == 2
    expected = final(native)
    callback = S4TrainerCallback(mirror)
    trainer(base / "m", callback, StopAt(4)).train()
    barrier()
    if RANK == 0:
        shutil.rmtree(base / "m")
    again = trainer(base / "m", S4TrainerCallback(mirror), seed=9)
    again.train(resume_from_checkpoint=prepare(mirror, base / "m"))
    same(expected, final(again))
    extra = {"s4_url": direct}
    trainer(base / "d", StopAt(4), kind=Ours, extra=extra).train()
    again = trainer(base / "d", kind=Ours, extra=extra, seed=9)
    again.train(resume_from_checkpoint=True)
    same(expected, final(again))


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for part in a.keys() - {"losses"}:
        assert_same_state(a[part], b[part], where=f"rank {RANK}: {part}")


def barrier() -> None:
    torch.distributed.barrier()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*sys.argv[1:])
