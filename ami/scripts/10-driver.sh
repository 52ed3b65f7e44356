#!/bin/bash
# The NVIDIA driver, from Ubuntu's own prebuilt and signed modules: nothing is compiled, so a
# kernel update cannot leave a machine without its GPU. Packer reboots after this.
#   DRIVER_BRANCH  for example 580
set -euo pipefail
: "${DRIVER_BRANCH:?}"
export DEBIAN_FRONTEND=noninteractive

# Ubuntu's first boot may still be installing.
cloud-init status --wait
apt-get -o DPkg::Lock::Timeout=600 update
apt-get -y -o DPkg::Lock::Timeout=600 full-upgrade
apt-get -y install --no-install-recommends \
    linux-aws \
    "linux-modules-nvidia-${DRIVER_BRANCH}-server-aws" \
    "nvidia-headless-no-dkms-${DRIVER_BRANCH}-server" \
    "nvidia-utils-${DRIVER_BRANCH}-server"

if dpkg-query -W -f='${db:Status-Abbrev}\n' dkms "nvidia-dkms-*" 2>/dev/null | grep -q '^ii'; then
    echo "dkms is installed: the driver would be compiled on the customer's machine" >&2
    exit 1
fi

# The unit's device rules are made before its ExecStartPre: both modules must be there by then.
printf 'nvidia\nnvidia_uvm\n' >/etc/modules-load.d/s4-nvidia.conf
systemctl enable nvidia-persistenced.service

# Kernel and driver fit together as tested; a new pair comes as a new image.
apt-mark hold linux-aws linux-image-aws linux-headers-aws \
    "linux-modules-nvidia-${DRIVER_BRANCH}-server-aws" \
    "nvidia-headless-no-dkms-${DRIVER_BRANCH}-server" \
    "nvidia-utils-${DRIVER_BRANCH}-server"
apt-get -y autoremove --purge
