"""A runner in a process of its own, with what a test needs to see of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("run_runner.py")


class Running:
    """The process, its directory and its health port."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, log: Path) -> None:
        self.process = process
        self.directory = directory
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def port(self) -> int | None:
        """The health port, once it is open."""
        inodes = set()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(entry))
            except OSError:
                continue
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                return int(fields[1].split(":")[1], 16)
        return None

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a path of the health port; status 0 when it is closed."""
        port = self.port() if self.process.poll() is None else None
        if port is None:
            return 0, ""
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            found = b""
            while data := client.recv(65536):
                found += data
        head, body = found.decode().split("\r\n\r\n", 1)
        return int(head.split()[1]), body

    def metric(self, name: str) -> float | None:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"s4_{name} "):
                return float(line.split()[1])
        return None

    def wait_ready(self) -> None:
        self.until(lambda: self.get("/readyz")[0] == 200)

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"it did not happen in time; log:\n{self.log}"
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in time; log:\n{self.log}") from None


@contextmanager
def running(
    tmp_path: Path, imds_url: str, command: list[str], **environment: str
) -> Iterator[Running]:
    """A runner under `tmp_path`, with a store there; killed at the end if it still runs."""
    log = tmp_path / "runner.log"
    settings = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "S4_STORE": f"file://{tmp_path}/store",
        "S4_RUNNER_DIRECTORY": str(tmp_path / "run"),
        "S4_RUNNER_HEALTH": "127.0.0.1:0",
        "S4_RUNNER_RESTART_BACKOFF": "0.1",
        "OUT": str(tmp_path / "out"),
        **environment,
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), imds_url, *command],
            env=settings, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Running(process, tmp_path / "run", log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
