"""S3 keeps the promises of the suite on a real server; what it stores there."""

from __future__ import annotations

import pickle
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pytest
from s3_hooks import SMALL, client_of, unfinished_uploads
from s3_server import BUCKET, S3Server, set_aws_environment
from store_suite import ODD_KEYS, MiB, StoreSuite, pattern

from s4core.errors import StoreError
from s4core.stores import Store, open_store
from s4core.stores.s3_checksum import best_checksum


@pytest.fixture(scope="module")
def bucket(seaweedfs: S3Server) -> Store:
    """One store for many tests: making a client takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        set_aws_environment(patch, seaweedfs)
        store = open_store(f"s3://{BUCKET}", **SMALL)
        client_of(store)
    return store


@pytest.mark.s3
class TestS3Store(StoreSuite):
    # Parts in flight, two looked at to tell a small object, one being filled.
    max_alive_bytes = (3 + 4) * 5 * MiB
    # SeaweedFS 4.48 now and then lets two completions with If-None-Match through that
    # race; S3 itself does not.
    exclusive_parts = False
    # SeaweedFS takes a backslash for a slash.
    odd_keys: ClassVar[list[str]] = [key for key in ODD_KEYS if "\\" not in key]

    @pytest.fixture
    def store(self, bucket: Store, s3_environment: S3Server) -> Store:
        return bucket.child(uuid.uuid4().hex)

    def left_behind(self, store: Store) -> list[str]:
        return unfinished_uploads(store)


@pytest.mark.s3
class TestWhatIsStored:
    def test_s3_keeps_the_checksum_of_the_whole_object(self, s3_url: str) -> None:
        store = open_store(s3_url, **SMALL)
        checksum = best_checksum()
        bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
        for key, size in [("small", 1000), ("large", 17 * MiB)]:
            store.put(key, pattern(size))
            head = client_of(store).head_object(
                Bucket=bucket, Key=f"{prefix}/{key}", ChecksumMode="ENABLED"
            )
            expected = checksum.text(checksum.extend(0, [memoryview(pattern(size))]))
            assert head[checksum.parameter] == expected

    def test_parts_have_the_size_asked_for(self, s3_url: str) -> None:
        store = open_store(s3_url, **SMALL)
        store.put("a", [pattern(17 * MiB)])
        bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
        head = client_of(store).head_object(Bucket=bucket, Key=f"{prefix}/a")
        assert head["ETag"].strip('"').endswith("-4")

    @pytest.mark.parametrize("size", [0, 1000, 12 * MiB])
    def test_without_checksums_it_works_too(self, s3_url: str, size: int) -> None:
        store = open_store(s3_url, checksums="when_required", **SMALL)
        store.put("a", pattern(size))
        assert store.get("a") == pattern(size)
        store.delete(["a"])

    @pytest.mark.parametrize("size", [0, 1000, 12 * MiB])
    def test_zlibs_checksum_serves_without_the_common_runtime(
        self, s3_url: str, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "awscrt.checksums", None)
        assert best_checksum().algorithm == "CRC32"
        store = open_store(s3_url, **SMALL)
        store.put("a", pattern(size))
        assert store.get("a") == pattern(size)

    def test_folders_that_other_tools_draw_are_no_keys(self, s3_url: str) -> None:
        store = open_store(s3_url, **SMALL)
        store.put("dir/a", b"x")
        bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
        client_of(store).put_object(Bucket=bucket, Key=f"{prefix}/folder/", Body=b"")
        assert [entry.key for entry in store.list()] == ["dir/a"]

    def test_a_listing_of_several_pages_is_whole(self, s3_url: str) -> None:
        store = open_store(s3_url, **SMALL)
        keys = [f"k/{number:02}" for number in range(23)]
        for key in keys:
            store.put(key, b"")

        def small_pages(params: dict[str, Any], **_: object) -> None:
            params["MaxKeys"] = 5

        client_of(store).meta.events.register("provide-client-params.s3.ListObjectsV2", small_pages)
        assert [entry.key for entry in store.list()] == keys

    def test_a_profile_and_an_endpoint_can_be_options(
        self, s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        file = tmp_path / "credentials"
        file.write_text(
            f"[lab]\naws_access_key_id = {s3_environment.access_key}\n"
            f"aws_secret_access_key = {s3_environment.secret_key}\n"
        )
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        store = open_store(
            f"s3://{BUCKET}/{uuid.uuid4().hex}",
            profile="lab",
            endpoint_url=s3_environment.endpoint,
            path_style=True,
        )
        store.put("a", b"x")
        assert store.get("a") == b"x"
        assert s3_environment.secret_key not in repr(store) + repr(vars(store))
        assert s3_environment.secret_key.encode() not in pickle.dumps(store)

    def test_an_unknown_profile_is_told(self, s3_url: str) -> None:
        with pytest.raises(StoreError, match=r"cannot be set up.*\(nobody\)"):
            open_store(s3_url, profile="nobody").exists("a")
