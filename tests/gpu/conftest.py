"""Tests of the codec on CUDA devices: all carry the marker `gpu`, and are skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from s4core import kernels


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = kernels.why_unavailable()
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"needs a CUDA device and CuPy: {reason}"))
