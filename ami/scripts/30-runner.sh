#!/bin/bash
# The runner: its user, unit, settings of the product, and the image's own checks.
#   BUILD  where Packer put the build's files
set -euo pipefail
: "${BUILD:?}"
share=/usr/share/s4weights

install -D -m 0644 -o root -g root "$BUILD/deploy/s4-runner.service" /etc/systemd/system/s4-runner.service
install -D -m 0644 -o root -g root -t /usr/lib/sysusers.d "$BUILD"/deploy/sysusers.d/*.conf
install -D -m 0644 -o root -g root -t /usr/lib/tmpfiles.d "$BUILD"/deploy/tmpfiles.d/*.conf
install -D -m 0644 -o root -g root "$BUILD/deploy/s4-runner.env.example" "$share/s4-runner.env.example"
install -D -m 0644 -o root -g root "$BUILD/entitlement.json" "$share/entitlement.json"
install -D -m 0644 -o root -g root "$BUILD/requirements/runner.lock" "$share/runner.lock"
install -D -m 0644 -o root -g root -t "$share" "$BUILD"/files/*.py "$BUILD/image.goss.yaml"

systemd-sysusers
systemd-tmpfiles --create
systemd-analyze verify --man=no /etc/systemd/system/s4-runner.service

# How entitlement is checked is decided here, not by the customer: refuse a file that the
# runner would refuse, and one that replaces the GPU self-test.
/opt/s4weights/bin/python -I - <<'PYTHON'
from s4core.runner.image import load_image_settings

found = load_image_settings()
if found.self_test_command is not None:
    raise SystemExit("entitlement.json replaces the GPU self-test: not in a product image")
print(f"entitlement: {found.mode}, product {found.product_code}")
PYTHON

# Key pairs only, as AWS Marketplace asks; the template opens no SSH port at all.
cat >/etc/ssh/sshd_config.d/10-s4.conf <<'SSHD'
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitEmptyPasswords no
PermitRootLogin no
SSHD
passwd --lock root

# UserData enables it once there are settings; without them it would fail on every boot.
systemctl disable s4-runner.service
