"""Local, memory and S3 keep the promises of the suite; URLs; what is local only."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest
from store_suite import MiB, StoreSuite

from s4core.errors import (
    AccessDeniedError,
    KeyExistsError,
    S4Error,
    StoreError,
    StoreUnavailableError,
)
from s4core.stores import LocalStore, MemoryStore, S3Options, S3Store, Store, open_store
from s4core.stores.local_files import TemporaryFile

NOBODY = 65534


class TestMemoryStore(StoreSuite):
    max_alive_bytes = None

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(uuid.uuid4().hex)

    def left_behind(self, store: Store) -> list[str]:
        return []

    def test_stores_of_one_name_share_their_objects(self) -> None:
        name = uuid.uuid4().hex
        MemoryStore(name).put("a/b", b"x")
        assert open_store(f"memory://{name}/a").get("b") == b"x"
        assert not MemoryStore(name + "2").exists("a/b")


class TestLocalStore(StoreSuite):
    max_alive_bytes = 3 * MiB

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store")

    def left_behind(self, store: Store) -> list[str]:
        return [str(path) for path in Path(store.url).rglob(".s4tmp-*")]

    def test_the_disk_has_the_bytes_before_the_name_and_the_name_before_the_end(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        real_fsync, real_link = os.fsync, os.link

        def fsync(descriptor: int) -> None:
            events.append("flush " + os.readlink(f"/proc/self/fd/{descriptor}"))
            real_fsync(descriptor)

        def link(source: str, target: str) -> None:
            events.append("link " + target)
            real_link(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "link", link)
        store.put("new/key", b"x")
        root = store.url
        made, written, named, kept = events[-4:]
        assert made == f"flush {root}"  # holds the name of "new" now
        assert written.startswith(f"flush {root}/new/.s4tmp-")
        assert named == f"link {root}/new/key"
        assert kept == f"flush {root}/new"

    @pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
    def test_without_hard_links_racing_writers_still_have_one_winner(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        def no_link(source: str, target: str) -> None:
            raise OSError(code, os.strerror(code))

        def late_look(path: str) -> bool:
            there = real_look(path)
            time.sleep(0.01)  # long enough for every writer to look before one renames
            return there

        real_look = os.path.lexists
        monkeypatch.setattr(os, "link", no_link)
        monkeypatch.setattr(os.path, "lexists", late_look)
        self.test_of_racing_writers_one_wins(store, 16, 2000)

    def test_a_link_whose_acknowledgement_was_lost_is_known_as_ours(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real_link = os.link

        def link_then_deny(source: str, target: str) -> None:
            real_link(source, target)
            raise FileExistsError(errno.EEXIST, "as NFS answers its own repetition")

        monkeypatch.setattr(os, "link", link_then_deny)
        store.put("a", b"mine")
        assert store.get("a") == b"mine"
        with pytest.raises(KeyExistsError):
            store.put("a", b"other")
        assert self.left_behind(store) == []

    @pytest.mark.parametrize(
        ("code", "kind", "advice"),
        [
            (errno.ENOSPC, StoreError, "the disk is full"),
            (errno.EDQUOT, StoreError, "quota"),
            (errno.EROFS, StoreError, "read-only"),
            (errno.EIO, StoreUnavailableError, "does not answer"),
            (errno.EACCES, AccessDeniedError, "check who owns"),
            (errno.ENXIO, StoreError, "the file system refused"),
        ],
    )
    def test_a_failing_disk_leaves_nothing_and_says_what_it_is(
        self,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        kind: type[S4Error],
        advice: str,
    ) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        store.put("dir/there", b"x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(kind, match=advice) as caught:
                store.put("dir/a", b"x")
        assert type(caught.value) is kind
        assert store.url_of("dir/a") in str(caught.value)
        assert [entry.key for entry in store.list()] == ["dir/there"]
        assert self.left_behind(store) == []

    def test_a_full_disk_is_told(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TemporaryFile, "_create", lambda _: FileIO("/dev/full", "w"))
        with pytest.raises(StoreError, match="the disk is full; free some space") as caught:
            store.put("a", b"x")
        assert store.url_of("a") in str(caught.value)

    def test_what_may_not_be_read_or_written_is_access_denied(
        self, store: Store, tmp_path: Path
    ) -> None:
        store.put("dir/a", b"x")
        locked = Path(store.url)
        with unprivileged(locked):
            for ask in (
                lambda: store.get("dir/a"),
                lambda: store.size("dir/a"),
                lambda: store.exists("dir/a"),
                lambda: list(store.list()),
                lambda: store.put("dir/b", b"x"),
                lambda: store.put("new/b", b"x", replace=True),
                lambda: store.delete(["dir/a"]),
            ):
                with pytest.raises(AccessDeniedError, match="check who owns") as caught:
                    ask()
                assert isinstance(caught.value, PermissionError)

    def test_a_file_in_the_way_of_a_directory_is_told(self, store: Store) -> None:
        store.put("a", b"x")
        with pytest.raises(StoreError, match="a file stands where a directory is needed"):
            store.put("a/b", b"x")
        with pytest.raises(StoreError, match="a file stands where a directory is needed"):
            store.put("a/b/c", b"x", replace=True)
        assert store.get("a") == b"x"

    @pytest.mark.parametrize("replace", [False, True])
    def test_a_directory_in_the_way_of_a_file_is_told(self, store: Store, replace: bool) -> None:
        store.put("dir/a", b"x")
        with pytest.raises(StoreError, match="a directory has that name") as caught:
            store.put("dir", b"x", replace=replace)
        assert type(caught.value) is StoreError
        assert store.get("dir/a") == b"x"

    def test_a_name_that_is_too_long_is_told(self, store: Store) -> None:
        with pytest.raises(StoreError, match="too long"):
            store.put("x" * 300, b"x")

    def test_a_store_that_is_a_file_is_no_empty_store(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        store = LocalStore(tmp_path / "file")
        with pytest.raises(StoreError, match="expected a directory, found a file"):
            list(store.list())
        with pytest.raises(StoreError, match="a file stands where a directory is needed"):
            store.put("a", b"x")

    def test_links_to_directories_are_followed_but_not_in_circles(
        self, store: Store, tmp_path: Path
    ) -> None:
        store.put("a/x", b"x")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "y").write_bytes(b"y")
        os.symlink(elsewhere, Path(store.url) / "linked")
        os.symlink(store.url, Path(store.url) / "a" / "circle")
        os.symlink(Path(store.url) / "gone", Path(store.url) / "dangling")
        os.mkfifo(Path(store.url) / "pipe")
        found = [entry.key for entry in store.list()]
        assert "linked/y" in found
        assert "a/x" in found
        assert "dangling" not in found
        assert "pipe" not in found
        assert not any("circle/a/circle" in key for key in found)

    def test_deleting_prunes_empty_directories_and_never_the_root(self, store: Store) -> None:
        store.put("a/b/c/d", b"x")
        store.put("a/e", b"x")
        store.delete(["a/b/c/d"])
        assert sorted(path.name for path in Path(store.url).rglob("*")) == ["a", "e"]
        store.delete(["a/e"])
        assert os.listdir(store.url) == []

    def test_puts_and_deletes_of_one_directory_do_not_harm_each_other(self, store: Store) -> None:
        script = (
            "import sys; from s4core.stores import LocalStore\n"
            "store = LocalStore(sys.argv[1])\n"
            "for number in range(150):\n"
            "    key = f'dir/deep/{sys.argv[2]}-{number}'\n"
            "    store.put(key, b'x'); assert store.get(key) == b'x'; store.delete([key])\n"
        )
        writers = [
            subprocess.Popen([sys.executable, "-c", script, store.url, str(number)])
            for number in range(3)
        ]
        assert [writer.wait() for writer in writers] == [0, 0, 0]
        assert os.listdir(store.url) == []

    def test_a_killed_writer_leaves_what_a_sweep_removes(self, store: Store) -> None:
        script = (
            "import os, signal, sys; from s4core.stores import LocalStore\n"
            "def source():\n"
            "    yield bytes(1000)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "LocalStore(sys.argv[1]).put('dir/a', source())\n"
        )
        assert subprocess.run([sys.executable, "-c", script, store.url]).returncode == -9
        assert len(self.left_behind(store)) == 1
        assert list(store.list()) == []
        assert store.sweep_unfinished(older_than_seconds=3600) == 0
        assert store.sweep_unfinished(older_than_seconds=0, shallow=True) == 0
        assert store.sweep_unfinished(older_than_seconds=0) == 1
        assert self.left_behind(store) == []

    def test_opening_and_reading_make_no_directory(self, tmp_path: Path) -> None:
        store = open_store(tmp_path / "new" / "store")
        assert not store.exists("a")
        assert list(store.list()) == []
        store.delete(["a"])
        assert store.sweep_unfinished(0) == 0
        assert not (tmp_path / "new").exists()


@contextmanager
def unprivileged(directory: Path) -> Iterator[None]:
    """As somebody who may not enter `directory`, also where the tests run as root."""
    if os.geteuid() == 0:
        os.chmod(directory, 0o700)
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    os.chmod(directory, 0)
    try:
        yield
    finally:
        os.chmod(directory, 0o700)


class TestOpenStore:
    def test_a_path_is_a_local_store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        expected = str(tmp_path / "run")
        for url in (expected, tmp_path / "run", "run", "./run/", "~/run", f"file://{expected}"):
            store = open_store(url)
            assert isinstance(store, LocalStore)
            assert store.url == expected

    def test_file_urls_are_taken_as_they_stand(self) -> None:
        assert open_store("file:///a/b%20c").url == "/a/b%20c"
        assert open_store("file:/a/b").url == "/a/b"
        assert open_store("FILE://localhost/a").url == "/a"

    def test_s3_urls(self) -> None:
        store = open_store("s3://bucket/run/epoch=3", region="eu-west-1")
        assert isinstance(store, S3Store)
        assert store.url == "s3://bucket/run/epoch=3"
        assert store.options == S3Options(region="eu-west-1")
        assert open_store("s3://bucket").url == "s3://bucket"
        assert open_store("s3://bucket/").url_of("key") == "s3://bucket/key"

    def test_a_slash_that_pathlib_ate_is_given_back(self) -> None:
        assert open_store(Path("s3://bucket/run")).url == "s3://bucket/run"
        assert open_store("s3:/bucket/run/").url == "s3://bucket/run"

    def test_memory_urls(self) -> None:
        assert open_store("memory://name/a").url == "memory://name/a"
        assert open_store("memory://name").url == "memory://name"

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("gs://b/x", "unknown scheme 'gs'; expected a path, file:///path, s3://"),
            ("https://example.org/x", "unknown scheme 'https'"),
            ("gs:/b/x", "unknown scheme 'gs'"),
            ("s3://", "names no bucket"),
            ("s3:///x", "names no bucket"),
            ("s3://b/a//b", "empty segment"),
            ("s3://b/../c", "leave the store"),
            ("memory://", "names no memory"),
            ("file://host/x", "three slashes, found host 'host'"),
            ("file://x", "three slashes"),
            ("", "expected the path of a directory"),
            ("a\0b", "expected the path of a directory"),
        ],
    )
    def test_what_is_no_store_is_told(self, url: str, message: str) -> None:
        with pytest.raises(StoreError, match=message):
            open_store(url)

    def test_unknown_options_are_told(self) -> None:
        with pytest.raises(StoreError, match=r"unknown options colour; expected ca_bundle, "):
            open_store("s3://bucket", colour="red")
        for url in ("/a", "file:///a", "memory://a"):
            with pytest.raises(StoreError, match="only S3 stores take options"):
                open_store(url, region="eu-west-1")

    def test_stores_open_without_the_s3_client(self) -> None:
        script = (
            "import sys; sys.modules['boto3'] = None; sys.modules['torch'] = None\n"
            "from s4core.stores import open_store\n"
            "open_store('/tmp'); open_store('s3://bucket/x')\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)
