#!/bin/sh
# enter.sh SUITE ROOT WORDS... - run a command in this clone on another Debian: its Python, compiler and libraries in the
# directory ROOT, which becomes the root, on this kernel. As root. The directory is made if it is not there, and kept with
# everything built in it; RDMA_NFSD_INCLUDE is what it has besides apt's own needs.
set -eu
suite=$1
root=$2
shift 2
here=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "enter.sh: making a directory the root takes root" >&2; exit 1; }
"$here/tests/vm/host-packages.sh" chroot

if [ ! -e "$root/made" ]; then
    echo "making Debian $suite in $root"
    rm -rf "$root" && mkdir -p "$(dirname "$root")"
    # What Debian says of sid is good for a week, and mirrors may be further behind. Who signed it is looked at all the same.
    mmdebstrap --quiet --variant=apt --aptopt='Acquire::Check-Valid-Until "false"' --include="$RDMA_NFSD_INCLUDE" \
        "$suite" "$root" "$("$here/tests/distributions/mirror.sh")"
    touch "$root/made"
fi

# The clone, with the times of its files and without what was built here; what was built there stays.
mkdir -p "$root/clone"
(cd "$root/clone" && find . \( -path ./.venv -o -path ./.lab -o -path ./build -o -path './nfsd/wire/nfs*.pxd' \
    -o -path './rpcrdma/wire/rpc.pxd' -o -path './rpcrdma/wire/rdma*.pxd' -o -path './rpcrdma/wire/chunk_lists.pxd' \) -prune \
    -o -type f ! -name '*.so' ! -name '*.c' -exec rm {} +)
(cd "$here" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read 2>/dev/null) |
    tar -x -C "$root/clone"

# Python there is to find its own packages. Mounts of its own, which go with it.
unset PYTHONPATH VIRTUAL_ENV
exec unshare --mount --propagation private sh -eu -c '
    root=$1
    own_dev=$2
    shift 2
    mount --bind "$root" "$root"
    for name in proc sys; do mount --rbind "/$name" "$root/$name"; done
    "$own_dev" "$root"
    mount -t tmpfs none "$root/run"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    # Whoever installs a Debian leaves it this file.
    [ -e "$root/etc/hosts" ] || echo "127.0.0.1 localhost" >"$root/etc/hosts"
    # A registry of the place has a certificate of the place.
    mkdir -p "$root/etc/ssl/certs"
    mount --bind /etc/ssl/certs "$root/etc/ssl/certs"
    # Not by chroot(8) alone: from below one no user namespaces can be made, and tests make some.
    cd "$root"
    mkdir -p outside && pivot_root . outside && umount --lazy outside
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
    exec chroot . /bin/sh -c "cd /clone && exec \"\$@\"" sh "$@"
' sh "$root" "$here/tests/vm/own-dev.sh" "$@"
