"""Stand-ins for the metadata service and the metering service of AWS, faults included.

`FakeImds` speaks IMDSv2 and refuses version 1. `FakeMetering` answers as its scenario
says: one of `SCENARIOS`, by name, so that the same list serves in this process and in a
machine of its own, where ``python3 fake_aws.py DIRECTORY`` runs both on the real addresses
and reads the scenario's name from a file at every call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PRODUCT = "abcd1234efgh5678"
KEY_VERSION = 3
REGION = "us-east-1"
INSTANCE = "i-0123456789abcdef0"


class Server(ThreadingHTTPServer):
    """A server on loopback with a thread; ended by leaving the context."""

    daemon_threads = True
    # A client that gives up is part of the tests.
    handle_error = lambda self, request, address: None  # noqa: E731

    @contextmanager
    def running(self) -> Iterator[str]:
        thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{self.server_address[1]}"
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """Answers with JSON or bytes, and logs nothing."""

    def log_message(self, *_: object) -> None:
        return

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


class FakeImds:
    """IMDSv2: `paths` is what it serves, and may be changed at any time."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        document = {"region": REGION, "instanceId": INSTANCE, "accountId": "123456789012"}
        role = "/latest/meta-data/iam/security-credentials/"
        self.paths: dict[str, Any] = {
            "/latest/dynamic/instance-identity/document": document,
            role: b"s4-role\n",
            f"{role}s4-role": {
                "Code": "Success",
                "AccessKeyId": "ASIAEXAMPLE",
                "SecretAccessKey": "secret",
                "Token": "session",
            },
        }
        self.tokens = {"token-1"}
        self.token_status = 200
        self.calls: list[str] = []
        self.server = Server(address, self._handler())

    def lose_tokens(self) -> None:
        """As after hibernation: what was given out is no longer known."""
        self.tokens = {f"token-after-{len(self.calls)}"}

    def _handler(fake) -> type[Handler]:  # noqa: N805  # `self` is the handler below
        class ImdsHandler(Handler):
            def do_PUT(self) -> None:
                right = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
                status = fake.token_status if right else 400
                self.answer(status, min(fake.tokens).encode() if status == 200 else b"")

            def do_GET(self) -> None:
                fake.calls.append(self.path)
                if self.headers.get("X-aws-ec2-metadata-token") not in fake.tokens:
                    self.answer(401, b"")
                elif self.path in fake.paths:
                    self.answer(200, fake.paths[self.path])
                else:
                    self.answer(404, b"")

        return ImdsHandler


