#!/bin/sh
# host-packages.sh WHAT... - install the Debian packages that this machine lacks, and only those.
#   build   what building and running the server needs (compiler, Python headers and venv, libisal)
#   verbs   the headers for RDMA devices: wanted, not needed, so that a machine where they cannot be had is only told
#   guest   what booting the test guest needs (qemu, ip)
#   fuzz    the compiler that instruments the extensions for fuzzing
#   captures  what reading captures of traffic needs (tshark)
#   deb     what building the Debian package needs
#   chroot  what making another Debian beside this one needs
#   nspawn  what booting another Debian's systemd in a container takes
#   containers  what building and running the container takes
#   disks   what making the file systems of the tests needs, in a process (FUSE) too, what says what of a file is in memory,
#           and what writes and reads files as fast as they go (fio)
#   kerberos  what a realm of the tests' own takes (MIT's KDC, which the tests run themselves), and a clock to set wrong
#   ceph    what a Ceph cluster of one node takes, which the tests run themselves, and the headers of its client libraries
#   keepalived  what moves an address between two hosts of the tests, which are network namespaces
#   browser the browser that the tests look at the web page with: wanted, not needed
# Every need is tested by what it provides, not by a package name, so that a Python or a compiler from elsewhere counts.
# Nothing here brings a daemon that runs but krb5-kdc, which ends at once on a machine without a realm of its own. (Ceph's wait
# for a cluster to be configured, and keepalived is not started without a configuration.) A machine that lacks nothing is left
# alone and no network is used.
set -u
wanted_only=
T0=$(date +%s)
step() { echo "[$(($(date +%s) - T0))s] $*"; }
# Programs of other users fail without it in ways that name something else: apt's own user then says that gpgv is missing.
null=${HOST_PACKAGES_NULL:-/dev/null} # tests name another
sandbox=
case $(stat -L -c '%F %t:%T %a' "$null" 2>&1) in
"character special file 1:3 "*[67][67][67]) ;;
*)
    echo "host-packages.sh: $null is not a null device that every user may open: $(ls -l "$null" 2>&1)" >&2
    echo "The remedy, as root: rm -f $null; mknod -m 666 $null c 1 3" >&2
    [ "$(id -u)" = 0 ] || exit 1
    sandbox="-o APT::Sandbox::User=root"
    ;;
