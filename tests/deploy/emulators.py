"""AWS on loopback: ministack (CloudFormation, policies enforced) and moto (EC2 for Packer).

Each server is a child process with a port of its own, ended by its process id.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from deploy.tools import tool

REGION = "us-east-1"
ROOT = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


def free_port() -> int:
    """A TCP port of loopback that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client(
    service: str,
    endpoint: str,
    region: str = REGION,
    verify: str | None = None,
    **credentials: str,
) -> Any:
    """A boto3 client of an emulator, as its root user unless told otherwise.

    `verify` is the path of the certificate to trust where the emulator speaks TLS.
    """
    config = Config(
        retries={"max_attempts": 1},
        s3={"addressing_style": "path"},
        connect_timeout=5,
        read_timeout=60,
    )
    given = credentials or ROOT
    return boto3.client(
        service, endpoint_url=endpoint, region_name=region, config=config, verify=verify, **given
    )


@contextmanager
def ministack(directory: Path, **settings: str) -> Iterator[str]:
    """Run ministack; its address. By default it listens on every interface: not here."""
    port = free_port()
    env = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",  # another port that nothing here needs
        "HOME": str(directory),
        "TMPDIR": str(directory),
        **settings,
    }
    scheme = "https" if settings.get("USE_SSL") == "1" else "http"
    with _served([tool("ministack")], port, env, directory / "ministack.log"):
        yield f"{scheme}://127.0.0.1:{port}"


@contextmanager
def moto(directory: Path, **settings: str) -> Iterator[str]:
    """Run moto's server; its address."""
    port = free_port()
    argv = [tool("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with _served(argv, port, settings, directory / "moto.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _served(argv: list[str], port: int, env: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for(server, port, log)
        yield
    finally:
        # A session of its own: what the server started ends with it.
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            ended = server.poll() is not None or time.monotonic() > end
            assert not ended, f"no server on port {port}:\n{log.read_text()[-2000:]}"
            time.sleep(0.1)
        else:
            return
