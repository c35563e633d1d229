"""Linux's own NFS server, in a guest of its own: the reference.

A guest test that fails against this server is wrong itself. Run the tests against it with
``RDMA_NFSD_TEST_SERVER=kernel``.
"""

from __future__ import annotations

from tests.vm.guest import Guest
from tests.vm.network import Network
from tests.vm.server import MOUNTD_PORT, RDMA_PORT

START = """
set -e
modprobe nfsd; modprobe rpcrdma
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
mkdir -p /run/rpcbind && chown _rpc /run/rpcbind
rpcbind -w
rpc.statd --no-notify
echo 1048576 >/proc/fs/nfsd/max_block_size
echo 10 >/proc/fs/nfsd/nfsv4leasetime; echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,insecure,no_root_squash,no_subtree_check,fsid=0,{options} '*:/export'
rpc.mountd -p {mountd}
rpc.nfsd 8
echo 'rdma {rdma}' >/proc/fs/nfsd/portlist
cat /proc/fs/nfsd/portlist
"""


def start_kernel_server(guest: Guest, options: str = "sync") -> None:
    """Export the guest's /export, which exists, with the kernel's server, over TCP and (siw) RDMA."""
    guest.run(START.format(options=options, mountd=MOUNTD_PORT, rdma=RDMA_PORT), timeout=60, label="start knfsd")


class KernelServer:
    """A guest that serves /export (a tmpfs) with the kernel's server; use as a context manager."""

    def __init__(self, network: Network) -> None:
        self.guest = Guest("knfsd", network, memory=1536, time_limit=1800)
        self.address = self.guest.address
        self.guest.run("mkdir /export && mount -t tmpfs -o size=1g export /export")
        self.guest.run("modprobe siw && rdma link add siw0 type siw netdev eth0")
        start_kernel_server(self.guest)

    def export_name(self, version: str) -> str:
        """Its export is the NFSv4 root: the root above it, an overlay, could not be exported."""
        return "/export" if version == "3" else "/"

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file of the export, as the server's own file system has it."""
        return self.guest.run(f"sha256sum /export/{name}").output.split()[0]

    def assert_running(self) -> None:
        """Raises GuestError when the server is gone."""
        self.guest.run("pgrep -x nfsd >/dev/null")

    def __enter__(self) -> KernelServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.guest.close()
