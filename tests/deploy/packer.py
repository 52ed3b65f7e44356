"""Packer's real amazon-ebs builder without AWS: EC2 is moto, the instance is a systemd machine.

Debian's Packer is 1.6.6. `stripped` takes away the lines that it does not know, and no others
(test_packer.py compares the parsed files); `offline` adds what points the builder at loopback.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.emulators import REGION, client
from deploy.tools import AMI, REPOSITORY, run, tool

UNKNOWN_ATTRIBUTES = {
    "imds_support",
    "skip_create_ami",
    "temporary_key_pair_type",
    "temporary_security_group_source_public_ip",
}
UNKNOWN_BLOCKS = {"metadata_options"}
UBUNTU = "ami-0aaaaaaaaaaaaaaa1"
KEY_PAIR = "builder"


def stripped(text: str) -> str:
    """HCL without the attributes and blocks that Packer 1.6.6 does not know."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        first = line.split(maxsplit=1)[0] if line.strip() else ""
        if inside:
            inside = line.rstrip() != "  }"
        elif first in UNKNOWN_BLOCKS:
            inside = True
        elif first not in UNKNOWN_ATTRIBUTES:
            kept.append(line)
    return "".join(kept)


@dataclass(frozen=True)
class Builder:
    """Where a build finds its EC2 and its instance."""

    endpoint: str
    ssh_port: int
    private_key: Path

    def offline(self, text: str) -> str:
        """Stripped HCL whose source talks to the emulator and logs in to the machine."""
        extra = f"""
  access_key              = "test"
  secret_key              = "test"
  custom_endpoint_ec2     = "{self.endpoint}"
  skip_region_validation  = true
  skip_metadata_api_check = true
  ssh_host                = "127.0.0.1"
  ssh_port                = {self.ssh_port}
  ssh_keypair_name        = "{KEY_PAIR}"
  ssh_private_key_file    = "{self.private_key}"
"""
        head, brace, rest = stripped(text).partition('source "amazon-ebs" ')
        assert brace
        name, end, rest = rest.partition("{\n")
        # The machine reboots in a second; half a minute is for a real one.
        return f"{head}{brace}{name}{end}{extra}{rest}".replace('"30s"', '"3s"')


def key_pair(directory: Path) -> Path:
    """A new SSH key; the path of its private half."""
    private = directory / "id_ed25519"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "packer_test", "-f", private],
        check=True,
    )
    return private


def amis(directory: Path) -> dict[str, str]:
    """Settings that give moto an Ubuntu image of Canonical's."""
    image = {
        "ami_id": UBUNTU,
        "name": "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20260101",
        "description": "stand-in",
        "owner_id": "099720109477",
        "architecture": "x86_64",
        "state": "available",
        "public": True,
        "image_type": "machine",
        "platform": None,
        "hypervisor": "xen",
        "virtualization_type": "hvm",
        "root_device_name": "/dev/sda1",
        "root_device_type": "ebs",
        "sriov": "simple",
        "creation_date": "2026-01-01T00:00:00.000Z",
    }
    path = directory / "amis.json"
    path.write_text(json.dumps([image]))
    return {"MOTO_AMIS_PATH": str(path)}


def import_key(endpoint: str, private: Path) -> None:
    """Give the emulated EC2 the public half, as a key pair of its own."""
    public = private.with_suffix(".pub").read_bytes()
    client("ec2", endpoint).import_key_pair(KeyName=KEY_PAIR, PublicKeyMaterial=public)


def copied(directory: Path, builder: Builder, stand_ins: dict[str, str]) -> Path:
    """A copy of ami/ and deploy/ for an offline build; the path of its ami/.

    `stand_ins` replaces scripts that need Ubuntu's archive; all others stay as they are.
    """
    target = directory / "ami"
    shutil.copytree(AMI, target, ignore=shutil.ignore_patterns("plugins.pkr.hcl", "__pycache__"))
    shutil.copytree(REPOSITORY / "deploy", directory / "deploy")
    for path in (target / "runner.pkr.hcl", target / "verify/verify.pkr.hcl"):
        path.write_text(builder.offline(path.read_text()))
    for name, text in stand_ins.items():
        assert (target / "scripts" / name).exists(), name
        (target / "scripts" / name).write_text(text)
    return target


def packer(*argv: str | Path, variables: dict[str, str], cwd: Path) -> Any:
    """Run packer; its completed process."""
    options: Sequence[str] = [
        word for key, value in variables.items() for word in ("-var", f"{key}={value}")
    ]
    env = {
        "CHECKPOINT_DISABLE": "1",
        "PACKER_NO_COLOR": "1",
        "PACKER_CONFIG": str(cwd / "packer-config"),
        "AWS_REGION": REGION,
    }
    command, *rest = argv
    return run(tool("packer"), command, *options, *rest, env=env, cwd=cwd, timeout=150)
