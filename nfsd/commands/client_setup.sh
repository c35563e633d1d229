#!/bin/sh
# client-setup: give a Linux client without an RDMA device one of its network interface, so that it can mount with "-o rdma".
#
#   sh client_setup.sh [--dry-run] [NETDEV]        as root, on the client; NETDEV is that of the default route unless named
#
# Linux has a driver for that, siw: iWARP over an ordinary TCP socket. Debian does not build it (CONFIG_RDMA_SIW is not set
# in its kernels), so that "modprobe siw" fails there. This takes the source of siw from Debian's package of the kernel's source,
# of the running kernel's series, and builds it against that kernel's headers. Other distributions have siw in their kernel,
# or in a package of further modules (Ubuntu: linux-modules-extra-...), and nothing is built there.
#
# A module is of one kernel: after an upgrade of the kernel, run this again. With Secure Boot only signed modules are loaded,
# and what is built here is not signed.
set -eu
dry=
[ "${1:-}" != --dry-run ] || { dry=1; shift; }
netdev=${1:-}
release=$(uname -r)
say() { echo "client-setup: $*"; }
fail() { echo "client-setup: $*" >&2; exit 1; }
# The script itself may come on standard input ("ssh root@CLIENT sh -s"): what is run here must not read on in it.
run() { if [ -n "$dry" ]; then echo "would run: $*"; else "$@" </dev/null; fi; }
export PATH="$PATH:/usr/sbin:/sbin"

[ -n "$dry" ] || [ "$(id -u)" = 0 ] || fail "this loads a kernel module: run it as root, or see what it would do with --dry-run"
if [ -z "$netdev" ]; then
    netdev=$(ip -o route show default 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
    [ -n "$netdev" ] || fail "there is no default route: name the network interface that leads to the server"
fi
[ -e "/sys/class/net/$netdev" ] || fail "there is no network interface $netdev; there are: $(ls /sys/class/net | tr '\n' ' ')"

have_module() { modprobe -n "$1" >/dev/null 2>&1; }
install_packages() { # what is missing of: a test, a package
    [ -n "$*" ] || return 0
    command -v apt-get >/dev/null || fail "this is not Debian; please install: $*"
    say "installing $*"
    run env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"
}

build_siw() {
    # The source package's name has the first two numbers, of the packages its version is that of the running kernel.
    series=$(echo "$release" | cut -d. -f1,2)
    headers=/lib/modules/$release/build
    archive=/usr/src/linux-source-$series.tar.xz
    missing=
    [ -e "$headers/Makefile" ] || missing="$missing linux-headers-$release"
    [ -e "$archive" ] || missing="$missing linux-source-$series"
    command -v make >/dev/null || missing="$missing make"
    command -v xz >/dev/null || missing="$missing xz-utils"
    command -v as >/dev/null || missing="$missing binutils"
    # The compiler comes with the headers, which were made with it.
    install_packages $missing
    [ -z "$dry" ] || { echo "would build siw.ko of $archive for $release"; return 0; }
    [ -e "$archive" ] || fail "$archive is not there: which package has the source of the kernel $release?"

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    say "taking siw from $archive"
    tar -xJf "$archive" --strip-components=5 -C "$work" --wildcards '*/drivers/infiniband/sw/siw/*'
    [ -e "$work/siw_main.c" ] || fail "$archive holds no siw"
    # Debian's headers name the compiler themselves. What types the kernel has (BTF) is nothing siw asks for.
    set -- CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES=
    if [ ! -e "$headers/.kernelvariables" ]; then
        compiler=$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\([^ ]*\).*/\1/p' "/boot/config-$release" 2>/dev/null || :)
        command -v "${compiler:=gcc}" >/dev/null || compiler=gcc
        set -- "$@" "CC=$compiler"
    fi
    say "building siw.ko for $release"
    make -s -C "$headers" "M=$work" "$@" modules >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; fail "siw does not build against the headers of $release"; }
    mkdir -p "/lib/modules/$release/updates"
    strip -g -o "/lib/modules/$release/updates/siw.ko" "$work/siw.ko" 2>/dev/null ||
        cp "$work/siw.ko" "/lib/modules/$release/updates/siw.ko"
    depmod "$release"
}

missing=
command -v rdma >/dev/null || missing="$missing iproute2"
command -v mount.nfs >/dev/null || missing="$missing nfs-common"
install_packages $missing
if have_module siw; then
    say "the kernel $release has siw"
else
    build_siw
fi
have_module rpcrdma || [ -n "$dry" ] || fail "the kernel $release has no rpcrdma, NFS's side of RDMA: another kernel package has it"
run modprobe -a siw rpcrdma || fail "siw is not loaded; see dmesg (with Secure Boot only signed modules are)"
# Link names are of 15 characters at most, as those of interfaces.
if [ -z "$dry" ] && rdma link show </dev/null | grep -q "netdev $netdev *\$"; then
    say "$netdev has an RDMA device"
else
    run rdma link add "siw_$(echo "$netdev" | cut -c1-11)" type siw netdev "$netdev"
fi
[ -n "$dry" ] || rdma link show </dev/null
say "done: mount -t nfs -o rdma,port=20049,vers=4.2 SERVER:/EXPORT /mnt"
say "(until the next boot: then 'modprobe siw' and the 'rdma link add' above once more, or this script)"
