"""A training that is killed (SIGKILL) at a chosen moment, by itself.

    accelerate_killed.py url moment

Moments: `side-files` (models taken by the hook, no side file written yet), `rank-1` (that
rank, amid its side files), `put-<n>` (as the n-th object of the third save is written, half
of it), `rotation` (after the commit, before what total_limit gives up is removed), `never`.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate.accelerator
from accelerate_toy import Toy, fresh_accelerator

from s4_accelerate import S4Accelerate
from s4core.checkpoint import Run
from s4core.stores import LocalStore, S3Store


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, moment: str) -> None:
    toy = Toy(fresh_accelerator(Path(url).parent, total_limit=2))
    s4 = S4Accelerate(toy.accelerator, url)
    for number in range(4):
        toy.train(1)
        if number == 2:
            s4.flush()
            arm(toy, moment)
        toy.accelerator.save_state()
    s4.close()


def arm(toy: Toy, moment: str) -> None:
    rank = int(os.environ["RANK"])
    if moment == "side-files":
        accelerate.accelerator.save_accelerator_state = lambda *_, **__: kill()
    elif moment == "rank-1" and rank == 1:
        toy.counter.state_dict = kill  # type: ignore[assignment]
    elif moment == "rotation":
        Run.remove = lambda *_, **__: kill()  # type: ignore[method-assign,assignment]
    elif moment.startswith("put-"):
        for store in (LocalStore, S3Store):
            store._put = dying(store._put, int(moment[4:]))  # type: ignore[method-assign]


def dying(put: Callable[..., None], after: int) -> Callable[..., None]:
    count = 0

    def dying_put(store: Any, key: str, data: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        put(store, key, half(data) if count == after else data, *args, **kwargs)

    return dying_put


def half(data: Any) -> Any:
    yield from list(data)[:1]
    kill()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
