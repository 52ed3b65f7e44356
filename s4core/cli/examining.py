"""`doctor`: the self-test, from the command line."""

from __future__ import annotations

import argparse

from s4core import selftest

__all__ = ["examine"]


def examine(args: argparse.Namespace) -> int:
    """Run the self-test; exit code 1 on any mismatch, or for want of a GPU that was demanded."""
    asked = [("--json", args.json), ("--require-gpu", args.require_gpu)]
    return selftest.main([option for option, wanted in asked if wanted])
