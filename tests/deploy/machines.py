"""Debian trees made ready to be an EC2 instance: a login, cloud-init's seed, and reboots."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLOUD_PACKAGES = ("cloud-init",)
SSHD = """\
Port {port}
ListenAddress 127.0.0.1
"""


# The tree has no locales to choose from.
NOCLOUD = """\
datasource_list: [NoCloud]
system_info: {default_user: {name: ubuntu}}
locale: false
"""
REBOOT = 133  # systemd-nspawn's exit code where it does not restart the machine by itself


@contextmanager
def rebooting(tree: Path) -> Iterator[None]:
    """Boot `tree` on this machine's network, and again whenever it reboots, until the end."""
    argv = ["systemd-nspawn", "-q", "-D", str(tree), "--register=no", "--keep-unit", "-b",
            "--console=pipe", "--kill-signal=SIGRTMIN+3"]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []

    def loop() -> None:
        code = REBOOT
        while code == REBOOT:
            machine = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            running.append(machine)
            code = machine.wait()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        running[-1].terminate()
        thread.join(timeout=20)
        if thread.is_alive():
            running[-1].kill()
            thread.join()


def add_login(tree: Path, public_key: str, port: int) -> None:
    """An `ubuntu` user who may sudo, let in by a key as Packer and cloud-init would let in."""
    subprocess.run(["useradd", "--root", tree, "-m", "-s", "/bin/bash", "ubuntu"], check=True)
    (tree / "etc/sudoers.d/90-cloud-init-users").write_text("ubuntu ALL=(ALL) NOPASSWD:ALL\n")
    listen_on(tree, port)
    for home, owner in ((tree / "home/ubuntu", _user_id(tree, "ubuntu")), (tree / "root", 0)):
        directory = home / ".ssh"
        directory.mkdir(mode=0o700, exist_ok=True)
        keys = directory / "authorized_keys"
        keys.write_text(public_key)
        for path in (directory, keys):
            path.chmod(0o700 if path.is_dir() else 0o600)
            _own(path, owner)


def listen_on(tree: Path, port: int) -> None:
    """Make sshd listen on loopback only; the machine shares this machine's network."""
    (tree / "etc/ssh/sshd_config.d/00-test.conf").write_text(SSHD.format(port=port))


def _user_id(tree: Path, name: str) -> int:
    rows = (line.split(":") for line in (tree / "etc/passwd").read_text().splitlines())
    return next(int(row[2]) for row in rows if row[0] == name)


def _own(path: Path, owner: int) -> None:
    os.chown(path, owner, owner)


def seed(tree: Path, user_data: str, instance_id: str, public_key: str = "") -> None:
    """What EC2's metadata service would tell cloud-init, as files (datasource NoCloud)."""
    directory = tree / "var/lib/cloud/seed/nocloud"
    directory.mkdir(parents=True, exist_ok=True)
    keys = f"public-keys:\n  - {public_key.strip()}\n" if public_key else ""
    (directory / "meta-data").write_text(f"instance-id: {instance_id}\n{keys}")
    (directory / "user-data").write_text(user_data)
    settings = NOCLOUD
    (tree / "etc/cloud/cloud.cfg.d/99-test.cfg").write_text(settings)
