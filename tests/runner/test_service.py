"""The runner from start to end: the order of its gates, what it shows, how it stops."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runner.fake_aws import FakeImds
from runner.running import ROOT, running

from s4core.errors import AccessDeniedError, StoreUnavailableError
from s4core.runner import gates
from s4core.runner.cli import main
from s4core.runner.exits import ConfigurationError, SelfTestError, UnreachableError
from s4core.runner.gates import check_store, default_self_test, self_test
from s4core.runner.notify import Notifier
from s4core.stores import MemoryStore, open_store

SAVES = """
import os, sys, time
from s4core.metrics import report_error, report_save
for step in (10, 20):
    assert report_save(step=step, raw_bytes=3000, stored_bytes=1000, pause_seconds=0.5,
                       upload_seconds=2.0)
assert report_error("the network went away")
time.sleep(60)
"""


@pytest.fixture
def imds_url(fake_imds: tuple[FakeImds, str]) -> str:
    return fake_imds[1]


def slow_self_test(marker: Path) -> str:
    """A self-test that passes once `marker` exists."""
    text = (
        "import os, time\n"
        f"while not os.path.exists({str(marker)!r}): time.sleep(0.02)\n"
        "print('{}')"
    )
    return json.dumps([sys.executable, "-c", text])


def test_it_is_alive_but_not_ready_until_every_gate_has_passed(
    tmp_path: Path, imds_url: str
) -> None:
    marker = tmp_path / "marker"
    with running(tmp_path, imds_url, [], TEST_SELF_TEST=slow_self_test(marker)) as found:
        found.until(lambda: found.get("/readyz") == (503, "GPU self-test: running\n"))
        assert found.get("/healthz") == (200, "ok\n")
        assert found.metric("ready") == 0
        assert found.metric("entitled") == 1
        marker.touch()
        found.wait_ready()
        assert found.get("/readyz") == (200, "ready\n")
        assert found.metric("ready") == found.metric("gpu_self_test_passed") == 1
        found.stop()
        assert found.wait() == 0
    assert "entitlement: a warning" in found.log


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('print(\'{"error": "bit 3 of word 9 differs"}\'); exit(1)', "bit 3 of word 9 differs"),
        ("exit(1)", "no output"),
        ("raise SystemExit('no CUDA device')", "no CUDA device"),
        ("print('fine')", "expected a JSON object as its last line"),
        ("pass", "expected a JSON object as its last line"),
    ],
)
def test_a_failed_self_test_ends_with_70(
    script: str, message: str, tmp_path: Path, imds_url: str
) -> None:
    command = json.dumps([sys.executable, "-c", script])
    with running(tmp_path, imds_url, [], TEST_SELF_TEST=command) as found:
        assert found.wait() == 70
    assert message in found.log
    assert not (tmp_path / "store").exists()


def test_a_self_test_that_hangs_or_is_missing_fails() -> None:
    with pytest.raises(SelfTestError, match=r"no result after 0\.2 s"):
        self_test([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    with pytest.raises(SelfTestError, match="cannot be run"):
        self_test(["/no/such/program"])


def test_the_default_self_test_requires_a_gpu() -> None:
    assert default_self_test()[-3:] == ("s4core.selftest", "--json", "--require-gpu")


def test_a_stop_during_the_gates_is_followed_at_once(tmp_path: Path, imds_url: str) -> None:
    never = slow_self_test(tmp_path / "never")
    with running(tmp_path, imds_url, [], TEST_SELF_TEST=never) as found:
        found.until(lambda: found.get("/readyz")[0] == 503)
        found.stop()
        assert found.wait(5) == 128 + signal.SIGTERM


# The store check.


class Broken(MemoryStore):
    """A store whose puts fail with `error`."""

    error: Exception

    def _put(self, *_: Any) -> None:
        raise self.error


def check(monkeypatch: pytest.MonkeyPatch, store: Any, told: list[str]) -> None:
    monkeypatch.setattr(gates, "open_store", lambda url: store)
    now = [0.0]
    check_store(
        "s3://b/run",
        told.append,
        seconds=25.0,
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
        clock=lambda: now[0],
    )


def test_the_store_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_store(f"file://{tmp_path}/store", pytest.fail)
    assert list(open_store(str(tmp_path / "store")).list()) == []


@pytest.mark.s3
def test_the_store_check_passes_on_a_real_s3_server(s3_url: str) -> None:
    check_store(s3_url, pytest.fail)
    assert list(open_store(s3_url).list()) == []


@pytest.mark.s3
def test_a_real_s3_server_that_refuses_is_bad_configuration(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConfigurationError, match="store check: s3://"):
        check_store(s3_url, lambda text: None, seconds=0.0)


def test_the_store_check_sweeps_what_a_killed_writer_left(tmp_path: Path) -> None:
    swept: list[float] = []

    class Sweeps(MemoryStore):
        def sweep_unfinished(self, older_than_seconds: float) -> int:
            swept.append(older_than_seconds)
            raise AccessDeniedError("s3://b: denied")

    with pytest.MonkeyPatch.context() as patch:
        check(patch, Sweeps("check-4"), [])  # a sweep that is denied stops nothing
    assert swept == [24 * 3600]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailableError("s3://b: no answer"), UnreachableError),
        (AccessDeniedError("s3://b: denied"), ConfigurationError),
    ],
)
def test_a_store_that_fails_is_tried_until_the_deadline(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Broken("check-1")
    store.error = error
    told: list[str] = []
    with pytest.raises(kind, match=str(error)):
        check(monkeypatch, store, told)
    assert told == [f"store check: {error}"] * 3


def test_a_store_that_recovers_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recovers(MemoryStore):
        tries = 0

        def _put(self, *args: Any) -> None:
            Recovers.tries += 1
            if Recovers.tries == 1:
                raise StoreUnavailableError("s3://b: no answer")
            super()._put(*args)

    told: list[str] = []
    check(monkeypatch, Recovers("check-2"), told)
    assert told == ["store check: s3://b: no answer"]


def test_a_store_that_gives_other_bytes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flips(MemoryStore):
        def _get(self, key: str) -> bytes:
            found = bytearray(super()._get(key))
            found[17] ^= 4
            return bytes(found)

    with pytest.raises(ConfigurationError, match="what was read is not what was written"):
        check(monkeypatch, Flips("check-3"), [])


def test_an_url_that_names_no_store_is_bad_configuration() -> None:
    with pytest.raises(ConfigurationError, match="unknown scheme 'ftp'"):
        check_store("ftp://x/y", pytest.fail)


def test_a_store_in_the_way_is_shown_and_then_fails(tmp_path: Path, imds_url: str) -> None:
    (tmp_path / "store").write_text("a file, where a directory should be")
    with running(tmp_path, imds_url, []) as found:
        found.until(lambda: found.get("/readyz")[1].startswith("store check: "))
        assert f"{tmp_path}/store" in found.get("/readyz")[1]
        found.until(lambda: found.get("/readyz")[1] != "store check: running\n")


# Reports of saves.


def test_reports_of_the_training_are_counted(tmp_path: Path, imds_url: str) -> None:
    with running(tmp_path, imds_url, [sys.executable, "-c", SAVES]) as found:
        found.until(lambda: found.metric("save_errors_total") == 1)
        wanted = {
            "saves_total": 2, "raw_bytes_total": 6000, "stored_bytes_total": 2000,
            "last_ratio": 3, "pause_seconds_total": 1, "last_pause_seconds": 0.5,
            "upload_seconds_total": 4, "last_upload_seconds": 2, "last_step": 20,
            "reports_rejected_total": 0,
        }  # fmt: skip
        assert {name: found.metric(name) for name in wanted} == wanted


def test_a_killed_runner_leaves_no_socket_in_the_way(tmp_path: Path, imds_url: str) -> None:
    for _ in range(2):
        with running(tmp_path, imds_url, []) as found:
            found.wait_ready()
            found.stop(signal.SIGKILL)
            found.wait()
    assert (tmp_path / "run/metrics.sock").exists()


def test_two_runners_do_not_share_a_directory(tmp_path: Path, imds_url: str) -> None:
    with running(tmp_path, imds_url, []) as first:
        first.wait_ready()
        second_log = tmp_path / "second"
        second_log.mkdir()
        shared = {"S4_RUNNER_DIRECTORY": str(first.directory)}
        with running(second_log, imds_url, [], **shared) as second:
            assert second.wait() == 78
        assert "another runner holds it" in second.log
        assert first.get("/readyz")[0] == 200


def test_a_renewal_that_is_denied_is_shown_and_stops_nothing(tmp_path: Path, imds_url: str) -> None:
    with running(tmp_path, imds_url, [], TEST_RENEW_SECONDS="0.2") as found:
        found.until(lambda: found.metric("entitlement_renewal_failures_total") == 1)
        assert found.metric("entitled") == 0
        assert found.get("/readyz")[0] == 200
        assert "the next start will fail: the subscription ended" in found.log


# systemd.


@contextmanager
def notify_socket(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(10)
        yield receiver


def test_systemd_hears_of_every_step(tmp_path: Path, imds_url: str) -> None:
    with notify_socket(tmp_path / "notify") as receiver:
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        command = ["/bin/sh", "-c", "env > $OUT; sleep 2"]
        with running(tmp_path, imds_url, command, **variables) as found:
            heard = []
            while not any(line.startswith("STOPPING=1") for line in heard):
                heard.append(receiver.recv(4096).decode())
            assert found.wait() == 0
    ready = next(i for i, line in enumerate(heard) if line.startswith("READY=1"))
    assert any(line.startswith("STATUS=GPU self-test") for line in heard[:ready])
    assert heard[ready:].count("WATCHDOG=1") >= 2
    assert "NOTIFY_SOCKET" not in (tmp_path / "out").read_text()


def drain(receiver: socket.socket) -> None:
    receiver.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while receiver.recv(4096):
            pass


def test_a_hanging_runner_does_not_feed_the_watchdog(tmp_path: Path, imds_url: str) -> None:
    path = str(tmp_path / "notify")
    with (
        notify_socket(tmp_path / "notify") as receiver,
        running(tmp_path, imds_url, [], NOTIFY_SOCKET=path) as found,
    ):
        found.wait_ready()
        found.stop(signal.SIGSTOP)
        time.sleep(0.2)
        drain(receiver)
        receiver.settimeout(2)
        with pytest.raises(TimeoutError):
            receiver.recv(4096)


def test_without_systemd_nothing_is_said() -> None:
    environment = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/"}
    notifier = Notifier(environment)
    notifier.ready("x")
    notifier.alive()
    assert environment == {"HOME": "/"}


# The command line.


def command_line(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "s4core.runner.cli", *arguments],
        capture_output=True, text=True, timeout=30,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def test_bad_settings_end_with_78_and_a_sentence() -> None:
    done = command_line("serve")
    assert done.returncode == 78
    assert "S4_STORE is not set" in done.stderr


@pytest.mark.skipif(
    Path("/usr/share/s4weights/entitlement.json").exists(), reason="this is a product image"
)
def test_without_the_image_file_nothing_starts() -> None:
    done = command_line("exec", "--", "touch", "/tmp/never", S4_STORE="/tmp/x")
    assert done.returncode == 78
    assert "/usr/share/s4weights/entitlement.json: cannot be read" in done.stderr


@pytest.mark.parametrize("arguments", [["exec"], ["exec", "--"], ["serve", "--", "true"], ["run"]])
def test_a_wrong_command_line_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: s4-runner" in capsys.readouterr().err


def test_the_start_imports_no_torch_and_no_client() -> None:
    text = (
        "import sys, s4core.runner.cli; "
        "print([m for m in ('torch', 'numpy', 'boto3', 'jwt', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "[]\n"
