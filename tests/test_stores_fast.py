"""obstore, the fast engine, keeps the promises about large objects with unique keys."""

from __future__ import annotations

import sys
import uuid
from typing import Any

import pytest
from s3_hooks import SMALL, client_of, unfinished_uploads
from s3_server import BUCKET, S3Server, free_ports
from store_suite import MiB, StoreSuite, pattern

from s4core.errors import StoreError, StoreUnavailableError
from s4core.stores import S3Options, S3Store, Store, open_store

pytest.importorskip("obstore", reason="the fast engine is not installed")


@pytest.fixture(autouse=True)
def no_ca_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)


class UniquePuts(S3Store):
    """Has every put say that its key is unique."""

    def child(self, prefix: str) -> UniquePuts:
        found = super().child(prefix)
        found.__class__ = UniquePuts
        return found  # type: ignore[return-value]

    def put(self, key: str, data: Any, **options: Any) -> None:
        super().put(key, data, **{**options, "unique": not options.get("replace", False)})

    def __reduce__(self) -> Any:
        return UniquePuts, super().__reduce__()[1]


@pytest.mark.s3
class TestFastEngine:
    # Parts in flight, and as many that wait in obstore.
    max_alive_bytes = 2 * (3 + 4) * 5 * MiB

    @pytest.fixture
    def store(self, s3_environment: S3Server) -> Store:
        options = S3Options(**SMALL, engine="obstore")
        return UniquePuts(BUCKET, uuid.uuid4().hex, options)

    def left_behind(self, store: Store) -> list[str]:
        return unfinished_uploads(store)

    test_a_failing_source_leaves_nothing = StoreSuite.test_a_failing_source_leaves_nothing
    test_a_long_stream_round_trips = StoreSuite.test_a_long_stream_round_trips
    test_one_large_buffer_round_trips = StoreSuite.test_one_large_buffer_round_trips
    test_a_stream_is_not_held_whole = StoreSuite.test_a_stream_is_not_held_whole
    test_an_unfinished_put_is_not_listed = StoreSuite.test_an_unfinished_put_is_not_listed
    test_a_store_survives_pickling = StoreSuite.test_a_store_survives_pickling
    test_a_store_survives_fork = StoreSuite.test_a_store_survives_fork

    @pytest.mark.parametrize("key", ["with space/and more", "Ünïcödé/模型", "q?u&e#r+y%2F"])
    def test_odd_keys_are_kept_as_they_are(self, store: Store, key: str) -> None:
        store.put(key, [pattern(6 * MiB)])
        assert store.get(key) == pattern(6 * MiB)
        assert [entry.key for entry in store.list()] == [key]

    def test_it_is_obstore_that_sends_the_parts(self, store: Store) -> None:
        asked: list[str] = []

        def hear(model: Any, **_: object) -> None:
            asked.append(model.name)

        client_of(store).meta.events.register("before-call.s3", hear)
        store.put("a", [pattern(11 * MiB)])
        assert not {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"} & set(asked)
        bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
        head = client_of(store).head_object(
            Bucket=bucket, Key=f"{prefix}/a", ChecksumMode="ENABLED"
        )
        assert head["ETag"].strip('"').endswith("-3")
        assert len(head["Metadata"]["s4-nonce"]) == 32

    def test_nobody_answers(self, s3_environment: S3Server) -> None:
        endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
        store = open_store(
            f"s3://{BUCKET}/x",
            endpoint_url=endpoint,
            engine="obstore",
            **{**SMALL, "deadline_seconds": 0.5, "retries": 0},
        )
        with pytest.raises(StoreUnavailableError, match="no success before the deadline"):
            store.put("a", [pattern(11 * MiB)], unique=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"ca_bundle": "/x.pem"}, "ca_bundle"),
        ({"expected_bucket_owner": "1"}, "expected_bucket_owner"),
        ({"storage_class": "STANDARD_IA"}, "storage_class"),
        ({"request_payer": True}, "request_payer"),
        ({"checksums": "when_required"}, "checksums"),
    ],
)
def test_what_it_does_not_know_is_told_or_left_to_boto3(options: dict[str, Any], name: str) -> None:
    from s4core.stores.s3_client import Connection
    from s4core.stores.s3_fast import fast_lane

    assert fast_lane(Connection("b", S3Options(**options))) is None
    with pytest.raises(StoreError, match=f"engine='obstore': it does not know {name}"):
        fast_lane(Connection("b", S3Options(engine="obstore", **options)))


def test_its_absence_is_told_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from s4core.stores.s3_client import Connection
    from s4core.stores.s3_fast import fast_lane

    monkeypatch.setitem(sys.modules, "obstore", None)
    assert fast_lane(Connection("b", S3Options())) is None
    with pytest.raises(StoreError, match=r"not installed .*pip install 's4weights\[fast\]'"):
        fast_lane(Connection("b", S3Options(engine="obstore")))
    with pytest.raises(StoreError, match="engine: expected one of 'auto', 'boto3', 'obstore'"):
        S3Options(engine="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bucket", "endpoint", "expected"),
    [
        ("b", "https://s3.eu-west-1.amazonaws.com", "https://b.s3.eu-west-1.amazonaws.com"),
        ("a.b", "https://s3.amazonaws.com", "https://s3.amazonaws.com"),
        ("b", "http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("b", "https://s3.example.org", "https://s3.example.org"),
    ],
)
def test_it_asks_where_boto3_would(bucket: str, endpoint: str, expected: str) -> None:
    from s4core.stores.s3_client import Access
    from s4core.stores.s3_fast import _where

    found = _where(bucket, Access(endpoint, "eu-west-1", None), S3Options())
    assert found["aws_endpoint_url_s3"] == expected
    assert found["virtual_hosted_style_request"] == (expected != endpoint)
