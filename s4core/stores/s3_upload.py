"""Putting one object on S3: in one request, or in parts that run side by side.

Every upload carries a *nonce*, a random number in the object's metadata. When a
conditional create is answered "exists", or is not answered at all, the object's nonce
tells whether it is ours and only the acknowledgement was lost.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from s4core.errors import (
    KeyExistsError,
    KeyNotFoundError,
    S4Error,
    StoreError,
    StoreUnavailableError,
)
from s4core.stores.base import Put
from s4core.stores.s3_body import cut_parts, first_part_bytes
from s4core.stores.s3_checksum import Checksum, best_checksum
from s4core.stores.s3_client import Connection
from s4core.stores.s3_deadline import FaultError
from s4core.stores.s3_fast import FastLane, fast_lane
from s4core.stores.s3_options import MAX_PARTS, S3Options

__all__ = ["Upload"]

_log = logging.getLogger(__name__)

NONCE = "s4-nonce"  # sent as x-amz-meta-s4-nonce

# Cleaning up and asking whose an object is must not double the time of a failed put.
AFTERMATH_SECONDS = 30.0

UPLOAD_STAYS = "an unfinished upload stays until a sweep or a lifecycle rule ends it"

Part = list[memoryview]


@dataclass(frozen=True)
class _Sent:
    number: int
    etag: str
    checksum: dict[str, str]
    size: int

    def listed(self) -> dict[str, object]:
        return {"PartNumber": self.number, "ETag": self.etag, **self.checksum}


class _GivenUpError(Exception):
    """Ends the pauses of parts whose upload has failed elsewhere."""


class Upload:
    """One put, once.

    Args:
        connection: To the bucket.
        name: Full key in the bucket.
        how: What `Store.put` was asked.
    """

    def __init__(self, connection: Connection, name: str, how: Put) -> None:
        self._connection, self._how = connection, how
        self._name = name
        self._url = f"s3://{connection.bucket}/{name}"
        self._nonce = secrets.token_hex(16)
        self._condition = {} if how.replace else {"IfNoneMatch": "*"}
        supported = connection.options.checksums == "when_supported"
        self._checksum = best_checksum() if supported else None
        self._given_up = threading.Event()
        self._paused = False  # whether any request was repeated

    def run(self, views: Iterator[memoryview]) -> None:
        """Put the bytes of `views`.

        Raises:
            KeyExistsError: The name is taken, and not by this very upload.
            StoreError: And its relatives; or what `views` raised. Nothing is left behind.
        """
        part_bytes = first_part_bytes(self._options.part_bytes, self._how.size_hint)
        parts = cut_parts(views, part_bytes)
        first = next(parts, [])
        second = next(parts, None)
        if second is None:
            self._put_whole(first)
            return
        all_parts = chain([first, second], parts)
        lane = fast_lane(self._connection) if self._how.unique else None
        if lane is None:
            self._put_in_parts(all_parts)
        else:
            self._put_fast(lane, chain.from_iterable(all_parts), part_bytes)

    @property
    def _options(self) -> S3Options:
        return self._connection.options

    def _put_whole(self, part: Part) -> None:
        checksum = self._checksum_of(part)
        try:
            self._call(
                "put_object",
                body=part,
                **checksum,
                **self._condition,
                **self._object_parameters(),
            )
        except (KeyExistsError, StoreUnavailableError):
            if not self._is_ours():
                raise

    def _put_fast(self, lane: FastLane, views: Iterator[memoryview], part_bytes: int) -> None:
        try:
            lane.put(self._name, views, {NONCE: self._nonce}, part_bytes)
        except FaultError as error:
            if not self._is_ours():
                raise error.fault.error(self._url) from error.__cause__
        finally:
            self._abort_all()  # obstore does not tell which it began

    def _abort_all(self) -> None:
        """End every upload of this name; as it is unique, they are this one's."""
        try:
            page = self._connection.call(
                self._url,
                "list_multipart_uploads",
                read=dict,
                deadline_seconds=min(AFTERMATH_SECONDS, self._options.deadline_seconds),
                Prefix=self._name,
            )
        except S4Error as error:
            _log.warning("%s: %s: %s", self._url, UPLOAD_STAYS, error)
            return
        for item in page.get("Uploads", ()):
            if item["Key"] == self._name:
                self._abort(item["UploadId"])

    def _put_in_parts(self, parts: Iterator[Part]) -> None:
        created: dict[str, Any] = {}
        try:
            created = self._call(
                "create_multipart_upload",
                read=dict,
                **self._checksum_kind(),
                **self._object_parameters(),
            )
            sent, whole = self._send(created["UploadId"], parts)
            self._complete(created["UploadId"], sent, whole)
        except BaseException:
            if created:
                self._abort(created["UploadId"])
            raise
        finally:
            answer = created.get("ResponseMetadata", {"RetryAttempts": 1})
            if self._how.unique and (self._paused or answer.get("RetryAttempts", 0)):
                self._abort_all()  # an answer that was lost named another upload

    def _send(self, upload_id: str, parts: Iterator[Part]) -> tuple[list[_Sent], int]:
        """Send parts, so many at a time; also the checksum of them all."""
        pending: set[Future[_Sent]] = set()
        sent: list[_Sent] = []
        whole = 0
        try:
            for number, part in enumerate(parts, 1):
                self._check_number(number)
                pending.add(self._submit(upload_id, number, part))
                whole = self._checksum.extend(whole, part) if self._checksum else 0
                if len(pending) >= self._options.concurrency:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    sent += [future.result() for future in done]
            sent += [future.result() for future in pending]
        except BaseException:
            self._stop(pending)
            raise
        return sorted(sent, key=lambda part: part.number), whole

    def _check_number(self, number: int) -> None:
        if number > MAX_PARTS:
            raise StoreError(
                f"{self._url}: more than {MAX_PARTS} parts of {self._options.part_bytes} bytes "
                "and up; raise part_bytes, or pass size_hint"
            )

    def _submit(self, upload_id: str, number: int, part: Part) -> Future[_Sent]:
        return self._connection.pool().submit(self._send_part, upload_id, number, part)

    def _send_part(self, upload_id: str, number: int, part: Part) -> _Sent:
        checksum = self._checksum_of(part)
        etag: str = self._call(
            "upload_part",
            read=lambda answer: answer["ETag"],
            UploadId=upload_id,
            PartNumber=number,
            body=part,
            **checksum,
        )
        return _Sent(number, etag, checksum, sum(map(len, part)))

    def _complete(self, upload_id: str, sent: list[_Sent], whole: int) -> None:
        try:
            self._call(
                "complete_multipart_upload",
                UploadId=upload_id,
                MultipartUpload={"Parts": [part.listed() for part in sent]},
                MpuObjectSize=sum(part.size for part in sent),
                **self._checksum_of_all(whole),
                **self._condition,
            )
        except KeyNotFoundError as error:  # the upload: completed before, or ended by a sweep
            if not self._is_ours():
                raise StoreUnavailableError(
                    f"{self._url}: the unfinished upload is gone, as a clean-up of the bucket "
                    "may do; save again"
                ) from error
        except (KeyExistsError, StoreUnavailableError):
            if not self._is_ours():
                raise

    def _is_ours(self) -> bool:
        try:
            found = self._call(
                "head_object",
                read=lambda answer: answer["Metadata"].get(NONCE),
                deadline_seconds=min(AFTERMATH_SECONDS, self._options.deadline_seconds),
            )
        except S4Error as error:
            _log.warning("%s: cannot tell whether the put succeeded: %s", self._url, error)
            return False
        return bool(found == self._nonce)

    def _stop(self, pending: set[Future[_Sent]]) -> None:
        """Let parts under way end, so that none arrives after the abort and stays."""
        self._given_up.set()
        for future in pending:
            future.cancel()
        wait(pending, timeout=AFTERMATH_SECONDS)

    def _abort(self, upload_id: str) -> None:
        self._given_up.clear()
        try:
            self._call(
                "abort_multipart_upload",
                deadline_seconds=min(AFTERMATH_SECONDS, self._options.deadline_seconds),
                UploadId=upload_id,
            )
        except KeyNotFoundError:
            pass  # it is gone already
        except S4Error as error:  # the first error matters more, and is on its way
            _log.warning("%s: %s: %s", self._url, UPLOAD_STAYS, error)

    def _call(self, operation: str, **parameters: Any) -> Any:
        parameters.setdefault("read", lambda _: None)
        return self._connection.call(
            self._url, operation, pause=self._pause, Key=self._name, **parameters
        )

    def _pause(self, seconds: float) -> None:
        self._paused = True
        if self._given_up.wait(seconds):
            raise _GivenUpError

    def _checksum_of(self, part: Part) -> dict[str, str]:
        return self._named(self._checksum, self._checksum.extend(0, part)) if self._checksum else {}

    def _checksum_of_all(self, whole: int) -> dict[str, str]:
        if self._checksum is None:
            return {}
        return {**self._named(self._checksum, whole), "ChecksumType": "FULL_OBJECT"}

    def _checksum_kind(self) -> dict[str, str]:
        if self._checksum is None:
            return {}
        return {"ChecksumAlgorithm": self._checksum.algorithm, "ChecksumType": "FULL_OBJECT"}

    @staticmethod
    def _named(checksum: Checksum, value: int) -> dict[str, str]:
        return {checksum.parameter: checksum.text(value)}

    def _object_parameters(self) -> dict[str, object]:
        options = self._options
        parameters: dict[str, object | None] = {
            "Metadata": {NONCE: self._nonce},
            "ServerSideEncryption": options.sse,
            "SSEKMSKeyId": options.sse_kms_key_id,
            "StorageClass": options.storage_class,
            "Tagging": urlencode(options.tags) or None,
        }
        return {name: value for name, value in parameters.items() if value is not None}
