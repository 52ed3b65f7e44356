# /// script
# requires-python = ">=3.10"
# dependencies = ["s4weights[lightning]"]
# ///
"""Train, get killed, resume: with S4 the result is the same, bit for bit, in less space.

A small GPT learns the source of Python's own library, in bfloat16 mixed precision with
AdamW. It is trained twice, in processes of their own: once with Lightning's own
checkpoints, once with `Trainer(plugins=[S4CheckpointIO()])`. Both are killed (SIGKILL)
at the same step in the middle of an epoch and resumed from `last.ckpt`. Then every
checkpoint of the two is compared: each tensor of model and optimizer, bit by bit.

    python examples/lightning_resume.py            about a minute on two CPU cores
    python examples/lightning_resume.py --help

The exit code is 0 if nothing differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

import s4weights
from s4_lightning import S4CheckpointIO

CONTEXT = 64  # bytes of text the model sees
BATCH = 8
SEED = 4


class GPT(lightning.LightningModule):
    """A causal transformer over bytes, trained on the source of Python's own library."""

    def __init__(self, width: int, layers: int, steps_per_epoch: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.steps_per_epoch = steps_per_epoch
        self.embed = nn.Embedding(256, width)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.blocks(self.embed(text) + self.position, mask=mask, is_causal=True)
        return self.head(hidden)

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        scores = self(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)

    def train_dataloader(self) -> DataLoader[Tensor]:
        # Other windows in each epoch, and the same ones when an epoch is repeated.
        text = library_source()
        random = torch.Generator().manual_seed(SEED + self.current_epoch)
        count = BATCH * self.steps_per_epoch
        starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=random)
        windows = [text[start : start + CONTEXT + 1] for start in starts.tolist()]
        return DataLoader(windows, BATCH)  # type: ignore[arg-type]


def library_source() -> Tensor:
    """Some megabytes of Python: the text to learn, one number for each byte."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files)[: 4 << 20]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class KillAt(Callback):
    """Ends the process the hard way when training reaches a step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Report(Callback):
    """Prints and records what each save cost."""

    def __init__(self, plugin: S4CheckpointIO, record: Path) -> None:
        self.plugin, self.record, self.reported = plugin, record, 0

    def on_train_epoch_start(self, *_: Any) -> None:
        with self.record.open("a") as out:
            for info in self.plugin.history[self.reported :]:
                row = {"file": Path(info.url).name} | {name: getattr(info, name) for name in FIELDS}
                out.write(json.dumps(row) + "\n")
                print(table_row(row), flush=True)
                self.reported += 1

    on_train_end = on_train_epoch_start


FIELDS = ("step", "kind", "depth", "raw_bytes", "stored_bytes", "seconds")


def table_row(row: dict[str, Any] | None = None) -> str:
    if row is None:
        columns = ("step", "checkpoint", "kind", "depth", "raw MB", "stored MB", "ratio", "s")
    else:
        raw, stored = row["raw_bytes"] / 1e6, row["stored_bytes"] / 1e6
        ratio = f"{raw / stored:.2f}" if row["kind"] != "alias" else "-"
        sizes = (f"{raw:.1f}", f"{stored:.2f}", ratio, f"{row['seconds']:.2f}")
        columns = (row["step"], row["file"], row["kind"], row["depth"], *sizes)
    return "  {:>5}  {:<22} {:<5}  {:>5} {:>8} {:>10} {:>7} {:>6}".format(*columns)


