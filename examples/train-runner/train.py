"""A training as a customer runs it under s4-runner: resumes, saves, answers its signals.

    s4-runner exec -- python train.py --steps 200

It reads S4_STORE, which the runner sets, and loads the newest commit there, so a restart
continues where the last checkpoint was. SIGUSR1 (a spot or rebalance notice) and SIGTERM
(a stop) only leave a mark: the loop saves at the next step, where the state is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
from types import FrameType
from typing import Any

import torch

import s4weights
from s4core.metrics import report_error, report_save


class Requests:
    """What the runner asked for since the last look."""

    def __init__(self) -> None:
        self.checkpoint = False
        self.stop = False
        signal.signal(signal.SIGUSR1, self._ask_checkpoint)
        signal.signal(signal.SIGTERM, self._ask_stop)

    def _ask_checkpoint(self, _number: int, _frame: FrameType | None) -> None:
        self.checkpoint = True

    def _ask_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop = True


class Training:
    """A small model, its optimizer, and the generator that makes its data."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.Generator().manual_seed(1)
        self.step = 0

    def advance(self) -> None:
        batch = torch.randn(32, 64, generator=self.data)
        loss = (self.model(batch) - batch.roll(1, 1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.get_state(),
            "step": self.step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.data.set_state(state["data"])
        self.step = state["step"]

    def digest(self) -> str:
        """Of the weights, bit for bit."""
        words = [p.detach().reshape(-1).view(torch.uint8) for p in self.model.parameters()]
        return hashlib.sha256(torch.cat(words).numpy().tobytes()).hexdigest()


def save(run: s4weights.Run, training: Training) -> None:
    """Save, and tell the runner how it went."""
    try:
        info = run.save(training.state(), step=training.step).result()
    except s4weights.StoreError as error:
        report_error(str(error))
        raise
    report_save(
        step=training.step,
        raw_bytes=info.raw_bytes,
        stored_bytes=info.stored_bytes,
        pause_seconds=info.seconds,
        upload_seconds=info.seconds,
    )
    print(f"saved step {training.step}: {info.kind}, {info.stored_bytes} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    chosen = parser.parse_args()
    requests = Requests()
    training = Training()
    run = s4weights.open()
    if run.latest() is not None:
        training.restore(run.load())
        print(f"resumed from step {training.step}", flush=True)
    saved = training.step
    while training.step < chosen.steps and not requests.stop:
        training.advance()
        if requests.checkpoint or training.step % chosen.every == 0:
            requests.checkpoint = False
            save(run, training)
            saved = training.step
    if saved != training.step:
        save(run, training)
    print(f"step {training.step}: weights {training.digest()}", flush=True)


if __name__ == "__main__":
    main()
