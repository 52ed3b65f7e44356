"""The one place that knows boto3: its clients, its errors, and its absence.

A `Connection` answers `call` with what S3 answered, or with an error of ours. It makes
one client and one thread pool per process, at the first use: neither survives a fork.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from s4core.errors import AccessDeniedError, StoreError
from s4core.stores.s3_body import Body
from s4core.stores.s3_deadline import FaultError, insist
from s4core.stores.s3_faults import (
    DAMAGED_ANSWER,
    NO_ANSWER,
    NO_CREDENTIALS,
    NO_TRUST,
    Fault,
)
from s4core.stores.s3_options import S3Options

__all__ = ["Access", "Connection"]

Result = TypeVar("Result")

# Operations that do not know the parameter RequestPayer.
_NEVER_PAID = frozenset({"head_bucket"})


@dataclass(frozen=True)
class Access:
    """Where and as whom to talk to S3.

    Attributes:
        endpoint_url: Of the service.
        region: Of the bucket.
        credentials: botocore's, which renew themselves; None if there are none.
    """

    endpoint_url: str
    region: str
    credentials: Any


class Connection:
    """Requests to one bucket.

    Args:
        bucket: Its name.
        options: How to reach it.
    """

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.bucket = bucket
        self.options = options
        self._locks: dict[int, threading.RLock] = {}
        self._made: dict[tuple[int, str], Any] = {}
        self._bucket_seen = False

    def client(self) -> Any:
        """This process's client; the name says boto3, the type has no stubs."""
        return self.once("client", lambda: _make_client(self.bucket, self.options))

    def pool(self) -> ThreadPoolExecutor:
        """This process's threads, for requests that run side by side."""
        return self.once(
            "pool",
            lambda: ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="s4-s3"),
        )

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        """What `make` gives, made once in each process: such things do not survive a fork."""
        with self._lock():
            key = (os.getpid(), name)
            if key not in self._made:
                self._made[key] = make()
            found: Result = self._made[key]
            return found

    def access(self) -> Access:
        """Where and as whom this process's client talks, for another client."""
        meta = self.client().meta
        session = _session(self.options)
        return Access(meta.endpoint_url, meta.region_name, session.get_credentials())

    def _lock(self) -> threading.RLock:
        # One per process: a fork may copy the parent's while a thread holds it.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def call(
        self,
        url: str,
        operation: str,
        *,
        read: Callable[[Any], Result],
        body: Sequence[memoryview] = (),
        pause: Callable[[float], object] = time.sleep,
        deadline_seconds: float | None = None,
        **parameters: Any,
    ) -> Result:
        """`read` of the answer to one operation of the client, tried until the deadline.

        Args:
            url: How errors call what the operation is about.
            operation: A method of boto3's client.
            read: Takes from the answer what is needed, the body too: it is tried again
                with the rest if the connection breaks meanwhile.
            body: What to send, from its start at each attempt.
            pause: As in `insist`.
            deadline_seconds: Other than the options say.
            **parameters: Of the operation, but for the bucket.

        Raises:
            S4Error: As `Fault.error` puts it.
        """
        request = getattr(self.client(), operation)
        parameters.update(self._common(operation))

        def attempt() -> Result:
            if body:
                parameters["Body"] = Body(body)
            return _faulty(operation, lambda: read(request(**parameters)))

        limit = self.options.deadline_seconds if deadline_seconds is None else deadline_seconds
        result = insist(attempt, url, limit, pause)
        self._bucket_seen = True
        return result

    def check_bucket(self, url: str) -> None:
        """Raise if the bucket is missing, which S3 does not tell from a missing key by HEAD.

        Raises:
            StoreError: There is no such bucket.
        """
        if self._bucket_seen:
            return
        try:
            self.call(url, "head_bucket", read=lambda _: None)
        except AccessDeniedError:
            self._bucket_seen = True  # it exists, and listing it is not allowed

    def _common(self, operation: str) -> dict[str, object]:
        common: dict[str, object] = {"Bucket": self.bucket}
        if self.options.expected_bucket_owner is not None:
            common["ExpectedBucketOwner"] = self.options.expected_bucket_owner
        if self.options.request_payer and operation not in _NEVER_PAID:
            common["RequestPayer"] = "requester"
        return common


def _make_client(bucket: str, options: S3Options) -> Any:
    try:
        import boto3  # noqa: F401  # its absence gets a sentence
        import botocore.exceptions
    except ImportError as error:
        raise StoreError(
            f"s3://{bucket}: S3 needs boto3, which is not installed ({error}); "
            "run: pip install 's4weights[s3]'"
        ) from error
    try:
        return _session(options).client(
            "s3",
            endpoint_url=options.endpoint_url,
            verify=options.ca_bundle,
            config=_config(options),
        )
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise StoreError(f"s3://{bucket}: the S3 client cannot be set up: {error}") from error


def _session(options: S3Options) -> Any:
    import boto3

    return boto3.Session(profile_name=options.profile, region_name=options.region)


def _config(options: S3Options) -> Any:
    from botocore.config import Config

    s3: dict[str, object] = {"addressing_style": "path" if options.path_style else "auto"}
    if options.checksums == "when_supported":
        # The checksum header is signed and covers the body: a SHA-256 over it as well
        # would only cost time, about as much as everything else the client does.
        s3["payload_signing_enabled"] = False
    return Config(
        retries={"mode": "standard", "total_max_attempts": options.retries + 1},
        max_pool_connections=2 * options.concurrency + 4,
        connect_timeout=options.connect_timeout_seconds,
        read_timeout=options.read_timeout_seconds,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",  # ours are made in s3_checksum
        response_checksum_validation=options.checksums,
        user_agent_extra="s4weights",
        s3=s3,
    )


def _faulty(operation: str, request: Callable[[], Result]) -> Result:
    """Run `request`; what the client raises becomes a `FaultError`."""
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    try:
        return request()
    except ClientError as error:
        raise FaultError(_answered(operation, error.response)) from error
    except (BotoCoreError, HTTPError) as error:
        raise FaultError(_unanswered(error)) from error


def _answered(operation: str, response: dict[str, Any]) -> Fault:
    error = response.get("Error", {})
    code = str(error.get("Code", "Unknown"))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if operation == "head_bucket" and status == 404:
        code = "NoSuchBucket"  # the answer to HEAD has no body to say so
    return Fault(code, status, str(error.get("Message", "no reason given")))


def _unanswered(error: Exception) -> Fault:
    from botocore import exceptions

    reason = str(error)
    if isinstance(error, exceptions.FlexibleChecksumError):
        return Fault(DAMAGED_ANSWER, 0, reason)
    if isinstance(error, exceptions.SSLError):
        return Fault(NO_TRUST, 0, reason)
    credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
    )
    if isinstance(error, credentials):
        return Fault(NO_CREDENTIALS, 0, reason)
    broken = (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
    )
    if isinstance(error, broken) or not isinstance(error, exceptions.BotoCoreError):
        return Fault(NO_ANSWER, 0, reason)
    return Fault(type(error).__name__, 0, reason)