def train(args: argparse.Namespace) -> None:
    """Train in this process, into `args.dir`."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*(does not have many workers|is not empty).*")
    lightning.seed_everything(SEED, verbose=False)
    callbacks: list[Callback] = [KillAt(args.kill_at)]
    plugins: list[Any] = []
    if args.child == "s4":
        plugins = [S4CheckpointIO()]
        callbacks.append(Report(plugins[0], args.dir / "report.jsonl"))
    callbacks.append(ModelCheckpoint(args.dir, save_top_k=-1, save_last=True))
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        precision="bf16-mixed",
        accelerator="cpu",
        deterministic=True,
        plugins=plugins,
        callbacks=callbacks,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = GPT(args.width, args.layers, args.steps)
    trainer.fit(model, ckpt_path="last" if args.resume else None)


def run_child(args: argparse.Namespace, kind: str, *extra: str) -> int:
    """Train in a process of its own; its messages go to a log."""
    directory = args.dir / kind
    directory.mkdir(parents=True, exist_ok=True)
    sizes = [f"--{name}={getattr(args, name)}" for name in ("epochs", "steps", "width", "layers")]
    command = [sys.executable, __file__, "--child", kind, f"--dir={directory}", *sizes, *extra]
    with (args.dir / f"{kind}.log").open("a") as log:
        out = log if args.json else None
        return subprocess.run(command, stdout=out, stderr=log, check=False).returncode


def kill_and_resume(args: argparse.Namespace, kind: str) -> float:
    """Train until the kill, then from the last checkpoint to the end; return the seconds."""
    started = time.monotonic()
    # In the middle of an epoch: the steps since the last checkpoint are lost, and repeated.
    kill_at = args.steps * (args.epochs // 2) + args.steps // 2
    say(args, f"  training until it is killed at step {kill_at} ...")
    code = run_child(args, kind, f"--kill-at={kill_at}")
    if code != -signal.SIGKILL:
        sys.exit(f"expected to be killed, found exit code {code}; see {args.dir / kind}.log")
    say(args, f"  killed; resuming from last.ckpt to step {args.steps * args.epochs} ...")
    code = run_child(args, kind, "--resume")
    if code != 0:
        sys.exit(f"resuming failed with exit code {code}; see {args.dir / kind}.log")
    return time.monotonic() - started


def differences(a: Any, b: Any, where: str, seen: list[str]) -> list[str]:
    """Compare two states by their bits; the paths that differ. `seen` counts the tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        seen.append(where)
        same = (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(bits(a), bits(b))
        return [] if same else [where]
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return [d for key in a for d in differences(a[key], b[key], f"{where}/{key}", seen)]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [d for i, (x, y) in pairs for d in differences(x, y, f"{where}/{i}", seen)]
    return [] if type(a) is type(b) and repr(a) == repr(b) else [where]


def bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def compare(theirs: Path, ours: Path) -> dict[str, Any]:
    """Compare every checkpoint of the two runs."""
    names = sorted(file.name for file in theirs.glob("*.ckpt"))
    found = sorted(file.name for file in ours.glob("*.ckpt"))
    differing = [] if names == found else [f"names: {names} and {found}"]
    tensors: list[str] = []
    for name in set(names) & set(found):
        a, b = torch.load(theirs / name, weights_only=True), s4weights.load(ours / name)
        for part in ("state_dict", "optimizer_states", "epoch", "global_step"):
            differing += differences(a[part], b[part], f"{name}/{part}", tensors)
    return {"checkpoints": len(names), "tensors": len(tensors), "differing": differing}


def directory_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text, flush=True)


def demonstrate(args: argparse.Namespace) -> dict[str, Any]:
    say(args, f"Checkpoints go to {args.dir}\n\nLightning's own checkpoints")
    seconds = {"lightning": kill_and_resume(args, "lightning")}
    say(args, f"\nTrainer(plugins=[S4CheckpointIO()])\n{table_row()}")
    seconds["s4"] = kill_and_resume(args, "s4")
    rows = [json.loads(line) for line in (args.dir / "s4" / "report.jsonl").open()]
    (args.dir / "s4" / "report.jsonl").unlink()
    stored = {kind: directory_bytes(args.dir / kind) for kind in ("lightning", "s4")}
    result = compare(args.dir / "lightning", args.dir / "s4")
    return result | {"saves": rows, "stored_bytes": stored, "seconds": seconds}


def conclude(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(result, indent=1))
        return
    theirs, ours = (result["stored_bytes"][kind] / 1e6 for kind in ("lightning", "s4"))
    print(f"\nOn disk: Lightning {theirs:.1f} MB, S4 {ours:.1f} MB: {theirs / ours:.2f} to 1")
    count = f"{result['tensors']} tensors of {result['checkpoints']} checkpoints compared"
    if result["differing"]:
        print(f"DIFFERENT: {count}; these differ:", *result["differing"], sep="\n  ")
    else:
        print(f"IDENTICAL: {count}, weights and optimizer state, before and after the resume")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="where to write; kept (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON only")
    parser.add_argument("--epochs", type=int, default=8, help="one checkpoint after each")
    parser.add_argument("--steps", type=int, default=12, help="per epoch")
    parser.add_argument("--width", type=int, default=256, help="of the model, a multiple of 32")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--child", choices=("lightning", "s4"), help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    if args.child:
        train(args)
        return 0
    temporary = None if args.dir else tempfile.mkdtemp(prefix="s4-demo-")
    args.dir = Path(temporary or args.dir).absolute()
    for kind in ("lightning", "s4"):
        if (args.dir / kind).exists():
            sys.exit(f"{args.dir / kind} exists: choose another --dir, or remove it")
    try:
        result = demonstrate(args)
        conclude(args, result)
    finally:
        if temporary:
            shutil.rmtree(temporary)
    return 1 if result["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
