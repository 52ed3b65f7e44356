#!/bin/bash
# Removes what belongs to the build machine and not to its copies. The last change to the
# image: 60-validate.sh looks for every item again. Keep the two in step.
#   BUILD  where Packer put the build's files
set -euo pipefail
: "${BUILD:?}"
case "$BUILD" in
    /tmp/?*) ;;
    *) echo "BUILD must be below /tmp, found $BUILD" >&2; exit 1 ;;
esac

systemctl stop rsyslog.service syslog.socket 2>/dev/null || true  # absent where journald is alone

rm -rf "$BUILD" /root/.cache /home/*/.cache /root/.aws /home/*/.aws
rm -f /etc/s4/runner.env
rm -rf /var/lib/s4-runner/* /run/s4-runner
apt-get clean
rm -rf /var/lib/apt/lists/*

# Keys: of the host, and those by which Packer and cloud-init let people in, in every home.
rm -f /etc/ssh/ssh_host_*
rm -rf /root/.ssh
for home in /home/*; do
    rm -rf "$home/.ssh"
done

# Identity. An empty machine-id makes a new one on first boot; a missing one would not.
truncate -s 0 /etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed /etc/hostname
cloud-init clean --logs --seed
rm -rf /var/lib/cloud/instances /var/lib/cloud/instance

# Logs and histories. Truncated, not removed: their owners and modes matter to the daemons.
journalctl --rotate --vacuum-time=1s >/dev/null 2>&1 || true  # no journal on disk is fine
rm -rf /var/log/journal/* /var/log/amazon/* /var/log/unattended-upgrades/*
find /var/log -type f \( -name '*.gz' -o -name '*.[0-9]' -o -name '*.old' \) -delete
find /var/log -type f -exec truncate -s 0 {} +
rm -f /root/.*_history /home/*/.*_history /root/.lesshst /home/*/.lesshst /root/.wget-hsts
rm -rf /var/tmp/* /var/crash/*
sync
