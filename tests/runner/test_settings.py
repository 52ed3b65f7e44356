"""Settings are checked whole, and what is misspelt is never ignored."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from s4core.runner.exits import ConfigurationError
from s4core.runner.image import load_image_settings
from s4core.runner.settings import NAMES, RestartPolicy, load_settings

EXAMPLE = Path(__file__).parents[2] / "deploy/s4-runner.env.example"
PEM = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
REGISTER = {"version": 1, "productCode": "abc", "publicKeyVersion": 1, "publicKey": PEM}


def test_defaults() -> None:
    found = load_settings({"S4_STORE": "s3://b/run"})
    assert found.health == ("0.0.0.0", 8080)
    assert found.command == ()
    assert found.restart == RestartPolicy()
    assert found.checkpoint_signal == signal.SIGUSR1


def test_everything_can_be_set() -> None:
    found = load_settings(
        {
            "S4_STORE": "s3://b/run",
            "S4_RUNNER_HEALTH": "[::1]:9090",
            "S4_RUNNER_COMMAND": "python 'my train.py' --lr 3e-4",
            "S4_RUNNER_RESTART": "always",
            "S4_RUNNER_CHECKPOINT_SIGNAL": "none",
            "S4_RUNNER_STOP_SECONDS": "1.5",
            "PATH": "/bin",
        }
    )
    assert found.health == ("::1", 9090)
    assert found.command == ("python", "my train.py", "--lr", "3e-4")
    assert found.restart.when == "always"
    assert found.checkpoint_signal is None
    assert found.stop_seconds == 1.5


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "S4_STORE is not set"),
        ({"S4_STORE": "memory://x"}, "memory is gone"),
        ({"S4_RUNNER_RESTRAT": "never"}, "no such setting; did you mean S4_RUNNER_RESTART"),
        ({"S4_RUNNER_ENTITLEMENT_MODE": "none"}, "no such setting"),
        ({"S4_RUNNER_RESTART": "sometimes"}, "expected one of never, on-failure, always"),
        ({"S4_RUNNER_RESTART_LIMIT": "-1"}, "a number of at least 0"),
        ({"S4_RUNNER_RESTART_LIMIT": "٣"}, "a number of at least 0"),
        ({"S4_RUNNER_STOP_SECONDS": "nan"}, "between 0 and 86400"),
        ({"S4_RUNNER_STOP_SECONDS": "soon"}, "could not convert"),
        ({"S4_RUNNER_HEALTH": "8080"}, "expected address:port"),
        ({"S4_RUNNER_HEALTH": "0.0.0.0:99999"}, "expected address:port"),
        ({"S4_RUNNER_COMMAND": "python 'x"}, "No closing quotation"),
        ({"S4_RUNNER_CHECKPOINT_SIGNAL": "USR1"}, "the name of a signal"),
        ({"S4_RUNNER_CHECKPOINT_SIGNAL": "SIGKILL"}, "cannot handle this signal"),
    ],
)
def test_a_wrong_setting_is_refused(environment: dict[str, str], message: str) -> None:
    store = {"S4_STORE": "s3://b/run"} if environment else {}
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_settings({**store, **environment})
    assert caught.value.exit_code == 78


def test_the_example_file_holds_every_setting_with_its_default() -> None:
    shown = dict(
        line.lstrip("#").split("=", 1)
        for line in EXAMPLE.read_text().splitlines()
        if line.lstrip("#").startswith("S4_")
    )
    shown.pop("S4_STORE")
    shown["S4_RUNNER_COMMAND"] = ""  # an example stands there
    internal = {"S4_RUNNER_DIRECTORY"}  # set by the unit
    assert shown == {name: value for name, value in NAMES.items() if name not in internal}


def image_file(path: Path, content: Any) -> Path:
    file = path / "entitlement.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    file.chmod(0o644)
    return file


def load(file: Path) -> Any:
    return load_image_settings(file, owner=file.stat().st_uid)


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        (REGISTER, "register-usage"),
        ({**REGISTER, "mode": "register-usage", "selfTestCommand": ["true"]}, "register-usage"),
        (
            {"version": 1, "mode": "meter-usage", "productCode": "abc", "usageDimension": "hours",
             "usageQuantity": 1},
            "meter-usage",
        ),
        (
            {"version": 1, "mode": "instance-identity", "productCode": "abc",
             "awsCertificates": {"us-east-1": "-----BEGIN CERTIFICATE-----"}},
            "instance-identity",
        ),
    ],
)  # fmt: skip
def test_each_mode_is_read(content: Any, mode: str, tmp_path: Path) -> None:
    assert load(image_file(tmp_path, content)).mode == mode


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("[]", "expected a JSON object"),
        ('{"version": 1, "version": 1}', "a key stands twice"),
        ("[" * 100_000, "nested too deep"),
        (" " * 300_000, "larger than"),
        ({**REGISTER, "version": 2}, "expected version 1, found 2"),
        ({**REGISTER, "mode": "none"}, "mode: expected one of"),
        ({**REGISTER, "mode": []}, "mode: expected one of"),
        ({**REGISTER, "endpoint": "http://evil"}, r"unknown keys \['endpoint'\]"),
        ({**REGISTER, "mode": "meter-usage"}, "missing keys"),
        ({**REGISTER, "productCode": ""}, "productCode: expected"),
        ({**REGISTER, "productCode": "a" * 256}, "productCode: expected"),
        ({**REGISTER, "publicKeyVersion": True}, "an integer of at least 1"),
        ({**REGISTER, "publicKeyVersion": 0}, "an integer of at least 1"),
        ({**REGISTER, "publicKey": "secret"}, "a PEM public key"),
        ({**REGISTER, "selfTestCommand": []}, "a list of strings"),
        ({**REGISTER, "selfTestCommand": "true"}, "a list of strings"),
        (
            {"version": 1, "mode": "instance-identity", "productCode": "abc",
             "awsCertificates": {}},
            "region to PEM certificate",
        ),
    ],
)  # fmt: skip
def test_a_wrong_image_file_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load(image_file(tmp_path, content))
    assert caught.value.exit_code == 78


def test_an_image_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = image_file(tmp_path, REGISTER)
    for mode in (0o664, 0o646):
        file.chmod(mode)
        with pytest.raises(ConfigurationError, match="writable by no one else"):
            load(file)


def test_an_image_file_of_another_owner_is_refused(tmp_path: Path) -> None:
    file = image_file(tmp_path, REGISTER)
    with pytest.raises(ConfigurationError, match="owned by user"):
        load_image_settings(file, owner=file.stat().st_uid + 1)


def test_a_missing_linked_or_special_image_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load_image_settings(tmp_path / "none")
    link = tmp_path / "link"
    link.symlink_to(image_file(tmp_path, REGISTER))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_image_settings(link)
    with pytest.raises(ConfigurationError, match="expected a regular file"):
        load_image_settings(tmp_path)
