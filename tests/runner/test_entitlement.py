"""The entitlement gate is closed unless the answer is yes, whatever goes wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from runner.conftest import Keys
from runner.fake_aws import KEY_VERSION, PRODUCT, FakeImds, FakeMetering

from s4core.runner import metering_api
from s4core.runner.entitlement import entitled, entitlement_of
from s4core.runner.exchange import Answer
from s4core.runner.exits import DeniedError, RunnerError, UnreachableError
from s4core.runner.grant import Grant
from s4core.runner.image import ImageSettings
from s4core.runner.imds import IMDS_URL, Credentials, Imds
from s4core.runner.meter_usage import MeterUsage
from s4core.runner.metering_api import AwsMeteringApi
from s4core.runner.sigv4 import signed_headers

BOOT = "11111111-2222-4333-8444-555555555555"
ROLE = "/latest/meta-data/iam/security-credentials/s4-role"
DOCUMENT = "/latest/dynamic/instance-identity/document"
Fakes = tuple[tuple[FakeImds, str], tuple[FakeMetering, str]]


def image_of(keys: Keys, mode: str = "register-usage") -> ImageSettings:
    return ImageSettings(
        mode,
        PRODUCT,
        public_key_version=KEY_VERSION,
        public_key=keys.public,
        usage_dimension="hours",
        usage_quantity=1,
    )


class Time:
    """A clock that only sleeping moves, so that minutes of retries take no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, entitlement: Any, deadline_seconds: float = 90.0) -> Grant:
        return entitled(
            entitlement,
            deadline_seconds=deadline_seconds,
            sleep=self.sleep,
            clock=lambda: self.now,
        )


def check_of(
    image: ImageSettings, fakes: Fakes, directory: Path | None = None, boot: str = BOOT
) -> Any:
    (_, imds_url), (_, url) = fakes
    imds = Imds(imds_url, total_seconds=0.5)
    api = AwsMeteringApi(imds, endpoint=url, total_seconds=0.3)
    return entitlement_of(image, directory, imds=imds, api=api, boot_id=boot)


def code_of(image: ImageSettings, fakes: Fakes, deadline_seconds: float = 4.0) -> int:
    try:
        Time().ask(check_of(image, fakes), deadline_seconds)
    except RunnerError as error:
        return error.exit_code
    return 0


@pytest.fixture
def fakes(fake_imds: tuple[FakeImds, str], fake_metering: tuple[FakeMetering, str]) -> Fakes:
    return fake_imds, fake_metering


REGISTER_USAGE = {
    "signed": 0, "signed, version as text": 0, "signed, key rotated": 0, "throttled twice": 0,
    "internal error once": 0, "reset once": 0,
    "not entitled": 77, "not subscribed": 77, "platform": 77, "product code": 77, "region": 77,
    "key version": 77, "disabled": 77, "access denied": 77, "unknown error": 77,
    "error in header": 77, "400 of nothing": 77, "redirect": 77,
    "throttled": 75, "internal error": 75, "503": 75, "429": 75, "stall": 75, "drip": 75,
    "reset": 75, "cut": 75, "cut in headers": 75, "oversize": 75,
    "forged": 77, "spliced": 77, "alg none": 77, "alg HS256": 77, "alg RS256": 77,
    "alg PS512": 77, "replayed": 77, "other product": 77, "other version": 77,
    "version is true": 77, "no nonce": 77, "no claims": 77, "expired": 77, "not yet": 77,
    "signature cut": 77, "signature empty": 77, "signature no text": 77, "no signature": 77,
    "no JSON": 77, "a list": 77, "deep": 77, "metered": 77,
}  # fmt: skip

METER_USAGE = {
    "metered": 0, "duplicate": 0,
    "not entitled": 77, "access denied": 77, "unknown error": 77, "no signature": 77,
    "no JSON": 77, "redirect": 77,
    "throttled": 75, "internal error": 75, "503": 75, "reset": 75, "stall": 75,
}  # fmt: skip


