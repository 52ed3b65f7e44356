"""The image build: Packer's own amazon-ebs builder makes an image if, and only if, the GPU gate
and the validation of the sealed machine pass.

Replaced by stand-ins: the driver's and Python's installation, which need Ubuntu's archive, and
with them ``nvidia-smi`` and the self-test. Everything else of ami/ runs as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deploy.emulators import client, free_port, moto
from deploy.machines import CLOUD_PACKAGES, add_login, listen_on, rebooting, seed
from deploy.packer import (
    UBUNTU,
    UNKNOWN_ATTRIBUTES,
    UNKNOWN_BLOCKS,
    Builder,
    amis,
    copied,
    import_key,
    key_pair,
    packer,
    stripped,
)
from deploy.tools import AMI, REPOSITORY, TEMPLATE, run, tool

from deploy import rootfs

pytestmark = pytest.mark.deploy

HCL = sorted(AMI.rglob("*.pkr.hcl"))
REPORT = {
    "ok": True,
    "gpu": {"name": "NVIDIA L4"},
    "profiles": {name: {"ok": True, "cases": 7, "mismatches": 0} for name in ("open", "nvcomp")},
    "dtypes": ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
               "int8", "int16", "int32", "int64", "uint8", "bool", "complex64"],
}  # fmt: skip
DRIVER = """\
#!/bin/bash
set -euo pipefail
printf '#!/bin/sh\\necho "NVIDIA L4, 580.95.05, 23034 MiB, GPU-1"\\n' >/usr/local/bin/nvidia-smi
chmod 755 /usr/local/bin/nvidia-smi
printf 'nvidia\\nnvidia_uvm\\n' >/etc/modules-load.d/s4-nvidia.conf
"""
# A real environment with the project's own modules, but a self-test that says what it is told.
PYTHON = """\
#!/bin/bash
set -euo pipefail
echo "$WHEEL_SHA256  $(echo "$BUILD"/dist/*.whl)" | sha256sum --check --strict
python3 -m venv --without-pip --system-site-packages /opt/s4weights
site=$(/opt/s4weights/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
tar -C "$site" -xf "$BUILD/deploy/s4core.tar"
for name in s4weights torch numpy cupy-cuda13x nvidia-nvcomp-cu13 boto3; do
    mkdir -p "$site/${name//-/_}-1.0.dist-info"
    printf 'Metadata-Version: 2.1\\nName: %s\\nVersion: 1.0\\n' "$name" \\
        >"$site/${name//-/_}-1.0.dist-info/METADATA"
done
cat >"$site/s4core/selftest.py" <<'SELFTEST'
REPORT
SELFTEST
"""


# --- the files ------------------------------------------------------------------------------------


def _keys(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from _keys(value)
    elif isinstance(node, list):
        for value in node:
            yield from _keys(value)


def _without_unknown(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_unknown(one) for one in node]
    if not isinstance(node, dict):
        return node
    unknown = UNKNOWN_ATTRIBUTES | UNKNOWN_BLOCKS
    return {key: _without_unknown(value) for key, value in node.items() if key not in unknown}


@pytest.mark.parametrize("path", HCL, ids=lambda path: path.name)
def test_the_filter_removes_what_old_packer_lacks_and_nothing_else(path: Path) -> None:
    hcl2 = pytest.importorskip("hcl2", reason="python-hcl2 is not installed")
    whole, rest = (hcl2.loads(text) for text in (path.read_text(), stripped(path.read_text())))
    assert rest == _without_unknown(whole)
    if path.name == "runner.pkr.hcl":
        seen = set(_keys(whole)) & (UNKNOWN_ATTRIBUTES | UNKNOWN_BLOCKS)
        assert seen == UNKNOWN_ATTRIBUTES - {"skip_create_ami"} | UNKNOWN_BLOCKS


def test_the_production_file_keeps_its_promises() -> None:
    hcl2 = pytest.importorskip("hcl2", reason="python-hcl2 is not installed")
    text = (AMI / "runner.pkr.hcl").read_text()
    source = hcl2.loads(text)["source"][0]
    (source,) = next(iter(source.values())).values()
    (metadata,) = source["metadata_options"]
    assert metadata["http_tokens"].strip('"') == "required"
    assert metadata["http_put_response_hop_limit"] == 1
    assert source["imds_support"].strip('"') == "v2.0"
    assert source["ssh_clear_authorized_keys"] is True
    assert source["temporary_security_group_source_public_ip"] is True
    assert "ssh_password" not in text
    assert not re.search(r"(access|secret)_key|token *=|AKIA|ami_groups|ami_users", text)
    variables = (AMI / "variables.pkr.hcl").read_text()
    assert not re.search(r'variable "[^"]*(gate|skip|force|bypass|secret|password)', variables)
    assert re.search(r'variable "encrypt_boot" \{.*?default += true', variables, re.S)


def test_the_gate_stands_between_installing_and_sealing_and_nothing_gets_round_it() -> None:
    text = (AMI / "runner.pkr.hcl").read_text()
    scripts = re.findall(r"scripts/([0-9]+-[a-z-]+\.sh)", text)
    assert scripts == sorted(path.name for path in (AMI / "scripts").iterdir())
    assert scripts.index("40-gpu-gate.sh") < scripts.index("50-seal.sh") < len(scripts) - 1
    for escape in ("|| true", "valid_exit_codes", "on-error", "only =", "except =", "max_retries"):
        assert escape not in text, escape
    gate = (AMI / "scripts/40-gpu-gate.sh").read_text()
    assert "||" not in gate
    assert "set -euo pipefail" in gate


def test_the_files_are_formatted() -> None:
    found = run(tool("packer"), "fmt", "-check", "-diff", AMI)
    assert found.returncode == 0, found.stdout


def test_a_machine_without_the_right_gpu_is_refused_before_it_starts(tmp_path: Path) -> None:
    builder = Builder("http://127.0.0.1:1", 1, key_pair(tmp_path))
    directory = copied(tmp_path, builder, {})
    given = _inputs(tmp_path / "inputs")
    good = packer("validate", directory, variables=given, cwd=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    for size in ("t3.micro", "g5.xlarge", "p5.48xlarge"):
        variables = {**given, "instance_type": size}
        bad = packer("validate", directory, variables=variables, cwd=tmp_path)
        assert bad.returncode != 0
        assert "choose a g6 or g6e size" in bad.stdout + bad.stderr


# --- the build ------------------------------------------------------------------------------------


@dataclass
class Build:
    """One finished build."""

    returncode: int
    output: str
    images: list[dict[str, Any]]
    instances: list[str]
    manifest: Path
    tree: Path


def _stand_ins(report: dict[str, Any], code: int) -> dict[str, str]:
    body = f"import sys\nprint({json.dumps(json.dumps(report))})\nsys.exit({code})"
    return {"10-driver.sh": DRIVER, "20-python.sh": PYTHON.replace("REPORT", body)}


def _inputs(directory: Path) -> dict[str, str]:
    """The variables of a build, with a wheel and an entitlement file to name."""
    directory.mkdir()
    wheel = directory / "s4weights-0.1.0-cp310-abi3-linux_x86_64.whl"
    wheel.write_bytes(b"a wheel")
    entitlement = directory / "entitlement.json"
    key = "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n"
    entitlement.write_text(
        json.dumps({"version": 1, "productCode": "code", "publicKeyVersion": 1, "publicKey": key})
    )
    return {
        "version": "0.1.0",
        "commit": "abc",
        "wheel": str(wheel),
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "entitlement": str(entitlement),
        "manifest": str(directory / "manifest.json"),
    }


@dataclass
class Instance:
    """A booted machine that Packer can log in to."""

    tree: Path
    private_key: Path
    port: int


@contextmanager
def _instance(directory: Path) -> Iterator[Instance]:
    if reason := rootfs.why_not():
        pytest.skip(reason)
    private_key, port = key_pair(directory), free_port()
    with rootfs.unpacked(directory, CLOUD_PACKAGES) as tree:
        add_login(tree, private_key.with_suffix(".pub").read_text(), port)
        (tree / "etc/machine-id").write_text("")
        with rebooting(tree):
            yield Instance(tree, private_key, port)


def _built(directory: Path, instance: Instance, stand_ins: dict[str, str]) -> Build:
    """Build on `instance`, with an EC2 of its own."""
    variables = _inputs(directory / "inputs")
    with moto(directory, **amis(directory)) as endpoint:
        import_key(endpoint, instance.private_key)
        builder = Builder(endpoint, instance.port, instance.private_key)
        copy = copied(directory, builder, stand_ins)
        # In place of the wheel's own modules: the source tree's, which need no compiler.
        package = copy.parent / "deploy/s4core.tar"
        names = ("s4core/__init__.py", "s4core/errors.py", "s4core/runner")
        assert run("tar", "-C", REPOSITORY, "-cf", package, *names).returncode == 0
        found = packer("build", copy, variables=variables, cwd=directory)
        ec2 = client("ec2", endpoint)
        reservations = ec2.describe_instances()["Reservations"]
        return Build(
            found.returncode,
            found.stdout + found.stderr,
            ec2.describe_images(Owners=["self"])["Images"],
            [one["State"]["Name"] for group in reservations for one in group["Instances"]],
            Path(variables["manifest"]),
            instance.tree,
        )


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """For builds that end at the gate, and so leave it as easy to log in to as it was."""
    with _instance(tmp_path_factory.mktemp("unsealed")) as instance:
        yield instance


def _assert_no_image(build: Build, because: str) -> None:
    assert build.returncode == 1, build.output
    assert because in build.output
    assert build.images == []
    assert not build.manifest.exists()
    assert set(build.instances) == {"terminated"}


def test_no_image_when_the_self_test_fails(unsealed: Instance, tmp_path: Path) -> None:
    build = _built(tmp_path, unsealed, _stand_ins({**REPORT, "ok": False}, 1))
    _assert_no_image(build, "GPU gate FAILED, no image will be made")
    assert not (build.tree / "usr/share/s4weights/gate.json").exists()


def test_no_image_on_another_gpu(unsealed: Instance, tmp_path: Path) -> None:
    other = _stand_ins(REPORT, 0)
    other["10-driver.sh"] = DRIVER.replace("NVIDIA L4,", "Tesla T4,")
    build = _built(tmp_path, unsealed, other)
    _assert_no_image(build, "expected NVIDIA L4 or NVIDIA L40S, found 'Tesla T4'")


def test_no_image_when_something_of_the_builder_is_left(tmp_path: Path) -> None:
    careless = _stand_ins(REPORT, 0)
    seal = (AMI / "scripts/50-seal.sh").read_text()
    careless["50-seal.sh"] = seal.replace("rm -rf /root/.ssh\n", "")
    with _instance(tmp_path) as instance:
        build = _built(tmp_path, instance, careless)
    _assert_no_image(build, "SSH directory left: /root/.ssh")


def test_an_image_is_made_when_the_gate_passes_and_launched_it_is_as_specified(
    tmp_path: Path,
) -> None:
    with _instance(tmp_path) as instance:
        build = _built(tmp_path, instance, _stand_ins(REPORT, 0))
        assert build.returncode == 0, build.output
        _assert_image(build)
        gate = json.loads((build.tree / "usr/share/s4weights/gate.json").read_text())
        assert (gate["passed"], gate["gpus"][0]["name"]) == (True, "NVIDIA L4")
        assert gate["self_test"] == REPORT
        assert json.loads(Path(f"{build.manifest}.gate.json").read_text()) == gate
        _assert_mapping_can_be_written(build.manifest)
        tree = tmp_path / "launched"
        os.rename(build.tree, tree)
    _assert_as_specified(tmp_path, tree)


def _assert_image(build: Build) -> None:
    (image,) = [one for one in build.images if one["Name"] == "s4weights-runner-0.1.0"]
    tags = {one["Key"]: one["Value"] for one in image["Tags"]}
    assert (tags["Version"], tags["Commit"], tags["DriverBranch"]) == ("0.1.0", "abc", "580")
    manifest = json.loads(build.manifest.read_text())
    made = manifest["builds"][0]["artifact_id"].split(",")
    assert f"us-east-1:{image['ImageId']}" in made


def _assert_mapping_can_be_written(manifest: Path) -> None:
    template = manifest.with_name("template.yaml")
    template.write_text(TEMPLATE.read_text())
    found = run("python3", AMI / "write_mapping.py", manifest, template)
    assert found.returncode == 0, found.stderr
    assert "ami-00000000000000000" not in template.read_text()


def _assert_as_specified(directory: Path, tree: Path) -> None:
    """Launch what is left on the disk, log in anew, and run the image's own checks."""
    private_key, port = key_pair(directory / "inputs"), free_port()
    listen_on(tree, port)
    seed(tree, "#cloud-config\n{}\n", "i-launched", private_key.with_suffix(".pub").read_text())
    with moto(directory, **amis(directory)) as endpoint, rootfs.booted(tree, private_network=False):
        import_key(endpoint, private_key)
        builder = Builder(endpoint, port, private_key)
        verify = copied(directory / "again", builder, {}) / "verify"
        variables = {"ami": UBUNTU, "without": "--without gpu --without runner"}
        found = packer("build", verify, variables=variables, cwd=directory)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "0 failed" in found.stdout
