"""What each of two ranks does in `test_ranks.py`: save, forget, load, go on, compare.

accelerate_ranks.py url ...     exit code 0: every resume was bit-identical on this rank
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate_toy import Toy, fresh_accelerator
from bits import assert_same_state

from s4_accelerate import S4Accelerate
from s4weights import S4Error


def main(project: str, *urls: str) -> None:
    accelerator = fresh_accelerator()
    assert accelerator.num_processes == 2, accelerator.num_processes
    assert str(accelerator.distributed_type) == "DistributedType.MULTI_CPU"
    toy = Toy(accelerator)
    toy.train(3)
    toy.train(3)
    uninterrupted = toy.copy()
    assert_same_state(uninterrupted, resumed(None, f"{project}/native"))
    for url in urls:
        assert_same_state(uninterrupted, resumed(url, "step_3"))
    failures_are_shared(project)
    hooks_alone(project, uninterrupted)
    accelerator.end_training()


def resumed(url: str | None, where: str) -> dict[str, Any]:
    first = Toy(fresh_accelerator())
    assert any(name.startswith("module.module.") for name in first.net.state_dict()), "no DDP"
    s4 = None if url is None else S4Accelerate(first.accelerator, url)
    first.train(3)
    first.accelerator.save_state(where)
    if s4 is None:
        # Accelerate's own save returns on rank 0 before rank 1's files are there.
        first.accelerator.wait_for_everyone()
    else:
        assert s4.latest() == f"{url}/{where}"
        s4.close()
    second = Toy(fresh_accelerator(), seed=9)
    s4 = None if url is None else S4Accelerate(second.accelerator, url)
    second.accelerator.load_state(where)
    second.train(3)
    return second.copy()


def failures_are_shared(project: str) -> None:
    """One rank's failure raises on both, and neither waits for the other."""
    toy = Toy(fresh_accelerator())
    s4 = S4Accelerate(toy.accelerator, f"{project}/failing")
    rank = toy.accelerator.process_index
    if rank == 1:
        toy.counter.state_dict = lambda: 1 / 0  # type: ignore[method-assign]
    kind, message = [(S4Error, "rank 1 failed: ZeroDivisionError"), (ZeroDivisionError, "")][rank]
    with pytest.raises(kind, match=message):
        toy.accelerator.save_state("a")
    assert s4.latest() is None
    s4.close()


def hooks_alone(project: str, uninterrupted: dict[str, Any]) -> None:
    import s4_accelerate

    toys = []
    for seed in (0, 9):
        toy = Toy(fresh_accelerator(), seed=seed)
        toy.accelerator.register_save_state_pre_hook(s4_accelerate.save_hook)
        toy.accelerator.register_load_state_pre_hook(s4_accelerate.load_hook)
        toys.append(toy)
        if seed == 0:
            toy.train(3)
            toy.accelerator.save_state(f"{project}/hooked")
            toy.accelerator.wait_for_everyone()
    toys[1].accelerator.load_state(f"{project}/hooked")
    toys[1].train(3)
    assert_same_state(uninterrupted, toys[1].copy())
    assert not Path(f"{project}/hooked/model.safetensors").exists()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"rank {os.environ['RANK']}: %(message)s")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*sys.argv[1:])
