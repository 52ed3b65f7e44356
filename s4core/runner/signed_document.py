"""The signature of an EC2 instance identity document, verified against a pinned certificate.

AWS serves it at ``/latest/dynamic/instance-identity/rsa2048``: PKCS #7 SignedData (RFC 5652)
in base64, signed with RSA-2048. The certificates inside it and their issuers are not looked
at: only the pinned key counts. Source: EC2 user guide, "Verify the instance identity
document"; RFC 5652 sections 5.3 and 5.4.
"""

from __future__ import annotations

import base64
import hashlib

from s4core.runner.ber import Node, parse_ber
from s4core.runner.exits import ConfigurationError, DeniedError

__all__ = ["verify_document"]

SEQUENCE, SET, OID, INTEGER, OCTETS = 0x30, 0x31, 0x06, 0x02, 0x04
CONSTRUCTED_OCTETS, CONTEXT_0 = 0x24, 0xA0

SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
CONTENT_DATA = bytes.fromhex("2a864886f70d010701")
ATTRIBUTE_CONTENT_TYPE = bytes.fromhex("2a864886f70d010903")
ATTRIBUTE_DIGEST = bytes.fromhex("2a864886f70d010904")
DIGESTS = {
    bytes.fromhex("608648016503040201"): "sha256",
    bytes.fromhex("608648016503040202"): "sha384",
    bytes.fromhex("608648016503040203"): "sha512",
}


def verify_document(document: bytes, signature: bytes, certificate: str) -> None:
    """Check that the owner of `certificate` signed exactly `document`.

    Args:
        document: As the metadata service gave it.
        signature: PKCS #7 SignedData, base64, as the metadata service gave it.
        certificate: PEM, pinned in the image.

    Raises:
        DeniedError: It did not, or the signature cannot be read.
        ConfigurationError: `certificate` is none, or has no RSA key; cryptography is missing.
    """
    try:
        root = parse_ber(base64.b64decode(b"".join(signature.split()), validate=True))
        signed, signer_signature, digest = _signed_bytes(root, document)
    except ValueError as error:
        raise DeniedError(f"identity document: signature not accepted: {error}") from error
    if not _is_signed(certificate, signed, signer_signature, digest):
        raise DeniedError("identity document: not signed by the AWS certificate of the image")


def _signed_bytes(root: Node, document: bytes) -> tuple[bytes, bytes, str]:
    """What the signer's signature covers, that signature, and the digest's name."""
    if root.child(0, OID).content != SIGNED_DATA:
        raise ValueError("not PKCS #7 SignedData")
    body = root.child(1, CONTEXT_0).child(0, SEQUENCE)
    _check_content(body.child(2, SEQUENCE), document)
    signers = body.children[-1]  # there are at least three by now
    if signers.tag != SET or len(signers.children) != 1:
        raise ValueError("expected exactly one signer")
    signer = signers.child(0, SEQUENCE)
    digest = DIGESTS.get(signer.child(2, SEQUENCE).child(0, OID).content)
    if digest is None:
        raise ValueError("a digest other than SHA-256, SHA-384 or SHA-512")
    if len(signer.children) < 5:
        raise ValueError("a signer without a signature")
    if signer.children[3].tag != CONTEXT_0:
        return document, signer.child(4, OCTETS).content, digest
    attributes = signer.children[3]
    _check_attributes(attributes, hashlib.new(digest, document).digest())
    return _as_set(attributes), signer.child(5, OCTETS).content, digest


def _check_content(encapsulated: Node, document: bytes) -> None:
    if encapsulated.child(0, OID).content != CONTENT_DATA:
        raise ValueError("the signed content is not plain data")
    if len(encapsulated.children) == 1:
        return  # detached: the signature is checked against the document itself
    content = encapsulated.child(1, CONTEXT_0)
    if len(content.children) != 1 or content.children[0].tag not in (OCTETS, CONSTRUCTED_OCTETS):
        raise ValueError("the signed content is not an octet string")
    if content.children[0].octets() != document:
        raise ValueError("what was signed is not the document that was served")


def _check_attributes(attributes: Node, expected: bytes) -> None:
    found: dict[bytes, bytes] = {}
    for attribute in attributes.children:
        name = attribute.child(0, OID).content
        values = attribute.child(1, SET)
        if name in found or len(values.children) != 1:
            raise ValueError("a signed attribute stands twice, or has not one value")
        found[name] = values.children[0].content
    if found.get(ATTRIBUTE_CONTENT_TYPE) != CONTENT_DATA:
        raise ValueError("the signed content type is not plain data")
    if found.get(ATTRIBUTE_DIGEST) != expected:
        raise ValueError("the signed digest is not that of the document")


def _as_set(attributes: Node) -> bytes:
    """The attributes under the tag that was signed: SET OF, not the [0] that is sent."""
    if not attributes.definite:
        raise ValueError("signed attributes that are not in DER")
    size = len(attributes.content)
    if size < 0x80:
        return bytes([SET, size]) + attributes.content
    count = (size.bit_length() + 7) // 8
    return bytes([SET, 0x80 | count]) + size.to_bytes(count, "big") + attributes.content


def _is_signed(certificate: str, signed: bytes, signature: bytes, digest: str) -> bool:
    try:
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding, rsa
    except ImportError as error:
        raise ConfigurationError(
            "verifying the entitlement needs cryptography: pip install 's4weights[runner]'"
        ) from error
    try:
        key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    except ValueError as error:
        raise ConfigurationError(f"awsCertificates of the image: {error}") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigurationError("awsCertificates of the image: expected an RSA key")
    algorithm = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
    try:
        key.verify(signature, signed, padding.PKCS1v15(), algorithm[digest])
    except InvalidSignature:
        return False
    return True
