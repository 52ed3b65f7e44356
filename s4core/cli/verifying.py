"""`verify`: read every byte that checkpoints stand on, and say what is wrong with which."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial

from s4core.checkpoint import Finding, Run, Verifier, open_reader
from s4core.cli.table import human_bytes
from s4core.errors import KeyNotFoundError
from s4core.refs import list_refs, split_url
from s4core.stores import open_store

__all__ = ["verify"]


def verify(args: argparse.Namespace) -> int:
    """Check a run or one checkpoint; exit code 1 if anything is wrong."""
    findings = _findings(args)
    if args.json:
        print(json.dumps({"checkpoints": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            verdict = "ok" if finding.ok else f"DAMAGED: {finding.error}"
            print(f"{finding.name}: {verdict} ({human_bytes(finding.bytes)} read)")
        bad = sum(not finding.ok for finding in findings)
        print(f"{len(findings)} checkpoints, {bad} damaged")
    return 0 if all(finding.ok for finding in findings) else 1


def _findings(args: argparse.Namespace) -> list[Finding]:
    if _is_one(args.url):
        return [Verifier(args.full, _progress).check(args.url, partial(open_reader, args.url))]
    directory = open_store(args.url)
    if not list_refs(directory):
        raise KeyNotFoundError(f"{directory.url}: no checkpoint there; expected a run or a file")
    return Run(directory).verify(full=args.full, progress=_progress)


def _is_one(url: str) -> bool:
    store, name = split_url(url)
    try:
        store.size(name)
    except KeyNotFoundError:
        return False
    return True


def _progress(count: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{human_bytes(count)} checked ", end="", file=sys.stderr, flush=True)
