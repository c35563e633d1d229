#!/bin/sh
# run.sh SUITE [WORDS FOR PYTEST...] - the tests that need no guest, on another Debian: its Python, compiler and libraries in a
# directory that becomes the root, on this kernel. As root. What make test-trixie does.
#
# The suite is kept in $RDMA_NFSD_LAB (.lab) with everything built in it: a second run installs and builds what has changed.
set -eu
suite=$1
shift
here=$(cd "$(dirname "$0")/../.." && pwd)
lab=${RDMA_NFSD_LAB:-$here/.lab}
root=$lab/debian-$suite
[ "$(id -u)" = 0 ] || { echo "run.sh: making a directory the root takes root" >&2; exit 1; }
"$here/tests/vm/host-packages.sh" chroot

if [ ! -e "$root/made" ]; then
    echo "making Debian $suite in $root"
    rm -rf "$root" && mkdir -p "$lab"
    mmdebstrap --quiet --variant=apt --include=make,mount,ca-certificates,procps,passwd,iproute2,openssh-client \
        "$suite" "$root" "$(sed -n 's/^ *\(URIs: *\|deb \)\(http[^ ]*debian\) *.*/\2/p' /etc/apt/sources.list.d/* \
            /etc/apt/sources.list 2>/dev/null | head -n 1)"
    touch "$root/made"
fi

# The clone, with the times of its files and without what was built here; what was built there stays.
mkdir -p "$root/clone"
(cd "$root/clone" && find . \( -path ./.venv -o -path ./build \) -prune -o -type f ! -name '*.so' ! -name '*.c' -exec rm {} +)
(cd "$here" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read 2>/dev/null) |
    tar -x -C "$root/clone"

# Mounts of its own, which go with it.
exec unshare --mount --propagation private sh -eu -c '
    root=$1
    shift
    mount --bind "$root" "$root"
    for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
    mount -t tmpfs none "$root/run"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    # A registry of the place has a certificate of the place.
    mount --bind /etc/ssl/certs "$root/etc/ssl/certs"
    # Not by chroot(8) alone: from below one no user namespaces can be made, and tests make some.
    cd "$root"
    mkdir -p outside && pivot_root . outside && umount --lazy outside
    exec chroot . /bin/sh -eu -c "
        cd /clone
        export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
        make tools develop
        . /etc/os-release
        echo \"\$PRETTY_NAME, \$(.venv/bin/python --version)\"
        exec .venv/bin/python -m pytest -p no:cacheprovider \"\$@\"
    " sh "$@"
' sh "$root" -m "not guest and not package" "$@"
