#!/bin/bash
# The Python environment: exactly the wheels of runner.lock, then this project's wheel.
#   BUILD         where Packer put the build's files
#   WHEEL_SHA256  of the one wheel in $BUILD/dist
set -euo pipefail
: "${BUILD:?}" "${WHEEL_SHA256:?}"
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

apt-get -y install --no-install-recommends python3 python3-venv
python3 -m venv --clear /opt/s4weights
pip=(/opt/s4weights/bin/python -I -m pip install --only-binary=:all:)
"${pip[@]}" --require-hashes --no-deps -r "$BUILD/requirements/runner.lock"

wheels=("$BUILD"/dist/*.whl)
if [ "${#wheels[@]}" -ne 1 ]; then
    echo "expected one wheel in $BUILD/dist, found ${#wheels[@]}" >&2
    exit 1
fi
echo "$WHEEL_SHA256  ${wheels[0]}" | sha256sum --check --strict
"${pip[@]}" --no-deps --no-index "${wheels[0]}"

/opt/s4weights/bin/python -I -m pip check
/opt/s4weights/bin/python -I -c "import s4weights, torch, boto3"
chown -R root:root /opt/s4weights
chmod -R go-w /opt/s4weights
