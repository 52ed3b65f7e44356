"""A training under the runner: signals reach it, restarts are bounded, nothing is left over."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from runner.fake_aws import FakeImds
from runner.running import Running, running

from s4core.runner.imds import SpotNotice
from s4core.runner.interruption import NOTICE_SECONDS, seconds_left
from s4core.runner.settings import RestartPolicy
from s4core.runner.supervise import Restarts

SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"

# Writes what happens to it into $OUT, one line each.
TRAINING = """
import os, signal, sys, time
out = open(os.environ["OUT"], "a", buffering=1)
def say(*words):
    print(*words, file=out)
def handle(number, frame):
    say("signal", signal.Signals(number).name)
    if number in ending:
        time.sleep(float(os.environ.get("FLUSH", "0")))
        say("flushed")
        sys.exit(int(os.environ.get("CODE", "0")))
ending = (signal.SIGTERM, signal.SIGINT)
for number in (*ending, *(getattr(signal, n) for n in os.environ.get("HANDLES", "").split())):
    signal.signal(number, handle)
say("started", os.environ["S4_STORE"], os.environ["S4_METRICS"])
while True:
    time.sleep(0.05)
"""


def train(text: str = TRAINING) -> list[str]:
    return [sys.executable, "-c", text]


def lines(tmp_path: Path) -> list[str]:
    try:
        return (tmp_path / "out").read_text().splitlines()
    except FileNotFoundError:
        return []


def wait_for(found: Running, tmp_path: Path, line: str, count: int = 1) -> None:
    found.until(lambda: sum(text.startswith(line) for text in lines(tmp_path)) >= count)


def lives(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


@pytest.fixture
def imds(fake_imds: tuple[FakeImds, str]) -> tuple[FakeImds, str]:
    return fake_imds


def test_the_training_gets_the_store_and_the_metrics_socket(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], train()) as found:
        wait_for(found, tmp_path, "started")
        words = lines(tmp_path)[0].split()
        assert words[1:] == [f"file://{tmp_path}/store", f"{tmp_path}/run/metrics.sock"]
        assert found.metric("training_running") == 1


def test_a_stop_is_passed_on_and_waited_for(tmp_path: Path, imds: tuple[FakeImds, str]) -> None:
    with running(tmp_path, imds[1], train(), FLUSH="1", CODE="3") as found:
        wait_for(found, tmp_path, "started")
        found.wait_ready()
        found.stop()
        wait_for(found, tmp_path, "signal SIGTERM")
        assert found.get("/readyz") == (503, "stopping\n")
        assert found.wait() == 3
    assert lines(tmp_path)[1:] == ["signal SIGTERM", "flushed"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_are_passed_on_and_end_nothing(
    number: signal.Signals, tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], train(), HANDLES=number.name) as found:
        wait_for(found, tmp_path, "started")
        found.stop(number)
        wait_for(found, tmp_path, f"signal {number.name}")
        assert found.process.poll() is None
        found.stop(signal.SIGINT)
        assert found.wait() == 0
    assert lines(tmp_path)[2] == "signal SIGINT"


def test_an_interrupt_from_the_terminal_reaches_the_training_once(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], train(), FLUSH="0.5") as found:
        wait_for(found, tmp_path, "started")
        os.killpg(found.process.pid, signal.SIGINT)  # as a terminal does
        assert found.wait() == 0
    assert lines(tmp_path)[1:] == ["signal SIGINT", "flushed"]


def test_a_training_that_ignores_the_stop_is_killed_in_time(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], train(), FLUSH="60", S4_RUNNER_STOP_SECONDS="0.5") as found:
        wait_for(found, tmp_path, "started")
        found.stop()
        assert found.wait(10) == 128 + signal.SIGKILL
    assert "did not end in time: killed" in found.log


FAILS = "import os; open(os.environ['OUT'], 'a').write('run\\n'); raise SystemExit(7)"
SUCCEEDS = "import os; open(os.environ['OUT'], 'a').write('run\\n')"


@pytest.mark.parametrize(
    ("text", "policy", "runs", "code"),
    [
        (FAILS, "never", 1, 7),
        (FAILS, "on-failure", 3, 7),
        (FAILS, "always", 3, 7),
        (SUCCEEDS, "never", 1, 0),
        (SUCCEEDS, "on-failure", 1, 0),
        (SUCCEEDS, "always", 3, 0),
    ],
)
def test_restarts_follow_the_policy_and_its_limit(
    text: str, policy: str, runs: int, code: int, tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    limit = {"S4_RUNNER_RESTART": policy, "S4_RUNNER_RESTART_LIMIT": "2"}
    with running(tmp_path, imds[1], train(text), **limit) as found:
        assert found.wait() == code
    assert lines(tmp_path) == ["run"] * runs


def test_a_killed_training_starts_again(tmp_path: Path, imds: tuple[FakeImds, str]) -> None:
    text = TRAINING.replace('say("started"', 'say("started", os.getpid()')
    with running(tmp_path, imds[1], train(text)) as found:
        wait_for(found, tmp_path, "started")
        os.kill(int(lines(tmp_path)[0].split()[1]), signal.SIGKILL)
        wait_for(found, tmp_path, "started", 2)
        found.until(lambda: found.metric("training_restarts_total") == 1)
        found.stop()
        assert found.wait() == 0


def test_a_stop_during_the_wait_ends_at_once(tmp_path: Path, imds: tuple[FakeImds, str]) -> None:
    wait = {"S4_RUNNER_RESTART_BACKOFF": "60"}
    with running(tmp_path, imds[1], train(FAILS), **wait) as found:
        found.until(lambda: "starting again in 60 s" in found.log)
        found.stop()
        assert found.wait(5) == 7


LEAVES_A_CHILD = """
import os, subprocess, sys, time
path = os.environ["OUT"]
child = ("import signal, time, sys, os; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
         "out = open(sys.argv[1], 'a', buffering=1); print('child', os.getpid(), file=out);"
         "time.sleep(60)")
