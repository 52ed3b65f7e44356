"""transformers: offline, on the CPU, its own warnings named one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("transformers", reason="install s4weights[hf]")
pytest.importorskip("accelerate", reason="install s4weights[hf]")

from accelerate.state import AcceleratorState, GradientState, PartialState


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("S4_STORE", raising=False)
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
