"""What the tests of S3 share: small parts, a look behind the store, and made-up faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from store_suite import MiB

from s4core.errors import StoreError
from s4core.stores import S3Store, Store
from s4core.stores.s3_checksum import best_checksum

SMALL: dict[str, Any] = {"part_bytes": 5 * MiB, "concurrency": 3, "deadline_seconds": 20}


def client_of(store: Store) -> Any:
    assert isinstance(store, S3Store)
    return store._connection.client()


def unfinished_uploads(store: Store) -> list[str]:
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    page = client_of(store).list_multipart_uploads(Bucket=bucket, Prefix=prefix)
    return [item["Key"] for item in page.get("Uploads", ())]


def fail_times(times: int, error: Callable[[], Exception]) -> Callable[..., None]:
    """A hook of the client's that raises so many times, then lets all pass."""
    left = [times]

    def hook(**_: object) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise error()

    return hook


def no_answer() -> Exception:
    from botocore.exceptions import ConnectionClosedError

    error: Exception = ConnectionClosedError(endpoint_url="http://nowhere")
    return error


def answer(code: str, status: int) -> Callable[[], Exception]:
    from botocore.exceptions import ClientError

    details = {"Error": {"Code": code, "Message": "made up"}}
    metadata = {"ResponseMetadata": {"HTTPStatusCode": status}}
    return lambda: ClientError({**details, **metadata}, "Operation")


def best_text_of_other_bytes() -> str:
    checksum = best_checksum()
    return checksum.text(checksum.extend(0, [memoryview(b"other bytes")]))


ASKS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("a", b"x"),
    "replace": lambda store: store.put("a", b"x", replace=True),
    "multipart": lambda store: store.put("a", [bytes(11 * MiB)]),
    "get": lambda store: store.get("a"),
    "get_ranges": lambda store: store.get_ranges("a", [(0, 1), (1 << 30, 1)]),
    "size": lambda store: store.size("a"),
    "exists": lambda store: store.exists("a"),
    "list": lambda store: list(store.list()),
    "delete": lambda store: store.delete(["a"]),
    "sweep": lambda store: store.sweep_unfinished(0),
}


def assert_missing_bucket(store: Store, ask: Callable[[Store], object]) -> None:
    with pytest.raises(StoreError, match="the bucket does not exist; check its name") as caught:
        ask(store)
    assert type(caught.value) is StoreError
    assert store.url in str(caught.value)
