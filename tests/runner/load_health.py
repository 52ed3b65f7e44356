"""Load on the health port: many checks a second while slow clients hold connections.

    python tests/runner/load_health.py --seconds 30 --rate 1000 --slow 200

The server runs in a process of its own, as does a stand-in for a training that counts
work. Fails when a check fails, the rate is not reached, or memory grows.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SERVER = """
import sys, time
from s4core.runner.exposition import exposition
from s4core.runner.health import HealthServer, Reply
server = HealthServer(("127.0.0.1", 0), {
    "/healthz": lambda: Reply(200, "ok\\n"),
    "/metrics": lambda: Reply(200, exposition({"saves_total": 1.0})),
})
print(server.port, flush=True)
sys.stdin.read()
"""

# Unit of work: what one core does in some milliseconds. Prints, each second, when it ended
# and how many it did.
TRAINING = """
import sys, time, zlib
data = bytes(1 << 20)
while True:
    end, count = time.monotonic() + 1.0, 0
    while time.monotonic() < end:
        zlib.crc32(data)
        count += 1
    print(end, count, flush=True)
"""
MAX_GROWTH_KIB = 2048
PATHS = (b"/healthz", b"/metrics")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--slow", type=int, default=200)
    chosen = parser.parse_args()
    server = _started(SERVER)
    training = _started(TRAINING)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        return _measured(server.pid, training, port, chosen)
    finally:
        for process in (server, training):
            process.kill()
            process.communicate()


def _started(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _measured(
    pid: int, training: subprocess.Popen[str], port: int, chosen: argparse.Namespace
) -> int:
    alone = _work(training, time.monotonic(), 3)
    stop = threading.Event()
    slow = threading.Thread(target=_hold_slow, args=(port, chosen.slow, stop))
    slow.start()
    _check_many(port, 1.0, chosen.rate)  # warm: allocator pools are filled
    cpu, memory = _cpu_seconds(pid), _rss_kib(pid)
    begin = time.monotonic()
    done, slowest = _check_many(port, chosen.seconds, chosen.rate)
    seconds = time.monotonic() - begin
    cpu, grown = _cpu_seconds(pid) - cpu, _rss_kib(pid) - memory
    loaded = _work(training, begin + 1, max(int(chosen.seconds) - 1, 1))
    stop.set()
    slow.join()
    print(
        f"{done} checks in {seconds:.1f} s ({done / seconds:.0f}/s), slowest "
        f"{slowest * 1e3:.0f} ms; {chosen.slow} slow clients; server CPU "
        f"{cpu / seconds:.1%} of a core, memory {memory} KiB {grown:+d} KiB; "
        f"training {alone:.0f} -> {loaded:.0f} units/s (the load itself takes a core too)"
    )
    reached = done >= 0.9 * chosen.rate * chosen.seconds
    return 0 if reached and grown <= MAX_GROWTH_KIB else 1


def _check_many(port: int, seconds: float, rate: float) -> tuple[int, float]:
    """Checks done and the longest one, in seconds; every answer is compared."""
    begin, done, slowest = time.monotonic(), 0, 0.0
    while (now := time.monotonic()) < begin + seconds:
        due = begin + done / rate
        if due > now:
            time.sleep(due - now)
        start = time.monotonic()
        _check(port, PATHS[done % 2])
        slowest = max(slowest, time.monotonic() - start)
        done += 1
    return done, slowest


def _check(port: int, path: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        found = b""
        while data := client.recv(65536):
            found += data
    assert found.startswith(b"HTTP/1.1 200 OK"), found[:100]


def _hold_slow(port: int, count: int, stop: threading.Event) -> None:
    """Keep `count` connections open that send a byte now and then, renewed when closed."""
    held: list[socket.socket] = []
    while not stop.wait(0.2):
        while len(held) < count:
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        for client in list(held):
            try:
                client.send(b"G")
            except OSError:
                held.remove(client)
                client.close()
    for client in held:
        client.close()


def _work(training: subprocess.Popen[str], begin: float, seconds: int) -> float:
    """Mean units a second over the first whole `seconds` after `begin`."""
    assert training.stdout is not None
    counts: list[int] = []
    while len(counts) < seconds:
        end, count = training.stdout.readline().split()
        if float(end) - 1.0 >= begin:
            counts.append(int(count))
    return sum(counts) / seconds


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no memory")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    sys.exit(main())
