"""Lightning's two packages, a place in each store, and Lightning's own warnings silenced."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from s4core.stores import open_store

pytest.importorskip("lightning", reason="no Lightning: install lightning")

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")

# Lightning 2.6 under torch 2.13; none of them is about checkpoints of S4.
LIGHTNINGS_OWN = (
    r".*isinstance\(treespec, LeafSpec\).* is deprecated",
    r".*does not have many workers",
    r".*Checkpoint directory .* exists and is not empty",
    r".*The number of training batches .* is smaller than the logging interval",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for message in LIGHTNINGS_OWN:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))


@pytest.fixture(params=NAMESPACES)
def namespace(request: pytest.FixtureRequest) -> ModuleType:
    """Each of Lightning's two packages."""
    return importlib.import_module(request.param)


@pytest.fixture
def package() -> ModuleType:
    """One of them, where either would do."""
    return importlib.import_module(NAMESPACES[0])


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place in each store."""
    if request.param == "s3":
        yield request.getfixturevalue("s3_url")
        return
    if request.param == "local":
        yield str(tmp_path / "run")
        return
    url = f"memory://lightning-{uuid.uuid4().hex}"
    yield f"{url}/run"
    store = open_store(url)
    store.delete([entry.key for entry in store.list()])
