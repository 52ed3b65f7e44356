"""Only a document that AWS signed for this instance, with the product's code, grants."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs7
from hypothesis import given, settings
from hypothesis import strategies as st
from runner.fake_aws import PRODUCT, FakeImds
from runner.signed_documents import SHA1, Signer, attribute, document, oid, tlv

from s4core.runner.ber import MAX_DEPTH, parse_ber
from s4core.runner.exits import ConfigurationError, DeniedError, RunnerError, UnreachableError
from s4core.runner.grant import Grant
from s4core.runner.image import ImageSettings
from s4core.runner.imds import Imds
from s4core.runner.instance_identity import InstanceIdentity
from s4core.runner.signed_document import verify_document

DOCUMENT = "/latest/dynamic/instance-identity/document"
SIGNATURE = "/latest/dynamic/instance-identity/rsa2048"
NOT_SIGNED = "not signed by the AWS certificate"


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


def ask(
    fake_imds: tuple[FakeImds, str], signer: Signer, raw: bytes, tag: Path, **how: Any
) -> Grant:
    fake, url = fake_imds
    fake.paths[DOCUMENT] = raw
    fake.paths[SIGNATURE] = signer.sign(raw, **how)
    image = ImageSettings("instance-identity", PRODUCT, aws_certificates={"us-east-1": signer.pem})
    return InstanceIdentity(image, Imds(url), tag).ask()


def test_a_signed_product_code_grants(
    fake_imds: tuple[FakeImds, str], signer: Signer, tmp_path: Path
) -> None:
    grant = ask(fake_imds, signer, document(["other", PRODUCT]), tmp_path / "no-smbios")
    assert "i-0123456789abcdef0" in grant.detail


def test_the_instance_that_smbios_names_grants(
    fake_imds: tuple[FakeImds, str], signer: Signer, tmp_path: Path
) -> None:
    (tmp_path / "tag").write_text("i-0123456789abcdef0\n")
    ask(fake_imds, signer, document([PRODUCT]), tmp_path / "tag")


@pytest.mark.parametrize("codes", [None, [], ["other"], PRODUCT, {PRODUCT: 1}, [[PRODUCT]]])
def test_a_document_without_the_code_denies(
    codes: Any, fake_imds: tuple[FakeImds, str], signer: Signer, tmp_path: Path
) -> None:
    with pytest.raises(DeniedError, match="launch the product from AWS Marketplace"):
        ask(fake_imds, signer, document(codes), tmp_path / "no-smbios")


def test_the_document_of_another_instance_denies(
    fake_imds: tuple[FakeImds, str], signer: Signer, tmp_path: Path
) -> None:
    (tmp_path / "tag").write_text("i-0000000000000000f\n")
    with pytest.raises(DeniedError, match="but this one is i-0000000000000000f"):
        ask(fake_imds, signer, document([PRODUCT]), tmp_path / "tag")


def test_a_region_without_a_certificate_is_a_bad_image(
    fake_imds: tuple[FakeImds, str], signer: Signer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="no AWS certificate for region 'eu-west-1'"):
        ask(fake_imds, signer, document([PRODUCT], region="eu-west-1"), tmp_path / "x")


def test_a_signature_that_is_not_there_yet_is_unreachable(
    fake_imds: tuple[FakeImds, str], signer: Signer, tmp_path: Path
) -> None:
    fake, url = fake_imds
    fake.paths[DOCUMENT] = document([PRODUCT])
    image = ImageSettings("instance-identity", PRODUCT, aws_certificates={"us-east-1": signer.pem})
    with pytest.raises(UnreachableError, match="not there yet"):
        InstanceIdentity(image, Imds(url), tmp_path / "x").ask()


TEXT = document([PRODUCT])


@pytest.mark.parametrize(
    "how",
    [{}, {"indefinite": False}, {"detached": True}, {"with_attributes": False},
     {"detached": True, "with_attributes": False}],
)  # fmt: skip
def test_every_form_of_a_true_signature_is_accepted(how: dict[str, Any], signer: Signer) -> None:
    verify_document(TEXT, signer.sign(TEXT, **how), signer.pem)


@pytest.mark.parametrize("options", [[], [pkcs7.PKCS7Options.NoAttributes]])
def test_what_an_independent_writer_signed_is_accepted(options: list[Any], signer: Signer) -> None:
    raw = (
        pkcs7.PKCS7SignatureBuilder()
        .set_data(TEXT)
        .add_signer(signer.certificate, signer.key, hashes.SHA256())
        .sign(serialization.Encoding.DER, [pkcs7.PKCS7Options.Binary, *options])
    )
    verify_document(TEXT, base64.b64encode(raw), signer.pem)


CONTENT_TYPE = attribute("2a864886f70d010903", oid("2a864886f70d010701"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"content": b"{}"}, "what was signed is not the document"),
        ({"digest": b"\0" * 32}, "the signed digest is not that of the document"),
        ({"attributes": [CONTENT_TYPE]}, "the signed digest is not"),
        ({"attributes": []}, "the signed content type is not"),
        ({"attributes": [CONTENT_TYPE] * 2}, "stands twice"),
        ({"digest_name": SHA1}, "a digest other than"),
        ({"signers": 0}, "exactly one signer"),
        ({"signers": 2}, "exactly one signer"),
        ({"signer_fields": 3}, "a signer without a signature"),
        ({"signer_fields": 5}, "expected tag 0x04"),
    ],
)
def test_a_signature_of_something_else_denies(
    how: dict[str, Any], message: str, signer: Signer
) -> None:
    with pytest.raises(DeniedError, match=message):
        verify_document(TEXT, signer.sign(TEXT, **how), signer.pem)


def test_a_changed_document_denies(signer: Signer) -> None:
    changed = TEXT.replace(b"g6.xlarge", b"g6.48xlarg")
    for how in ({"detached": True}, {"detached": True, "with_attributes": False}):
        with pytest.raises(DeniedError):
            verify_document(changed, signer.sign(TEXT, **how), signer.pem)


def test_the_signature_of_someone_else_denies(signer: Signer) -> None:
    with pytest.raises(DeniedError, match=NOT_SIGNED):
        verify_document(TEXT, Signer().sign(TEXT), signer.pem)


@pytest.mark.parametrize("raw", [b"", b"!!!!", b"MIAG", b"\xff\xfe", base64.b64encode(b"\0" * 9)])
def test_what_is_no_signature_denies(raw: bytes, signer: Signer) -> None:
    with pytest.raises(DeniedError, match="signature not accepted"):
        verify_document(TEXT, raw, signer.pem)


@pytest.mark.parametrize("pem", ["", "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----"])
def test_a_certificate_that_is_none_is_a_bad_image(pem: str, signer: Signer) -> None:
    with pytest.raises(ConfigurationError, match="awsCertificates"):
        verify_document(TEXT, signer.sign(TEXT), pem)


def test_every_truncation_denies(signer: Signer) -> None:
    raw = base64.b64decode(signer.sign(TEXT))
    for size in range(len(raw)):
        with pytest.raises(DeniedError):
            verify_document(TEXT, base64.b64encode(raw[:size]), signer.pem)


def test_a_flipped_bit_never_crashes_and_never_lets_another_document_pass(
    signer: Signer,
) -> None:
    raw = base64.b64decode(signer.sign(TEXT))
    for place in range(len(raw)):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << (place % 8)
        encoded = base64.b64encode(bytes(flipped))
        with pytest.raises(RunnerError):
            verify_document(TEXT + b" ", encoded, signer.pem)
        try:
            verify_document(TEXT, encoded, signer.pem)
        except DeniedError:
            continue  # else the flip hit what no check needs, such as the certificate sent along


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_ber(raw)


def test_nesting_is_bounded() -> None:
    nested = b""
    for _ in range(MAX_DEPTH):
        nested = tlv(0x30, nested)
    parse_ber(nested)
    with pytest.raises(ValueError, match="nested deeper"):
        parse_ber(tlv(0x30, nested))
    with pytest.raises(ValueError, match="nested deeper"):
        parse_ber(b"\x30\x80" * 5000)
