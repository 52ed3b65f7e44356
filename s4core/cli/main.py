"""Arguments in, exit code out; each command is a function of a module beside this one."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

from s4core.errors import S4Error
from s4core.version import __version__

__all__ = ["main"]

OK, FAILED = 0, 1
# A command's module is imported when it runs, so that none pays for another's torch.
_COMMANDS: Final = {
    "ls": "s4core.cli.listing:list_run",
    "show": "s4core.cli.listing:show",
    "verify": "s4core.cli.verifying:verify",
    "export": "s4core.cli.exporting:export",
    "rm": "s4core.cli.removing:remove",
    "gc": "s4core.cli.removing:collect",
    "repair": "s4core.cli.repairing:repair",
    "rebase": "s4core.cli.repairing:rebase",
    "doctor": "s4core.cli.examining:examine",
    "bench": "s4core.cli.benching:bench",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `s4weights`.

    Args:
        arguments: without the program's name; None: those of the process.

    Returns:
        0 all is well, 1 something is wrong (said on stderr), 2 wrong usage.
    """
    parsed = _parser().parse_args(arguments)
    module, _, function = _COMMANDS[parsed.command].partition(":")
    command = getattr(importlib.import_module(module), function)
    _end_cleanly_on_sigterm()
    try:
        return int(command(parsed))
    except S4Error as error:
        _say_error(error, as_json=parsed.json)
        return FAILED
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        sys.stderr.close()
        return OK


def _end_cleanly_on_sigterm() -> None:
    """Have SIGTERM unwind the stack as an interrupt does, so that uploads are aborted."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _say_error(error: S4Error, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        print(f"s4weights: {type(error).__name__}: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s4weights", description="Lossless compression of PyTorch training checkpoints."
    )
    parser.add_argument("--version", action="version", version=f"s4weights {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = "directory of a run: local path, file://, s3://bucket/prefix"
    any_ = "a checkpoint: S4, .pt or .safetensors, by path or URL"
    one = "a checkpoint: path or URL of a ref or a self-contained .s4 file"

    _add(commands, "ls", "list the checkpoints of a run", run)
    show = _add(commands, "show", "show one checkpoint", one)
    show.add_argument("--tensors", action="store_true", help="list every tensor")
    verify = _add(
        commands, "verify", "check a run, or one checkpoint, for damage", f"{run}; or {one}"
    )
    verify.add_argument(
        "--full", action="store_true", help="decode every array too, up to its digest"
    )
    export = _add(commands, "export", "write a checkpoint as one self-contained file", one)
    export.add_argument("target", help="name that ends in .s4, .pt or .safetensors")
    export.add_argument(
        "--unsafe",
        action="store_true",
        help="also load pickled leaves: only if you trust who wrote the checkpoint",
    )
    rm = _add(commands, "rm", "remove checkpoints; their bytes go when no chain needs them", run)
    rm.add_argument("names", nargs="+", help="names, as `ls` shows them")
    gc = _add(commands, "gc", "delete the bytes that no chain needs", run)
    gc.add_argument(
        "--dry-run", action="store_true", help="only say what would be deleted, and why"
    )
    gc.add_argument(
        "--grace-hours", type=float, default=24.0, help="leave what is younger (default: 24)"
    )
    bench = _add(commands, "bench", "what a checkpoint would cost, whole and as a delta", any_)
    bench.add_argument("--against", metavar="FILE", help="the checkpoint before it, for a delta")
    bench.add_argument("--unsafe", action="store_true", help="also load pickled leaves")
    doctor = commands.add_parser(
        "doctor",
        help="what is installed here, what can run, and does every bit come back",
        description="Take every dtype through hostile patterns on the CPU and on each GPU.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON for scripts")
    doctor.add_argument("--require-gpu", action="store_true", help="fail without a usable GPU")
    repair = _add(commands, "repair", "put back refs that were lost or damaged", run)
    repair.add_argument("names", nargs="*", help="only these; removed ones come back too")
    repair.add_argument("--dry-run", action="store_true", help="only say what would be put back")
    rebase = _add(commands, "rebase", "write checkpoints whole, so that they need no other", run)
    rebase.add_argument("names", nargs="+", help="names, as `ls` shows them")
    return parser


def _add(commands: Any, name: str, what: str, target: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    command.add_argument("url", help=target)
    command.add_argument("--json", action="store_true", help="print JSON for scripts")
    return command
