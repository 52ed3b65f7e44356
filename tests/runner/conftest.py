from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from runner.fake_aws import FakeImds, FakeMetering


@dataclass(frozen=True)
class Keys:
    """PEM texts: the product's key pair, and a private key of someone else."""

    private: str
    public: str
    other: str


def private_pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def public_pem(key: rsa.RSAPrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


@pytest.fixture(scope="session")
def keys() -> Keys:
    mine, other = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    return Keys(private_pem(mine), public_pem(mine), private_pem(other))


@pytest.fixture
def fake_imds() -> Iterator[tuple[FakeImds, str]]:
    fake = FakeImds()
    with fake.server.running() as url:
        yield fake, url


@pytest.fixture
def fake_metering(keys: Keys) -> Iterator[tuple[FakeMetering, str]]:
    fake = FakeMetering(keys.private, keys.other, keys.public)
    with fake.server.running() as url:
        yield fake, url
