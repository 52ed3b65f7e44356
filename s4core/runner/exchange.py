"""One HTTP request and its answer, bounded in time and size, and deaf to the environment.

Only what the standard library gives: no proxy, no certificate bundle and no endpoint is
taken from an environment variable or a configuration file, so none can stand between the
entitlement check and the service it asks. No redirect is followed.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from s4core.runner.exits import UnreachableError

__all__ = ["CA_BUNDLE", "Answer", "exchange"]

# Where Debian and Ubuntu keep the certificate authorities they trust.
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

MAX_ANSWER_BYTES = 256 * 1024


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: The HTTP status.
        headers: Names in lower case.
        body: At most `MAX_ANSWER_BYTES` long.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def exchange(
    url: str,
    method: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    connect_seconds: float = 3.0,
    total_seconds: float = 10.0,
    ca_bundle: str = CA_BUNDLE,
) -> Answer:
    """Send one request to `url` and give its answer, whatever its status.

    Args:
        url: ``http://`` or ``https://``; only the latter is checked against `ca_bundle`.
        method: The HTTP method.
        headers: Sent as they are; Host and Content-Length are added.
        body: May be empty.
        connect_seconds: For the connection and each wait for bytes.
        total_seconds: For all of it; a server that drips bytes gains nothing.
        ca_bundle: Trusted certificate authorities, a PEM file.

    Raises:
        UnreachableError: No whole answer came in time, or one larger than allowed.
    """
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.netloc, connect_seconds, ca_bundle)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.connect()
        with _ended_after(connection.sock, total_seconds):
            connection.request(method, target or "/", body=body or None, headers=dict(headers))
            return _answer(connection.getresponse(), url)
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(
            f"{method} {url}: no whole answer within {total_seconds:g} s: "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        connection.close()


def _connection(
    scheme: str, netloc: str, seconds: float, ca_bundle: str
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=seconds)
    # Not create_default_context: it also reads SSL_CERT_FILE and SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=ca_bundle)
    return http.client.HTTPSConnection(netloc, timeout=seconds, context=context)


@contextmanager
def _ended_after(sock: socket.socket, seconds: float) -> Iterator[None]:
    """Cut the connection after `seconds`, which wakes whoever waits for its bytes."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        try:
            # The plain socket's own method: that of an SSLSocket is not for other threads.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
        except OSError:
            return  # already closed: the answer came just in time

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if late.is_set():  # the cut looks like an end, and half an answer like a whole one
        raise TimeoutError("too slow")


def _answer(response: http.client.HTTPResponse, url: str) -> Answer:
    if response.length is None and not response.chunked:
        raise http.client.HTTPException("an answer that does not say where it ends")
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise UnreachableError(f"{url}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
    if response.length:  # read(n) of a body that was cut short does not say so
        raise http.client.IncompleteRead(body, response.length)
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, body)