class FakeMetering:
    """The metering service.

    Args:
        private_key: PEM of the product's key.
        other_key: PEM of a key that is not the product's.
        public_key: PEM of the product's public key, for key confusion.
        scenario: A name in `SCENARIOS`, or a function that gives one.
    """

    def __init__(
        self,
        private_key: str,
        other_key: str,
        public_key: str,
        scenario: str | Callable[[], str] = "signed",
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.private_key, self.other_key, self.public_key = private_key, other_key, public_key
        self.scenario = scenario
        self.calls: list[dict[str, Any]] = []
        self.server = Server(address, self._handler())

    def jwt(self, request: dict[str, Any], key: str | None = None, alg: str = "PS256",
            **claims: Any) -> str:  # fmt: skip
        import jwt

        body = {
            "productCode": request["ProductCode"],
            "nonce": request["Nonce"],
            "publicKeyVersion": request["PublicKeyVersion"],
            **claims,
        }
        body = {name: value for name, value in body.items() if value is not ...}
        return jwt.encode(body, key or self.private_key, algorithm=alg)

    def _handler(fake) -> type[Handler]:  # noqa: N805
        class MeteringHandler(Handler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.calls.append(
                    {
                        "target": self.headers["X-Amz-Target"],
                        "authorization": self.headers["Authorization"],
                        "headers": dict(self.headers),
                        **body,
                    }
                )
                name = fake.scenario if isinstance(fake.scenario, str) else fake.scenario()
                SCENARIOS[name](fake, self, body)

        return MeteringHandler


Scenario = Callable[[FakeMetering, Handler, dict[str, Any]], None]


def _signed(make: Callable[[FakeMetering, dict[str, Any]], Any], **more: Any) -> Scenario:
    return lambda fake, handler, body: handler.answer(200, {"Signature": make(fake, body), **more})


def _error(name: str, status: int = 400) -> Scenario:
    kind = f"com.amazonaws.marketplace.metering#{name}"
    return lambda fake, handler, body: handler.answer(status, {"__type": kind, "message": "m"})


def _raw(status: int, body: Any, **headers: str) -> Scenario:
    return lambda fake, handler, request: handler.answer(status, body, headers)


def _at_first(first: Scenario, times: int) -> Scenario:
    def act(fake: FakeMetering, handler: Handler, body: dict[str, Any]) -> None:
        chosen = first if len(fake.calls) <= times else SCENARIOS["signed"]
        chosen(fake, handler, body)

    return act


def _reset(_: FakeMetering, handler: Handler, __: dict[str, Any]) -> None:
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()


def _cut(fake: FakeMetering, handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"Signature": "')


def _drip(fake: FakeMetering, handler: Handler, body: dict[str, Any]) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(100):
        time.sleep(0.02)
        handler.wfile.write(b"x")


def _none_token(fake: FakeMetering, body: dict[str, Any]) -> str:
    _, claims, _ = fake.jwt(body).split(".")
    return f"{_b64(json.dumps({'alg': 'none', 'typ': 'JWT'}).encode())}.{claims}."


def _confused_token(fake: FakeMetering, body: dict[str, Any]) -> str:
    """HS256, keyed with the public key: the classic confusion."""
    claims = fake.jwt(body).split(".")[1]
    signed = f"{_b64(json.dumps({'alg': 'HS256', 'typ': 'JWT'}).encode())}.{claims}"
    mac = hmac.new(fake.public_key.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_b64(mac)}"


def _spliced_token(fake: FakeMetering, body: dict[str, Any]) -> str:
    """The claims that are wanted under the signature of others."""
    header, _, signature = fake.jwt(body, nonce="another").split(".")
    return f"{header}.{fake.jwt(body).split('.')[1]}.{signature}"


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


SCENARIOS: dict[str, Scenario] = {
    "signed": _signed(lambda f, b: f.jwt(b)),
    "signed, version as text": _signed(lambda f, b: f.jwt(b, publicKeyVersion=str(KEY_VERSION))),
    "signed, key rotated": _signed(lambda f, b: f.jwt(b), PublicKeyRotationTimestamp=1.7e9),
    "throttled twice": _at_first(_error("ThrottlingException"), 2),
    "internal error once": _at_first(_error("InternalServiceErrorException", 500), 1),
    "reset once": _at_first(_reset, 1),
    "not entitled": _error("CustomerNotEntitledException"),
    "not subscribed": _error("CustomerNotSubscribedException"),
    "platform": _error("PlatformNotSupportedException"),
    "product code": _error("InvalidProductCodeException"),
    "region": _error("InvalidRegionException"),
    "key version": _error("InvalidPublicKeyVersionException"),
    "disabled": _error("DisabledApiException"),
    "access denied": _error("AccessDeniedException"),
    "unknown error": _error("BrandNewException"),
    "error in header": _raw(400, {}, **{"x-amzn-ErrorType": "CustomerNotEntitledException:http"}),
    "400 of nothing": _raw(400, b""),
    "redirect": _raw(307, b"", Location="http://127.0.0.1:9/"),
    "throttled": _error("ThrottlingException"),
    "internal error": _error("InternalServiceErrorException"),
    "503": _raw(503, b"<html>down</html>"),
    "429": _raw(429, b""),
    "stall": lambda fake, handler, body: time.sleep(1.5),
    "drip": _drip,
    "reset": _reset,
    "cut": _cut,
    "cut in headers": lambda fake, handler, body: handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: "),
    "oversize": _raw(200, b" " * 400_000),
    "forged": _signed(lambda f, b: f.jwt(b, key=f.other_key)),
    "spliced": _signed(_spliced_token),
    "alg none": _signed(_none_token),
    "alg HS256": _signed(_confused_token),
    "alg RS256": _signed(lambda f, b: f.jwt(b, alg="RS256")),
    "alg PS512": _signed(lambda f, b: f.jwt(b, alg="PS512")),
    "replayed": _signed(lambda f, b: f.jwt(b, nonce="00000000-0000-4000-8000-000000000000")),
    "other product": _signed(lambda f, b: f.jwt(b, productCode="other")),
    "other version": _signed(lambda f, b: f.jwt(b, publicKeyVersion=KEY_VERSION + 1)),
    "version is true": _signed(lambda f, b: f.jwt(b, publicKeyVersion=True)),
    "no nonce": _signed(lambda f, b: f.jwt(b, nonce=...)),
    "no claims": _signed(lambda f, b: f.jwt(b, nonce=..., productCode=..., publicKeyVersion=...)),
    "expired": _signed(lambda f, b: f.jwt(b, exp=1)),
    "not yet": _signed(lambda f, b: f.jwt(b, nbf=4_000_000_000)),
    "signature cut": _signed(lambda f, b: f.jwt(b)[:-9]),
    "signature empty": _signed(lambda f, b: ""),
    "signature no text": _signed(lambda f, b: {"a": 1}),
    "no signature": _raw(200, {}),
    "no JSON": _raw(200, b"\xff\xfe"),
    "a list": _raw(200, [1]),
    "deep": _raw(200, b"[" * 50_000),
    "metered": _raw(200, {"MeteringRecordId": "r-1"}),
    "duplicate": _error("DuplicateRequestException"),
}


def main(directory: Path) -> None:
    """Both services, on the addresses of the real ones, until killed."""
    keys = [(directory / name).read_text() for name in ("private.pem", "other.pem", "public.pem")]
    metering = FakeMetering(
        *keys, lambda: (directory / "scenario").read_text().strip(), ("127.0.0.1", 443)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.pem")
    metering.server.socket = context.wrap_socket(metering.server.socket, server_side=True)
    imds = FakeImds(("169.254.169.254", 80))
    with metering.server.running(), imds.server.running():
        while True:
            time.sleep(0.1)
            (directory / "calls.new").write_text(str(len(metering.calls)))
            (directory / "calls.new").replace(directory / "calls")
            notice = directory / "instance-action"
            if notice.exists():
                path = "/latest/meta-data/spot/instance-action"
                imds.paths[path] = json.loads(notice.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
