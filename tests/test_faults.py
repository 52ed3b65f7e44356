"""Faults of the network under whole saves, loads, listings and removals, on a real server.

A sample of the table that `make fault-matrix` makes of every fault and every request.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_matrix import FOR_EVER, Bench, Cell, run_cell, running_bench
from s3_server import S3Server, set_aws_environment

CELLS = [
    ("boto3", "put", "lost_answer", 1, {"intact"}),
    ("boto3", "put", "truncated", 1, {"intact"}),
    ("boto3", "put", "http_503", FOR_EVER, {"StoreUnavailableError"}),
    ("boto3", "part", "flip_request", 1, {"intact"}),
    ("boto3", "part", "reset", 1, {"intact"}),
    ("boto3", "part", "reset", FOR_EVER, {"StoreUnavailableError"}),
    ("boto3", "complete", "lost_answer", 1, {"intact"}),
    ("boto3", "get", "flip_answer", FOR_EVER, {"ChecksumError"}),
    ("boto3", "get", "cut_answer", 1, {"intact"}),
    ("boto3", "get", "stall", 1, {"intact"}),
    ("boto3", "head", "http_500", 1, {"intact"}),
    ("boto3", "list", "http_503", FOR_EVER, {"StoreUnavailableError"}),
    ("boto3", "delete", "lost_answer", 1, {"intact"}),
    ("obstore", "part", "lost_answer", 1, {"intact"}),
    ("obstore", "part", "flip_request", 1, {"intact", "StoreUnavailableError"}),
    ("obstore", "complete", "lost_answer", 1, {"intact"}),
]


@pytest.fixture(scope="module")
def bench(seaweedfs: S3Server) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        set_aws_environment(patch, seaweedfs)
        with running_bench(seaweedfs) as found:
            yield found


@pytest.mark.s3
@pytest.mark.parametrize(("engine", "operation", "fault", "times", "outcomes"), CELLS)
def test_what_a_fault_leaves_is_intact_or_a_clear_error(
    bench: Bench, engine: str, operation: str, fault: str, times: int, outcomes: set[str]
) -> None:
    if engine == "obstore":
        pytest.importorskip("obstore", reason="the fast engine is not installed")
    assert run_cell(bench, Cell(engine, operation, fault, times)) in outcomes
