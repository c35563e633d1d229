#!/bin/sh
# deb.sh SUITE - the Debian package on another Debian: built there with its own Python, then installed, started, upgraded,
# removed and purged where that Debian's systemd is process 1, in a container (systemd-nspawn). As root. What make test-deb
# does. No client mounts here: rdma-nfsd ls and cat read what is served. tests/vm/test_debian_package.py mounts, in a guest.
set -eu
suite=$1
here=$(cd "$(dirname "$0")" && pwd)
lab=$(mkdir -p "${RDMA_NFSD_LAB:-$here/../../.lab}" && cd "${RDMA_NFSD_LAB:-$here/../../.lab}" && pwd)
built=$lab/debian-$suite
booted=$lab/booted-$suite
"$here/../vm/host-packages.sh" chroot nspawn
# git, because what is packed is what git knows.
export RDMA_NFSD_INCLUDE=make,mount,ca-certificates,procps,passwd,iproute2,openssh-client
"$here/enter.sh" "$suite" "$built" sh -euc '
    [ -x /usr/bin/git ] || { apt-get update -qq && apt-get install -y -qq git >/dev/null; }
    git init -q . && git add -A && rm -rf dist && make deb'
package=$(ls "$built"/clone/dist/rdma-nfsd_*.deb)

needed=$(dpkg-deb -f "$package" Depends | tr ',' '\n' | sed 's/[|(:].*//; s/ //g' | sort -u | paste -sd, -)
rm -rf "$booted"
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
    --include="systemd-sysv,dbus,dpkg-dev,$needed" "$suite" "$booted" "$("$here/mirror.sh")"
cp "$package" "$booted/root/first.deb"
cp "$here/deb_inside.sh" "$booted/root/"
cat >"$booted/etc/systemd/system/check.service" <<'END'
[Service]
Type=oneshot
ExecStart=/bin/bash /root/deb_inside.sh
StandardOutput=file:/root/told
StandardError=inherit
ExecStopPost=/bin/systemctl --no-block poweroff
END
mkdir -p "$booted/etc/systemd/system/multi-user.target.wants"
ln -sf ../check.service "$booted/etc/systemd/system/multi-user.target.wants/"
# Today's systemd knows control groups of version 2 only.
unshare --mount --propagation private sh -c '
    umount --lazy /sys/fs/cgroup 2>/dev/null
    mount -t cgroup2 none /sys/fs/cgroup
    calls="fanotify_init fanotify_mark quotactl_fd cachestat name_to_handle_at open_by_handle_at"
    SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 900 systemd-nspawn --quiet --register=no --keep-unit --private-network \
        --capability=all --system-call-filter="$calls" --directory "$1" --boot >"$1/root/console" 2>&1' sh "$booted" ||
    echo "systemd-nspawn: status $?, $booted/root/console"
cat "$booted/root/told"
grep -qx "deb_inside.sh: all is well" "$booted/root/told"