subprocess.Popen([sys.executable, "-c", child, path], start_new_session=True)
while not os.path.exists(path) or "child" not in open(path).read():
    time.sleep(0.02)
sys.exit(5)
"""


def test_what_a_training_leaves_behind_is_killed_before_the_next_start(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    limit = {"S4_RUNNER_RESTART_LIMIT": "0"}
    with running(tmp_path, imds[1], train(LEAVES_A_CHILD), **limit) as found:
        assert found.wait() == 5
    pid = int(lines(tmp_path)[0].split()[1])
    assert not lives(pid)


def test_a_command_that_does_not_exist_is_bad_configuration(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], ["/no/such/command"]) as found:
        assert found.wait() == 78
    assert "'/no/such/command' cannot start" in found.log


def at(seconds: float) -> str:
    moment = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_spot_notice_asks_for_a_checkpoint_and_ends_the_training_in_time(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    before = {"S4_RUNNER_TERM_BEFORE": "10", "HANDLES": "SIGUSR1", "CODE": "9"}
    with running(tmp_path, imds[1], train(), **before) as found:
        wait_for(found, tmp_path, "started")
        begin = time.monotonic()
        imds[0].paths[SPOT] = {"action": "terminate", "time": at(13)}
        wait_for(found, tmp_path, "signal SIGUSR1")
        assert time.monotonic() - begin < 1.5
        assert found.metric("interruption_notice") == 1
        assert found.metric("checkpoint_requests_total") == 1
        assert found.wait() == 9  # and is not started again
        assert 1.5 < time.monotonic() - begin < 5
    assert lines(tmp_path)[1:] == ["signal SIGUSR1", "signal SIGTERM", "flushed"]


def test_a_training_that_does_not_end_is_killed_before_the_instance_is(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    before = {"S4_RUNNER_TERM_BEFORE": "6", "FLUSH": "60"}
    with running(tmp_path, imds[1], train(), **before) as found:
        wait_for(found, tmp_path, "started")
        imds[0].paths[SPOT] = {"action": "terminate", "time": at(6)}
        assert found.wait(10) == 128 + signal.SIGKILL


def test_a_rebalance_notice_asks_once_and_ends_nothing(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], train(), HANDLES="SIGUSR1") as found:
        wait_for(found, tmp_path, "started")
        imds[0].paths[REBALANCE] = {"noticeTime": at(0)}
        wait_for(found, tmp_path, "signal SIGUSR1")
        time.sleep(0.5)
        assert found.process.poll() is None
        assert found.metric("rebalance_notice") == 1
        assert found.metric("checkpoint_requests_total") == 1


def test_a_training_without_a_handler_is_not_killed_by_the_request(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    with running(tmp_path, imds[1], train()) as found:
        wait_for(found, tmp_path, "started")
        imds[0].paths[REBALANCE] = {"noticeTime": at(0)}
        found.until(lambda: "nothing in the training handles SIGUSR1" in found.log)
        assert found.metric("checkpoint_requests_total") == 0
        assert found.metric("training_restarts_total") == 0


UNDER_A_SHELL = """
import os, signal, sys, time
def handle(number, frame):
    open(os.environ["OUT"], "a").write(f"{name} {os.getpid()}\\n")
name = "trainer"
signal.signal(signal.SIGUSR1, handle)
if os.fork() == 0:
    name = "loader"  # inherits the handler, and must not be asked
open(os.environ["OUT"], "a").write("started\\n")
while True:
    time.sleep(0.05)
"""


def test_the_request_reaches_the_trainer_below_a_launcher_and_not_its_loaders(
    tmp_path: Path, imds: tuple[FakeImds, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNDER_A_SHELL)
    command = ["/bin/sh", "-c", f"{sys.executable} {script}; true"]
    with running(tmp_path, imds[1], command) as found:
        wait_for(found, tmp_path, "started", 2)
        imds[0].paths[REBALANCE] = {"noticeTime": at(0)}
        wait_for(found, tmp_path, "trainer")
        time.sleep(0.3)
        assert not any(line.startswith("loader") for line in lines(tmp_path))


def test_backoff_doubles_up_to_its_maximum_and_the_window_forgets() -> None:
    policy = RestartPolicy("on-failure", 5, 100.0, 1.0, 6.0)
    restarts = Restarts(policy)
    assert [restarts.wait_after(1, 10.0) for _ in range(6)] == [1, 2, 4, 6, 6, None]
    assert restarts.wait_after(1, 111.0) == 1


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2026-01-31T08:22:00Z", 60.0),
        ("2026-01-31T08:20:00Z", 0.0),
        ("2026-01-31T09:22:00Z", NOTICE_SECONDS),
        ("soon", NOTICE_SECONDS),
        ("", NOTICE_SECONDS),
    ],
)
def test_the_time_of_a_notice_never_gives_more_than_aws_does(text: str, left: float) -> None:
    now = datetime(2026, 1, 31, 8, 21, tzinfo=timezone.utc).timestamp()
    assert seconds_left(SpotNotice("terminate", text), now) == left