esac
missing=
need() { # need PACKAGES TEST...: run the test; when it fails the packages are wanted
    packages=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $packages"
}
library() { # library SONAME: is it in a library directory?
    for dir in /usr/lib/*-linux-gnu /lib/*-linux-gnu /usr/lib /usr/lib64 /usr/local/lib; do
        [ -e "$dir/$1" ] && return 0
    done
    return 1
}
command_in() { PATH=$PATH:/usr/sbin:/sbin command -v "$1"; }
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
compiles() { # compiles HEADER: can C be compiled and linked here? (Not into /dev/null: this may be root.)
    scratch=$(mktemp -d) || return 1
    echo "#include <$1>
int main(void) { return 0; }" | gcc -x c -o "$scratch/program" -
    compiled=$?
    rm -rf "$scratch"
    return $compiled
}
installed() { dpkg-query -W -f '${Status}' "$1" | grep -qx "install ok installed"; }
python_ok() { python3 -c 'import sys; assert sys.version_info >= (3, 11)'; }
python_headers() {
    python3 -c 'import os, sysconfig; assert os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))'
}

for what; do
    case $what in
    build)
        need "python3" python_ok
        need "python3-venv" python3 -c 'import venv, ensurepip'
        need "python3-dev" python_headers
        need "gcc libc6-dev" compiles stdio.h
        need "libisal2" library libisal.so.2
        ;;
    verbs)
        wanted_only=1
        need "libibverbs-dev librdmacm-dev ibverbs-providers" compiles rdma/rdma_cma.h
        ;;
    fuzz)
        need "clang-14" command_in clang-14
        ;;
    guest)
        need "qemu-system-x86" command_in qemu-system-x86_64
        need "iproute2" command_in ip
        need "gcc libc6-dev" compiles stdio.h
        need "binutils" command_in strip
        need "util-linux" command_in setpriv
        need "xz-utils" command_in xz
        ;;
    captures)
        need "tshark" command_in tshark
        ;;
    deb)
        need "build-essential" installed build-essential # every package asks for it, without saying so
        need "dpkg-dev" command_in dpkg-buildpackage
        need "debhelper" command_in dh_installsysusers
        need "dh-python" command_in dh_python3
        need "help2man" command_in help2man
        need "lintian" command_in lintian
        need "python3-shtab" /usr/bin/python3 -c 'import shtab'
        need "python3-venv" /usr/bin/python3 -c 'import venv, ensurepip'
        need "python3-dev" sh -c 'ls /usr/include/python3.*/Python.h'
        need "libibverbs-dev librdmacm-dev" compiles rdma/rdma_cma.h
        need "gcc libc6-dev" compiles stdio.h
        ;;
    chroot)
        need "mmdebstrap" command_in mmdebstrap
        need "util-linux" command_in unshare
        ;;
    nspawn)
        need "systemd-container" command_in systemd-nspawn
        need "mmdebstrap" command_in mmdebstrap
        need "dpkg-dev" command_in dpkg-deb
        ;;
    containers)
        need "mmdebstrap" command_in mmdebstrap
        need "buildah" command_in buildah
        need "podman" command_in podman
        need "crun" command_in crun
        need "runc" command_in runc
        need "iproute2" command_in ip
        ;;
    disks)
        need "e2fsprogs" command_in mkfs.ext4
        need "xfsprogs" command_in mkfs.xfs
        need "btrfs-progs" command_in mkfs.btrfs
        need "bindfs" command_in bindfs
        need "util-linux-extra" command_in fincore # util-linux has it on Debian 12
        need "fio" command_in fio
        ;;
    kerberos)
        need "krb5-kdc krb5-admin-server" command_in krb5kdc
        need "krb5-kdc krb5-admin-server" command_in kadmin.local
        need "krb5-user" command_in kinit
        need "libfaketime" library faketime/libfaketime.so.1
        ;;
    ceph)
        need "ceph-mon" command_in ceph-mon
        need "ceph-mgr" command_in ceph-mgr
        need "ceph-osd" command_in ceph-osd
        need "ceph-mds" command_in ceph-mds
        need "ceph-common" command_in ceph
        need "libcephfs-dev" installed libcephfs-dev
        need "librados-dev" installed librados-dev
        need "util-linux" command_in setpriv
        ;;
    keepalived)
        need "keepalived" command_in keepalived
        need "iproute2" command_in ip
        ;;
    browser)
        wanted_only=1
        need "chromium" browser
        ;;
    *) echo "host-packages.sh: unknown group '$what'" >&2; exit 2 ;;
    esac
done
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
[ -n "${missing# }" ] || exit 0

give_up() { # without what is merely wanted, the build goes on and says what it leaves out
    [ -n "$wanted_only" ] && exit 0
    exit 1
}
if ! command -v apt-get >/dev/null; then
    echo "host-packages.sh: this is not Debian; please install the equivalents of: $missing" >&2
    give_up
fi
if [ "$(id -u)" != 0 ]; then
    echo "host-packages.sh: these packages are missing: $missing" >&2
    echo "Run the same make command as root, or: sudo apt-get install --no-install-recommends $missing" >&2
    give_up
fi
log=$(mktemp "${TMPDIR:-/tmp}/rdma-nfsd-apt.XXXXXX") # another user could foresee a name made of $$
apt() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 $sandbox "$@" >>"$log" 2>&1; }
step "apt-get update"
apt update || step "apt-get update reported errors (see $log); going on with the lists there are"
step "apt-get install $missing"
if ! apt install --no-install-recommends $missing; then
    tail -20 "$log" >&2
    give_up
fi
rm -f "$log"
step "packages installed"
