"""Kill a process that saves, at every call of its store in turn; look at what is left.

    python tests/killing.py URL [--kills N] [--scenario save|async|upkeep]

A child forked for each kill goes on with the run that is there and ends itself with SIGKILL
at its n-th event: before and after each system call that changes a directory, or each
request to S3, and while a body is being sent. After each kill, in the parent:

1. every step that `save` had returned for is there (but for those that `keep_last` removed);
2. every step that is visible loads, bit for bit;
3. the next child saves on (a rerun succeeds).

Prints one line of JSON: kills, events of one child, kinds of events, what sweeping left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from bits import assert_same_state

from s4core.checkpoint import Options, Run
from s4core.stores import Store, local_files, open_store, s3_body, s3_client

KEEP_LAST = 3
SAVES = 3
# Six million random bytes: two parts on S3.
RANDOM_BYTES = {"s3": 6_000_000, "local": 60_000}


def state_of(step: int, kind: str) -> dict[str, Any]:
    seed = torch.Generator().manual_seed(7)
    fresh = torch.Generator().manual_seed(step)
    w = torch.randn(20_000, generator=seed)
    size = (RANDOM_BYTES[kind] if step % 3 == 0 else 1000,)
    return {
        "w": w + 1e-6 * step,
        "frozen": torch.randn(5000, generator=seed),
        "noise": torch.randint(0, 256, size, dtype=torch.uint8, generator=fresh),
        "step": step,
    }


class Events:
    """Counts what the child does to its store, and ends it at one of them."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal, self.count = fatal, 0
        self.kinds: Counter[str] = Counter()

    def hit(self, kind: str) -> None:
        self.count += 1
        self.kinds[kind] += 1
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # for threads: nothing runs on

    def around(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.hit(f"before {kind}")
            result = call(*arguments, **named)
            self.hit(f"after {kind}")
            return result

        return counted

    def watch_local(self) -> None:
        for name in ("fsync", "link", "replace", "unlink", "mkdir", "rmdir"):
            setattr(os, name, self.around(name, getattr(os, name)))
        written = local_files.TemporaryFile.write
        local_files.TemporaryFile.write = self.around("write", written)  # type: ignore[method-assign]

    def watch_s3(self) -> None:
        call = s3_client.Connection.call

        def counted(connection: Any, url: str, operation: str, **named: Any) -> Any:
            return self.around(operation, lambda: call(connection, url, operation, **named))()

        s3_client.Connection.call = counted  # type: ignore[method-assign]
        read = s3_body.Body.read

        def half(body: Any, size: int = -1) -> Any:
            if 0 < body.tell() < len(body) and body.tell() % (1 << 21) < 1 << 14:
                self.hit("in a body")
            return read(body, size)

        s3_body.Body.read = half  # type: ignore[method-assign]


def kind_of(url: str) -> str:
    return "s3" if url.startswith("s3:") else "local"


def opened(url: str) -> Store:
    # boto3: its requests are the events; inside obstore there are none to be killed at.
    options = {"part_bytes": 5 << 20, "engine": "boto3"} if kind_of(url) == "s3" else {}
    return open_store(url, **options)


def child(url: str, scenario: str, fatal: int | None, acknowledge: int) -> None:
    torch.set_num_threads(1)
    events = Events(fatal)
    events.watch_s3() if kind_of(url) == "s3" else events.watch_local()
    run = Run(opened(url), Options(max_depth=2, keep_last=KEEP_LAST))
    newest = run.latest() or 0
    if newest:
        run.load()
    for step in range(newest + 1, newest + 1 + SAVES):
        run.save(state_of(step, kind_of(url)), step, wait=scenario != "async")
        if scenario != "async":
            os.write(acknowledge, b"%d " % step)
    run.flush()
    os.write(acknowledge, b"%d " % (newest + SAVES))
    if scenario == "upkeep":
        run.rebase()
        run.remove(newest + SAVES - 1)
        run.close()
        run.gc(grace_seconds=0)
    os.write(acknowledge, b"| %d %s" % (events.count, json.dumps(events.kinds).encode()))


def forked(url: str, scenario: str, fatal: int | None) -> tuple[int, list[int], str]:
    """Fork a child; return its signal (0: it ended well), the steps it saved, its last words."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        code = 1
        try:
            child(url, scenario, fatal, writing)
            code = 0
        except BaseException:  # noqa: BLE001  # told by the exit code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    status = os.waitpid(process, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"a child failed instead of being killed, at event {fatal}")
    saved, _, last = said.partition("|")
    return (
        (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0),
        list(map(int, saved.split())),
        last,
    )


def look(url: str, saved: list[int]) -> None:
    """Check what a kill left."""
    run = Run(opened(url))
    steps = run.steps()
    newest = max(steps, default=0)
    missing = {step for step in saved if step > newest - KEEP_LAST + 1} - set(steps)
    if newest - 1 in missing:
        missing -= {newest - 1}  # the scenario "upkeep" removes it
    assert not missing, f"lost steps {missing}; visible are {steps}"
    assert max(saved, default=0) <= newest, f"step {max(saved)} was saved; visible are {steps}"
    for step in steps:
        assert_same_state(state_of(step, kind_of(url)), run.load(step))


def points(events: int, kills: int | None) -> list[int]:
    if kills is None or kills >= events:
        return list(range(1, events + 1))
    return sorted(random.Random(0).sample(range(1, events + 1), kills))


def soak(url: str, scenario: str, kills: int | None) -> dict[str, Any]:
    ended, _, _ = forked(url, scenario, None)  # there is something to go on with
    ended, _, last = forked(url, scenario, None)
    assert ended == 0
    count, kinds = last.strip().split(" ", 1)
    killed = 0
    for fatal in points(int(count), kills):
        ended, saved, _ = forked(url, scenario, fatal)
        killed += ended == signal.SIGKILL
        look(url, saved)
    ended, saved, _ = forked(url, scenario, None)
    assert ended == 0
    look(url, saved)
    return {
        "url": url.split("://")[0] if "://" in url else "local",
        "scenario": scenario,
        "kills": killed,
        "events": int(count),
        "kinds": len(json.loads(kinds)),
        **tidied(url),
    }


def tidied(url: str) -> dict[str, int]:
    """End what the kills left, and check that nothing but the checkpoints remains."""
    store = opened(url)
    unfinished = store.sweep_unfinished(-60)
    run = Run(store)
    garbage = len(run.gc(grace_seconds=0).keys)
    assert store.sweep_unfinished(-60) == 0
    assert all(finding.ok for finding in run.verify(full=True))
    needed = {identity for identity, _ in run.repository.ids()}
    shards = {entry.key.split("/")[1] for entry in run.repository.store.list("shards/")}
    assert shards <= needed, f"shards without a checkpoint: {shards - needed}"
    return {"unfinished": unfinished, "garbage": garbage}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--scenario", choices=["save", "async", "upkeep"], default="save")
    parser.add_argument("--kills", type=int, default=None, help="default: at every event")
    arguments = parser.parse_args()
    print(json.dumps(soak(arguments.url, arguments.scenario, arguments.kills)), flush=True)


if __name__ == "__main__":
    main()
