"""Identity documents signed as AWS signs them: PKCS #7 in the BER that Java's writers make."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

SHA256 = "608648016503040201"
SHA1 = "2b0e03021a"
DATA, SIGNED_DATA = "2a864886f70d010701", "2a864886f70d010702"
RSA_SHA256 = "2a864886f70d01010b"


def tlv(tag: int, *parts: bytes, indefinite: bool = False) -> bytes:
    content = b"".join(parts)
    if indefinite:
        return bytes([tag, 0x80]) + content + b"\0\0"
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    raw = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(raw)]) + raw + content


def oid(text: str) -> bytes:
    return tlv(0x06, bytes.fromhex(text))


def algorithm(text: str) -> bytes:
    return tlv(0x30, oid(text), tlv(0x05))


def attribute(name: str, value: bytes) -> bytes:
    return tlv(0x30, oid(name), tlv(0x31, value))


class Signer:
    """A certificate and what it signs."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in")])
        day = datetime.datetime(2024, 1, 1)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(7)
            .not_valid_before(day)
            .not_valid_after(day + datetime.timedelta(days=36500))
            .sign(self.key, hashes.SHA256())
        )
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(
        self,
        document: bytes,
        *,
        content: bytes | None = None,
        digest: bytes | None = None,
        attributes: list[bytes] | None = None,
        with_attributes: bool = True,
        detached: bool = False,
        indefinite: bool = True,
        digest_name: str = SHA256,
        signers: int = 1,
        signer_fields: int = 6,
    ) -> bytes:
        """The signature of `document`; each keyword makes one thing other than AWS does."""
        raw = document if content is None else content
        pieces = (tlv(0x04, raw[:400]), tlv(0x04, raw[400:]))
        octets = tlv(0x24, *pieces, indefinite=True) if indefinite else tlv(0x04, raw)
        wrapped = [] if detached else [tlv(0xA0, octets, indefinite=indefinite)]
        hashed = digest if digest is not None else hashlib.sha256(document).digest()
        if attributes is None:
            attributes = [
                attribute("2a864886f70d010903", oid(DATA)),
                attribute("2a864886f70d010904", tlv(0x04, hashed)),
            ]
        covered = tlv(0x31, *attributes) if with_attributes else document
        signature = self.key.sign(covered, padding.PKCS1v15(), hashes.SHA256())
        fields = [
            tlv(0x02, b"\1"),
            tlv(0x30, self.certificate.subject.public_bytes(), tlv(0x02, b"\7")),
            algorithm(digest_name),
            tlv(0xA0, *attributes) if with_attributes else b"",
            algorithm(RSA_SHA256),
            tlv(0x04, signature),
        ]
        signer = tlv(0x30, *fields[:signer_fields])
        body = tlv(
            0x30,
            tlv(0x02, b"\1"),
            tlv(0x31, algorithm(digest_name)),
            tlv(0x30, oid(DATA), *wrapped, indefinite=indefinite),
            tlv(0xA0, self.certificate.public_bytes(serialization.Encoding.DER)),
            tlv(0x31, *([signer] * signers)),
            indefinite=indefinite,
        )
        whole = tlv(0xA0, body, indefinite=indefinite)
        return base64.encodebytes(tlv(0x30, oid(SIGNED_DATA), whole, indefinite=indefinite))


def document(codes: Any, **more: Any) -> bytes:
    """An identity document, laid out as AWS lays it out."""
    return json.dumps(
        {
            "accountId": "123456789012",
            "architecture": "x86_64",
            "availabilityZone": "us-east-1a",
            "billingProducts": None,
            "imageId": "ami-0123456789abcdef0",
            "instanceId": "i-0123456789abcdef0",
            "instanceType": "g6.xlarge",
            "marketplaceProductCodes": codes,
            "pendingTime": "2026-01-31T08:22:00Z",
            "region": "us-east-1",
            "version": "2017-09-30",
            **more,
        },
        indent=2,
    ).encode()
