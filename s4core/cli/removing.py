"""`rm` and `gc`: removing checkpoints, and the bytes that no chain needs."""

from __future__ import annotations

import argparse
import json

from s4core.checkpoint import open_run
from s4core.cli.table import human_bytes
from s4core.errors import KeyNotFoundError

__all__ = ["collect", "remove"]


def remove(args: argparse.Namespace) -> int:
    """Remove checkpoints by name; nothing is removed if one of them is not there."""
    run = open_run(args.url)
    known = run.names()
    missing = [name for name in args.names if name not in known]
    if missing:
        raise KeyNotFoundError(
            f"{run.url} has no checkpoint called {', '.join(missing)}; nothing was removed"
        )
    for name in args.names:
        run.remove(name=name)
    if args.json:
        print(json.dumps({"removed": args.names}))
    else:
        print(f"removed {', '.join(args.names)}")
    return 0


def collect(args: argparse.Namespace) -> int:
    """Delete what no chain needs, or say what would be deleted."""
    run = open_run(args.url)
    plan = run.gc(dry_run=args.dry_run, grace_seconds=args.grace_hours * 3600)
    if args.json:
        document = {"kept": plan.kept, "swept": plan.swept, "bytes": plan.bytes}
        print(json.dumps({**document, "dry_run": args.dry_run}))
        return 0
    for verdict, reasons in (("keep", plan.kept), ("sweep", plan.swept)):
        for identity, reason in reasons.items():
            print(f"{verdict:<5} {identity}: {reason}")
    done = "would be deleted" if args.dry_run else "deleted"
    print(f"{len(plan.swept)} checkpoints, {human_bytes(plan.bytes)} {done}")
    return 0
