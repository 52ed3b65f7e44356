"""`S4Accelerate`: `save_state` and `load_state` to and from a URL, all in one commit.

    s4 = S4Accelerate(accelerator, "s3://bucket/run")
    accelerator.save_state("step_100")          accelerator.load_state("step_100")
    accelerator.load_state(s4.latest())

A save goes through Accelerate's own code, into an empty directory of each rank, with the
models and optimizers taken out by the hooks. What lies there afterwards, the side files
of every rank, is gathered; then rank 0 saves all of it as one checkpoint. So a kill at
any moment leaves the checkpoints that were committed, and no part of another one. A load
goes the same way back.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from s4_accelerate import hooks
from s4_accelerate.archive import Archive, Report, superfluous
from s4_accelerate.checks import (
    FORMAT,
    check_kind,
    is_plain,
    refuse_pickles,
    refuse_taken,
    warn_of_missing_random_states,
)
from s4_accelerate.files import as_leaves, read_files, write_files
from s4_accelerate.ranks import Ranks
from s4_accelerate.restore import placed_on
from s4_accelerate.shadows import remove_shadows
from s4_accelerate.support import refuse_sharded
from s4core.refs import split_url
from s4weights import KeyNotFoundError, StateError

__all__ = ["S4Accelerate"]

_log = logging.getLogger("s4_accelerate")

_Path = str | os.PathLike[str]
_AUTOMATIC: Final = re.compile(r"checkpoint_(\d+)")


class S4Accelerate:
    """Sends an Accelerator's checkpoints through S4.

    Args:
        accelerator: its `save_state` and `load_state` are replaced until `close`.
        url: directory of the checkpoints: local path, `s3://bucket/run`, ...; None:
            `S4_STORE`, or, where that is not set, every path given to `save_state` and
            `load_state` is the path or URL of a checkpoint itself.
        keep_last: after a commit, keep only so many newest checkpoints; None: keep all.
            With automatic naming, `ProjectConfiguration.total_limit` rules instead.
        wait: let `save_state` return after the commit; else it returns as soon as the state
            may change, and the rest is done behind the training.
        allow_cast: let loading round values to a model's dtype.
        allow_pickle: store what has no safe form pickled, and load pickles: they may run
            code. Accelerate itself loads custom objects so.
        options: more fields of `s4weights.Options`.

    Raises:
        StateError: an option out of range.
    """

    def __init__(
        self,
        accelerator: Any,
        url: _Path | None = None,
        *,
        keep_last: int | None = None,
        wait: bool = False,
        allow_cast: bool = False,
        allow_pickle: bool = False,
        **options: Any,
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise StateError(f"keep_last {keep_last}: expected at least 1, or None")
        self.accelerator = accelerator
        self.url = url if url is not None else os.environ.get("S4_STORE") or None
        self.keep_last, self.wait = keep_last, wait
        self.allow_cast, self.allow_pickle = allow_cast, allow_pickle
        self._options = {**options, "allow_pickle": allow_pickle}
        self._archives: dict[str, Archive] = {}
        self._sources: dict[str, str] = {}  # what was saved as this name here
        self._ranks = Ranks()
        self._taken: dict[str, Any] | None = None
        self._given: dict[str, Any] | None = None
        self._load_options: dict[str, Any] = {}
        self._install()

    def _install(self) -> None:
        accelerator = self.accelerator
        self._native_save, self._native_load = accelerator.save_state, accelerator.load_state
        self._handles = [
            accelerator.register_save_state_pre_hook(self._save_hook),
            accelerator.register_load_state_pre_hook(self._load_hook),
        ]
        accelerator.save_state, accelerator.load_state = self.save_state, self.load_state

    def close(self) -> None:
        """Wait for what is under way, and give the Accelerator its own methods back.

        Raises:
            S4Error: the last checkpoint was not committed.
        """
        for handle in self._handles:
            handle.remove()
        for name in ("save_state", "load_state"):
            self.accelerator.__dict__.pop(name, None)
        self._ranks.first(self._close_archives)

    def _close_archives(self) -> None:
        for archive in self._archives.values():
            archive.close()
        self._tell_trackers()

    def flush(self) -> None:
        """Wait until everything saved so far is committed; call it on every rank.

        Raises:
            S4Error: the last checkpoint was not committed.
        """
        self._ranks.first(self._flush_archives)

    def _flush_archives(self) -> None:
        for archive in self._archives.values():
            archive.flush()
        self._tell_trackers()

    @property
    def reports(self) -> list[Report]:
        """What was committed by this process (rank 0), oldest first; the newest thousand."""
        return [report for archive in self._archives.values() for report in archive.reports]

    def latest(self) -> str | None:
        """Return the URL of the newest committed checkpoint below `url`, None without any.

        Call it on every rank: rank 0 looks, all get the same answer.

        Raises:
            StateError: there is no `url`.
            StoreError: the store could not be listed.
        """
        if self.url is None:
            raise StateError("latest() needs a directory: S4Accelerate(accelerator, url)")
        archive = self._archive(self.url)
        names = self._ranks.first(lambda: archive.names(wait=True))
        return archive.run.directory.url_of(names[-1]) if names else None

    # Saving

    def save_state(
        self, output_dir: _Path | None = None, safe_serialization: bool = True, **options: Any
    ) -> str:
        """Save everything as one checkpoint; takes the place of `Accelerator.save_state`.

        Args:
            output_dir: its name below `url`, or its path or URL; None with automatic naming.
            safe_serialization: accepted, and of no effect.
            options: as for `Accelerator.save_state`.

        Returns:
            The checkpoint's URL.

        Raises:
            StateError: FSDP, DeepSpeed, Megatron-LM or XLA; a state that cannot be stored;
                a name that holds another checkpoint.
            StoreError: the store refused; older checkpoints are unharmed.
        """
        started = time.monotonic()
        refuse_sharded(self.accelerator.distributed_type)
        archive, name = self._target(output_dir)
        iteration = self._project.iteration
        with tempfile.TemporaryDirectory(prefix="s4-") as staging:
            files = self._ranks.gather(lambda: self._stage(staging, safe_serialization, options))
        state, self._taken = self._taken, None
        everything = {**(state or {}), "iteration": iteration}
        self._ranks.first(lambda: self._commit(archive, name, everything, files, started))
        self._tell_trackers()
        return archive.run.directory.url_of(name)

    @property
    def _project(self) -> Any:
        return self.accelerator.project_configuration

    def _target(self, output_dir: _Path | None) -> tuple[Archive, str]:
        if self._project.automatic_checkpoint_naming:
            archive = self._archive(self._automatic_url())
            name = f"checkpoint_{self._project.iteration}"
            self._ranks.first(lambda: refuse_taken(archive, name))
            return archive, name
        if output_dir is None:
            raise StateError("save_state needs a name, path or URL without automatic naming")
        archive, name = self._address(output_dir)
        source = self._sources.setdefault(archive.run.directory.url_of(name), os.fspath(output_dir))
        if source != os.fspath(output_dir):
            raise StateError(
                f"{os.fspath(output_dir)!r} and {source!r} would both be {name!r} in "
                f"{archive.url}: give them different last parts"
            )
        return archive, name

    def _automatic_url(self) -> _Path:
        return self.url or os.path.join(self.accelerator.project_dir, "checkpoints")

    def _address(self, path: _Path) -> tuple[Archive, str]:
        text = os.fspath(path).rstrip("/")
        if self.url is None or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
            directory, name = split_url(os.path.expanduser(text))
            return self._archive(directory.url), name
        return self._archive(self.url), os.path.basename(text)

    def _archive(self, url: _Path) -> Archive:
        found = Archive(Path(url) if isinstance(url, Path) else os.fspath(url), self._options)
        return self._archives.setdefault(found.url, found)

    def _stage(self, staging: str, safe: bool, options: dict[str, Any]) -> dict[str, bytes]:
        """Let Accelerate write into `staging`, models and optimizers excepted."""
        hooks_now = self.accelerator._save_model_state_pre_hook
        hooks_now.move_to_end(self._handles[0].id)  # hooks of others take their models first
        automatic = self._project.automatic_checkpoint_naming
        self._project.automatic_checkpoint_naming = False
        try:
            self._native_save(staging, safe, **options)
        finally:
            self._project.automatic_checkpoint_naming = automatic
            remove_shadows(self.accelerator._optimizers)
        return read_files(staging)

    def _save_hook(self, models: Any, weights: Any, output_dir: str) -> None:
        del output_dir
        self._taken = hooks.take(self.accelerator, models, weights)

    def _commit(
        self,
        archive: Archive,
        name: str,
        state: dict[str, Any],
        files: list[dict[str, bytes]],
        started: float,
    ) -> None:
        state["format"], state["version"] = FORMAT, 1
        state["files"] = {str(rank): as_leaves(found) for rank, found in enumerate(files)}
        archive.save(
            state,
            name,
            meta={"trainer": "accelerate", "ranks": len(files)},
            wait=self.wait,
            started=started,
            then=lambda _: self._retain(archive),
        )

    def _retain(self, archive: Archive) -> None:
        automatic = self._project.automatic_checkpoint_naming
        limit = self._project.total_limit if automatic else self.keep_last
        if limit is not None:
            names = archive.names(_AUTOMATIC if automatic else None)
            archive.prune(superfluous(names, limit))

    def _tell_trackers(self) -> None:
        """Log what was committed since the last time; trackers belong to this thread."""
        for archive in self._archives.values():
            for report in archive.new_reports():
                if getattr(self.accelerator, "trackers", None):
                    self.accelerator.log(report.metrics)

    # Loading

    def load_state(
        self,
        input_dir: _Path | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load everything; takes the place of `Accelerator.load_state`.

        Args:
            input_dir: as given to `save_state`, or what `latest` returned; a directory that
                plain Accelerate wrote is left to it. None with automatic naming: the newest.
            load_kwargs: as for `Accelerator.load_state`.
            options: as for `Accelerator.load_state`, such as `strict`.

        Raises:
            KeyNotFoundError: no such checkpoint (also FileNotFoundError).
            FormatError, ChainError: it is damaged, or something it stands on is gone.
            StateError: other models or dtypes; a pickle without `allow_pickle`.
        """
        refuse_sharded(self.accelerator.distributed_type)
        archive, name = self._source(input_dir)
        self._ranks.first(archive.wait)  # a load right after a save returns what was saved
        if input_dir is not None and is_plain(archive, name, input_dir):
            self._native_load(os.fspath(input_dir), load_kwargs, **options)
            return
        device = placed_on(self.accelerator.device)
        state = archive.run.load(name=name, map_location=device, weights_only=not self.allow_pickle)
        where = archive.run.directory.url_of(name)
        check_kind(state, where)
        with tempfile.TemporaryDirectory(prefix="s4-") as staging:
            self._unpack(state["files"], staging, where)
            self._load_staged(state, staging, load_kwargs, options)
        self._restore_iteration(archive, state)

    def _source(self, input_dir: _Path | None) -> tuple[Archive, str]:
        if input_dir is not None:
            return self._address(input_dir)
        if not self._project.automatic_checkpoint_naming:
            raise StateError(
                "load_state needs a name, path or URL without automatic naming; latest() has one"
            )
        archive = self._archive(self._automatic_url())
        names = self._ranks.first(lambda: archive.names(_AUTOMATIC, wait=True))
        if not names:
            raise KeyNotFoundError(f"{archive.url} holds no committed checkpoint_<number>")
        return archive, names[-1]

    def _unpack(self, files: dict[str, Any], staging: str, where: str) -> None:
        rank = self._ranks.index
        write_files(files["0"], staging)
        if rank:
            write_files(files.get(str(rank), {}), staging)
        warn_of_missing_random_states(rank, self._ranks.count, len(files), staging, where)
        if not self.allow_pickle:
            refuse_pickles(staging, where)

    def _load_staged(
        self, state: dict[str, Any], staging: str, load_kwargs: Any, options: dict[str, Any]
    ) -> None:
        self.accelerator._load_model_state_pre_hook.move_to_end(self._handles[1].id)
        self._given = state
        self._load_options = {k: v for k, v in options.items() if k != "map_location"}
        try:
            self._native_load(staging, load_kwargs, **options)
        finally:
            self._given = None
            remove_shadows(self.accelerator._optimizers)

    def _load_hook(self, models: Any, input_dir: str) -> None:
        if self._given is not None:
            hooks.give(
                self.accelerator,
                models,
                self._given,
                allow_cast=self.allow_cast,
                **self._load_options,
            )
        elif os.path.exists(os.path.join(input_dir, hooks.FILE_NAME)):
            hooks.load_hook(models, input_dir)

    def _restore_iteration(self, archive: Archive, state: dict[str, Any]) -> None:
        """Name the next save after all that are there: a name is never used twice."""
        if not self._project.automatic_checkpoint_naming:
            return
        names = self._ranks.first(lambda: archive.names(_AUTOMATIC))
        taken = [int(name.removeprefix("checkpoint_")) for name in names]
        self._project.iteration = max([state["iteration"], *taken]) + 1
