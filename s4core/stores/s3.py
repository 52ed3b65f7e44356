"""A store on S3, or on a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from s4core.errors import KeyNotFoundError, StoreError, TruncatedError
from s4core.stores.base import Entry, Put, Store, check_key, join_key, truncated
from s4core.stores.coalesce import coalesce, cut_out
from s4core.stores.s3_client import Connection
from s4core.stores.s3_deadline import FaultError
from s4core.stores.s3_faults import Fault
from s4core.stores.s3_options import S3Options
from s4core.stores.s3_upload import Upload

__all__ = ["S3Store"]

Result = TypeVar("Result")

# S3 takes so many keys in one DeleteObjects.
MAX_DELETED_AT_ONCE = 1000

# Asking for more than this, the size is asked first, so that a hostile index cannot make
# us plan requests for bytes that do not exist.
MAX_UNCHECKED_BYTES = 1 << 30


class S3Store(Store):
    """Objects in a bucket, below a prefix.

    Nothing is asked of S3 before the first use, and boto3 is not imported before.

    Args:
        bucket: Its name.
        prefix: Has the form of a key, or is empty.
        options: How to reach the bucket.
    """

    def __init__(self, bucket: str, prefix: str = "", options: S3Options | None = None) -> None:
        if not bucket:
            raise StoreError("the bucket has no name; expected s3://bucket/prefix")
        if prefix:
            check_key(prefix)
        self._prefix = prefix
        self._connection = Connection(bucket, options or S3Options())

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return join_key(f"s3://{self._connection.bucket}", self._prefix).rstrip("/")

    @property
    def options(self) -> S3Options:
        """How the bucket is reached."""
        return self._connection.options

    def child(self, prefix: str) -> S3Store:
        """A view of the keys below `prefix`, over the same connections."""
        check_key(prefix)
        below = S3Store(self._connection.bucket, join_key(self._prefix, prefix), self.options)
        below._connection = self._connection
        return below

    def sweep_unfinished(self, older_than_seconds: float, *, shallow: bool = False) -> int:
        """Abort multipart uploads that no living writer is left to complete."""
        before = datetime.now(timezone.utc) - timedelta(seconds=older_than_seconds)
        root = join_key(self._prefix, "")
        uploads = [
            item
            for item in self._unfinished()
            if item["Initiated"] <= before and not (shallow and "/" in item["Key"][len(root) :])
        ]
        for item in uploads:
            self._end_upload(item["Key"], item["UploadId"])
        return len(uploads)

    def _unfinished(self) -> Iterator[dict[str, Any]]:
        pages = self._pages(
            "list_multipart_uploads",
            {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
            join_key(self._prefix, ""),
        )
        for page in pages:
            yield from page.get("Uploads", ())

    def _end_upload(self, name: str, upload_id: str) -> None:
        url = f"s3://{self._connection.bucket}/{name}"
        try:
            self._connection.call(
                url, "abort_multipart_upload", read=_nothing, Key=name, UploadId=upload_id
            )
        except KeyNotFoundError:
            return  # it ended meanwhile

    def _put(self, key: str, views: Iterator[memoryview], how: Put) -> None:
        Upload(self._connection, self._name(key), how).run(views)

    def _get(self, key: str) -> bytes:
        return self._call(key, "get_object", _whole_body)

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        if sum(length for _, length in ranges) > MAX_UNCHECKED_BYTES:
            self._check_ranges(key, ranges, self._size(key))
        fetches = coalesce(ranges)
        found = self._fetch_all(key, fetches)
        for (_, length), data in zip(fetches, found, strict=True):
            if len(data) != length:
                self._explain(key, ranges)
        return [cut_out(wanted, fetches, found) for wanted in ranges]

    def _fetch_all(self, key: str, fetches: Sequence[tuple[int, int]]) -> list[bytes]:
        if len(fetches) == 1:
            return [self._fetch(key, fetches[0])]
        return list(self._connection.pool().map(lambda fetch: self._fetch(key, fetch), fetches))

    def _fetch(self, key: str, fetch: tuple[int, int]) -> bytes:
        """One range, or less of it where the object ends."""
        offset, length = fetch
        try:
            return self._call(
                key, "get_object", _whole_body, Range=f"bytes={offset}-{offset + length - 1}"
            )
        except TruncatedError:
            return b""

    def _explain(self, key: str, ranges: Sequence[tuple[int, int]]) -> None:
        self._check_ranges(key, ranges, self._size(key))
        raise StoreError(
            f"{self.url_of(key)}: the server sent another range than was asked for; it does not "
            "know ranged requests, or the object was replaced meanwhile"
        )

    def _check_ranges(self, key: str, ranges: Sequence[tuple[int, int]], size: int) -> None:
        for offset, length in ranges:
            if offset + length > size:
                raise truncated(self.url_of(key), offset, length, size)

    def _size(self, key: str) -> int:
        try:
            return self._call(key, "head_object", lambda answer: int(answer["ContentLength"]))
        except KeyNotFoundError:
            self._connection.check_bucket(self.url_of(key))
            raise

    def _list(self, prefix: str, shallow: bool) -> Iterator[Entry]:
        root = join_key(self._prefix, "")
        names = {"ContinuationToken": "NextContinuationToken"}
        below: dict[str, Any] = {"Delimiter": "/"} if shallow else {}
        entries = [
            Entry(item["Key"][len(root) :], item["Size"], item["LastModified"].timestamp())
            for page in self._pages("list_objects_v2", names, root + prefix, **below)
            for item in page.get("Contents", ())
            if not item["Key"].endswith("/")  # folders that other tools draw
        ]
        # S3 sorts; directory buckets and some compatible servers do not.
        return iter(sorted(entries, key=lambda entry: entry.key))

    def _pages(
        self, operation: str, markers: dict[str, str], prefix: str, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """Answers until the last; `markers` says which answer becomes which parameter."""
        position: dict[str, Any] = {}
        while True:
            page: dict[str, Any] = self._connection.call(
                self.url, operation, read=dict, Prefix=prefix, **parameters, **position
            )
            yield page
            if not page.get("IsTruncated"):
                return
            position = {name: page[source] for name, source in markers.items()}

    def _delete(self, keys: Sequence[str]) -> None:
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), MAX_DELETED_AT_ONCE):
            batch = [{"Key": name} for name in names[start : start + MAX_DELETED_AT_ONCE]]
            self._connection.call(
                self.url,
                "delete_objects",
                read=_all_deleted,
                Delete={"Objects": batch, "Quiet": True},
            )

    def _call(
        self,
        key: str,
        operation: str,
        read: Callable[[dict[str, Any]], Result],
        **parameters: Any,
    ) -> Result:
        return self._connection.call(
            self.url_of(key), operation, read=read, Key=self._name(key), **parameters
        )

    def _name(self, key: str) -> str:
        return join_key(self._prefix, key)

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, str, S3Options]]:
        # Clients and threads stay; whoever unpickles makes new ones when they are needed.
        return S3Store, (self._connection.bucket, self._prefix, self.options)


def _nothing(_: object) -> None:
    return None


def _whole_body(answer: dict[str, Any]) -> bytes:
    data: bytes = answer["Body"].read()
    return data


def _all_deleted(answer: dict[str, Any]) -> None:
    """Raise the first refusal: S3 answers 200 and lists the keys that it kept."""
    for refusal in answer.get("Errors", ()):
        if refusal.get("Code") != "NoSuchKey":
            reason = f"deleting {refusal.get('Key')!r}: {refusal.get('Message')}"
            raise FaultError(Fault(str(refusal.get("Code")), 0, reason))
