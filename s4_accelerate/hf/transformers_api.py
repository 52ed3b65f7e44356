"""The one place that imports transformers."""

from __future__ import annotations

from typing import Any

__all__ = ["TrainerCallback"]

try:
    from transformers import TrainerCallback as _TrainerCallback
except ImportError as error:
    raise ImportError(
        "s4_accelerate.hf needs Hugging Face transformers; run: pip install 's4weights[hf]'"
    ) from error

TrainerCallback: Any = _TrainerCallback
