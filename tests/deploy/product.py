"""The product in a booted machine: what a test turns on it, and the trainings it runs."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.rootfs import Machine

from deploy import runner_tree

UNIT = "s4-runner.service"

TRAINING = """
import os, signal, sys, time
out = open("/var/lib/s4-runner/out", "a", buffering=1)
def handle(number, frame):
    print(signal.Signals(number).name, file=out)
    if number == signal.SIGTERM:
        time.sleep(0.5)
        print("flushed", file=out)
        sys.exit(0)
signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGUSR1, handle)
print("started", file=out)
while True:
    time.sleep(0.05)
"""

# What the training, and so the runner, is refused. Each line: a name and something to try.
PROBES = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def setuid_file():
    open("/var/lib/s4-runner/f", "w").close()
    os.chmod("/var/lib/s4-runner/f", 0o4755)
tries = {
    "write /etc": lambda: open("/etc/x", "w"),
    "write /opt": lambda: open("/opt/s4weights/x", "w"),
    "write /usr/share": lambda: open("/usr/share/s4weights/entitlement.json", "r+"),
    "write settings": lambda: open("/etc/s4/runner.env", "a"),
    "read /etc/shadow": lambda: open("/etc/shadow"),
    "list /root": lambda: os.listdir("/root"),
    "list /home": lambda: os.listdir("/home/user"),
    "write /proc/sys": lambda: open("/proc/sys/kernel/hostname", "w"),
    "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "unshare": lambda: call("unshare", 0x10000000),
    "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "setuid": lambda: os.setuid(0),
    "setuid file": setuid_file,
    "make a device": lambda: os.mknod("/var/lib/s4-runner/d", 0o020600, os.makedev(1, 1)),
    "write state": lambda: open("/var/lib/s4-runner/mine", "w"),
    "write /tmp": lambda: open("/tmp/mine", "w"),
    "write /dev/shm": lambda: open("/dev/shm/mine", "w"),
}
found = {}
for name, attempt in tries.items():
    try:
        attempt()
        found[name] = "done"
    except OSError as error:
        found[name] = error.strerror
json.dump(found, open("/var/lib/s4-runner/probes", "w"))
"""
ALLOWED = {"write state", "write /tmp", "write /dev/shm"}


@dataclass
class Product:
    """The booted machine, with what a test turns on it."""

    machine: Machine
    boot_seconds: float

    @property
    def tree(self) -> Path:
        return self.machine.tree

    def reset(self, scenario: str = "signed", **settings: str) -> None:
        """Everything stopped and forgotten; settings and the answer of AWS for the next start."""
        self.machine.run("systemctl", "stop", UNIT)
        self.machine.run("systemctl", "reset-failed", UNIT, check=False)
        drop_ins = self.tree / f"etc/systemd/system/{UNIT}.d"
        shutil.rmtree(drop_ins, ignore_errors=True)
        for name in ("out", "probes"):
            (self.tree / "var/lib/s4-runner" / name).unlink(missing_ok=True)
        (self.tree / "fake/instance-action").unlink(missing_ok=True)
        (self.tree / "fake/scenario").write_text(scenario)
        runner_tree.write_image_settings(self.tree)
        runner_tree.write_settings(self.tree, **settings)
        self.machine.run("systemctl", "daemon-reload")

    def start(self) -> int:
        """Start and wait; the exit code of systemctl."""
        return self.machine.run("systemctl", "start", UNIT, check=False, timeout=120).returncode

    def override(self, text: str) -> None:
        directory = self.tree / f"etc/systemd/system/{UNIT}.d"
        directory.mkdir()
        (directory / "test.conf").write_text(text)
        self.machine.run("systemctl", "daemon-reload")

    def property(self, name: str) -> str:
        return self.machine.property(UNIT, name)

    def calls(self) -> int:
        time.sleep(0.25)  # the fake writes it down ten times a second
        return int((self.tree / "fake/calls").read_text())

    def get(self, path: str) -> str:
        """Status and body of a path of port 8080; "000" when it is closed."""
        done = self.machine.run(
            "curl", "-s", "-m", "5", "-w", "\n%{http_code}", f"http://127.0.0.1:8080{path}",
            check=False,
        )  # fmt: skip
        body, _, status = done.stdout.rpartition("\n")
        return f"{status} {body}".strip()

    def train(self, text: str = TRAINING, **settings: str) -> None:
        """Reset, with `text` as the training."""
        script = self.tree / "opt/s4weights/train.py"
        script.write_text(text)
        command = "/opt/s4weights/bin/python /opt/s4weights/train.py"
        self.reset(S4_RUNNER_COMMAND=command, **settings)

    def said(self) -> list[str]:
        file = self.tree / "var/lib/s4-runner/out"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def wait_said(self, line: str, count: int = 1) -> None:
        end = time.monotonic() + 20
        while self.said().count(line) < count:
            assert time.monotonic() < end, f"{line} x{count}: found {self.said()}\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        return self.machine.run("journalctl", "--no-pager", "-n", "40", "-u", UNIT).stdout

    def assert_closed(self) -> None:
        assert self.get("/healthz") == "000"
