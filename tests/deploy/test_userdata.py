"""UserData, as CloudFormation would render it, run by a real cloud-init on a real systemd.

The unit is the one that ships, with a stand-in for the runner's program; CloudFormation is a
small server that writes down each signal.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest
from deploy.cfn import parsed, user_data
from deploy.machines import CLOUD_PACKAGES, seed
from deploy.tools import AMI, REPOSITORY, TEMPLATE, run, tool

from deploy import rootfs
from s4core.runner.settings import load_settings

pytestmark = pytest.mark.deploy

VALUES = {
    "AWS::StackId": "arn:aws:cloudformation:us-east-1:000000000000:stack/train/1fb11c70",
    "AWS::Region": "us-east-1",
    "BucketInUse": "customer-bucket",
    "CheckpointPrefix": "team/s4",
    "TrainingCommand": "/opt/s4weights/bin/python train.py --lr=1e-4 --name a,b@c+d:e",
}
INSTANCE = "i-0123456789abcdef0"

READY = """\
import http.server, os, pathlib, socket
pathlib.Path("/var/lib/s4-runner/environment").write_text(
    "".join(f"{k}={v}\\n" for k, v in os.environ.items()))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 8080), Handler)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
    notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
server.serve_forever()
"""
CLOUDFORMATION = """\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("/run/signals", "ab") as log:
            log.write(body + b"\\n")
        answer = (b"<SignalResourceResponse><ResponseMetadata><RequestId>1</RequestId>"
                  b"</ResponseMetadata></SignalResourceResponse>")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)
