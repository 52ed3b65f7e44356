"""S4 Weights for the Trainer of Hugging Face transformers, and trainers that derive from it.

S4TrainerCallback     a mirror: every checkpoint of the Trainer is committed to S4 too
S4Trainer             a mixin: checkpoints go to S4 and nowhere else
patch_trainer         the same for a trainer at hand
prepare, latest       resume on a machine that has nothing
Keep                  which checkpoints stay

callback, trainer     the above               recorder    gathered and committed
resuming              latest, prepare         stub        weights that stay in S4
transformers_api      the one import of transformers
"""

from __future__ import annotations

from s4_accelerate.hf.callback import S4TrainerCallback
from s4_accelerate.hf.recorder import Keep
from s4_accelerate.hf.resuming import latest, prepare
from s4_accelerate.hf.trainer import S4Trainer, patch_trainer

__all__ = ["Keep", "S4Trainer", "S4TrainerCallback", "latest", "patch_trainer", "prepare"]
