"""`s4://` in fsspec: checkpoints are files that torch.load understands, nothing is cached."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from bits import assert_same_state

import s4weights
from s4core.fs import S4FileSystem
from s4core.stores import LocalStore, S3Store, open_store
from s4weights import StateError


@pytest.fixture(autouse=True)
def registered() -> None:
    # As the entry point does where the package is installed.
    fsspec.register_implementation("s4", S4FileSystem, clobber=True)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return f"s4://{tmp_path}/run"
    return "s4://" + request.getfixturevalue("s3_url").removeprefix("s3://")


def state(step: int) -> dict[str, Any]:
    w = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    return {"w": w + 1e-6 * step, "step": step}


def saved(url: str) -> Any:
    for step in (1, 2):
        s4weights.open(url).save(state(step), step)
    return fsspec.filesystem("s4")


def test_urls_lead_to_the_disk_or_to_a_bucket() -> None:
    assert isinstance(open_store("s4:///data/run"), LocalStore)
    assert open_store("s4:///data/run").url == "/data/run"
    assert isinstance(open_store("s4://bucket/run"), S3Store)
    assert open_store("s4:/bucket/run").url == "s3://bucket/run"  # as pathlib makes it


def test_a_checkpoint_is_a_file_that_torch_reads(url: str) -> None:
    saved(url)
    with fsspec.open(f"{url}/step-00000002.ckpt", "rb") as file:
        found = torch.load(file, weights_only=True)
    assert_same_state(state(2), found)


def test_paths_are_listed_and_described(url: str) -> None:
    fs = saved(url)
    root = url.removeprefix("s4://")
    names = [f"{root}/step-0000000{step}.ckpt" for step in (1, 2)]
    assert fs.ls(url, detail=False) == names
    assert [entry["type"] for entry in fs.ls(url)] == ["file", "file"]
    assert fs.info(f"{url}/step-00000001.ckpt")["name"] == names[0]
    assert fs.ls(names[0], detail=False) == [names[0]]
    assert fs.info(url)["type"] == "directory"
    assert (fs.isdir(url), fs.isfile(url), fs.exists(url)) == (True, False, True)
    assert (fs.isdir(names[0]), fs.isfile(names[0]), fs.exists(names[0])) == (False, True, True)
    assert not fs.exists(f"{url}/nothing")
    assert abs(fs.modified(names[1]).timestamp() - time.time()) < 60
    assert fs.unstrip_protocol(names[0]) == f"{url}/step-00000001.ckpt"
    for ask in (fs.info, fs.modified, fs.ls, fs.rm):
        with pytest.raises(FileNotFoundError, match="nothing is stored there"):
            ask(f"{url}/nothing")


def test_what_is_removed_looks_absent_at_once_and_harms_nothing(url: str) -> None:
    fs = saved(url)
    fs.rm(f"{url}/step-00000001.ckpt")
    assert not fs.exists(f"{url}/step-00000001.ckpt")
    assert len(fs.ls(url)) == 1
    assert_same_state(state(2), s4weights.load(f"{url}/step-00000002.ckpt"))
    fs.rm(url, recursive=True)
    assert not fs.exists(url)


def test_plain_files_are_plain_bytes(url: str) -> None:
    fs = fsspec.filesystem("s4")
    fs.makedirs(f"{url}/deep", exist_ok=True)
    with fs.open(f"{url}/deep/notes.txt", "w") as file:
        file.write("mine")
    with fs.open(f"{url}/deep/notes.txt", "rb") as file:
        assert file.read() == b"mine"
    fs.mv(f"{url}/deep/notes.txt", f"{url}/deep/renamed.txt")
    assert fs.ls(f"{url}/deep", detail=False) == [f"{url}/deep/renamed.txt".removeprefix("s4://")]
    with suppress(KeyError), fs.open(f"{url}/half", "wb") as file:
        file.write(b"half")
        raise KeyError("in the middle")
    assert not fs.exists(f"{url}/half")
    with pytest.raises(StateError, match="expected 'rb' or 'wb'"):
        fs.open(f"{url}/x", "ab")


def test_a_checkpoint_is_not_copied_away_from_its_bytes(url: str) -> None:
    fs = saved(url)
    fs.cp_file(f"{url}/step-00000002.ckpt", f"{url}/best.ckpt")
    assert_same_state(state(2), s4weights.load(f"{url}/best.ckpt"))
    with pytest.raises(StateError, match="s4weights export"):
        fs.cp_file(f"{url}/step-00000002.ckpt", f"{url}/elsewhere/best.ckpt")


def test_code_in_a_checkpoint_runs_only_with_leave(tmp_path: Path) -> None:
    url = f"s4://{tmp_path}/run"
    strange = {"w": torch.ones(3), "odd": complex.__add__}
    s4weights.open(url, allow_pickle=True).save(strange, 1)
    with pytest.raises(StateError, match="weights_only=False"):
        fsspec.filesystem("s4").open(f"{url}/step-00000001.ckpt", "rb")
    trusting = fsspec.filesystem("s4", weights_only=False)
    with trusting.open(f"{url}/step-00000001.ckpt", "rb") as file:
        assert torch.load(file, weights_only=False)["odd"] is complex.__add__
