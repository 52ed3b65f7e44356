"""What S3 is asked, on an imitation in this process; options, deadlines, bodies and parts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from s3_hooks import ASKS, SMALL, assert_missing_bucket, client_of
from store_suite import MiB, pattern

from s4core.errors import (
    AccessDeniedError,
    ChecksumError,
    KeyExistsError,
    KeyNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from s4core.stores import S3Options, Store, open_store
from s4core.stores.s3_body import Body, cut_parts, first_part_bytes
from s4core.stores.s3_checksum import Checksum, best_checksum
from s4core.stores.s3_deadline import FaultError, insist
from s4core.stores.s3_faults import DAMAGED_ANSWER, Fault


@pytest.fixture
def moto_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Store]]:
    """Stores on an imitation in this process: for what it shows of requests."""
    moto = pytest.importorskip("moto", reason="no imitation of S3: install moto")
    import boto3

    for name in ("AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with moto.mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="moto")
        yield lambda **options: open_store("s3://moto/run", region="us-east-1", **options)


class TestRequests:
    @pytest.mark.parametrize("name", ["put", "replace", "multipart", "exists", "list", "delete"])
    def test_a_missing_bucket_is_told(self, moto_store: Callable[..., Store], name: str) -> None:
        moto_store()
        store = open_store("s3://s4-never/run", region="us-east-1", **SMALL)
        assert_missing_bucket(store, ASKS[name])

    def test_a_small_put_get_list_delete(self, moto_store: Callable[..., Store]) -> None:
        store = moto_store()
        store.put("a", b"first")
        with pytest.raises(KeyExistsError):
            store.put("a", b"second")
        store.put("a", b"third", replace=True)
        assert store.get("a") == b"third"
        assert [entry.key for entry in store.list()] == ["a"]
        store.delete(["a"])
        with pytest.raises(KeyNotFoundError):
            store.get("a")

    @pytest.mark.parametrize("size", [10, 11 * MiB])
    def test_options_reach_the_requests(self, moto_store: Callable[..., Store], size: int) -> None:
        store = moto_store(
            part_bytes=5 * MiB,
            sse="aws:kms",
            sse_kms_key_id="key-1",
            storage_class="STANDARD_IA",
            tags={"team": "a b", "run": "x/y=+"},
            request_payer=True,
            expected_bucket_owner="123456789012",
        )
        seen = watch(store)
        store.put("a", [bytes(size)])
        store.get("a")
        store.delete(["a"])
        made = seen["PutObject" if size == 10 else "CreateMultipartUpload"]
        assert made["ServerSideEncryption"] == "aws:kms"
        assert made["SSEKMSKeyId"] == "key-1"
        assert made["StorageClass"] == "STANDARD_IA"
        assert made["Tagging"] == "team=a+b&run=x%2Fy%3D%2B"
        assert len(made["Metadata"]["s4-nonce"]) == 32
        created = seen["PutObject" if size == 10 else "CompleteMultipartUpload"]
        assert created["IfNoneMatch"] == "*"
        for parameters in seen.values():
            assert parameters["ExpectedBucketOwner"] == "123456789012"
            assert parameters["RequestPayer"] == "requester"

    def test_the_payer_and_the_rest_are_off_by_default(
        self, moto_store: Callable[..., Store]
    ) -> None:
        store = moto_store()
        seen = watch(store)
        store.put("a", b"x", replace=True)
        allowed = {"Bucket", "Key", "Body", "Metadata", best_checksum().parameter}
        assert set(seen["PutObject"]) == allowed

    def test_near_ranges_share_a_request(self, moto_store: Callable[..., Store]) -> None:
        store = moto_store()
        data = pattern(3 * MiB)
        store.put("a", data)
        asked: list[str] = []
        client_of(store).meta.events.register(
            "provide-client-params.s3.GetObject",
            lambda params, **_: asked.append(params["Range"]),
        )
        ranges = [(0, 10), (100, 10), (3 * MiB - 5, 5)]
        assert store.get_ranges("a", ranges) == [data[o : o + n] for o, n in ranges]
        assert sorted(asked) == [f"bytes={3 * MiB - 5}-{3 * MiB - 1}", "bytes=0-109"][::-1]


def watch(store: Store) -> dict[str, dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}

    def note(params: dict[str, Any], model: Any, **_: object) -> None:
        seen[model.name] = dict(params)

    client_of(store).meta.events.register("provide-client-params.s3.*", note)
    return seen


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sse": "rot13"}, "sse: expected one of None, 'AES256', 'aws:kms', found 'rot13'"),
            ({"checksums": "never"}, "checksums: expected one of"),
            ({"part_bytes": 1000}, "part_bytes: expected 5242880 to"),
            ({"concurrency": 0}, "concurrency: expected 1 to"),
            ({"retries": -1}, "retries: expected 0 to"),
            ({"deadline_seconds": -1.0}, "deadline_seconds: expected 0 to"),
            ({"sse_kms_key_id": "k"}, "needs sse='aws:kms', found sse=None"),
        ],
    )
    def test_bad_options_are_told(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(StoreError, match=message):
            S3Options(**options)


class TestInsist:
    URL = "s3://b/k"

    def test_it_tries_until_it_succeeds(self) -> None:
        faults = [Fault("SlowDown", 503, "r")] * 4
        assert insist(self.failing(faults), self.URL, 60, lambda _: None) == "done"

    def test_it_gives_up_at_the_deadline(self) -> None:
        pauses: list[float] = []
        attempt = self.failing([Fault("SlowDown", 503, "slow")] * 100)
        with pytest.raises(StoreUnavailableError, match=r"s3://b/k: no success.*SlowDown: slow"):
            insist(attempt, self.URL, 0, pauses.append)
        assert pauses == []

    def test_pauses_grow_and_differ(self) -> None:
        pauses: list[float] = []
        insist(self.failing([Fault("SlowDown", 503, "r")] * 12), self.URL, 1e9, pauses.append)
        assert 0.125 <= pauses[0] <= 0.25
        assert all(pause <= 20 for pause in pauses)
        assert pauses[-1] >= 10
        assert len(set(pauses)) == 12

    @pytest.mark.parametrize(
        ("fault", "kind", "message", "attempts"),
        [
            (Fault("NoSuchKey", 404, "r"), KeyNotFoundError, "nothing is stored there", 1),
            (Fault("AccessDenied", 403, "r"), AccessDeniedError, "may not do this", 1),
            (Fault("403", 403, "r"), AccessDeniedError, "s3:ListBucket", 1),
            (Fault("ExpiredToken", 400, "r"), AccessDeniedError, "get fresh credentials", 1),
            (Fault("RequestTimeTooSkewed", 403, "r"), AccessDeniedError, "clock is wrong", 1),
            (Fault("NoSuchBucket", 404, "r"), StoreError, "bucket does not exist", 1),
            (Fault("PermanentRedirect", 301, "r"), StoreError, "in another region", 1),
            (Fault("NotImplemented", 501, "r"), StoreError, "when_required", 1),
            (Fault("InvalidObjectState", 403, "r"), StoreError, "restore it first", 1),
            (Fault("Strange", 400, "odd"), StoreError, r"Strange, HTTP 400: odd", 1),
            (Fault("BadDigest", 400, "r"), StoreUnavailableError, "received other bytes", 5),
            (Fault(DAMAGED_ANSWER, 0, "crc"), ChecksumError, "crc; the stored bytes", 5),
        ],
    )
    def test_what_each_fault_becomes(
        self, fault: Fault, kind: type[Exception], message: str, attempts: int
    ) -> None:
        made: list[int] = []

        def attempt() -> None:
            made.append(1)
            raise FaultError(fault)

        with pytest.raises(kind, match=message) as caught:
            insist(attempt, self.URL, 1e9, lambda _: None)
        assert type(caught.value) is kind
        assert self.URL in str(caught.value)
        assert len(made) == attempts

    @staticmethod
    def failing(faults: list[Fault]) -> Callable[[], str]:
        left = iter(faults)

        def attempt() -> str:
            for fault in left:
                raise FaultError(fault)
            return "done"

        return attempt


class TestBody:
    VIEWS = (memoryview(b"abc"), memoryview(b"d"), memoryview(b"efghij"))

    def test_it_reads_everything_once(self) -> None:
        body = Body(self.VIEWS)
        assert len(body) == 10
        assert [bytes(body.read(size)) for size in (2, 3, 0, 1, 9, 1)] == [
            *(b"ab", b"cde", b"", b"f", b"ghij", b"")
        ]
        assert body.tell() == 10

    def test_it_reads_large_buffers_in_pieces_without_a_copy(self) -> None:
        data = memoryview(pattern(40_000))
        body = Body([data])
        pieces = []
        while piece := body.read(16_384):
            assert isinstance(piece, memoryview)
            assert piece.obj is data.obj
            pieces.append(bytes(piece))
        assert len(pieces) == 3
        assert b"".join(pieces) == data

    @pytest.mark.parametrize("position", range(11))
    def test_it_seeks(self, position: int) -> None:
        body = Body(self.VIEWS)
        body.read()
        assert body.seek(position) == position
        assert bytes(body.read()) == b"abcdefghij"[position:]
        assert body.seek(-position, 2) == 10 - position
        assert bytes(body.read(-1)) == b"abcdefghij"[10 - position :]


class TestParts:
    def test_parts_are_full_but_for_the_last(self) -> None:
        views = [memoryview(pattern(size, size)) for size in (3, 25, 1, 10, 1)]
        parts = [b"".join(part) for part in cut_parts(iter(views), 10)]
        assert [len(part) for part in parts] == [10, 10, 10, 10]
        assert b"".join(parts) == b"".join(views)
        assert list(cut_parts(iter([]), 10)) == []

    def test_parts_are_views(self) -> None:
        data = memoryview(pattern(100))
        for part in cut_parts(iter([data]), 30):
            assert all(view.obj is data.obj for view in part)

    def test_a_hint_keeps_the_parts_below_ten_thousand(self) -> None:
        assert first_part_bytes(32 * MiB, None) == 32 * MiB
        assert first_part_bytes(32 * MiB, 1) == 32 * MiB
        terabytes = 5 * 10**12
        assert -(-terabytes // first_part_bytes(32 * MiB, terabytes)) <= 10_000

    def test_without_a_hint_parts_grow(self) -> None:
        sizes = [sum(map(len, part)) for part in cut_parts(iter([memoryview(bytes(40_000))]), 10)]
        assert sizes[:1000] == [10] * 1000
        assert sizes[1000:1500] == [20] * 500
        assert len(sizes) == 1000 + 1000 + 334


def test_checksums_are_those_of_their_standards() -> None:
    crc64nvme = pytest.importorskip("awscrt.checksums").crc64nvme
    text = [memoryview(b"1234"), memoryview(b"56789")]
    # The check values of the catalogue of CRC algorithms for "123456789".
    assert Checksum("CRC64NVME", 8, crc64nvme).extend(0, text) == 0xAE8B14860A799888
    assert Checksum("CRC32", 4, zlib.crc32).extend(0, text) == 0xCBF43926
    assert Checksum("CRC32", 4, zlib.crc32).text(0xCBF43926) == "y/Q5Jg=="