@pytest.mark.parametrize(("scenario", "code"), REGISTER_USAGE.items())
def test_every_answer_of_register_usage_has_its_exit_code(
    scenario: str, code: int, keys: Keys, fakes: Fakes
) -> None:
    metering = fakes[1][0]
    metering.scenario = scenario
    assert code_of(image_of(keys), fakes) == code
    retried = code == 75 or scenario in ("throttled twice", "internal error once", "reset once")
    assert (len(metering.calls) > 1) == retried
    assert {call["target"] for call in metering.calls} == {"AWSMPMeteringService.RegisterUsage"}


@pytest.mark.parametrize(("scenario", "code"), METER_USAGE.items())
def test_every_answer_of_meter_usage_has_its_exit_code(
    scenario: str, code: int, keys: Keys, fakes: Fakes
) -> None:
    metering = fakes[1][0]
    metering.scenario = scenario
    assert code_of(image_of(keys, "meter-usage"), fakes) == code
    assert (len(metering.calls) > 1) == (code == 75)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda imds: imds.paths.pop(ROLE), "nothing there"),
        (lambda imds: imds.paths.update({ROLE: {"Code": "Failed"}}), "no credentials yet"),
        (lambda imds: imds.paths.update({ROLE: b"<html>"}), "no JSON object"),
        (lambda imds: imds.paths.pop(DOCUMENT), "nothing there"),
        (lambda imds: imds.paths.update({DOCUMENT: {"region": "evil.example/"}}), "a region"),
        (lambda imds: setattr(imds, "token_status", 403), "no IMDSv2 token"),
        (lambda imds: setattr(imds, "tokens", {"bad\ttoken"}), "no IMDSv2 token"),
    ],
)
def test_a_metadata_service_that_gives_nothing_is_unreachable(
    change: Any, message: str, keys: Keys, fakes: Fakes
) -> None:
    change(fakes[0][0])
    with pytest.raises(UnreachableError, match=message) as caught:
        Time().ask(check_of(image_of(keys), fakes))
    assert caught.value.exit_code == 75
    assert fakes[1][0].calls == []


def test_no_metadata_service_is_unreachable(
    keys: Keys, fake_metering: tuple[FakeMetering, str]
) -> None:
    fakes = ((FakeImds(), "http://127.0.0.1:9"), fake_metering)
    fakes[0][0].server.server_close()
    assert code_of(image_of(keys), fakes) == 75


def test_no_metering_service_is_unreachable(
    keys: Keys, fake_imds: tuple[FakeImds, str], fake_metering: tuple[FakeMetering, str]
) -> None:
    fakes = (fake_imds, (fake_metering[0], "http://127.0.0.1:9"))
    assert code_of(image_of(keys), fakes) == 75


def test_credentials_that_come_late_are_waited_for(keys: Keys, fakes: Fakes) -> None:
    imds = fakes[0][0]
    late = imds.paths.pop(ROLE)
    clock = Time()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 20:
            imds.paths[ROLE] = late

    check = check_of(image_of(keys), fakes)
    assert entitled(check, sleep=sleep, clock=lambda: clock.now).mode == "register-usage"


def test_a_lost_metadata_token_is_renewed(fake_imds: tuple[FakeImds, str]) -> None:
    fake, url = fake_imds
    imds = Imds(url)
    assert imds.region() == "us-east-1"
    fake.lose_tokens()
    assert imds.region() == "us-east-1"


def test_a_rotated_key_is_a_warning(keys: Keys, fakes: Fakes) -> None:
    fakes[1][0].scenario = "signed, key rotated"
    assert "expired at" in Time().ask(check_of(image_of(keys), fakes)).warnings[0]


def test_the_platform_error_says_what_to_do(keys: Keys, fakes: Fakes) -> None:
    fakes[1][0].scenario = "platform"
    with pytest.raises(DeniedError, match=r"ECS, EKS and Fargate only.*docs/entitlement\.md"):
        Time().ask(check_of(image_of(keys), fakes))


