"""What is not supported, said in one sentence, before anything is written."""

from __future__ import annotations

from typing import Any, Final

from s4weights import StateError

__all__ = ["refuse_sharded"]

_REASONS: Final = {
    "FSDP": (
        "FSDP and FSDP2 need sharded checkpoints (s4core.dcp), which these hooks do not write yet: "
        "call s4core.dcp.save and load, or use DistributedDataParallel"
    ),
    "DEEPSPEED": (
        "DeepSpeed writes model and optimizer itself and gives no hook their states: use "
        "DeepSpeed's own checkpoints"
    ),
    "MEGATRON_LM": (
        "Megatron-LM writes model and optimizer itself and gives no hook their states: use "
        "Megatron-LM's own checkpoints"
    ),
    "XLA": "XLA devices are not supported by S4: its codecs know CPU and CUDA memory",
}


def refuse_sharded(kind: Any) -> None:
    """Raise if states of this kind of training cannot be saved whole by rank 0.

    Args:
        kind: Accelerate's `DistributedType`, or its name.

    Raises:
        StateError: they cannot; the message says why and what to do.
    """
    name = str(getattr(kind, "value", kind)).upper()
    if name in _REASONS:
        raise StateError(f"S4 saves no checkpoint here: {_REASONS[name]}")
