"""`export`: any checkpoint to one self-contained file."""

from __future__ import annotations

import argparse
import json

from s4core.checkpoint import export_state, open_reader
from s4core.cli.table import human_bytes
from s4core.refs import split_url

__all__ = ["export"]


def export(args: argparse.Namespace) -> int:
    """Write a checkpoint as `.s4`, `.pt` or `.safetensors`."""
    export_state(open_reader(args.url), args.target, weights_only=not args.unsafe)
    store, name = split_url(args.target)
    size = store.size(name)
    if args.json:
        print(json.dumps({"target": args.target, "bytes": size}))
    else:
        print(f"{args.target}: {human_bytes(size)}")
    return 0
