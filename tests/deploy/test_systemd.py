"""The unit under a real systemd: unprivileged, fail closed, restarted or not as promised."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deploy.product import ALLOWED, PROBES, TRAINING, UNIT, Product
from deploy.rootfs import booted, unpacked, why_not

from deploy import runner_tree

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

MAX_EXPOSURE = 20  # 2.0, as systemd-analyze security counts


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with unpacked(tmp_path_factory.mktemp("rootfs")) as tree:
        runner_tree.install(tree)
        runner_tree.write_image_settings(tree)
        runner_tree.write_settings(tree)
        begin = time.monotonic()
        with booted(tree) as machine:
            found = Product(machine, 0.0)
            machine.wait_for(UNIT, "ActiveState", "active")
            assert found.get("/readyz") == "200 ready"
            found.boot_seconds = time.monotonic() - begin
            yield found


# The file itself.


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with no more than systemd-analyze looks at."""
    tree = tmp_path_factory.mktemp("offline")
    for name in ("opt/s4weights/bin/python", "usr/bin/nvidia-modprobe"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("#!/bin/sh\n")
        (tree / name).chmod(0o755)
    units = tree / "etc/systemd/system"
    units.mkdir(parents=True)
    shutil.copy(runner_tree.ROOT / "deploy" / UNIT, units / UNIT)
    for needed in ("network-online", "sysinit", "basic", "shutdown", "multi-user"):
        (units / f"{needed}.target").write_text("[Unit]\nDescription=x\n")
    for slice_ in ("-", "system"):
        (units / f"{slice_}.slice").write_text("[Unit]\nDescription=x\n")
    return tree


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def test_the_unit_has_no_mistake_and_a_planted_one_is_found(offline: Path) -> None:
    unit = offline / "etc/systemd/system" / UNIT
    verify = ("verify", "--man=no", f"--root={offline}", f"/etc/systemd/system/{UNIT}")
    good = analyze(*verify)
    assert (good.returncode, good.stderr) == (0, "")
    text = unit.read_text()
    try:
        unit.write_text(text.replace("ProtectHome=", "ProtectHomes="))
        assert "ProtectHomes" in analyze(*verify).stderr
    finally:
        unit.write_text(text)


def test_the_exposure_of_the_unit_is_at_most_2(offline: Path) -> None:
    unit = offline / "etc/systemd/system" / UNIT
    arguments = ("security", "--offline=true", f"--threshold={MAX_EXPOSURE}")
    found = analyze(*arguments, str(unit))
    print(found.stdout.splitlines()[-1])
    assert found.returncode == 0, found.stdout
    weaker = offline / "weaker.service"
    weaker.write_text("[Service]\nExecStart=/bin/true\n")
    assert analyze(*arguments, str(weaker)).returncode != 0


def test_the_unit_uses_no_directive_newer_than_249() -> None:
    newer = {
        "RestrictFileSystems",
        "ExitType",
        "OpenFile",
        "RestartSteps",
        "RestartMode",
        "ImportCredential",
    }
    text = (runner_tree.ROOT / "deploy" / UNIT).read_text()
    assert not newer & set(re.findall(r"^(\w+)=", text, re.MULTILINE))
    for trap in ("cloud-final", "ProcSubset", "PrivateDevices", "MemoryDenyWriteExecute"):
        assert not re.search(rf"^[^#]*{trap}", text, re.MULTILINE), trap


# The booted machine.


def test_boot_to_ready_takes_seconds(product: Product) -> None:
    print(f"boot to ready: {product.boot_seconds:.1f} s")
    assert product.boot_seconds < 30


def test_it_runs_without_any_privilege(product: Product) -> None:
    product.reset()
    assert product.start() == 0
    status = product.machine.run("cat", f"/proc/{product.property('MainPID')}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert {fields[name].strip("0") for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {""}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


def test_what_it_must_not_do_is_refused(product: Product) -> None:
    product.train(PROBES)
    assert product.start() == 0
    product.machine.wait_for(UNIT, "ActiveState", "inactive")
    found = json.loads((product.tree / "var/lib/s4-runner/probes").read_text())
    print(found)
    assert {name for name, result in found.items() if result == "done"} == ALLOWED
    assert found["write /etc"] == found["write /opt"] == "Read-only file system"


@pytest.mark.parametrize(
    "scenario", ["not entitled", "platform", "access denied", "forged", "alg none", "replayed"]
)
def test_without_entitlement_it_ends_with_77_once_and_the_port_stays_closed(
    scenario: str, product: Product
) -> None:
    product.reset(scenario)
    before = product.calls()
    assert product.start() != 0
    assert product.property("ExecMainStatus") == "77"
    assert product.property("NRestarts") == "0"
    assert product.calls() == before + 1
    product.assert_closed()


def test_the_port_is_closed_while_the_answer_is_awaited(product: Product) -> None:
    product.reset("503")
    product.machine.run("systemctl", "start", "--no-block", UNIT)
    product.machine.wait_for(UNIT, "SubState", "start")
    for _ in range(10):
        product.assert_closed()
        time.sleep(0.05)


def test_an_environment_cannot_grant(product: Product) -> None:
    evil = "http://127.0.0.1:9"
    product.reset(
        "not entitled",
        AWS_ENDPOINT_URL=evil,
        AWS_ENDPOINT_URL_MARKETPLACE_METERING=evil,
        AWS_EC2_METADATA_SERVICE_ENDPOINT=evil,
        AWS_ACCESS_KEY_ID="x",
        AWS_SECRET_ACCESS_KEY="x",
        AWS_REGION="eu-evil-1",
        AWS_CA_BUNDLE="/dev/null",
        SSL_CERT_FILE="/dev/null",
        HTTPS_PROXY=evil,
        https_proxy=evil,
        PYTHONPATH="/var/lib/s4-runner",
        PYTHONSTARTUP="/var/lib/s4-runner/x.py",
    )
    before = product.calls()
    product.start()
    assert product.property("ExecMainStatus") == "77"
    assert product.calls() == before + 1


@pytest.mark.parametrize(
    "settings",
    [{"S4_RUNNER_RESTRAT": "never"}, {"S4_STORE": ""}, {"S4_STORE": "ftp://x/y"},
     {"S4_RUNNER_ENTITLEMENT": "instance-identity"}],
)  # fmt: skip
def test_bad_configuration_ends_with_78_and_no_restart(
    settings: dict[str, str], product: Product
) -> None:
    product.reset(**settings)
    assert product.start() != 0
    assert product.property("ExecMainStatus") == "78"
    assert product.property("NRestarts") == "0"
    product.assert_closed()


def test_an_image_file_that_a_user_could_write_ends_with_78(product: Product) -> None:
    product.reset()
    (product.tree / "usr/share/s4weights/entitlement.json").chmod(0o666)
    product.start()
    assert product.property("ExecMainStatus") == "78"
    product.assert_closed()


def test_a_failed_self_test_ends_with_70_and_no_restart(product: Product) -> None:
    product.reset()
    failing = ["/bin/sh", "-c", 'echo \'{"error": "bit 3 of word 9"}\'; exit 1']
    runner_tree.write_image_settings(product.tree, selfTestCommand=failing)
    assert product.start() != 0
    assert product.property("ExecMainStatus") == "70"
    assert product.property("NRestarts") == "0"
    assert "bit 3 of word 9" in product.log()
    product.assert_closed()


def test_a_service_that_is_down_is_asked_three_times_and_then_no_more(product: Product) -> None:
    product.reset("503")
    product.override("[Service]\nRestartSec=0\n")
    product.start()
    product.machine.wait_for(UNIT, "ActiveState", "failed", 60)
    assert product.property("ExecMainStatus") == "75"
    assert product.property("NRestarts") == "3"  # the last of which the limit refused
    product.assert_closed()


def test_a_killed_runner_is_restarted_without_asking_again(product: Product) -> None:
    product.reset()
    product.override("[Service]\nRestartSec=0\n")
    assert product.start() == 0
    before, first = product.calls(), product.property("MainPID")
    product.machine.run("kill", "-KILL", first)
    product.machine.wait_for(UNIT, "NRestarts", "1")
    product.machine.wait_for(UNIT, "ActiveState", "active")
    assert product.property("MainPID") != first
    assert product.calls() == before
    assert product.get("/readyz") == "200 ready"


def test_a_hanging_runner_is_ended_by_the_watchdog_and_restarted(product: Product) -> None:
    product.reset()
    product.override("[Service]\nRestartSec=0\nWatchdogSec=3\nTimeoutAbortSec=1\n")
    assert product.start() == 0
    time.sleep(4)
    assert product.property("NRestarts") == "0"  # a healthy one feeds it
    product.machine.run("kill", "-STOP", product.property("MainPID"))
    product.machine.wait_for(UNIT, "NRestarts", "1")
    product.machine.wait_for(UNIT, "ActiveState", "active")
    assert "watchdog" in product.log().lower()


def test_a_stop_lets_the_training_flush(product: Product) -> None:
    product.train()
    assert product.start() == 0
    product.wait_said("started")
    begin = time.monotonic()
    product.machine.run("systemctl", "stop", UNIT)
    assert 0.4 < time.monotonic() - begin < 5
    assert product.said() == ["started", "SIGTERM", "flushed"]
    assert product.property("Result") == "success"
    product.assert_closed()


def test_a_training_that_ignores_the_stop_is_killed(product: Product) -> None:
    product.train(TRAINING.replace("time.sleep(0.5)", "time.sleep(600)"),
                  S4_RUNNER_STOP_SECONDS="1")  # fmt: skip
    assert product.start() == 0
    product.wait_said("started")
    begin = time.monotonic()
    product.machine.run("systemctl", "stop", UNIT)
    assert time.monotonic() - begin < 10
    assert "did not end in time: killed" in product.log()


def test_a_killed_training_is_restarted_by_the_runner(product: Product) -> None:
    product.train(S4_RUNNER_RESTART_BACKOFF="0.1")
    assert product.start() == 0
    product.wait_said("started")
    training = re.findall(r"training runs as process (\d+)", product.log())[-1]
    runner = product.property("MainPID")
    product.machine.run("kill", "-KILL", training)
    product.wait_said("started", 2)
    assert product.property("MainPID") == runner
    assert "s4_training_restarts_total 1" in product.get("/metrics")


def test_a_training_that_ends_well_ends_the_service_well(product: Product) -> None:
    product.train("print('done')")
    assert product.start() == 0
    product.machine.wait_for(UNIT, "ActiveState", "inactive")
    assert product.property("Result") == "success"
    product.assert_closed()


def test_a_spot_notice_reaches_the_training(product: Product) -> None:
    product.train(S4_RUNNER_TERM_BEFORE="10")
    assert product.start() == 0
    product.wait_said("started")
    end = datetime.now(timezone.utc) + timedelta(seconds=18)
    notice = {"action": "terminate", "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    (product.tree / "fake/instance-action").write_text(json.dumps(notice))
    product.wait_said("SIGUSR1")
    assert "s4_interruption_notice 1" in product.get("/metrics")
    product.wait_said("flushed")
    assert product.said() == ["started", "SIGUSR1", "SIGTERM", "flushed"]
    assert datetime.now(timezone.utc) < end


def test_the_settings_are_the_customers_and_secret_from_others(product: Product) -> None:
    product.reset()
    product.machine.run("systemd-tmpfiles", "--create", "s4-runner.conf")
    found = product.machine.run(
        "stat", "-c", "%a %U:%G", "/etc/s4", "/etc/s4/runner.env",
        "/usr/share/s4weights/entitlement.json",
    ).stdout.split("\n")  # fmt: skip
    assert found[:3] == ["755 root:root", "640 root:s4", "644 root:root"]
