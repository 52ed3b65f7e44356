"""The one place that knows obstore: large objects sent by native code, without the GIL.

obstore cannot create conditionally in parts. So it takes only objects whose key nobody else
writes (`Store.put`, `unique`): of them, "create-only" holds by itself. Whose an object is,
ending what is unfinished, and all small requests stay with boto3.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from s4core.errors import StoreError
from s4core.stores.s3_client import Access, Connection
from s4core.stores.s3_deadline import MAX_PAUSE_SECONDS, FaultError
from s4core.stores.s3_faults import NO_ANSWER, NO_CREDENTIALS, Fault
from s4core.stores.s3_options import S3Options

__all__ = ["FastLane", "fast_lane"]

# Credentials are asked for again after so long; botocore renews them in time.
CREDENTIALS_SECONDS = 300

# Slowest link that a part is given time for; a part that takes longer has stalled.
SLOWEST_BYTES_PER_SECOND = 128 << 10

_AMAZON = re.compile(r"\.amazonaws\.com(\.cn)?$")

# obstore's threads do not survive a fork; the process that has them.
_owner: list[int] = []


def fast_lane(connection: Connection) -> FastLane | None:
    """The fast way to a bucket, if options and installation allow it.

    Raises:
        StoreError: Options ask for obstore, and it is missing or lacks another option.
    """
    options = connection.options
    if options.engine == "boto3" or (_owner and _owner[0] != os.getpid()):
        return None
    reason = _unknown_option(options)
    if reason is None:
        try:
            return connection.once("fast", lambda: FastLane(connection))
        except ImportError as error:
            reason = f"it is not installed ({error}); run: pip install 's4weights[fast]'"
    if options.engine == "obstore":
        raise StoreError(f"s3://{connection.bucket}: engine='obstore': {reason}")
    return None


def _unknown_option(options: S3Options) -> str | None:
    unknown = {
        "ca_bundle": options.ca_bundle,
        "expected_bucket_owner": options.expected_bucket_owner,
        "storage_class": options.storage_class,
        "request_payer": options.request_payer,
        "checksums": options.checksums != "when_supported",
    }
    # The environment too: botocore takes it from there.
    unknown["ca_bundle"] = unknown["ca_bundle"] or os.environ.get("AWS_CA_BUNDLE")
    found = [name for name, value in unknown.items() if value]
    return f"it does not know {', '.join(found)}; use engine='boto3'" if found else None


class FastLane:
    """Puts objects in parts through obstore.

    Args:
        connection: To the bucket.

    Raises:
        ImportError: obstore is not installed.
    """

    def __init__(self, connection: Connection) -> None:
        self._obstore = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
        access = connection.access()
        self._options = connection.options
        self._store = stores.S3Store(
            connection.bucket,
            **_where(connection.bucket, access, self._options),
            region=access.region,
            credential_provider=lambda: _credentials(access),
            unsigned_payload=True,
            checksum_algorithm="crc64nvme",
            client_options=_client_options(self._options),
            retry_config=_retries(self._options),
            **_encryption(self._options),
        )

    def put(
        self, name: str, views: Iterator[memoryview], metadata: Mapping[str, str], part_bytes: int
    ) -> None:
        """Put one object; it is visible whole or not at all.

        Raises:
            FaultError: S3 refused, or did not answer until the deadline.
        """
        _owner[:] = [os.getpid()]
        source = _Source(views)
        try:
            self._obstore.put(
                self._store,
                name,
                source,
                attributes=dict(metadata),
                tags=dict(self._options.tags) or None,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=self._options.concurrency,
            )
        except Exception as error:
            if source.error is not None:
                raise source.error from None
            raise FaultError(_fault(str(error))) from error


class _Source:
    """An iterator that remembers what it raised: obstore would wrap it."""

    def __init__(self, views: Iterator[memoryview]) -> None:
        self._views = views
        self.error: BaseException | None = None

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> memoryview:
        try:
            return next(self._views)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


def _where(bucket: str, access: Access, options: S3Options) -> dict[str, Any]:
    """The address, as botocore would build it; said by the name that no variable overrules."""
    scheme, _, host = access.endpoint_url.partition("://")
    virtual = bool(_AMAZON.search(host)) and not options.path_style and "." not in bucket
    return {
        "aws_endpoint_url_s3": f"{scheme}://{bucket}.{host}" if virtual else access.endpoint_url,
        "virtual_hosted_style_request": virtual,
    }


def _credentials(access: Access) -> dict[str, Any]:
    if access.credentials is None:
        raise FaultError(Fault(NO_CREDENTIALS, 0, "Unable to locate credentials"))
    frozen = access.credentials.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(timezone.utc) + timedelta(seconds=CREDENTIALS_SECONDS),
    }


def _client_options(options: S3Options) -> dict[str, Any]:
    longest = options.read_timeout_seconds + options.part_bytes / SLOWEST_BYTES_PER_SECOND
    return {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=options.connect_timeout_seconds),
        "timeout": timedelta(seconds=longest),
        "user_agent": "s4weights",
    }


def _retries(options: S3Options) -> dict[str, Any]:
    return {
        "max_retries": 1_000_000,  # the deadline ends them
        "retry_timeout": timedelta(seconds=options.deadline_seconds),
        "backoff": {
            "init_backoff": timedelta(milliseconds=250),
            "max_backoff": timedelta(seconds=MAX_PAUSE_SECONDS),
            "base": 2,
        },
    }


def _encryption(options: S3Options) -> dict[str, str]:
    if options.sse is None:
        return {}
    found: dict[str, str] = {"server_side_encryption": options.sse}
    if options.sse_kms_key_id is not None:
        found["sse_kms_key_id"] = options.sse_kms_key_id
    return found


def _fault(text: str) -> Fault:
    """What an error of obstore says: the code and status of S3's answer, if there was one."""
    summary = text.split("\n\nDebug source:")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    status = re.search(r"\b([45]\d\d) [A-Z][a-z]", summary) or re.search(r"status: (\d{3})", text)
    if code is None and status is None:
        return Fault(NO_ANSWER, 0, summary[:500])
    number = int(status[1]) if status else 0
    return Fault(code[1] if code else f"HTTP{number}", number, summary[:500])
