"""S4ModelCheckpoint on S3, and the file system it looks through: nothing lost, nothing left."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest
import torch
from bits import assert_same_state
from lightning_trainings import make_model, make_trainer, needed, save_every_epoch, stored

import s4_lightning
from s4_lightning import S4CheckpointIO
from s4core.fs import S4FileSystem
from s4core.stores import open_store
from s4weights import KeyNotFoundError, StateError, StoreError


def callback_of(package: ModuleType, dirpath: str | Path | None, **options: Any) -> Any:
    """S4ModelCheckpoint of one package."""
    name = "for_lightning" if package.__name__ == "lightning.pytorch" else "for_pytorch_lightning"
    __import__(f"s4_lightning.{name}")
    kind = getattr(s4_lightning, name).S4ModelCheckpoint
    return kind(dirpath, **({"monitor": "falling", "save_top_k": 1, "save_last": True} | options))


def fit(package: ModuleType, dirpath: Any, epochs: int, ckpt_path: Any = None, **options: Any):
    callback = callback_of(package, dirpath, **options)
    trainer = make_trainer(package, S4CheckpointIO(), max_epochs=epochs, callbacks=[callback])
    model = make_model(package)
    trainer.fit(model, ckpt_path=ckpt_path)
    return trainer, model


def test_last_resumes_from_s3_and_nothing_is_left_over(namespace: ModuleType, s3_url: str) -> None:
    fit(namespace, s3_url, 2)
    trainer, resumed = fit(namespace, s3_url, 4, "last")

    _, uninterrupted = fit(namespace, f"{s3_url}/other", 4)
    assert trainer.global_step == 8
    assert_same_state(uninterrupted.state_dict(), resumed.state_dict())
    names, manifests, shards = stored_shallow(s3_url)
    assert names == {"epoch=3-step=8.ckpt", "last.ckpt"}
    assert manifests == needed_shallow(s3_url)
    assert shards <= manifests


def stored_shallow(place: str) -> tuple[set[str], set[str], set[str]]:
    names, manifests, shards = stored(place)
    return {name for name in names if "/" not in name}, manifests, shards


def needed_shallow(place: str) -> set[str]:
    return needed(place, shallow=True)


def test_best_is_found_on_s3(package: ModuleType, s3_url: str) -> None:
    trainer, model = fit(package, s3_url, 2)
    model.validation_step = lambda batch, batch_idx: None
    model.val_dataloader = model.train_dataloader

    trainer.validate(model, ckpt_path="best", verbose=False)

    assert trainer.checkpoint_callback.best_model_path == f"s4{s3_url[2:]}/epoch=1-step=4.ckpt"


def test_last_without_a_checkpoint_is_a_warning_and_begins_anew(
    package: ModuleType, s3_url: str
) -> None:
    with pytest.warns(UserWarning, match="there is no last checkpoint available"):
        trainer, _ = fit(package, s3_url, 1, "last")

    assert trainer.global_step == 2


def test_an_unreachable_store_is_an_error_and_not_a_training_from_scratch(
    package: ModuleType, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(package, s3_url, 1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    with pytest.raises(StoreError, match=s3_url.rpartition("/")[2]):
        fit(package, s3_url, 2, "last")


def test_the_checkpoint_resumed_from_survives_a_better_one(
    package: ModuleType, s3_url: str
) -> None:
    fit(package, s3_url, 1, save_last=False)
    source = f"{s3_url}/epoch=0-step=2.ckpt"

    fit(package, s3_url, 2, source, save_last=False)

    assert stored(s3_url)[0] == {"epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt"}
    assert S4CheckpointIO().load_checkpoint(source)["global_step"] == 2


def test_a_link_is_a_ref_on_s3(package: ModuleType, s3_url: str) -> None:
    fit(package, s3_url, 2, save_last="link")

    assert S4CheckpointIO().load_checkpoint(f"{s3_url}/last.ckpt")["global_step"] == 4


def test_on_local_paths_it_is_lightnings_own(package: ModuleType, tmp_path: Path) -> None:
    fit(package, tmp_path / "run", 2, save_last="link")
    trainer, _ = fit(package, tmp_path / "run", 3, "last", save_last="link")

    assert trainer.global_step == 6
    assert (tmp_path / "run" / "last.ckpt").is_symlink()


def test_the_directory_may_come_from_the_trainer(package: ModuleType, tmp_path: Path) -> None:
    callback = callback_of(package, None)
    trainer = make_trainer(
        package,
        S4CheckpointIO(),
        max_epochs=1,
        callbacks=[callback],
        default_root_dir=tmp_path,
    )
    trainer.fit(make_model(package))

    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()


def test_a_name_that_is_being_saved_is_taken(package: ModuleType, tmp_path: Path) -> None:
    plugin = S4CheckpointIO(wait=False)
    callback = callback_of(package, tmp_path / "run", filename="same", save_top_k=-1)
    trainer = make_trainer(package, plugin, max_epochs=3, callbacks=[callback])
    trainer.fit(make_model(package))

    names = {name for name in os.listdir(tmp_path / "run") if name.endswith(".ckpt")}
    assert names == {"same.ckpt", "same-v1.ckpt", "same-v2.ckpt", "last.ckpt"}


def test_the_name_in_the_package_is_of_the_package_in_use() -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    assert issubclass(s4_lightning.S4ModelCheckpoint, ModelCheckpoint)
    with pytest.raises(AttributeError, match="no attribute 'S4Nothing'"):
        _ = s4_lightning.S4Nothing


@pytest.fixture
def bucket_path(s3_url: str) -> str:
    return s3_url.removeprefix("s3://")


def test_the_file_system_shows_what_is_committed(s3_url: str, bucket_path: str) -> None:
    fs, path = fsspec.core.url_to_fs(f"s4://{bucket_path}/last.ckpt")
    assert isinstance(fs, S4FileSystem)
    assert not fs.exists(path)
    with pytest.raises(FileNotFoundError, match="nothing is stored there"):
        fs.info(path)

    S4CheckpointIO().save_checkpoint({"w": torch.rand(5000)}, f"{s3_url}/last.ckpt")
    assert fs.exists(path)
    assert fs.isfile(path)
    assert fs.isdir(bucket_path)
    assert fs.ls(bucket_path, detail=False) == [path]
    assert fs.ls(path)[0]["type"] == "file"
    assert fs.modified(path).timestamp() > 1.6e9
    assert fs.unstrip_protocol(path) == f"s4://{bucket_path}/last.ckpt"

    fs.rm(path)
    assert not fs.exists(path)
    assert stored(s3_url) == (set(), set(), set())
    with pytest.raises(KeyNotFoundError):
        fs.modified(path)


def test_reading_through_the_file_system_gives_a_torch_file(s3_url: str, bucket_path: str) -> None:
    state = {"w": torch.rand(5000), "step": 3}
    S4CheckpointIO().save_checkpoint(state, f"{s3_url}/last.ckpt")

    with fsspec.open(f"s4://{bucket_path}/last.ckpt", "rb") as file:
        assert_same_state(state, torch.load(file, weights_only=True))


def test_writing_through_the_file_system_is_whole_or_not_at_all(
    s3_url: str, bucket_path: str
) -> None:
    with fsspec.open(f"s4://{bucket_path}/best.yaml", "w") as file:
        file.write("a: 1\n")
    with fsspec.open(f"s4://{bucket_path}/best.yaml", "rb") as file:
        assert file.read() == b"a: 1\n"

    fs = fsspec.filesystem("s4")
    with suppress(ZeroDivisionError), fs.open(f"{bucket_path}/half", "wb") as file:
        file.write(b"half")
        _ = 1 / 0
    assert not open_store(s3_url).exists("half")
    with pytest.raises(StateError, match="opened with 'ab': expected 'rb' or 'wb'"):
        fs.open(f"{bucket_path}/x", "ab")


def test_lightnings_own_callback_works_on_s3_where_s3fs_is_installed(
    package: ModuleType, s3_url: str, s3_environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs", reason="Lightning's own ModelCheckpoint needs s3fs for s3://")
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", s3_environment.endpoint)
    plugin = S4CheckpointIO()
    callback = save_every_epoch(package, s3_url)
    trainer = make_trainer(package, plugin, max_epochs=3, callbacks=[callback])

    trainer.fit(make_model(package))

    names, manifests, _ = stored(s3_url)
    assert names == {"epoch=1-step=4.ckpt", "epoch=2-step=6.ckpt", "last.ckpt"}
    assert manifests == needed(s3_url)
    assert plugin.load_checkpoint(f"{s3_url}/last.ckpt")["global_step"] == 6
