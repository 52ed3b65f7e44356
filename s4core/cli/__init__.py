"""The command line, `s4weights`.

    ls      the checkpoints of a run         show    one checkpoint: tensors, classes, chain
    verify  is every byte there?             export  to .s4, .pt or .safetensors
    rm      remove a checkpoint              gc      delete what no chain needs
    repair  refs from manifests              rebase  write a checkpoint whole
    doctor  does every bit come back here?

`ls`, `show` and `repair` import no torch: they start fast and run anywhere. Exit codes: 0 all is
well, 1 something is wrong with a checkpoint or store, 2 wrong usage.
"""

from s4core.cli.main import main

__all__ = ["main"]
