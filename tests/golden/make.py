"""Write the golden files of the current format version, once; existing ones are never touched.

python tests/golden/make.py
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from golden_states import (  # noqa: E402
    FILES,
    MOMENT_STEPS,
    RUN_STEPS,
    moments_state,
    run_state,
)

import s4weights  # noqa: E402
from s4core.format import VERSION  # noqa: E402

target = HERE / f"v{VERSION}"
target.mkdir(exist_ok=True)
for name, state in FILES.items():
    if not (target / name).exists():
        s4weights.save(state(), target / name)
for name, steps, state_of in (
    ("run", RUN_STEPS, run_state),
    ("moments", MOMENT_STEPS, moments_state),
):
    if not (target / name).exists():
        for step in steps:
            s4weights.save_checkpoint(state_of(step), target / name, step=step)
