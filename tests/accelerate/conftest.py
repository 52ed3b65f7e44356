"""Accelerate: offline, on the CPU, its own warnings named one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("accelerate", reason="install s4weights[accelerate]")

from accelerate.state import AcceleratorState, GradientState, PartialState


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/accelerate/" in str(item.path):
            # The toy's scaler steps the wrapped optimizer, which the scheduler cannot see.
            item.add_marker(
                pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
            )


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("S4_STORE", raising=False)
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
