"""What belongs to the build machine is removed by the seal, and each item that is left is found by
the validation: both scripts run in a Debian tree, and every item is planted in turn."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.machines import CLOUD_PACKAGES, add_login
from deploy.tools import AMI, REPOSITORY, run

from deploy import rootfs

pytestmark = pytest.mark.deploy

# What a build leaves, and how the validation names it where the seal did not remove it.
LEFT_BEHIND = {
    "tmp/s4-build/entitlement.json": ("{}", "build file left"),
    "etc/ssh/ssh_host_ed25519_key": ("key", "host key left"),
    "root/.ssh/authorized_keys": ("ssh-ed25519 AAAA packer", "authorized keys left: /root"),
    "home/ubuntu/.ssh/authorized_keys": ("ssh-ed25519 AAAA", "authorized keys left: /home"),
    "etc/machine-id": ("0123456789abcdef0123456789abcdef\n", "machine-id is not empty"),
    "var/lib/cloud/instances/i-1/user-data.txt": ("x", "cloud-init state left"),
    "var/log/cloud-init.log": ("x" * 100_000, "log of the build left"),
    "var/log/auth.log": ("x" * 100_000, "log of the build left"),
    "root/.aws/credentials": ("[default]", "AWS credential left"),
    "home/ubuntu/.aws/credentials": ("[default]", "AWS credential left"),
    "root/.bash_history": ("export AWS_SECRET_ACCESS_KEY", "history left"),
    "home/ubuntu/.bash_history": ("sudo su", "history left"),
    "root/.cache/pip/x": ("x", "cache left"),
    "etc/s4/runner.env": ("S4_STORE=s3://builder/x", "customer setting left"),
    "var/lib/s4-runner/state": ("x", "runner state left"),
    "var/log/journal/1/system.journal": ("x", "journal left"),
}
# And what no seal could mend.
WRONG = {
    "etc/sudoers.d/key": ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "a credential is in"),
    "etc/environment": ("AWS_ACCESS_KEY_ID=AKIAABCDEFGHIJKLMNOP\n", "a credential is in"),
    "home/ubuntu/id_ed25519": ("key", "private key left"),
    "usr/share/s4weights/gate.json": ('{"passed": false}', "does not say that the GPU gate"),
    "etc/ssh/sshd_config.d/10-s4.conf": ("PasswordAuthentication yes\n", "sshd takes passwords"),
    "opt/elsewhere/authorized_keys2": ("ssh-ed25519 AAAA", "authorized keys left: /opt"),
    "etc/shadow": (
        "root:*:1::::::\nubuntu:$y$hash:1::::::\n",
        "a password is set or empty: ubuntu",
    ),
}
PRESENT = {
    "usr/share/s4weights/gate.json": '{\n  "passed": true\n}\n',
    "usr/share/s4weights/entitlement.json": "{}",
    "usr/share/s4weights/image.goss.yaml": "",
    "opt/s4weights/bin/python": "",
    "etc/ssh/sshd_config.d/10-s4.conf": "PasswordAuthentication no\nPermitRootLogin no\n",
    "etc/systemd/system/s4-runner.service": (REPOSITORY / "deploy/s4-runner.service").read_text(),
}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _inside(tree: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts in `tree`, not booted."""
    target = tree / "var/script.sh"
    target.write_text((AMI / "scripts" / script).read_text())
    argv = ["systemd-nspawn", "-q", "-D", tree, "--register=no", "--keep-unit", "--pipe",
            "--setenv=BUILD=/tmp/s4-build", "bash", "/var/script.sh"]  # fmt: skip
    # Otherwise systemd-nspawn puts an empty /tmp over the tree's.
    return run(*argv, env={"SYSTEMD_NSPAWN_TMPFS_TMP": "0"})


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tree that looks installed and used, sealed."""
    if reason := rootfs.why_not():
        pytest.skip(reason)
    with rootfs.unpacked(tmp_path_factory.mktemp("sealed"), CLOUD_PACKAGES) as tree:
        add_login(tree, "ssh-ed25519 AAAA packer_6b0ef5d7\n", 22)
        for name, text in PRESENT.items():
            _write(tree / name, text)
        for name, (text, _) in LEFT_BEHIND.items():
            _write(tree / name, text)
        lock = ["passwd", "--root", tree, "--lock", "root"]
        subprocess.run(lock, check=True, capture_output=True)
        found = _inside(tree, "50-seal.sh")
        assert found.returncode == 0, found.stdout + found.stderr
        yield tree


def test_what_the_seal_leaves_is_clean(sealed: Path) -> None:
    found = _inside(sealed, "60-validate.sh")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "the image is clean" in found.stdout
    for name in LEFT_BEHIND:
        path = sealed / name
        assert not path.exists() or path.stat().st_size == 0, name


@pytest.mark.parametrize("name", [*LEFT_BEHIND, *WRONG])
def test_the_validation_finds_what_is_left(name: str, sealed: Path) -> None:
    text, message = {**LEFT_BEHIND, **WRONG}[name]
    path = sealed / name
    before = path.read_bytes() if path.exists() else None
    made = [one for one in path.parents if not one.exists()]
    _write(path, text)
    try:
        found = _inside(sealed, "60-validate.sh")
    finally:
        path.unlink()
        if before is not None:
            path.write_bytes(before)
        for directory in made:
            directory.rmdir()
    assert found.returncode == 1, found.stdout
    complaints = [line for line in found.stderr.splitlines() if line.startswith("validate: ")]
    assert [line for line in complaints if message in line], complaints
    assert len(complaints) <= 2, complaints


@pytest.mark.parametrize("name", [one for one in PRESENT if not one.startswith("etc/ssh")])
def test_the_validation_misses_what_must_be_there(name: str, sealed: Path) -> None:
    path = sealed / name
    path.rename(path.with_suffix(".away"))
    try:
        found = _inside(sealed, "60-validate.sh")
    finally:
        path.with_suffix(".away").rename(path)
    assert found.returncode == 1
    assert f"missing: /{name}" in found.stderr


def test_the_validation_finds_a_runner_that_starts_without_settings(sealed: Path) -> None:
    link = sealed / "etc/systemd/system/multi-user.target.wants/s4-runner.service"
    link.symlink_to("/etc/systemd/system/s4-runner.service")
    try:
        found = _inside(sealed, "60-validate.sh")
    finally:
        link.unlink()
    assert found.returncode == 1
    assert "is enabled before it has settings" in found.stderr
