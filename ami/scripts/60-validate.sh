#!/bin/bash
# Fails the build if the seal left anything of the build machine behind, or took too much.
# Counterpart of 50-seal.sh; changes nothing.
#   BUILD  where Packer had put the build's files
set -uo pipefail
: "${BUILD:?}"
failed=0
fail() {
    echo "validate: $*" >&2
    failed=1
}
none() { # none WHAT PATTERN...: no path may match a pattern
    local what=$1 pattern path
    shift
    for pattern in "$@"; do
        while read -r path; do
            fail "$what left: $path"
        done < <(compgen -G "$pattern")
    done
}

none "build file" "$BUILD"
none "host key" '/etc/ssh/ssh_host_*'
none "SSH directory" '/root/.ssh' '/home/*/.ssh'
none "cloud-init state" '/var/lib/cloud/instance' '/var/lib/cloud/instances/*' '/var/lib/cloud/sem/*' '/var/log/cloud-init*.log.*'
none "AWS credential" '/root/.aws' '/home/*/.aws' '/var/lib/s4-runner/.aws'
none "history" '/root/.*_history' '/home/*/.*_history'
none "cache" '/root/.cache' '/home/*/.cache' '/var/lib/apt/lists/*'
none "customer setting" '/etc/s4/runner.env'
none "runner state" '/var/lib/s4-runner/*'
none "journal" '/var/log/journal/*'
none "swap" '/swapfile' '/swap.img'

[ -e /etc/machine-id ] || fail "machine-id is missing: the first boot would not make one"
[ ! -s /etc/machine-id ] || fail "machine-id is not empty: every instance would have the same"
[ ! -e /var/lib/dbus/machine-id ] || [ -L /var/lib/dbus/machine-id ] || fail "D-Bus machine-id left"

# Anything that lets the builder back in, wherever it hides.
while read -r path; do
    fail "authorized keys left: $path"
done < <(find / -xdev -name 'authorized_keys*' -type f -size +0 -not -path '/proc/*' 2>/dev/null)
while read -r path; do
    fail "private key left: $path"
done < <(find /root /home /etc /opt/s4weights/etc /var/lib /tmp -xdev -type f \
    \( -name 'id_rsa' -o -name 'id_ed25519' -o -name 'id_ecdsa' -o -name '*.pem.key' \) 2>/dev/null)
while read -r line; do
    fail "a password is set or empty: ${line%%:*}"
done < <(awk -F: '$2 !~ /^[!*]/' /etc/shadow)

# This very session writes a few lines; the build wrote megabytes.
while read -r path; do
    fail "log of the build left: $path"
done < <(find /var/log -type f -size +64k)
if grep -rIlE 'AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY' \
    /etc /root /home /var/lib/s4-runner /usr/share/s4weights /var/log 2>/dev/null |
    grep -v -e '^/etc/ssl/' -e '^/etc/ssh/moduli'; then
    fail "a credential is in the files above"
fi

# What must be there.
for path in /usr/share/s4weights/gate.json /usr/share/s4weights/entitlement.json \
    /usr/share/s4weights/image.goss.yaml /etc/systemd/system/s4-runner.service /opt/s4weights/bin/python; do
    [ -e "$path" ] || fail "missing: $path"
done
grep -q '"passed": true' /usr/share/s4weights/gate.json || fail "gate.json does not say that the GPU gate passed"
[ "$(stat -c %U:%a /usr/share/s4weights/entitlement.json)" = root:644 ] || fail "entitlement.json: owner or mode"
systemctl is-enabled --quiet s4-runner.service && fail "s4-runner.service is enabled before it has settings"
sshd_says=$(/usr/sbin/sshd -T -h /dev/null 2>/dev/null || cat /etc/ssh/sshd_config.d/10-s4.conf)
grep -qi '^passwordauthentication no' <<<"$sshd_says" || fail "sshd takes passwords"
grep -qi '^permitrootlogin no' <<<"$sshd_says" || fail "sshd lets root in"
if dpkg-query -W -f='${db:Status-Abbrev}\n' dkms 2>/dev/null | grep -q '^ii'; then fail "dkms is installed"; fi
free=$(df --output=avail -BM / | tail -1 | tr -dc '0-9')
[ "$free" -ge 2048 ] || fail "only $free MiB are free on /"

[ "$failed" -eq 0 ] && echo "validate: the image is clean"
exit "$failed"
