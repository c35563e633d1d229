#!/bin/sh
# own-dev.sh ROOT - a /dev below ROOT that is not the machine's, in a mount namespace of the caller's. What runs there as root
# (compilers with "-o /dev/null", maintainers' scripts, tests) could otherwise replace or chmod the devices of everybody.
# In a user namespace no nodes can be made. There the machine's are bound, and bound read-only: that forbids chmod, not writing.
set -eu
dev=$1/dev
mkdir -p "$dev"
mount -t tmpfs -o mode=755 none "$dev"
mkdir "$dev/net" "$dev/infiniband" "$dev/pts" "$dev/shm"

bound() { : >"$2" && mount --bind "$1" "$2" && mount -o remount,bind,ro "$2"; }

for node in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fuse /dev/kvm /dev/loop* /dev/net/tun \
    /dev/infiniband/*; do
    [ ! -e "$node" ] || cp -a "$node" "$dev/${node#/dev/}" 2>/dev/null || bound "$node" "$dev/${node#/dev/}"
done
# The kernel makes a node for each new loop device, but not here.
for number in $(seq 0 63); do
    [ -e "$dev/loop$number" ] || mknod -m 600 "$dev/loop$number" b 7 "$number" 2>/dev/null || break
done
mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts "$dev/pts"
mount -t tmpfs -o mode=1777 none "$dev/shm"
ln -s pts/ptmx "$dev/ptmx"
ln -s /proc/self/fd "$dev/fd"
ln -s fd/0 "$dev/stdin"
ln -s fd/1 "$dev/stdout"
ln -s fd/2 "$dev/stderr"
