"""`repair` and `rebase`: refs from manifests, and a tip written whole."""

from __future__ import annotations

import argparse
import json

from s4core.refs import STORE_DIRECTORY
from s4core.repair import plan_repair
from s4core.repair import repair as put_back
from s4core.repository import Repository
from s4core.stores import open_store

__all__ = ["rebase", "repair"]


def repair(args: argparse.Namespace) -> int:
    """Put refs back; exit code 1 if a checkpoint without a ref cannot be given one."""
    directory = open_store(args.url)
    repository = Repository(directory.child(STORE_DIRECTORY))
    plan = plan_repair(directory, repository, args.names or None)
    if not args.dry_run:
        put_back(directory, repository, plan)
    if args.json:
        document = {"refs": plan.refs, "replaced": sorted(plan.replaced), "beyond": plan.beyond}
        print(json.dumps({**document, "dry_run": args.dry_run}))
    else:
        for name, identity in plan.refs.items():
            print(f"{name}: {identity}{' (was damaged)' if name in plan.replaced else ''}")
        for identity, reason in plan.beyond.items():
            print(f"beyond repair: {identity}: {reason}")
        done = "would be put back" if args.dry_run else "put back"
        print(f"{len(plan.refs)} refs {done}, {len(plan.beyond)} checkpoints beyond repair")
    return 1 if plan.beyond else 0


def rebase(args: argparse.Namespace) -> int:
    """Write a checkpoint whole, so that it stands on no other."""
    from s4core.checkpoint import open_run

    run = open_run(args.url)
    before = run.names()
    for name in args.names:
        run.rebase(name=name)
    after = run.names()
    moved = {name: ref.checkpoint for name, ref in after.items() if before.get(name) != ref}
    if args.json:
        print(json.dumps({"rebased": moved}))
    else:
        for name, identity in moved.items():
            print(f"{name}: {identity}, whole")
        print(f"{len(moved)} refs to checkpoints that stand on no other now")
    return 0
