"""The image's own programs: the gate believes nothing unsaid, the stack is told the reason, the
spec's checker knows what it does not know, and every package is locked."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from deploy.cfn import parsed
from deploy.test_packer import REPORT
from deploy.tools import AMI, REPOSITORY, TEMPLATE, run, tool

pytestmark = pytest.mark.deploy

LOCK = AMI / "requirements/runner.lock"


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_gate = _loaded(AMI / "files/gpu_gate.py")
signal_stack = _loaded(AMI / "files/signal_stack.py")
check_image = _loaded(AMI / "files/check_image.py")
write_mapping = _loaded(AMI / "write_mapping.py")


def test_shellcheck_finds_nothing() -> None:
    scripts = sorted((AMI / "scripts").glob("*.sh"))
    assert len(scripts) == 6
    found = run(tool("shellcheck"), *scripts)
    assert found.returncode == 0, found.stdout


# --- the gate -------------------------------------------------------------------------------------

L4 = "NVIDIA L4, 580.95.05, 23034 MiB, GPU-1\n"


def test_the_gate_accepts_the_gpus_of_g6_and_g6e() -> None:
    l40s = L4.replace("L4", "L40S")
    assert [one["name"] for one in gpu_gate.gpu_rows(L4 * 4, "580")] == ["NVIDIA L4"] * 4
    assert gpu_gate.gpu_rows(l40s, "580")[0]["name"] == "NVIDIA L40S"
    gpu_gate.check_report(REPORT, "NVIDIA L4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "sees no GPU"),
        (L4.replace("NVIDIA L4", "Tesla T4"), "found 'Tesla T4'"),
        (L4.replace("NVIDIA L4", "NVIDIA H200"), "found 'NVIDIA H200'"),
        (L4.replace("NVIDIA L4", "NVIDIA L4x"), "found 'NVIDIA L4x'"),
        (L4 + L4.replace("NVIDIA L4", "NVIDIA A10G"), "found 'NVIDIA A10G'"),
        (L4.replace("580.95", "570.10"), "expected branch 580, found 570"),
    ],
)
def test_the_gate_refuses_another_gpu_or_driver(text: str, message: str) -> None:
    with pytest.raises(gpu_gate.GateError, match=re.escape(message)):
        gpu_gate.gpu_rows(text, "580")


def _changed(**changed: Any) -> dict[str, Any]:
    return {**copy.deepcopy(REPORT), **changed}


PASSED = {"ok": True, "cases": 7, "mismatches": 0}


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (None, "'ok' is None"),
        ([], "'ok' is []"),
        ({}, "'ok' is None"),
        (_changed(ok=False), "'ok' is False"),
        (_changed(ok="true"), "'ok' is 'true'"),
        (_changed(ok=1), "'ok' is 1"),
        (_changed(gpu=None), "ran on None"),
        (_changed(gpu="NVIDIA L40S"), "ran on 'NVIDIA L40S'"),
        (_changed(profiles={}), "expected both"),
        (_changed(profiles={"open": PASSED}), "expected both"),
        (_changed(profiles={"open": PASSED, "nvcomp": {**PASSED, "ok": False}}), "nvcomp did not"),
        (_changed(profiles={"open": PASSED, "nvcomp": {"ok": True}}), "None cases"),
        (
            _changed(profiles={"open": {**PASSED, "mismatches": 1}, "nvcomp": PASSED}),
            "1 mismatches",
        ),
        (_changed(profiles={"open": {**PASSED, "cases": 0}, "nvcomp": PASSED}), "0 cases"),
        (_changed(dtypes=[]), "dtypes not tested: bfloat16"),
        (_changed(dtypes=REPORT["dtypes"][1:]), "dtypes not tested: bfloat16"),
    ],
)
def test_the_gate_refuses_a_report_that_does_not_say_everything(report: Any, message: str) -> None:
    with pytest.raises(gpu_gate.GateError, match=re.escape(message)):
        gpu_gate.check_report(report, "NVIDIA L4")


def test_the_gate_removes_an_old_record_before_it_tests(tmp_path: Path) -> None:
    record = tmp_path / "gate.json"
    record.write_text('{"passed": true}')
    gate = [str(AMI / "files/gpu_gate.py"), "--driver-branch", "580", "--output", str(record)]
    found = run("python3", *gate, LOCK, env={"PATH": "/nonexistent:/usr/bin:/bin"})
    assert found.returncode == 1
    assert "GPU gate FAILED, no image will be made: nvidia-smi" in found.stderr
    assert not record.exists()


def test_the_gate_has_no_way_round() -> None:
    text = (AMI / "files/gpu_gate.py").read_text()
    assert "environ" not in text
    options = set(re.findall(r'add_argument\("([^"]+)"', text))
    assert options == {"--driver-branch", "--output", "files"}


# --- what the stack is told -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "reason"),
    [
        ({"ActiveState": "activating", "Result": "success", "ExecMainStatus": "0"}, None),
        ({"ActiveState": "activating", "Result": "exit-code", "ExecMainStatus": "75"}, None),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "77"}, "not-entitled"),
        ({"ActiveState": "failed", "Result": "start-limit-hit", "ExecMainStatus": "75"},
         "service-unreachable"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "3"}, "exit-3"),
        ({"ActiveState": "failed", "Result": "timeout", "ExecMainStatus": "0"}, "timeout"),
        ({"ActiveState": "failed", "Result": "watchdog", "ExecMainStatus": "0"}, "watchdog"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure(
    unit: dict[str, str], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_stack, "unit_properties", lambda: unit)
    assert signal_stack.failure() == reason


def test_a_runner_that_says_nothing_is_a_failure_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal_stack, "ready", lambda: False)
    monkeypatch.setattr(signal_stack, "failure", lambda: None)
    assert signal_stack.outcome(seconds=0.05, pause=0.01) == "not-ready-in-time"


def test_the_reasons_are_the_runners_exit_codes() -> None:
    text = (REPOSITORY / "s4core/runner/exits.py").read_text()
    codes = set(re.findall(r"exit_code = (\d+)", text))
    assert set(signal_stack.REASONS) == codes


# --- the spec of the image ------------------------------------------------------------------------


def test_the_spec_uses_only_what_goss_and_its_checker_know() -> None:
    spec = yaml.safe_load((AMI / "image.goss.yaml").read_text())
    assert set(spec) <= set(check_image.RESOURCES)
    known = {
        "file": {"exists", "owner", "group", "mode", "filetype", "contents"},
        "user": {"exists", "home", "shell", "uid"},
        "service": {"enabled", "running"},
        "port": {"listening"},
        "package": {"installed"},
        "command": {"exec", "exit-status", "stdout", "stderr", "timeout"},
    }
    for kind, resources in spec.items():
        for name, wanted in resources.items():
            assert set(wanted) <= known[kind] | {"title", "meta"}, f"{kind} {name}"
            assert wanted.get("meta", {}).get("needs") in (None, "gpu", "runner")


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("ab", "xaby", True),
        ("ab", "axb", False),
        ("/^b$/", "a\nb\nc", True),
        ("/^b$/", "ab", False),
        ("!ab", "xaby", False),
        ("!/^b$/", "ab", True),
    ],
)
def test_patterns_match_as_in_goss(pattern: str, text: str, found: bool) -> None:
    assert check_image.matches(text, pattern) is found


def test_the_checker_sees_what_is_wrong_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("one\ntwo\n")
    path.chmod(0o640)
    check = check_image.check
    right = {"exists": True, "mode": "0640", "contents": ["/^two$/", "!three"]}
    wrong = {"exists": False}, {"mode": "0644"}, {"contents": ["three"]}, {"owner": "nobody"}
    assert dict(check({"file": {str(path): right}}, set())) == {f"file {path}": "ok"}
    for one in wrong:
        (result,) = dict(check({"file": {str(path): one}}, set())).values()
        assert "expected" in result
    (result,) = dict(check({"file": {str(tmp_path / "no"): right}}, set())).values()
    assert result == "exists: expected True, found False"
    for bad in ({"file": {str(path): {"size": 1}}}, {"mount": {"/": {"exists": True}}}):
        with pytest.raises(check_image.SpecError):
            list(check(bad, set()))


# --- the lock and the mapping ---------------------------------------------------------------------


def test_every_package_is_one_version_and_one_hash() -> None:
    lines = [one for one in LOCK.read_text().splitlines() if not one.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", one) for one in lines)
    names = [one.split("==")[0] for one in lines]
    assert len(names) == len(set(names)) > 50
    wanted = (AMI / "requirements/runner.in").read_text().splitlines()
    asked = {re.split(r"[=<>!]", one)[0].lower() for one in wanted if one and one[0] != "#"}
    assert asked <= set(names)
    assert {name.lower() for name in gpu_gate.PACKAGES} - {"s4weights"} <= set(names)


def _manifest(**ids: str) -> str:
    artifact = ",".join(f"{region.replace('_', '-')}:{image}" for region, image in ids.items())
    return json.dumps({"last_run_uuid": "2", "builds": [
        {"packer_run_uuid": "1", "artifact_id": "us-east-1:ami-0"},
        {"packer_run_uuid": "2", "artifact_id": artifact}]})  # fmt: skip


def test_a_build_that_misses_a_region_does_not_get_into_the_template() -> None:
    ids = write_mapping.images(_manifest(us_east_1="ami-" + "1" * 17))
    with pytest.raises(ValueError, match="the build made"):
        write_mapping.written(TEMPLATE.read_text(), ids)
    with pytest.raises(ValueError, match="not image ids"):
        write_mapping.images(_manifest(us_east_1="ami-12"))


def test_the_template_with_new_ids_is_the_same_but_for_them(tmp_path: Path) -> None:
    template = parsed(TEMPLATE)
    new = {
        region: f"ami-{n:017x}" for n, region in enumerate(template["Mappings"]["ImageByRegion"])
    }
    text = write_mapping.written(TEMPLATE.read_text(), new)
    found = yaml.load(text, Loader=__import__("deploy.cfn", fromlist=["_Loader"])._Loader)
    assert {k: v["Ami"] for k, v in found["Mappings"]["ImageByRegion"].items()} == new
    found["Mappings"] = template["Mappings"]
    assert found == template
