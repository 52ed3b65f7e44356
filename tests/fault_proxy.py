"""An HTTP proxy that breaks chosen requests, between an S3 client and a real server.

Stands at the endpoint's place: the client signs the proxy's address, and the server checks
the Host header as it came. One connection upstream for each request; bodies are held whole.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

FAULTS = {
    "reset": "connection reset in the middle of the request's body",
    "truncated": "the server gets half of the body, the client a reset",
    "flip_request": "one bit of the request's body changes",
    "lost_answer": "the server has done it, the client gets a reset",
    "cut_answer": "half of the answer, then the end of the connection",
    "short_answer": "half of the answer's body, with a length that fits",
    "flip_answer": "one bit of the answer's body changes",
    "http_500": "500 InternalError",
    "http_503": "503 SlowDown",
    "stall": "silence for longer than the client waits",
    "slow": "the answer comes in drops",
}
STALL_SECONDS = 2.5


@dataclass
class Fault:
    """What to break: the next `times` requests of one operation."""

    name: str
    operation: str
    times: int
    hits: int = 0


@dataclass
class Exchange:
    """One request, and how to answer it."""

    client: socket.socket
    operation: str
    head: bytes
    body: bytes


@dataclass
class FaultProxy:
    """The proxy; `fault` is what it breaks at the moment.

    Attributes:
        upstream: port of the server on loopback.
        seen: how many requests of each operation came.
    """

    upstream: int
    fault: Fault | None = None
    seen: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with client, suppress(OSError, ValueError):
            stream = client.makefile("rb")
            while exchange := read_request(client, stream):
                self.seen[exchange.operation] += 1
                self._answer(exchange)

    def _take(self, operation: str) -> str | None:
        with self._lock:
            fault = self.fault
            if fault is None or fault.operation != operation or fault.hits >= fault.times:
                return None
            fault.hits += 1
            return fault.name

    def _answer(self, exchange: Exchange) -> None:
        fault = self._take(exchange.operation)
        if fault == "stall":
            time.sleep(STALL_SECONDS)
        if fault in ("http_500", "http_503"):
            exchange.client.sendall(refusal(fault, exchange))
            return
        if fault in ("reset", "stall"):
            reset(exchange.client)
        body = flipped(exchange.body) if fault == "flip_request" else exchange.body
        if fault == "truncated":
            self._forward(exchange.head, body[: len(body) // 2], whole=False)
            reset(exchange.client)
        answer = self._forward(exchange.head, body, whole=True)
        send(exchange.client, answer, fault)

    def _forward(self, head: bytes, body: bytes, *, whole: bool) -> bytes:
        with socket.create_connection(("127.0.0.1", self.upstream), timeout=60) as server:
            server.sendall(head + body)
            if not whole:
                return b""
            pieces = []
            while piece := server.recv(1 << 20):
                pieces.append(piece)
            return b"".join(pieces)


def send(client: socket.socket, answer: bytes, fault: str | None) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    if fault == "lost_answer":
        reset(client)
    elif fault == "cut_answer":
        client.sendall(answer[: len(answer) // 2])
        raise ConnectionAbortedError
    elif fault == "short_answer":
        body = body[: len(body) // 2]
        head = re.sub(rb"(?i)(content-length:) *\d+", b"\\1 %d" % len(body), head)
        client.sendall(head + b"\r\n\r\n" + body)
    elif fault == "flip_answer":
        client.sendall(head + b"\r\n\r\n" + flipped(body))
    elif fault == "slow":
        step = max(1, len(answer) // 20)
        for start in range(0, len(answer), step):
            client.sendall(answer[start : start + step])
            time.sleep(0.02)
    else:
        client.sendall(answer)
    raise ConnectionAbortedError  # the server was asked to close: so does the proxy


def read_request(client: socket.socket, stream) -> Exchange | None:
    first = stream.readline()
    if not first:
        return None
    lines, size, expects = [first], 0, False
    while (line := stream.readline()) not in (b"\r\n", b""):
        name = line.split(b":")[0].lower()
        if name == b"content-length":
            size = int(line.split(b":")[1])
        if name == b"expect":
            expects = True
        elif name != b"connection":
            lines.append(line)
    if expects:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    head = b"".join(lines) + b"Connection: close\r\n\r\n"
    return Exchange(client, operation_of(first.decode("latin-1")), head, stream.read(size))


def operation_of(first: str) -> str:
    method, target, _ = first.split(" ", 2)
    query = target.partition("?")[2]
    named = {
        ("PUT", "partNumber"): "part",
        ("POST", "uploads"): "create",
        ("POST", "uploadId"): "complete",
        ("POST", "delete"): "delete",
        ("GET", "list-type"): "list",
        ("GET", "uploads"): "uploads",
        ("DELETE", "uploadId"): "abort",
    }
    for (verb, word), operation in named.items():
        if method == verb and re.search(rf"(^|&){word}(=|&|$)", query):
            return operation
    return {"PUT": "put", "GET": "get", "HEAD": "head"}.get(method, method.lower())


def refusal(fault: str, exchange: Exchange) -> bytes:
    code, status = (
        ("InternalError", "500 Internal Server Error")
        if fault == "http_500"
        else ("SlowDown", "503 Slow Down")
    )
    body = f"<Error><Code>{code}</Code><Message>made up</Message></Error>"
    if exchange.operation == "head":
        body = ""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def flipped(data: bytes) -> bytes:
    """`data` with one bit in its middle changed."""
    if not data:
        return data
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


def reset(client: socket.socket) -> None:
    """End a connection with RST, at once."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.shutdown(socket.SHUT_RD)
    client.close()
    raise ConnectionAbortedError


@contextmanager
def running_proxy(upstream: int) -> Iterator[tuple[FaultProxy, str]]:
    """A proxy in front of the server at port `upstream`, and its endpoint."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        proxy = FaultProxy(upstream)
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy, f"http://127.0.0.1:{listener.getsockname()[1]}"
