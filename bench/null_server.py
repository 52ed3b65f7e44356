"""An S3 server that throws everything away, so that only the client costs anything.

    python bench/null_server.py PORT [CERTIFICATE KEY]

Answers what uploads and ranged downloads ask; runs in a process of its own. GET gives zeros.
"""

from __future__ import annotations

import re
import socket
import ssl
import sys
import threading

ZEROS = memoryview(bytes(1 << 20))
OBJECT_BYTES = 1 << 40
UPLOAD = (
    b"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
    b"<UploadId>null</UploadId></InitiateMultipartUploadResult>"
)
NO_UPLOADS = b"<ListMultipartUploadsResult></ListMultipartUploadsResult>"
COMPLETE = (
    b"<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
    b'<ETag>"abc"</ETag></CompleteMultipartUploadResult>'
)


def serve(connection: socket.socket) -> None:
    stream = connection.makefile("rb", buffering=1 << 16)
    into = memoryview(bytearray(1 << 20))
    while first := stream.readline():
        method, target, _ = first.decode("latin-1").split(" ", 2)
        headers = read_headers(stream)
        if headers.get("expect"):
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        left = int(headers.get("content-length", 0))
        while left:
            left -= stream.readinto(into[: min(left, len(into))])
        answer(connection, method, target, headers)


def read_headers(stream) -> dict[str, str]:
    found = {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        found[name.strip().lower()] = value.strip()
    return found


def answer(connection: socket.socket, method: str, target: str, headers: dict[str, str]) -> None:
    if method == "GET" and "uploads" not in target:
        start, end = map(int, re.findall(r"\d+", headers.get("range", "bytes=0-0")))
        send_zeros(connection, start, end - start + 1)
        return
    body = COMPLETE if method == "POST" else b""
    if "uploads" in target:
        body = UPLOAD if method == "POST" else NO_UPLOADS
    size = OBJECT_BYTES if method == "HEAD" else len(body)
    head = f'HTTP/1.1 200 OK\r\nETag: "abc"\r\nContent-Length: {size}\r\n\r\n'
    connection.sendall(head.encode() + (b"" if method == "HEAD" else body))


def send_zeros(connection: socket.socket, start: int, size: int) -> None:
    span = f"Content-Range: bytes {start}-{start + size - 1}/{OBJECT_BYTES}"
    head = (
        f'HTTP/1.1 206 Partial Content\r\nETag: "abc"\r\n{span}\r\nContent-Length: {size}\r\n\r\n'
    )
    connection.sendall(head.encode())
    while size:
        connection.sendall(ZEROS[: min(size, len(ZEROS))])
        size -= min(size, len(ZEROS))


def handle(connection: socket.socket, context: ssl.SSLContext | None) -> None:
    try:
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        serve(connection)
    except OSError:
        return
    finally:
        connection.close()


def main() -> None:
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[2:4])
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=handle, args=(connection, context), daemon=True).start()


if __name__ == "__main__":
    main()
