"""Bad clients do not hurt the health port, and good ones are answered meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s4core.runner import health
from s4core.runner.exits import ConfigurationError
from s4core.runner.health import (
    LIFETIME_SECONDS,
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    HealthServer,
    Reply,
)

LOAD = Path(__file__).with_name("load_health.py")


@pytest.fixture
def server() -> Iterator[HealthServer]:
    found = HealthServer(
        ("127.0.0.1", 0),
        {
            "/healthz": lambda: Reply(200, "ok\n"),
            "/readyz": lambda: Reply(503, "store check: running\n"),
        },
    )
    yield found
    found.close()


def connect(server: HealthServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def ask(server: HealthServer, raw: bytes) -> bytes:
    with connect(server) as client:
        client.sendall(raw)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    found = b""
    while data := client.recv(65536):
        found += data
    return found


def healthy(server: HealthServer) -> bool:
    return ask(server, b"GET /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nok\n")


def send_on(client: socket.socket, data: bytes, pause: float) -> None:
    """Send for ten seconds, or until the other side has enough."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        client.sendall(data)
        time.sleep(pause)


def waits_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("request_", "start", "end"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK", b"\r\n\r\nok\n"),
        (b"GET /healthz HTTP/1.0\n\n", b"HTTP/1.1 200 OK", b"\r\n\r\nok\n"),
        (b"GET /healthz?a=b HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK", b"ok\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK", b"close\r\n\r\n"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", b"HTTP/1.1 503 ", b"store check: running\n"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 ", b"try /healthz, /readyz\n"),
        (b"GET /healthz/../x HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 ", b"\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 ", b"served\n"),
        (b"DELETE / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 ", b"served\n"),
        (b"GET /healthz\r\n\r\n", b"HTTP/1.1 400 ", b"request\n"),
        (b"GET /healthz HTTP/2.0\r\n\r\n", b"HTTP/1.1 400 ", b"request\n"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"HTTP/1.1 400 ", b"request\n"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 ", b"request\n"),
        (b"\r\n\r\n", b"HTTP/1.1 400 ", b"request\n"),
        (b"GET /" + b"a" * 9000, b"HTTP/1.1 431 ", b"bytes\n"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000, b"HTTP/1.1 431 ", b"bytes\n"),
    ],
)
def test_every_request_has_its_answer(
    request_: bytes, start: bytes, end: bytes, server: HealthServer
) -> None:
    answer = ask(server, request_)
    assert answer.startswith(start), answer
    assert answer.endswith(end), answer
    head, body = answer.split(b"\r\n\r\n", 1)
    if not request_.startswith(b"HEAD"):
        assert f"Content-Length: {len(body)}".encode() in head


def test_a_refused_method_names_the_allowed_ones(server: HealthServer) -> None:
    assert b"\r\nAllow: GET, HEAD\r\n" in ask(server, b"PUT / HTTP/1.1\r\n\r\n")


def test_a_large_body_is_answered_and_not_kept(server: HealthServer) -> None:
    body = b"x" * 500_000
    head = f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert ask(server, head + body).startswith(b"HTTP/1.1 405 ")


def test_a_body_without_end_is_cut_off(server: HealthServer) -> None:
    with connect(server) as client:
        client.sendall(b"POST / HTTP/1.1\r\n\r\n")
        begin = time.monotonic()
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            send_on(client, b"x" * 65536, 0.0)
        assert time.monotonic() - begin < LIFETIME_SECONDS / 2
    assert healthy(server)


def test_a_request_may_come_in_pieces(server: HealthServer) -> None:
    with connect(server) as client:
        for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
            client.sendall(bytes([byte]))
            time.sleep(0.002)
        assert read_all(client).endswith(b"ok\n")


def test_a_client_that_stalls_or_drips_is_closed_in_time(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LIFETIME_SECONDS", 0.5)
    begin = time.monotonic()
    with connect(server) as silent, connect(server) as dripping:
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            send_on(dripping, b"G", 0.05)
        assert read_all(silent) == b""
    assert time.monotonic() - begin < 5


def test_a_flood_of_silent_clients_does_not_lock_out_a_check(server: HealthServer) -> None:
    held = [connect(server) for _ in range(MAX_CONNECTIONS + 100)]
    try:
        assert healthy(server)
        assert len(server._open) <= MAX_CONNECTIONS
        assert read_all(held[0]) == b""  # the oldest made room
    finally:
        for client in held:
            client.close()
    assert healthy(server)


def test_clients_that_vanish_leave_nothing_behind(server: HealthServer) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        client = connect(server)
        client.sendall(b"GET /healthz HT")
        client.close()
    waits_for(lambda: not server._open)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_client_that_does_not_read_holds_no_more_than_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "LIFETIME_SECONDS", 1.0)
    big = HealthServer(("127.0.0.1", 0), {"/big": lambda: Reply(200, "x" * 20_000_000)})
    try:
        with connect(big) as client:
            client.sendall(b"GET /big HTTP/1.1\r\n\r\n")
            waits_for(lambda: len(big._open) == 1)
            waits_for(lambda: not big._open)
        with connect(big) as client:
            client.sendall(b"GET /big HTTP/1.1\r\n\r\n")
            assert len(read_all(client)) > 20_000_000
    finally:
        big.close()


def test_closing_frees_the_port(server: HealthServer) -> None:
    with connect(server) as client:
        assert server.alive()
        server.close()
        assert not server.alive()
        assert read_all(client) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_a_port_in_use_is_bad_configuration(server: HealthServer) -> None:
    with pytest.raises(ConfigurationError, match="is another runner there"):
        HealthServer(("127.0.0.1", server.port), {})


def test_a_request_of_the_largest_size_is_served(server: HealthServer) -> None:
    head = b"GET /healthz HTTP/1.1\r\nX: "
    raw = head + b"a" * (MAX_REQUEST_BYTES - len(head) - 4) + b"\r\n\r\n"
    assert len(raw) == MAX_REQUEST_BYTES
    assert ask(server, raw).endswith(b"ok\n")


def test_load_leaves_memory_flat() -> None:
    """The short form of ``make load-health``."""
    done = subprocess.run(
        [sys.executable, str(LOAD), "--seconds", "2", "--rate", "300", "--slow", "100"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
