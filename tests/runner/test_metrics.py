"""Reports never cost a training anything, and a wrong one changes nothing."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s4core.metrics import report_error, report_save
from s4core.runner.exposition import METRICS, exposition
from s4core.runner.intake import Counters, Intake

SAVE = {
    "step": 7, "raw_bytes": 100, "stored_bytes": 40, "pause_seconds": 0.1, "upload_seconds": 1,
}  # fmt: skip


@pytest.fixture
def intake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    monkeypatch.setenv("S4_METRICS", str(tmp_path / "socket"))
    yield (found := Intake(tmp_path / "socket", Counters()))
    if found.path.exists():
        found.close()


def numbers(intake: Intake) -> dict[str, float]:
    intake.close()
    return intake._counters.snapshot()


def save() -> bool:
    return report_save(
        step=7, raw_bytes=100, stored_bytes=40, pause_seconds=0.1, upload_seconds=1.0
    )


def test_what_was_sent_before_the_end_is_counted(intake: Intake) -> None:
    assert sum(save() for _ in range(5)) == (found := numbers(intake))["saves_total"]
    assert found["raw_bytes_total"] == found["saves_total"] * 100


def test_without_a_runner_a_report_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("S4_METRICS", raising=False)
    assert not save()
    monkeypatch.setenv("S4_METRICS", str(tmp_path / "nothing"))
    assert not save()
    monkeypatch.setenv("S4_METRICS", "x" * 500)
    assert not report_error("x")


def test_a_runner_that_does_not_read_costs_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S4_METRICS", str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "socket"))
        begin = time.monotonic()
        delivered = sum(save() for _ in range(2000))
        assert 0 < delivered < 2000
        assert time.monotonic() - begin < 5


@pytest.mark.parametrize("character", ["a", "\0", "\N{SNOWMAN}", "\U0001f600", "\ud800"])
def test_the_longest_error_still_fits(character: str, intake: Intake) -> None:
    assert report_error(character * 100_000)
    assert numbers(intake) == {"save_errors_total": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff", b"{}", b"[]", b"null", b'{"event": "other"}', b"[" * 4000,
        b'{"event": "save", "event": "save"}',
        *(
            json.dumps({"event": "save", **SAVE, "raw_bytes": value}).encode()
            for value in (-1, "5", True, None, [], float("nan"), float("inf"), 2**60, 10**400)
        ),
        b'{"event": "save", "x": "' + b"a" * 9000 + b'"}',
    ],
)  # fmt: skip
def test_a_wrong_report_is_counted_and_changes_nothing_else(raw: bytes, intake: Intake) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(raw, str(intake.path))
    assert numbers(intake) == {"reports_rejected_total": 1}


def test_an_empty_datagram_does_not_end_the_intake(intake: Intake) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", str(intake.path))
    time.sleep(0.05)
    assert save()
    assert numbers(intake)["saves_total"] == 1


@settings(max_examples=200)
@given(st.binary(max_size=300) | st.recursive(st.none() | st.floats() | st.text(), st.lists))
def test_no_report_breaks_the_counters(raw: object) -> None:
    counters = Counters()
    counters.take(raw if isinstance(raw, bytes) else json.dumps({"event": raw}).encode())
    assert set(counters.snapshot()) <= {"reports_rejected_total", "saves_total"}


def test_a_save_may_leave_fields_out(intake: Intake) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b'{"event": "save", "new_field": {}}', str(intake.path))
    assert numbers(intake) == {"saves_total": 1}


def test_the_exposition_is_well_formed() -> None:
    text = exposition({"saves_total": 3, "last_raw_bytes": 9, "last_stored_bytes": 2, "hidden": 1})
    line = re.compile(
        r"# HELP (s4_\w+) .+\n# TYPE \1 (?:counter|gauge)\n\1 [0-9.e+-]+\n(?=# HELP|\Z)"
    )
    assert "".join(match.group(0) for match in line.finditer(text)) == text
    assert "\ns4_saves_total 3\n" in text
    assert "\ns4_last_ratio 4.5\n" in text
    assert "hidden" not in text


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.kind == "counter"), name
