"""Find committed checkpoints, and lay one out as a directory that a Trainer resumes from."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

import s4weights
from s4_accelerate.archive import Archive
from s4_accelerate.files import write_files
from s4_accelerate.hf.recorder import CHECKPOINT, FORMAT, GROUPS, NAMES
from s4_accelerate.hf.stub import (
    any_armed,
    key_of,
    replace_file,
    weights_of,
    write_optimizer,
    write_stub,
)
from s4_accelerate.ranks import Ranks
from s4core.checkpoint.foreign import dump_safetensors
from s4core.refs import split_url
from s4weights import FormatError, KeyNotFoundError, StateError

__all__ = ["latest", "lay_out_weights", "prepare"]

_log = logging.getLogger("s4_accelerate")

_Path = str | os.PathLike[str]
FOLDER: Final = "s4-resume"  # no rotation and no `resume_from_checkpoint=True` looks here


def latest(url: _Path | None = None) -> str | None:
    """Return the URL of the newest committed checkpoint below `url`, None without any.

    Raises:
        StoreError: the store could not be listed; an error is never "no checkpoint".
    """
    archive = Archive(None if url is None else os.fspath(url), {})
    names = archive.names(CHECKPOINT)
    return archive.run.directory.url_of(names[-1]) if names else None


def prepare(url: _Path | None, output_dir: _Path, *, materialize: bool | None = None) -> str:
    """Lay a checkpoint out in `output_dir`, for `trainer.train(resume_from_checkpoint=...)`.

    Call it on every rank. Directories that are there already are left as they are.

    Args:
        url: of a checkpoint (`s3://bucket/run/checkpoint-40`), or of the directory of all:
            the newest committed; None: `S4_STORE`.
        output_dir: of the Trainer.
        materialize: write all the weights, so that a plain Trainer can load them; False:
            some kilobytes, for a Trainer with `S4TrainerCallback` or `S4Trainer`, which load
            the weights straight to their device. None: False where one of these is
            attached to a model of this process, else True.

    Returns:
        The directory.

    Raises:
        KeyNotFoundError: no committed checkpoint (also FileNotFoundError).
        FormatError, ChainError: it is damaged, or something it stands on is gone.
    """
    ranks = Ranks()
    _refuse_unknown_ranks(ranks)
    where = ranks.first(lambda: _resolve(url))
    full = not any_armed() if materialize is None else materialize
    folder = Path(output_dir) / FOLDER
    # Ranks of one machine share its directory: one of them writes, all wait.
    alone = ranks.count > 1 and os.environ.get("LOCAL_RANK", "0") != "0"
    ranks.gather(lambda: None if alone else _lay_out_all(where, folder, full=full))
    directory = folder / where.rpartition("/")[2]
    _warn_of_missing_random_states(directory, ranks, where)
    return str(directory)


def _refuse_unknown_ranks(ranks: Ranks) -> None:
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks.count == 1 and expected > 1:
        raise StateError(
            f"prepare() was called before torch.distributed knew of the {expected} processes: "
            "call it after the Trainer is made"
        )


def _resolve(url: _Path | None) -> str:
    text = None if url is None else os.fspath(url).rstrip("/")
    if text is not None and CHECKPOINT.fullmatch(text.rpartition("/")[2]):
        directory, name = split_url(text)
        return directory.url_of(name)
    found = latest(text)
    if found is None:
        raise KeyNotFoundError(f"{text or 'S4_STORE'} holds no committed checkpoint-<step>")
    return found


def _lay_out_all(where: str, folder: Path, *, full: bool) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    directory = folder / where.rpartition("/")[2]
    directory.mkdir(parents=True)
    names = _lay_out_files(where, directory)
    if full or names is None:
        _materialize(where, directory)
    else:
        write_stub(directory, where, names)
        if (directory / GROUPS).exists():
            os.replace(directory / GROUPS, directory / "optimizer.pt")
    if not (directory / "optimizer.pt").exists():
        _log.warning("%s was saved with save_only_model: optimizer and scheduler start anew", where)
    _lay_out_best(where, directory, full=full)


def _lay_out_files(where: str, directory: Path) -> list[str] | None:
    """Write the side files of all ranks; return the names of the model's weights."""
    store, name = split_url(where)
    run = s4weights.open(store.url)
    leaves = run.load(name=name, keys=["files/*"])
    if f"files/0/{NAMES}" not in leaves:
        raise FormatError(f"{where} is no checkpoint of a Trainer: load it with s4weights.load")
    write_files({key_of(path): leaf for path, leaf in leaves.items()}, directory)
    names: list[str] | None = json.loads((directory / NAMES).read_text())
    return names


def _materialize(where: str, directory: Path) -> None:
    state = s4weights.load(where, "cpu")
    if state["format"] != FORMAT or state["version"] != 1:
        found = f"{state['format']} {state['version']}"
        raise FormatError(f"{where} is {found}; expected {FORMAT} 1: upgrade s4weights")
    if state["model"] is not None:
        _write_weights(directory, state["model"])
    if state["optimizer"] is not None:
        write_optimizer(directory, state["optimizer"])


def _write_weights(directory: Path, model: Mapping[str, Tensor]) -> None:
    replace_file(directory / "model.safetensors", dump_safetensors(weights_of(model)))


def _lay_out_best(where: str, directory: Path, *, full: bool) -> None:
    """Lay out the best checkpoint's weights too, for `load_best_model_at_end`.

    The trainer state names it by its path on the machine that saved it.
    """
    path = directory / "trainer_state.json"
    state = json.loads(path.read_text()) if path.exists() else {}
    recorded = state.get("best_model_checkpoint")
    if recorded is None or os.path.isdir(recorded):
        return
    name = recorded.rstrip("/").rpartition("/")[2]
    best = f"{where.rpartition('/')[0]}/{name}"
    try:
        local = lay_out_weights(best, directory.parent, full=full)
    except KeyNotFoundError:
        _log.warning("the best checkpoint, %s, is not committed in S4: it is forgotten", best)
        return
    state["best_model_checkpoint"] = str(local)
    replace_file(path, json.dumps(state, indent=2, sort_keys=True).encode() + b"\n")


def lay_out_weights(where: str, folder: Path, *, full: bool) -> Path:
    """Lay out a checkpoint's weights below `folder`, unless they are there; return where."""
    directory = folder / where.rpartition("/")[2]
    if directory.exists():
        return directory
    with tempfile.TemporaryDirectory(dir=folder, prefix=".s4-") as scratch:
        staged = Path(scratch) / "weights"
        staged.mkdir()
        names = _lay_out_files(where, staged)
        if full and names is not None:
            _materialize(where, staged)
        elif names is not None:
            write_stub(staged, where, names, alone=True)
        with contextlib.suppress(FileExistsError, OSError):  # another rank was first
            os.rename(staged, directory)
    return directory


def _warn_of_missing_random_states(directory: Path, ranks: Ranks, where: str) -> None:
    count, rank = ranks.count, ranks.index
    name = "rng_state.pth" if count == 1 else f"rng_state_{rank}.pth"
    if not (directory / name).exists():
        _log.warning(
            "%s holds no random number generators for rank %d of %d (no %s): this rank goes on "
            "with fresh ones, and training is not repeated exactly",
            *(where, rank, count, name),
        )
