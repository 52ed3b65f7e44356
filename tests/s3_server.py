"""A real S3 server for tests: SeaweedFS on loopback, ended by its recorded process id."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

BUCKET = "s4-tests"
ACCESS_KEY = "s4-test-access"
SECRET_KEY = "s4-test-secret-7d1f"
START_SECONDS = 60.0
ATTEMPTS = 3  # another process may take a port between choosing and binding it

# The server's gRPC ports are its HTTP ports plus this.
GRPC_OFFSET = 10_000


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    access_key: str
    secret_key: str
    pid: int


def find_weed() -> str | None:
    """The server's binary: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def running_seaweedfs(weed: str, directory: Path) -> Iterator[S3Server]:
    config = directory / "s3.json"
    config.write_text(json.dumps(_identities()))
    process, endpoint = _start(weed, directory, config)
    try:
        yield S3Server(endpoint, ACCESS_KEY, SECRET_KEY, process.pid)
    finally:
        process.kill()
        process.wait()


def _identities() -> dict[str, object]:
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "s4", "credentials": credentials, "actions": actions}]}


def _start(weed: str, directory: Path, config: Path) -> tuple[subprocess.Popen[bytes], str]:
    for _ in range(ATTEMPTS):
        master, volume, filer, s3 = free_ports(4)
        log = directory / f"weed-{s3}.log"
        data = directory / f"data-{s3}"
        data.mkdir()
        command = [
            *(weed, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
            *(f"-s3.port={s3}", f"-s3.config={config}", "-volume.fileSizeLimitMB=1024"),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=directory
            )
        endpoint = f"http://127.0.0.1:{s3}"
        if _answers(process, endpoint):
            return process, endpoint
        process.kill()
        process.wait()
    raise RuntimeError(f"SeaweedFS does not start; its last words:\n{log.read_text()[-3000:]}")


def _answers(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(endpoint, timeout=2):
                return True
        except urllib.error.HTTPError as answer:
            with answer:  # 403: it is there, and wants a signature
                return True
        except OSError:
            time.sleep(0.1)
    return False


def free_ports(count: int) -> list[int]:
    """Ports on loopback that are free, and so are those `GRPC_OFFSET` above."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(15_000, 45_000)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        try:
            for number in (port, port + GRPC_OFFSET):
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True


def set_aws_environment(patch: pytest.MonkeyPatch, server: S3Server) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # The developer's own files must not reach a test, nor a test their account.
    patch.setenv("AWS_CONFIG_FILE", "/dev/null")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


def make_bucket(name: str) -> None:
    import boto3

    boto3.client("s3").create_bucket(Bucket=name)
