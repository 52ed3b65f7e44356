"""What networks, servers and people do to requests, on a real server.

A put succeeds, or fails with an error that says what to do; nothing is left dangling.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from s3_hooks import (
    ASKS,
    SMALL,
    answer,
    assert_missing_bucket,
    best_text_of_other_bytes,
    client_of,
    fail_times,
    no_answer,
    unfinished_uploads,
)
from s3_server import S3Server, free_ports
from store_suite import MiB, pattern

from s4core.errors import (
    AccessDeniedError,
    KeyExistsError,
    StoreError,
    StoreUnavailableError,
)
from s4core.stores import Store, open_store


@pytest.fixture
def fast_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s4core.stores.s3_deadline.FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.s3
class TestFaults:
    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        return open_store(s3_url, **SMALL)

    @pytest.mark.parametrize(
        ("operation", "size"), [("PutObject", 100), ("CompleteMultipartUpload", 12 * MiB)]
    )
    def test_a_put_whose_acknowledgement_was_lost_succeeds(
        self, store: Store, operation: str, size: int
    ) -> None:
        # "after-call": the server has done it, only we do not hear of it.
        hook = fail_times(1, no_answer)
        client_of(store).meta.events.register(f"after-call.s3.{operation}", hook)
        store.put("a", pattern(size))
        assert store.get("a") == pattern(size)
        assert unfinished_uploads(store) == []

    @pytest.mark.parametrize(
        ("operation", "size"), [("PutObject", 100), ("CompleteMultipartUpload", 12 * MiB)]
    )
    def test_a_put_never_acknowledged_is_settled_by_its_nonce(
        self, s3_url: str, operation: str, size: int
    ) -> None:
        store = open_store(s3_url, **{**SMALL, "deadline_seconds": 0.1})
        hook = fail_times(1000, no_answer)
        client_of(store).meta.events.register(f"after-call.s3.{operation}", hook)
        store.put("a", pattern(size))
        assert store.get("a") == pattern(size)

    def test_another_writers_object_is_a_conflict_even_after_a_lost_request(
        self, store: Store
    ) -> None:
        store.put("a", b"theirs")
        client_of(store).meta.events.register("after-call.s3.PutObject", fail_times(1, no_answer))
        with pytest.raises(KeyExistsError, match="already exists"):
            store.put("a", b"ours")
        assert store.get("a") == b"theirs"

    @pytest.mark.parametrize(
        ("operation", "ask"),
        [
            ("PutObject", lambda store: store.put("new", b"x")),
            ("CreateMultipartUpload", lambda store: store.put("new", [pattern(11 * MiB)])),
            ("UploadPart", lambda store: store.put("new", [pattern(11 * MiB)])),
            ("CompleteMultipartUpload", lambda store: store.put("new", [pattern(11 * MiB)])),
            ("GetObject", lambda store: store.get("a")),
            ("GetObject", lambda store: store.get_ranges("a", [(0, 1), (3 * MiB, 1)])),
            ("HeadObject", lambda store: store.size("a")),
            ("ListObjectsV2", lambda store: list(store.list())),
            ("DeleteObjects", lambda store: store.delete(["a"])),
        ],
    )
    def test_what_passes_is_waited_for(
        self,
        store: Store,
        operation: str,
        ask: Callable[[Store], object],
        fast_pauses: None,
    ) -> None:
        store.put("a", bytes(4 * MiB))
        errors = [
            answer("SlowDown", 503),
            answer("InternalError", 500),
            answer("ConditionalRequestConflict", 409),
            answer("RequestTimeout", 400),
            no_answer,
        ]
        for error in errors:
            hook = fail_times(1, error)
            client_of(store).meta.events.register(f"before-call.s3.{operation}", hook)
        ask(store)
        assert store.exists("new") or operation not in ("PutObject", "CompleteMultipartUpload")
        assert unfinished_uploads(store) == []

    @pytest.mark.parametrize(("size", "limit"), [(1000, 15), (11 * MiB, 15)])
    def test_a_repeated_request_sends_its_body_again(
        self, store: Store, size: int, limit: float
    ) -> None:
        # After an answer that came when the body was sent: a body that stays at its end
        # would have the server wait for bytes until the read timeout, a minute.
        for operation in ("PutObject", "UploadPart"):
            hook = fail_times(1, answer("SlowDown", 503))
            client_of(store).meta.events.register(f"after-call.s3.{operation}", hook)
        start = time.monotonic()
        store.put("a", [pattern(size)], replace=True)
        assert store.get("a") == pattern(size)
        assert time.monotonic() - start < limit

    def test_bytes_that_flip_on_their_way_are_sent_again(
        self, store: Store, fast_pauses: None
    ) -> None:
        flipped: list[str] = []

        def flip(request: Any, **_: object) -> None:
            name = next(name for name in request.headers if name.startswith("x-amz-checksum-"))
            if not flipped:
                flipped.append(request.headers[name])
                del request.headers[name]
                request.headers[name] = best_text_of_other_bytes()

        client_of(store).meta.events.register("before-sign.s3.PutObject", flip)
        store.put("a", b"precious")
        assert len(flipped) == 1
        assert store.get("a") == b"precious"

    def test_a_machine_that_flips_every_time_is_told_soon(
        self, store: Store, fast_pauses: None
    ) -> None:
        def flip(request: Any, **_: object) -> None:
            for name in [name for name in request.headers if name.startswith("x-amz-checksum-")]:
                del request.headers[name]
                request.headers[name] = best_text_of_other_bytes()

        client_of(store).meta.events.register("before-sign.s3.UploadPart", flip)
        with pytest.raises(StoreUnavailableError, match="received other bytes.*BadDigest"):
            store.put("a", pattern(11 * MiB))
        assert not store.exists("a")
        assert unfinished_uploads(store) == []

    def test_a_part_that_fails_for_good_ends_the_upload(self, store: Store) -> None:
        hook = fail_times(1000, answer("AccessDenied", 403))
        client_of(store).meta.events.register("before-call.s3.UploadPart", hook)
        with pytest.raises(AccessDeniedError, match="access denied"):
            store.put("a", (bytes(MiB) for _ in range(64)))
        assert not store.exists("a")
        assert unfinished_uploads(store) == []

    def test_a_failing_source_does_not_wait_for_parts_that_pause(self, s3_url: str) -> None:
        store = open_store(s3_url, **{**SMALL, "deadline_seconds": 600})
        failing = threading.Event()

        def hook(**_: object) -> None:
            failing.set()
            raise no_answer()

        def source() -> Iterator[bytes]:
            yield bytes(11 * MiB)
            assert failing.wait(30)
            raise RuntimeError("the source")

        client_of(store).meta.events.register("before-call.s3.UploadPart", hook)
        with pytest.raises(RuntimeError, match="the source"):
            store.put("a", source())
        assert unfinished_uploads(store) == []

    def test_an_abort_that_fails_is_told_and_swept_later(
        self, s3_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = open_store(s3_url, **{**SMALL, "deadline_seconds": 0.1})
        hook = fail_times(1, answer("AccessDenied", 403))
        client_of(store).meta.events.register("before-call.s3.AbortMultipartUpload", hook)

        def source() -> Iterator[bytes]:
            yield bytes(11 * MiB)
            raise RuntimeError("the source")

        with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="the source"):
            store.put("dir/a", source())
        assert "an unfinished upload stays until a sweep" in caplog.text
        assert len(unfinished_uploads(store)) == 1
        assert store.child("other").sweep_unfinished(older_than_seconds=0) == 0
        assert store.sweep_unfinished(older_than_seconds=3600) == 0
        assert store.sweep_unfinished(older_than_seconds=-5, shallow=True) == 0
        assert store.sweep_unfinished(older_than_seconds=-5) == 1
        assert unfinished_uploads(store) == []

    def test_an_upload_that_somebody_ended_is_told(self, store: Store) -> None:
        def end(**_: object) -> None:
            store.sweep_unfinished(older_than_seconds=-60)

        client_of(store).meta.events.register("before-call.s3.CompleteMultipartUpload", end)
        with pytest.raises(StoreUnavailableError, match="the unfinished upload is gone"):
            store.put("a", pattern(11 * MiB))
        assert not store.exists("a")

    def test_a_key_that_s3_refuses_to_delete_is_told(self, store: Store) -> None:
        store.put("a", b"x")

        def refuse(parsed: dict[str, Any], **_: object) -> None:
            parsed["Errors"] = [{"Key": "k", "Code": "AccessDenied", "Message": "made up"}]

        client_of(store).meta.events.register("after-call.s3.DeleteObjects", refuse)
        with pytest.raises(AccessDeniedError, match="deleting 'k'"):
            store.delete(["a"])


# SeaweedFS makes the bucket of a put; what S3 does is shown on the imitation.
READS = {name: ask for name, ask in ASKS.items() if name not in ("put", "replace", "multipart")}


@pytest.mark.s3
@pytest.mark.parametrize("ask", READS.values(), ids=READS)
def test_a_missing_bucket_is_never_an_empty_store(
    s3_environment: S3Server, ask: Callable[[Store], object]
) -> None:
    assert_missing_bucket(open_store(f"s3://s4-never-{uuid.uuid4().hex[:8]}/run", **SMALL), ask)


FIRST_ASKS = {name: ASKS[name] for name in ("multipart", "get_ranges", "exists", "list", "delete")}


@pytest.mark.s3
@pytest.mark.parametrize("ask", FIRST_ASKS.values(), ids=FIRST_ASKS)
class TestMistakes:
    """Whatever is asked first: each mistake is told as what it is."""

    def test_a_wrong_secret(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-93a1")
        self.assert_denied(open_store(s3_url, **SMALL), ask)

    def test_an_unknown_access_key(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        self.assert_denied(open_store(s3_url, **SMALL), ask)

    def assert_denied(self, store: Store, ask: Callable[[Store], object]) -> None:
        with pytest.raises(AccessDeniedError, match="access denied") as caught:
            ask(store)
        assert store.url in str(caught.value)
        assert "secret-" not in str(caught.value)

    def test_no_credentials(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(AccessDeniedError, match="set AWS_ACCESS_KEY_ID and"):
            ask(open_store(s3_url, **SMALL))

    def test_nobody_answers(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_ports(1)[0]}")
        store = open_store(s3_url, part_bytes=5 * MiB, retries=0, deadline_seconds=0.1)
        with pytest.raises(StoreUnavailableError, match="try again later") as caught:
            ask(store)
        assert store.url in str(caught.value)
        assert isinstance(caught.value, ConnectionError)

    def test_boto3_is_missing(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
    ) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        with pytest.raises(StoreError, match=r"pip install 's4weights\[s3\]'"):
            ask(open_store(s3_url, **SMALL))
