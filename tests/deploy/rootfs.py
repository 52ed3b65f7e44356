"""A Debian tree for tests that need a real systemd, and a machine that boots it.

`cached_tar` builds the tree once with debootstrap and keeps it as a tar outside the
repository; `unpacked` gives a private copy; `booted` runs it under systemd-nspawn with a
systemd of its own as process 1, and `Machine` runs commands inside it.

It stands in for Ubuntu 22.04, which no Debian mirror carries: systemd here is 252, there
249, so units use directives of 249 and older only.

The cache: ``$S4_TEST_CACHE`` or ``${XDG_CACHE_HOME:-~/.cache}/s4weights``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
BASE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "openssh-server",
    "sudo",
    "curl",
    "ca-certificates",
    "iproute2",
)
TOOLS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
}


def why_not() -> str | None:
    """Why no machine can be booted here, or None where it can."""
    if os.geteuid() != 0:
        return "booting a systemd-nspawn machine needs root"
    missing = [
        f"{tool} (apt-get install {package})"
        for tool, package in TOOLS.items()
        if shutil.which(tool) is None
    ]
    return f"missing: {', '.join(missing)}" if missing else None


def cache_directory() -> Path:
    """Where the tars are kept, outside the repository; made if it is not there."""
    named = os.environ.get("S4_TEST_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(named) if named else Path(home) / "s4weights"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def cached_tar(extra: Sequence[str] = ()) -> Path:
    """The tar of the tree with `BASE_PACKAGES` and `extra` Debian packages.

    The first call for a set of packages takes minutes and the network. Calls from several
    processes wait for each other, so the work is done once.
    """
    name = hashlib.sha256("\n".join([SUITE, *BASE_PACKAGES, "--", *sorted(extra)]).encode())
    tar = cache_directory() / f"rootfs-{SUITE}-{name.hexdigest()[:12]}.tar"
    with _locked(tar.with_suffix(".lock")):
        if not tar.exists():
            base = cached_tar() if extra else None
            _build(tar, base, extra)
    return tar


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(tar: Path, base: Path | None, extra: Sequence[str]) -> None:
    tree = tar.with_suffix(".tree")
    shutil.rmtree(tree, ignore_errors=True)
    if base is None:
        include = "--include=" + ",".join(BASE_PACKAGES)
        _quiet("debootstrap", "--variant=minbase", include, SUITE, str(tree), MIRROR)
    else:
        unpack(base, tree)
        shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
        _install(tree, extra)
    partial = tar.with_suffix(".partial")
    _quiet("tar", "--numeric-owner", "-C", str(tree), "-cf", str(partial), ".")
    partial.rename(tar)
    shutil.rmtree(tree)


def _install(tree: Path, packages: Sequence[str]) -> None:
    apt = ["systemd-nspawn", "-q", "-D", str(tree), "--register=no", "--keep-unit",
           "--setenv=DEBIAN_FRONTEND=noninteractive", "--pipe"]  # fmt: skip
    _quiet(*apt, "apt-get", "update")
    _quiet(*apt, "apt-get", "install", "-y", "--no-install-recommends", *packages)


def unpack(tar: Path, tree: Path) -> None:
    """Write the tree of `tar` to the directory `tree`, with its owners and modes."""
    tree.mkdir(parents=True, exist_ok=True)
    _quiet("tar", "--numeric-owner", "-C", str(tree), "-xpf", str(tar))


@contextmanager
def unpacked(directory: Path, extra: Sequence[str] = ()) -> Iterator[Path]:
    """A private copy of the tree under `directory`, removed at the end."""
    tree = directory / "tree"
    unpack(cached_tar(extra), tree)
    try:
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)


@dataclass
class Machine:
    """A booted tree.

    Attributes:
        tree: Its root directory, as seen from outside.
        leader: The process id, outside, of its process 1.
        private_network: Whether it has a network of its own, with loopback only.
    """

    tree: Path
    leader: int
    private_network: bool

    def run(
        self, *argv: str, check: bool = True, timeout: float = 60.0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` inside as root; `check` makes a failure an AssertionError that shows it."""
        spaces = ["-m", "-u", "-i", "-p", *(["-n"] if self.private_network else [])]
        # nsenter --root is not enough for pivoted mounts: -r and -w take those of the leader.
        command = ["nsenter", "-t", str(self.leader), *spaces, "-r", "-w", "--", *argv]
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, input=stdin,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert not check or found.returncode == 0, (
            f"{argv}: rc {found.returncode}\n{found.stdout}\n{found.stderr}"
        )
        return found

    def property(self, unit: str, name: str) -> str:
        """One property of a unit, as ``systemctl show`` gives it."""
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def wait_for(self, unit: str, name: str, wanted: str, seconds: float = 30.0) -> None:
        """Wait until a property of `unit` has the value `wanted`."""
        end = time.monotonic() + seconds
        while (found := self.property(unit, name)) != wanted:
            log = self.run("journalctl", "--no-pager", "-n", "30", "-u", unit, check=False).stdout
            assert time.monotonic() < end, f"{unit}: {name}={found}, expected {wanted}\n{log}"
            time.sleep(0.1)


@contextmanager
def booted(tree: Path, *options: str, private_network: bool = True) -> Iterator[Machine]:
    """Boot `tree` and give the machine; it is powered off at the end.

    Args:
        tree: A directory made by `unpacked`; what the machine writes stays there.
        options: More options of systemd-nspawn.
        private_network: Loopback only, so ports and addresses are the machine's own. False
            shares the network of this machine: use high ports.
    """
    (tree / "etc/machine-id").write_text("")
    network = ["--private-network"] if private_network else []
    nspawn = subprocess.Popen(
        ["systemd-nspawn", "-q", "-D", str(tree), "--register=no", "--keep-unit", "-b",
         "--console=pipe", "--kill-signal=SIGRTMIN+3", *network, *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        machine = Machine(tree, _leader(nspawn), private_network)
        _wait_until_up(machine)
        yield machine
    finally:
        nspawn.terminate()
        try:
            nspawn.wait(timeout=20)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()


def _leader(nspawn: subprocess.Popen[bytes], seconds: float = 20.0) -> int:
    """The machine's process 1: the one child of systemd-nspawn that became systemd."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert nspawn.poll() is None, f"systemd-nspawn ended with {nspawn.returncode}"
        children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        time.sleep(0.05)
    raise AssertionError(f"no systemd under systemd-nspawn after {seconds} s")


def _wait_until_up(machine: Machine, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while True:
        found = machine.run("systemctl", "is-system-running", check=False).stdout.strip()
        if found in ("running", "degraded"):
            return
        assert time.monotonic() < end, f"the machine is {found!r} after {seconds} s"
        time.sleep(0.1)


def _quiet(*argv: str) -> None:
    found = subprocess.run(argv, capture_output=True, text=True)
    assert found.returncode == 0, (
        f"{argv}: rc {found.returncode}\n{found.stdout[-2000:]}\n{found.stderr[-2000:]}"
    )
