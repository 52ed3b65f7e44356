"""The health port: a small HTTP server that bad clients cannot hurt.

One thread, one selector, one request for each connection. A client that sends nothing, or
a byte a second, is closed after `LIFETIME_SECONDS` at the latest; when `MAX_CONNECTIONS`
are open, the one that has been open longest makes room for the next, so that a flood of
slow clients does not lock out a health check. A request may have `MAX_REQUEST_BYTES`;
bodies are never kept. So memory is bounded by the product of these numbers.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from s4core.runner.exits import ConfigurationError

__all__ = ["HealthServer", "Reply"]

MAX_CONNECTIONS = 512
MAX_REQUEST_BYTES = 8 * 1024
# From accept to close, whatever the client does.
LIFETIME_SECONDS = 5.0
# After an error, what the client still sends is read and dropped for a while: closing
# at once would reset the connection and take the answer with it.
MAX_DROPPED_BYTES = 1024 * 1024
ACCEPTS_IN_A_ROW = 64

REQUEST_LINE = re.compile(rb"([A-Za-z]{1,16}) (/[!-~]{0,2047}) HTTP/1\.[01]")
HEADERS_END = re.compile(rb"\r?\n\r?\n")
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Reply:
    """What a path answers."""

    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"


class _Connection:
    """One client: what it sent so far, or what it has still to be sent."""

    __slots__ = ("deadline", "dropped_bytes", "failed", "received", "sock", "unsent")

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.deadline = deadline
        self.received = b""
        self.unsent: bytes | None = None
        self.failed = False
        self.dropped_bytes = 0


class HealthServer:
    """Serves `routes` from the moment it is made until `close`.

    Args:
        address: Host and port; port 0 takes a free one.
        routes: Path to a function that answers at once.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], routes: Mapping[str, Callable[[], Reply]]) -> None:
        self._routes = routes
        self._listener = _listener(address)
        self.port: int = self._listener.getsockname()[1]
        # In the order of acceptance, which is that of deadlines.
        self._open: OrderedDict[socket.socket, _Connection] = OrderedDict()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._stop)
        self._stopping = False
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        """Whether the serving thread still turns."""
        return self._thread.is_alive() and time.monotonic() - self._beat < 10.0

    def close(self) -> None:
        """Stop listening and close every connection; once is enough."""
        if not self._thread.is_alive():
            return
        self._wake_sender.send(b".")
        self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(timeout=1.0):
                if isinstance(key.data, _Connection):
                    if key.data.sock in self._open:  # not evicted in this round
                        self._turn(key.data)
                else:
                    key.data()
            self._beat = time.monotonic()
            self._close_expired()
        for connection in list(self._open.values()):
            self._close(connection)
        for held in (self._listener, self._wake_receiver, self._wake_sender, self._selector):
            held.close()

    def _stop(self) -> None:
        self._stopping = True

    def _accept(self) -> None:
        for _ in range(ACCEPTS_IN_A_ROW):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or this process is out of file descriptors
                self._make_room(keep=len(self._open) - 1)
                time.sleep(0.01)
                return
            self._make_room(keep=MAX_CONNECTIONS - 1)
            sock.setblocking(False)
            connection = _Connection(sock, time.monotonic() + LIFETIME_SECONDS)
            self._open[sock] = connection
            self._selector.register(sock, selectors.EVENT_READ, connection)
            self._turn(connection)

    def _make_room(self, keep: int) -> None:
        while len(self._open) > max(keep, 0):
            self._close(next(iter(self._open.values())))

    def _close_expired(self) -> None:
        now = time.monotonic()
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.deadline > now:
                return
            self._close(oldest)

    def _close(self, connection: _Connection) -> None:
        del self._open[connection.sock]
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _turn(self, connection: _Connection) -> None:
        """Do for one connection what can be done without waiting."""
        try:
            if connection.unsent is None:
                self._receive(connection)
            elif connection.unsent:
                self._send(connection)
            else:
                self._drop(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the client is gone; there is no one to tell
            self._close(connection)

    def _receive(self, connection: _Connection) -> None:
        data = connection.sock.recv(MAX_REQUEST_BYTES)
        if not data:
            self._close(connection)
            return
        connection.received += data
        head = HEADERS_END.search(connection.received)
        if head is None and len(connection.received) <= MAX_REQUEST_BYTES:
            return
        reply, body_wanted = self._reply(connection.received if head else None)
        # Without an error nothing is left unread, and closing at once is safe.
        connection.failed = reply.status in (400, 405, 431)
        connection.received = b""
        connection.unsent = _encoded(reply, body_wanted)
        self._send(connection)

    def _reply(self, received: bytes | None) -> tuple[Reply, bool]:
        """The reply to a whole request (None: it was too large), and whether it has a body."""
        if received is None:
            return Reply(431, f"a request may have {MAX_REQUEST_BYTES} bytes\n"), True
        line = REQUEST_LINE.match(received)
        if line is None:
            return Reply(400, "expected an HTTP/1.1 request\n"), True
        method, target = line.group(1), line.group(2).decode("ascii")
        if method not in (b"GET", b"HEAD"):
            return Reply(405, "only GET and HEAD are served\n"), True
        route = self._routes.get(target.split("?", 1)[0])
        reply = route() if route else Reply(404, f"try {', '.join(self._routes)}\n")
        return reply, method == b"GET"

    def _send(self, connection: _Connection) -> None:
        assert connection.unsent is not None
        sent = 0
        with contextlib.suppress(BlockingIOError):  # its window is full: wait below
            sent = connection.sock.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        if connection.unsent:
            self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        elif connection.failed:
            connection.sock.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
        else:
            self._close(connection)

    def _drop(self, connection: _Connection) -> None:
        data = connection.sock.recv(64 * 1024)
        connection.dropped_bytes += len(data)
        if not data or connection.dropped_bytes > MAX_DROPPED_BYTES:
            self._close(connection)


def _listener(address: tuple[str, int]) -> socket.socket:
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        # create_server sets SO_REUSEADDR, and closes what it cannot bind.
        listener = socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        raise ConfigurationError(
            f"health: cannot listen on {address[0]}:{address[1]}: {error}; is another runner "
            "there? S4_RUNNER_HEALTH names another port, or none"
        ) from error
    listener.setblocking(False)
    return listener


def _encoded(reply: Reply, body_wanted: bool) -> bytes:
    body = reply.text.encode()
    allow = "Allow: GET, HEAD\r\n" if reply.status == 405 else ""
    head = (
        f"HTTP/1.1 {reply.status} {REASONS[reply.status]}\r\n"
        f"Content-Type: {reply.content_type}\r\nContent-Length: {len(body)}\r\n{allow}"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if body_wanted else b"")
