"""transformers: offline, on the CPU, its own warnings named one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("transformers", reason="install s4weights[hf]")
pytest.importorskip("accelerate", reason="install s4weights[hf]")

from accelerate.state import AcceleratorState, GradientState, PartialState


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/hf/" in str(item.path):
            # PEFT asks transformers by an old name.
            item.add_marker(
                pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
            )


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("S4_STORE", raising=False)
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