def test_retries_end_at_the_deadline(keys: Keys, fakes: Fakes) -> None:
    fakes[1][0].scenario = "503"
    clock = Time()
    with pytest.raises(UnreachableError, match=r"no answer after \d+ tries in 90 s"):
        clock.ask(check_of(image_of(keys), fakes))
    assert 60 < clock.now < 90
    assert 8 <= len(fakes[1][0].calls) <= 30


def test_every_request_has_its_own_nonce_with_the_boot_id(keys: Keys, fakes: Fakes) -> None:
    metering = fakes[1][0]
    metering.scenario = "throttled twice"
    Time().ask(check_of(image_of(keys), fakes))
    nonces = [call["Nonce"] for call in metering.calls]
    assert len(set(nonces)) == len(nonces) == 3
    assert all(nonce.startswith(f"{BOOT}/") and len(nonce) <= 255 for nonce in nonces)


def test_a_wrong_public_key_is_a_bad_image(keys: Keys, fakes: Fakes) -> None:
    image = ImageSettings(
        "register-usage",
        PRODUCT,
        public_key_version=KEY_VERSION,
        public_key="-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    )
    assert code_of(image, fakes) == 78


# The answer that is kept for one boot.


def test_a_restart_in_the_same_boot_does_not_ask_again(
    keys: Keys, fakes: Fakes, tmp_path: Path
) -> None:
    image = image_of(keys)
    Time().ask(check_of(image, fakes, tmp_path))
    grant = Time().ask(check_of(image, fakes, tmp_path))
    assert len(fakes[1][0].calls) == 1
    assert "verified again" in grant.detail


def test_another_boot_asks_again_even_with_a_doctored_file(
    keys: Keys, fakes: Fakes, tmp_path: Path
) -> None:
    image = image_of(keys)
    Time().ask(check_of(image, fakes, tmp_path))
    later = "99999999-2222-4333-8444-555555555555"
    kept = tmp_path / "entitlement.answer"
    Time().ask(check_of(image, fakes, tmp_path, boot=later))
    assert len(fakes[1][0].calls) == 2
    kept.write_text(kept.read_text().replace(later, BOOT))  # the signature still says `later`
    fakes[1][0].scenario = "not entitled"
    with pytest.raises(DeniedError):
        Time().ask(check_of(image, fakes, tmp_path, boot=BOOT))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"nonce": 1, "signature": ""}'])
def test_a_damaged_kept_answer_is_as_if_it_were_not_there(
    content: bytes, keys: Keys, fakes: Fakes, tmp_path: Path
) -> None:
    (tmp_path / "entitlement.answer").write_bytes(content)
    Time().ask(check_of(image_of(keys), fakes, tmp_path))
    assert len(fakes[1][0].calls) == 1


def test_a_kept_answer_for_another_product_is_not_used(
    keys: Keys, fakes: Fakes, tmp_path: Path
) -> None:
    Time().ask(check_of(image_of(keys), fakes, tmp_path))
    other = ImageSettings(
        "register-usage", "other", public_key_version=KEY_VERSION, public_key=keys.public
    )
    fakes[1][0].scenario = "not entitled"
    with pytest.raises(DeniedError):
        Time().ask(check_of(other, fakes, tmp_path))


