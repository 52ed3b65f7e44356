# /// script
# requires-python = ">=3.10"
# dependencies = ["s4weights[hf]"]
# ///
"""Train with the Hugging Face Trainer, lose the machine, resume from S4, bit for bit.

A small GPT-2, built from a configuration (nothing is downloaded), learns the source of
Python's own library. It is trained to the end once, undisturbed. Then, in processes of
their own: with `S4TrainerCallback` (a mirror of the Trainer's checkpoints) and with
`S4Trainer` (checkpoints in S4 and nowhere else), killed (SIGKILL) on the way, its output
directory deleted, resumed from S4. Then model and optimizer are compared with the first.

    python examples/hf_trainer_resume.py                 about a minute on two CPU cores
    python examples/hf_trainer_resume.py --width 1024 --layers 12      on a GPU
    python examples/hf_trainer_resume.py --url s3://bucket/run

The exit code is 0 if nothing differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums each time
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from s4_accelerate.hf import S4Trainer, S4TrainerCallback, prepare

CONTEXT, SEED = 64, 4


class DirectTrainer(S4Trainer, Trainer):
    """Checkpoints in S4 and nowhere else."""


class Text(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows of the source of Python's own library, as bytes."""

    def __init__(self) -> None:
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)[: 1 << 20]
        whole = len(text) // CONTEXT * CONTEXT
        self.rows = torch.frombuffer(bytearray(text[:whole]), dtype=torch.uint8).view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[index].long()
        return {"input_ids": row, "labels": row}


class Kill(TrainerCallback):
    """SIGKILL after a step."""

    def __init__(self, step: int) -> None:
        self.step, self.flush = step, lambda: None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if state.global_step == self.step:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def train(args: argparse.Namespace) -> None:
    """One process: train to the end, or to where it is killed."""
    disable_progress_bar()
    set_seed(SEED)
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=args.width, n_layer=args.layers,
        n_head=max(args.width // 32, 1), bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    arguments = TrainingArguments(
        args.dir, max_steps=args.steps, save_steps=args.every, per_device_train_batch_size=16,
        save_strategy="no" if args.through == "undisturbed" else "steps", report_to=[],
        disable_tqdm=True, logging_steps=args.steps, seed=SEED, full_determinism=False,
        bf16=torch.cuda.is_available(), dataloader_pin_memory=False,
    )  # fmt: skip
    kill = Kill(0 if args.resume or args.through == "undisturbed" else args.kill)
    mirror = S4TrainerCallback(args.url) if args.through == "mirror" else None
    common: dict[str, Any] = {
        "model": GPT2LMHeadModel(config),
        "args": arguments,
        "train_dataset": Text(),
        "callbacks": [kill, *([mirror] if mirror else [])],
    }
    trainer: Any
    if args.through == "direct":
        trainer = DirectTrainer(**common, s4_url=args.url)
        kill.flush = trainer.s4_flush
        resume: Any = args.resume
    else:
        trainer = Trainer(**common)
        if mirror is not None:
            kill.flush = mirror.flush
        resume = prepare(args.url, args.dir) if args.resume else None
    trainer.train(resume_from_checkpoint=resume)
    if args.through != "undisturbed":
        archive = (mirror.recorder if mirror else trainer.s4_recorder).archive
        print(json.dumps([report.metrics for report in archive.reports]), flush=True)
    torch.save([trainer.model.state_dict(), trainer.optimizer.state_dict()], args.result)


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
    url = f"{args.url or folder / 's4'}/{through}"
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
    expected = 0 if resume or through == "undisturbed" else -signal.SIGKILL
    if done.returncode != expected:
        raise SystemExit(f"a training process ended with {done.returncode}, not {expected}")
    return done.stdout


def compare(args: argparse.Namespace, folder: Path) -> int:
    child(args, folder, "undisturbed", resume=False)
    expected = torch.load(folder / "undisturbed.pt")
    print(f"undisturbed: step {args.steps} done", flush=True)
    equal = True
    for through in ("mirror", "direct"):
        child(args, folder, through, resume=False)
        shutil.rmtree(folder / through, ignore_errors=True)
        print(f"{through}: killed after step {args.kill}, its directory deleted", flush=True)
        printed = child(args, folder, through, resume=True)
        for report in json.loads(printed.strip().splitlines()[-1]):
            print(
                f"  checkpoint: {report['s4/raw_mb']:.1f} MB raw, {report['s4/stored_mb']:.1f} MB "
                f"stored ({report['s4/ratio']:.2f} to 1), training paused "
                f"{report['s4/pause_seconds']:.3f} s"
            )
        found = same(expected, torch.load(folder / f"{through}.pt"))
        print(f"{through}: resumed from S4, {'every bit the same' if found else 'IT DIFFERS'}")
        equal = equal and found
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
    warnings.filterwarnings("ignore", category=UserWarning)
    if args.child:
        train(args)
        return 0
    with tempfile.TemporaryDirectory(prefix="s4-example-") as folder:
        return compare(args, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
