"""S4 Weights for Hugging Face Accelerate, and below `hf` for the Trainer of transformers.

    S4Accelerate            save_state and load_state to and from a URL, all in one commit
    save_hook, load_hook    for register_save_state_pre_hook and register_load_state_pre_hook
    latest                  the URL of the newest committed checkpoint
    hf                      S4TrainerCallback, S4Trainer, patch_trainer, prepare, latest

    wrapper     S4Accelerate                     hooks       the bare hooks
    archive     checkpoints below one URL        ranks       what processes tell each other
    files       side files as leaves             canonical   names without wrappers
    restore     states into live objects         shadows     optimizers past optimizer.bin
    checks      before a load                    support     what is refused, and why

Importing this imports neither accelerate nor transformers.
"""

from __future__ import annotations

import os

from s4_accelerate.archive import Archive, Report
from s4_accelerate.hooks import load_hook, save_hook
from s4_accelerate.wrapper import S4Accelerate

__all__ = ["Report", "S4Accelerate", "latest", "load_hook", "save_hook"]


def latest(url: str | os.PathLike[str] | None = None) -> str | None:
    """Return the URL of the newest committed checkpoint below `url`, None without any.

    Raises:
        StoreError: the store could not be listed; an error is never "no checkpoint".
    """
    archive = Archive(url if url is None else os.fspath(url), {})
    names = archive.names()
    return archive.run.directory.url_of(names[-1]) if names else None
