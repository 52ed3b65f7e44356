"""Start the processes of one training, as torchrun does, and kill one where it hurts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from s3_server import free_ports

ROOT = Path(__file__).parent.parent
SECONDS = 240.0


def run_ranks(script: Path, *arguments: str, ranks: int = 1, **environment: str) -> list[int]:
    """Run `script` once for each rank; return the exit codes, -9 for one that was killed.

    When a rank ends badly, the others are killed after some seconds, as torchrun does.
    """
    port = free_ports(1)[0]
    shared = {
        **os.environ,
        **environment,
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        # As in this process: the checkout, or the package that is installed.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    return _codes(started)


def _codes(started: list[subprocess.Popen[bytes]]) -> list[int]:
    codes: list[int] = []
    wait = SECONDS
    try:
        for process in started:
            codes.append(process.wait(wait))
            if codes[-1]:
                wait = 10.0
    except subprocess.TimeoutExpired:
        codes.append(1)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return codes
