# /// script
# requires-python = ">=3.10"
# dependencies = ["s4weights[accelerate]"]
# ///
"""Train under Accelerate, get killed, resume: with S4 the end is the same, bit for bit.

A small GPT learns the source of Python's own library, with AdamW and a schedule. It is
trained twice, in processes of their own: with Accelerate's own checkpoints, and with
`S4Accelerate(accelerator, url)`. Both are killed (SIGKILL) after the same step and resumed.
Then model, optimizer, schedule and random number generators of the two are compared.

    python examples/accelerate_resume.py                 about a minute on two CPU cores
    python examples/accelerate_resume.py --width 1024 --layers 12      on a GPU
    python examples/accelerate_resume.py --url s3://bucket/run

The exit code is 0 if nothing differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums each time

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from s4_accelerate import S4Accelerate

CONTEXT, BATCH, SEED = 64, 16, 4


class GPT(nn.Module):
    """A causal transformer over bytes; the head is tied to the embedding."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, max(width // 32, 1), 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        hidden = self.embed(text) + self.position[: text.shape[1]]
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


def windows() -> Tensor:
    """Text to learn: the first megabyte of Python's own library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[: 1 << 20]
    whole = len(text) // (CONTEXT + 1) * (CONTEXT + 1)
    return torch.frombuffer(bytearray(text[:whole]), dtype=torch.uint8).view(-1, CONTEXT + 1).long()


class Steps:
    """How far the training is; an object of the user's, checkpointed with the rest."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def train(args: argparse.Namespace) -> None:
    """One process: train to the end, or to where it is killed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    set_seed(SEED)
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=SEED),
        project_config=ProjectConfiguration(args.dir, automatic_checkpoint_naming=True),
    )
    model = GPT(args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    loader = DataLoader(TensorDataset(windows()), batch_size=BATCH, shuffle=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    steps = Steps()
    accelerator.register_for_checkpointing(steps)
    s4 = S4Accelerate(accelerator, args.url) if args.through == "s4" else None
    if args.resume:
        accelerator.load_state()
        if s4 is None:  # Accelerate itself does not restore it, and says "already exists" then
            accelerator.project_configuration.iteration = steps.done // args.every
    for (text,) in accelerator.skip_first_batches(loader, steps.done):
        scores = model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        steps.done += 1
        if steps.done % args.every == 0:
            accelerator.save_state()
        if steps.done == args.kill and not args.resume:
            if s4 is not None:
                s4.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if steps.done == args.steps:
            break
    if s4 is not None:
        s4.flush()
        print(json.dumps([report.metrics for report in s4.reports]), flush=True)
        s4.close()
    state = [model.state_dict(), optimizer.state_dict(), schedule.state_dict()]
    rngs = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()]
    torch.save([state, rngs, loss.item()], args.result)


def same(a: Any, b: Any) -> bool:
    """Whether two states agree in every bit."""
    if isinstance(a, Tensor):
        x, y = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
        return x.dtype == y.dtype and x.shape == y.shape and _bytes(x) == _bytes(y)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def child(args: argparse.Namespace, folder: Path, through: str, *, resume: bool) -> str:
    """Run one training process; return what it printed."""
    url = args.url or str(folder / "s4-run")
    command = [
        *(
            sys.executable,
            __file__,
            "--child",
            "--through",
            through,
            "--dir",
            str(folder / through),
        ),
        *("--result", str(folder / f"{through}.pt"), "--url", url),
        *("--width", str(args.width), "--layers", str(args.layers), "--steps", str(args.steps)),
        *("--every", str(args.every), "--kill", str(args.kill), *(["--resume"] if resume else [])),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    expected = 0 if resume else -signal.SIGKILL
    if done.returncode != expected:
        raise SystemExit(f"a training process ended with {done.returncode}, not {expected}")
    return done.stdout


def compare(args: argparse.Namespace, folder: Path) -> int:
    printed = ""
    for through in ("native", "s4"):
        child(args, folder, through, resume=False)
        print(f"{through}: killed after step {args.kill}", flush=True)
        printed = child(args, folder, through, resume=True)
        print(f"{through}: resumed, step {args.steps} done", flush=True)
    native = torch.load(folder / "native.pt", weights_only=False)
    ours = torch.load(folder / "s4.pt", weights_only=False)
    for report in json.loads(printed.strip().splitlines()[-1]):
        print(
            f"checkpoint: {report['s4/raw_mb']:.1f} MB raw, {report['s4/stored_mb']:.1f} MB stored "
            f"({report['s4/ratio']:.2f} to 1), training paused {report['s4/pause_seconds']:.3f} s"
        )
    equal = same(native, ours)
    print(f"loss {native[2]:.6f} and {ours[2]:.6f}")
    print("every bit is the same" if equal else "THE TWO DIFFER")
    return 0 if equal else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    parser.add_argument("--kill", type=int, default=25, help="step after which it is killed")
    parser.add_argument("--url", default="", help="where S4's checkpoints go; default: a directory")
    for name in ("--child", "--resume"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    for name in ("--through", "--dir", "--result"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    warnings.filterwarnings("ignore", category=UserWarning)
    if args.child:
        train(args)
        return 0
    with tempfile.TemporaryDirectory(prefix="s4-example-") as folder:
        return compare(args, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