def test_an_answer_that_cannot_be_kept_still_grants(
    keys: Keys, fakes: Fakes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Time().ask(check_of(image_of(keys), fakes, tmp_path / "missing"))
    assert "cannot be kept" in caplog.text


# What an environment cannot do.

EVIL = "http://127.0.0.1:9"
OVERRIDES = {
    "AWS_ENDPOINT_URL": EVIL,
    "AWS_ENDPOINT_URL_MARKETPLACE_METERING": EVIL,
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": EVIL,
    "AWS_REGION": "eu-evil-1",
    "AWS_DEFAULT_REGION": "eu-evil-1",
    "AWS_ACCESS_KEY_ID": "EVIL",
    "AWS_SECRET_ACCESS_KEY": "EVIL",
    "HTTPS_PROXY": EVIL,
    "HTTP_PROXY": EVIL,
    "ALL_PROXY": EVIL,
    "http_proxy": EVIL,
    "https_proxy": EVIL,
    "AWS_CA_BUNDLE": "/nonexistent",
    "SSL_CERT_FILE": "/nonexistent",
}


def test_no_environment_variable_moves_the_call(
    monkeypatch: pytest.MonkeyPatch, fake_imds: tuple[FakeImds, str]
) -> None:
    for name, value in OVERRIDES.items():
        monkeypatch.setenv(name, value)
    seen: list[tuple[str, str]] = []

    def caught(url: str, method: str, headers: dict[str, str], *_: Any, **__: Any) -> Answer:
        seen.append((url, headers["authorization"]))
        return Answer(200, {}, b"{}")

    monkeypatch.setattr(metering_api, "exchange", caught)
    AwsMeteringApi(Imds(fake_imds[1])).call("RegisterUsage", {})
    url, authorization = seen[0]
    assert url == "https://metering.marketplace.us-east-1.amazonaws.com"
    assert "Credential=ASIAEXAMPLE/" in authorization
    assert "/us-east-1/aws-marketplace/aws4_request" in authorization
    assert Imds()._url == IMDS_URL == "http://169.254.169.254"


def test_the_mode_of_an_image_cannot_be_set_from_outside(
    monkeypatch: pytest.MonkeyPatch, keys: Keys, fakes: Fakes
) -> None:
    for name in ("S4_ENTITLEMENT", "S4_RUNNER_MODE", "S4_RUNNER_ENTITLEMENT_MODE"):
        monkeypatch.setenv(name, "instance-identity")
    fakes[1][0].scenario = "not entitled"
    assert code_of(image_of(keys), fakes) == 77


def test_requests_are_signed_as_the_sdk_signs_them() -> None:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as SdkCredentials

    body = b'{"ProductCode": "x"}'
    headers = {
        "host": "metering.marketplace.us-east-1.amazonaws.com",
        "content-type": "application/x-amz-json-1.1",
        "x-amz-target": "AWSMPMeteringService.RegisterUsage",
    }
    now = 1_700_000_000.0
    mine = signed_headers(
        Credentials("AKID", "secret", "token"), "us-east-1", "aws-marketplace", headers, body, now
    )
    request = AWSRequest("POST", f"https://{headers['host']}/", headers=headers, data=body)
    request.context["timestamp"] = mine["x-amz-date"]
    signer = SigV4Auth(SdkCredentials("AKID", "secret", "token"), "aws-marketplace", "us-east-1")
    request.headers["X-Amz-Date"] = mine["x-amz-date"]
    request.headers["X-Amz-Security-Token"] = "token"
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    assert f"Signature={signature}" in mine["authorization"]


# Records of meter-usage.


class OneAnswer:
    """An API that always accepts."""

    def __init__(self) -> None:
        self.fields: list[dict[str, Any]] = []

    def call(self, operation: str, fields: Any) -> dict[str, Any]:
        self.fields.append({"operation": operation, **fields})
        return {"MeteringRecordId": "r-1"}


def test_asking_twice_in_an_hour_repeats_one_record(keys: Keys) -> None:
    api = OneAnswer()
    image = image_of(keys, "meter-usage")
    hour = 1_700_000_000 // 3600 * 3600
    first = MeterUsage(image, api, lambda: hour + 5).ask()
    MeterUsage(image, api, lambda: hour + 3599).ask()
    MeterUsage(image, api, lambda: hour + 3600).ask()
    assert api.fields[0] == api.fields[1] != api.fields[2]
    assert api.fields[0]["Timestamp"] == hour
    assert api.fields[0]["DryRun"] is False
    assert first.renew_seconds == 3596
