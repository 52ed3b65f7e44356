# /// script
# requires-python = ">=3.10"
# dependencies = ["s4weights"]
# ///
"""Save and load with S4 Weights: one file, or the checkpoints of a run.

    python examples/save_load.py
    python examples/save_load.py --dir /tmp/somewhere     keeps what it writes

Paths may be `s3://bucket/...` as well (pip install 's4weights[s3]').
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import s4weights


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """A few steps of learning to add up the inputs."""
    for _ in range(steps):
        inputs = torch.randn(64, 128)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    # torch.equal alone would call 0.0 and -0.0 equal, and a NaN different from itself.
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def one_file(directory: Path, state: dict[str, Any]) -> None:
    """`save` and `load`: any nested state, one self-contained file."""
    path = directory / "model.s4"
    s4weights.save(state, path)
    loaded = s4weights.load(path)

    for name, tensor in state["model"].items():
        assert same_bits(tensor, loaded["model"][name]), name
    raw = sum(tensor.nbytes for tensor in state["model"].values())
    print(f"{path.name}: every bit is back, {path.stat().st_size / 1e6:.2f} MB on disk")

    # Only some of the tensors: nothing else is read.
    weights = s4weights.load(path, keys=["model/*.weight"])
    print(f"only the weights: {', '.join(weights)} of {raw / 1e6:.2f} MB")


def a_run(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """`open`: each checkpoint is stored as what changed since the one before."""
    run = s4weights.open(directory / "run", keep_last=3)
    for step in range(100, 600, 100):
        train(model, optimizer, steps=100)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        info = run.save(state, step=step).result()
        print(
            f"step {info.step}: {info.kind} of depth {info.depth}, {info.raw_bytes / 1e6:.2f} MB "
            f"stored in {info.stored_bytes / 1e6:.2f} MB"
        )

    # In another process, perhaps on another machine:
    newest = s4weights.open(directory / "run").load()
    model.load_state_dict(newest["model"])
    optimizer.load_state_dict(newest["optimizer"])
    print(f"resumed from step {newest['step']}; kept are the steps {run.steps()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, steps=10)
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.dir or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        one_file(directory, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        a_run(directory, model, optimizer)


if __name__ == "__main__":
    main()