http.server.HTTPServer(("127.0.0.1", 9000), Handler).serve_forever()
"""
CLOUDFORMATION_UNIT = """\
[Unit]
DefaultDependencies=no
After=local-fs.target
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/cloudformation.py
[Install]
WantedBy=sysinit.target
"""
CREDENTIALS = """\
[Service]
Environment=AWS_ENDPOINT_URL_CLOUDFORMATION=http://127.0.0.1:9000
Environment=AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
"""


def rendered() -> str:
    """The script with the values in it, as Fn::Sub would put them."""
    return re.sub(r"\$\{([^}]+)\}", lambda hit: VALUES[hit[1]], user_data(parsed(TEMPLATE)))


def _settings(script: str) -> dict[str, str]:
    """What the script writes into runner.env."""
    (body,) = re.findall(r"<<'SETTINGS'\n(.*?)\nSETTINGS\n", script, re.S)
    return dict(line.split("=", 1) for line in body.splitlines())


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    script = tmp_path / "user-data.sh"
    script.write_text(rendered())
    # SC2119, SC2120: tell() gets its arguments from the trap, which shellcheck does not see.
    skipped = "--exclude=SC2250,SC2312,SC2119,SC2120"
    found = run(tool("shellcheck"), "--enable=all", skipped, script)
    assert found.returncode == 0, found.stdout


def test_the_runner_accepts_the_settings_that_it_writes() -> None:
    settings = load_settings(_settings(rendered()))
    assert settings.store == "s3://customer-bucket/team/s4"
    assert settings.health == ("0.0.0.0", 8080)
    assert list(settings.command) == VALUES["TrainingCommand"].split()
    empty = {**_settings(rendered()), "S4_RUNNER_COMMAND": ""}
    assert load_settings(empty).command == ()


def test_nothing_orders_the_unit_after_the_service_that_runs_user_data() -> None:
    unit = (REPOSITORY / "deploy/s4-runner.service").read_text()
    orders = [
        line for line in unit.splitlines() if re.match(r"(After|Requires|Wants|BindsTo)=", line)
    ]
    assert orders
    assert not [line for line in orders if "cloud-" in line]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _furnish(tree: Path, program: str, script: str) -> None:
    """Put into `tree` what the image has, a program in place of the runner, and UserData."""
    (tree / "opt/s4weights/bin").mkdir(parents=True)
    (tree / "opt/s4weights/bin/python").symlink_to("/usr/bin/python3")
    site = Path(boto3.__file__).parents[1]
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six.py"):
        target = tree / "usr/local/lib/python3.11/dist-packages"
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", site / name, target], check=True)
    _write(
        tree / "usr/share/s4weights/signal_stack.py", (AMI / "files/signal_stack.py").read_text()
    )
    for name in ("sysusers.d", "tmpfiles.d"):
        for path in (REPOSITORY / "deploy" / name).iterdir():
            _write(tree / "usr/lib" / name / path.name, path.read_text())
    units = tree / "etc/systemd/system"
    _write(units / "s4-runner.service", (REPOSITORY / "deploy/s4-runner.service").read_text())
    start = "[Service]\nExecStart=\nExecStart=/usr/bin/python3 /usr/local/lib/runner.py\n"
    _write(units / "s4-runner.service.d/test.conf", start)
    _write(tree / "usr/local/lib/runner.py", program)
    _write(tree / "usr/local/lib/cloudformation.py", CLOUDFORMATION)
    _write(units / "cloudformation.service", CLOUDFORMATION_UNIT)
    _write(units / "cloud-final.service.d/test.conf", CREDENTIALS)
    subprocess.run(
        ["systemctl", "--root", tree, "enable", "-q", "cloudformation.service"], check=True
    )
    seed(tree, script, INSTANCE)


@contextmanager
def _launched(directory: Path, program: str, script: str) -> Iterator[rootfs.Machine]:
    if reason := rootfs.why_not():
        pytest.skip(reason)
    with rootfs.unpacked(directory, CLOUD_PACKAGES) as tree:
        _furnish(tree, program, script)
        with rootfs.booted(tree) as machine:
            machine.run("cloud-init", "status", "--wait", check=False, timeout=120)
            yield machine


def _signals(machine: rootfs.Machine) -> list[dict[str, Any]]:
    text = machine.run("cat", "/run/signals").stdout
    return [{k: v[0] for k, v in parse_qs(line).items()} for line in text.splitlines()]


def _assert_signalled(machine: rootfs.Machine, status: str, unique: str) -> None:
    (signal,) = _signals(machine)
    assert (signal["Action"], signal["StackName"]) == ("SignalResource", VALUES["AWS::StackId"])
    assert signal["LogicalResourceId"] == "AutoScalingGroup"
    assert (signal["Status"], signal["UniqueId"]) == (status, unique)


def test_first_boot_writes_the_settings_starts_the_runner_and_signals_success(
    tmp_path: Path,
) -> None:
    with _launched(tmp_path, READY, rendered()) as machine:
        result = json.loads(machine.run("cat", "/run/cloud-init/result.json").stdout)
        assert result["v1"]["errors"] == []
        assert machine.property("s4-runner.service", "ActiveState") == "active"
        assert machine.property("s4-runner.service", "UnitFileState") == "enabled"
        assert machine.property("s4-runner.service", "User") == "s4"
        mode = machine.run("stat", "-c", "%a %U %G", "/etc/s4/runner.env").stdout.split()
        assert mode == ["640", "root", "s4"]
        seen = machine.run("cat", "/var/lib/s4-runner/environment").stdout.splitlines()
        for key, value in _settings(rendered()).items():
            assert f"{key}={value}" in seen
        _assert_signalled(machine, "SUCCESS", INSTANCE)


def test_a_refusal_fails_the_stack_with_its_reason(tmp_path: Path) -> None:
    with _launched(tmp_path, "raise SystemExit(77)\n", rendered()) as machine:
        _assert_signalled(machine, "FAILURE", f"{INSTANCE}.not-entitled")
        assert machine.property("s4-runner.service", "NRestarts") == "0"


def test_a_failing_script_fails_the_stack_at_once(tmp_path: Path) -> None:
    broken = rendered().replace("-g s4 /dev/stdin", "-g nobody-there /dev/stdin")
    with _launched(tmp_path, READY, broken) as machine:
        _assert_signalled(machine, "FAILURE", f"{INSTANCE}.user-data")
        assert machine.property("s4-runner.service", "ActiveState") == "inactive"
