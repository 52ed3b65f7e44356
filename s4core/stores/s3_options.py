"""What can be set about an S3 store.

Everything that is None comes from where every AWS tool takes it: the environment
(``AWS_PROFILE``, ``AWS_REGION``, ``AWS_ENDPOINT_URL_S3`` and so on), the shared
configuration files, the role of the machine. Keys and secrets are never options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from s4core.errors import StoreError

__all__ = ["MAX_PARTS", "S3Options"]

# Limits of S3 ("Amazon S3 multipart upload limits").
MIN_PART_BYTES = 5 << 20
MAX_PART_BYTES = 5 << 30
MAX_PARTS = 10_000


@dataclass(frozen=True)
class S3Options:
    """Options of an S3 store, all of them keywords of `open_store` too.

    Attributes:
        endpoint_url: Of an S3-compatible server.
        region: Region of the bucket.
        profile: Name in the shared configuration files.
        path_style: Put the bucket into the path and never into the host name.
        sse: Server-side encryption, "AES256" or "aws:kms"; None leaves it to the bucket.
        sse_kms_key_id: The key for "aws:kms"; None takes the account's own.
        expected_bucket_owner: Account id; requests fail if another one owns the bucket.
        storage_class: As S3 names it, for example "STANDARD_IA".
        request_payer: Agree to pay for requests to another account's bucket.
        tags: Put on every object.
        ca_bundle: Path of a PEM file to trust instead of the system's.
        checksums: "when_required" sends none that S3 does not insist on, for servers that
            know none of them.
        engine: Who sends the parts of large objects whose keys are unique: "obstore" (half the
            processor time), "boto3", or "auto": obstore where it is installed and knows every
            option that is set. All else goes through boto3.
        part_bytes: Size of one part of a multipart upload; larger objects grow it.
        concurrency: Requests in flight at a time, for parts and for ranges.
        retries: Quick repetitions of one request by the client itself.
        deadline_seconds: How long a request is tried in all while S3 does not answer.
        connect_timeout_seconds: For one connection.
        read_timeout_seconds: Longest silence of a connection.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    path_style: bool = False
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_kms_key_id: str | None = None
    expected_bucket_owner: str | None = None
    storage_class: str | None = None
    request_payer: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: str | None = None
    checksums: Literal["when_supported", "when_required"] = "when_supported"
    engine: Literal["auto", "boto3", "obstore"] = "auto"
    part_bytes: int = 32 << 20
    concurrency: int = 8
    retries: int = 4
    deadline_seconds: float = 300.0
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        self._one_of("sse", (None, "AES256", "aws:kms"))
        self._one_of("checksums", ("when_supported", "when_required"))
        self._one_of("engine", ("auto", "boto3", "obstore"))
        self._between("part_bytes", MIN_PART_BYTES, MAX_PART_BYTES)
        self._between("concurrency", 1, 1000)
        self._between("retries", 0, 100)
        self._between("deadline_seconds", 0, 7 * 24 * 3600)
        if self.sse_kms_key_id is not None and self.sse != "aws:kms":
            raise StoreError(f"sse_kms_key_id needs sse='aws:kms', found sse={self.sse!r}")

    def _one_of(self, name: str, allowed: tuple[object, ...]) -> None:
        found = getattr(self, name)
        if found not in allowed:
            raise StoreError(
                f"{name}: expected one of {', '.join(map(repr, allowed))}, found {found!r}"
            )

    def _between(self, name: str, least: float, most: float) -> None:
        found = getattr(self, name)
        if not least <= found <= most:
            raise StoreError(f"{name}: expected {least} to {most}, found {found!r}")
