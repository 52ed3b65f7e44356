"""Write the golden files of the current format version, once; existing ones are never touched.

python tests/golden/make.py
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from golden_states import FILES, RUN_STEPS, run_state  # noqa: E402

import s4weights  # noqa: E402
from s4core.format import VERSION  # noqa: E402

target = HERE / f"v{VERSION}"
if any(target.glob("*.s4")):
    raise SystemExit(f"{target} has golden files: they are written once and read for ever")
target.mkdir(exist_ok=True)
for name, state in FILES.items():
    s4weights.save(state(), target / name)
for step in RUN_STEPS:
    s4weights.save_checkpoint(run_state(step), target / "run", step=step)
