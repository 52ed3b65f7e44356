"""Kill a training over and over, at random moments, and see that nothing was lost.

    python tests/lightning/soak.py --kills 30 --ranks 2

Trains under DDP (gloo, on the CPU) with asynchronous saves after every epoch. The whole
process group is killed with SIGKILL at a random moment, thirty times, and resumed with
`ckpt_path="last"`. Each time every checkpoint that is there must load, and training must
go on from the last one committed. At the end each bit of weights and optimizer state must
equal those of a training that nobody killed. Prints one line for each attempt.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import s4weights

EPOCHS = 60
PATIENCE_SECONDS = 240.0


def train(directory: Path, ranks: int, epochs: int) -> None:
    """Train in this process, resuming from whatever is there; note each event in a file."""
    warnings.simplefilter("ignore")
    import lightning.pytorch as package
    from lightning_trainings import make_trainer, save_every_epoch
    from torch import nn

    from s4_lightning import S4CheckpointIO

    class Model(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layers = nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 64))

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            note(directory, "step")
            return (self.layers(batch) - batch.flip(1)).square().mean()

        def on_train_start(self) -> None:
            note(directory, f"start {self.global_step}")

        def train_dataloader(self) -> Any:
            generator = torch.Generator().manual_seed(self.current_epoch)
            data = torch.randn(4 * ranks, 64, generator=generator)
            return torch.utils.data.DataLoader(data, batch_size=2)  # type: ignore[arg-type]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    callback = save_every_epoch(package, directory / "run", monitor=None, save_top_k=1)
    trainer = make_trainer(
        package,
        S4CheckpointIO(wait=False),
        max_epochs=epochs,
        callbacks=[callback],
        strategy="ddp" if ranks > 1 else "auto",
        devices=ranks,
        use_distributed_sampler=True,
    )
    trainer.fit(Model(), ckpt_path="last")
    note(directory, "end")


def note(directory: Path, event: str) -> None:
    """Append an event of rank 0."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with (directory / "events").open("a") as out:
            out.write(event + "\n")


def events(directory: Path) -> list[str]:
    path = directory / "events"
    return path.read_text().splitlines() if path.exists() else []


def start(directory: Path, ranks: int, epochs: int) -> subprocess.Popen[bytes]:
    """Start a training in a process group of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "events").unlink(missing_ok=True)
    command = [sys.executable, __file__, f"--train={directory}", f"--ranks={ranks}"]
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, f"--epochs={epochs}"],
            env=os.environ | {"PYTHONPATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_for_steps(process: subprocess.Popen[bytes], directory: Path, steps: int) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and events(directory).count("step") < steps:
        if time.monotonic() > end:
            raise TimeoutError((directory / "log").read_text()[-3000:])
        time.sleep(0.005)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the group that `start` made, by its id."""
    with suppress(ProcessLookupError):  # it may have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def committed_step(directory: Path) -> int:
    """Load every checkpoint that is there; return the step of the last one, 0 if none is."""
    names = sorted(path.name for path in (directory / "run").glob("*.ckpt"))
    states = {name: s4weights.load(directory / "run" / name) for name in names}
    return states["last.ckpt"]["global_step"] if "last.ckpt" in states else 0


def soak(directory: Path, kills: int, ranks: int, epochs: int, seed: int) -> None:
    """Kill and resume; raise AssertionError where something was lost."""
    chance = random.Random(seed)
    for attempt in range(kills):
        expected = committed_step(directory)
        process = start(directory, ranks, epochs)
        wait_for_steps(process, directory, chance.randint(1, 8))
        time.sleep(chance.uniform(0.0, 0.15))
        kill(process)
        began, now = began_at(directory), committed_step(directory)
        print(f"kill {attempt}: resumed from step {began}, committed {now}", flush=True)
        assert began == expected, f"expected to go on from step {expected}, not {began}"
        assert now >= expected, f"step {expected} was committed, and {now} is left"
    finish(directory, ranks, epochs)
    finish(directory.parent / "uninterrupted", ranks, epochs)
    compare(directory.parent / "uninterrupted", directory)


def began_at(directory: Path) -> int:
    started = [event for event in events(directory) if event.startswith("start ")]
    assert started, (directory / "log").read_text()[-3000:]
    return int(started[0].split()[1])


def finish(directory: Path, ranks: int, epochs: int) -> None:
    process = start(directory, ranks, epochs)
    code = process.wait(PATIENCE_SECONDS + 10 * epochs)
    assert code == 0, (directory / "log").read_text()[-3000:]


def compare(uninterrupted: Path, killed: Path) -> None:
    from bits import assert_same_state

    a, b = (s4weights.load(path / "run" / "last.ckpt") for path in (uninterrupted, killed))
    for part in ("state_dict", "optimizer_states", "global_step", "epoch"):
        assert_same_state(a[part], b[part], where=part)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train, args.ranks, args.epochs)
        return
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    print(f"seed {args.seed}")
    with tempfile.TemporaryDirectory() as temporary:
        soak(Path(temporary) / "killed", args.kills, args.ranks, args.epochs, args.seed)
    print(f"{args.kills} kills: nothing lost, every bit equal")


if __name__ == "__main__":
    main()
