"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import torch

import s4weights

__all__ = ["describe"]


def describe() -> dict[str, object]:
    """Processor, GPU, versions and date, for a result file."""
    found: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "s4weights": s4weights.__version__,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
