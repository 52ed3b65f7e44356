#!/bin/bash
# No image without a bit-exact round trip on the GPU. Everything is in gpu_gate.py.
#   DRIVER_BRANCH  for example 580
set -euo pipefail
: "${DRIVER_BRANCH:?}"
share=/usr/share/s4weights
# As the runner's user, after the setuid helper made the device nodes: what the unit will see.
if command -v nvidia-modprobe >/dev/null; then
    nvidia-modprobe -u -c=0
fi
/opt/s4weights/bin/python -I "$share/gpu_gate.py" --driver-branch "$DRIVER_BRANCH" \
    --output "$share/gate.json" "$share/runner.lock" "$share/entitlement.json" "$BUILD"/dist/*.whl
