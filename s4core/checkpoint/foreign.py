"""Checkpoints of other tools: plain torch zips and safetensors, for migration and export."""

from __future__ import annotations

import io
from typing import Any, Final

import torch
from torch import Tensor

from s4core.checkpoint.reader import MapLocation
from s4core.errors import FormatError, StateError

__all__ = ["dump_safetensors", "dump_torch", "kind_of", "load_foreign"]

_ZIP: Final = b"PK\x03\x04"
# torch.save before 1.6 wrote a pickle that starts with this number.
_LEGACY_TORCH: Final = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_MISSING_SAFETENSORS: Final = (
    "safetensors files need the package safetensors: pip install safetensors"
)


def kind_of(head: bytes, size: int) -> str | None:
    """Tell `torch` or `safetensors` by a file's first 16 bytes; None: neither."""
    if head.startswith((_ZIP, _LEGACY_TORCH)):
        return "torch"
    header_bytes = int.from_bytes(head[:8], "little")
    if 2 <= header_bytes <= size - 8 and head[8:9] == b"{":
        return "safetensors"
    return None


def load_foreign(
    kind: str, data: bytes, where: str, map_location: MapLocation, *, weights_only: bool
) -> Any:
    """Read a torch or safetensors file.

    Raises:
        FormatError: it is damaged.
        StateError: it needs `weights_only=False`.
    """
    if kind == "safetensors":
        return _load_safetensors(data, where, map_location)
    try:
        return torch.load(io.BytesIO(data), map_location=map_location, weights_only=weights_only)
    except Exception as error:
        if weights_only and "weights_only" in str(error).lower():
            raise StateError(
                f"{where} is a torch file that weights_only=True refuses ({error}); pass "
                "weights_only=False if you trust its author"
            ) from error
        raise FormatError(f"{where} is a torch file that cannot be read: {error}") from error


def _load_safetensors(data: bytes, where: str, map_location: MapLocation) -> dict[str, Tensor]:
    try:
        import safetensors.torch
    except ImportError as error:
        raise StateError(f"{where}: {_MISSING_SAFETENSORS}") from error
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except Exception as error:
        raise FormatError(f"{where} is a damaged safetensors file: {error}") from error
    if map_location is None or callable(map_location) or isinstance(map_location, dict):
        return tensors
    return {name: tensor.to(map_location) for name, tensor in tensors.items()}


def dump_torch(state: Any) -> bytes:
    """Return the bytes of `torch.save(state)`."""
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def dump_safetensors(tensors: dict[str, Tensor]) -> bytes:
    """Return a safetensors file of contiguous copies of `tensors`.

    Raises:
        StateError: a dtype that safetensors does not know, or the package is missing.
    """
    try:
        import safetensors.torch
    except ImportError as error:
        raise StateError(_MISSING_SAFETENSORS) from error
    try:
        # Clones: safetensors refuses tensors that share memory.
        data: bytes = safetensors.torch.save(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
            metadata={"format": "pt"},  # without it transformers refuses the file
        )
    except (KeyError, ValueError, RuntimeError) as error:
        raise StateError(f"safetensors cannot hold this: {error}; export to .pt") from error
    return data
