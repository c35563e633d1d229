"""Kernels of the client, NFS versions and ways to the server, all with all: ``python -m tests.vm.matrix [KERNEL ...]``.

For each kernel a guest is booted. For each version and way it mounts the export, writes some hundred files and lists
them, holds a lock while the server is killed and started again, renames, unmounts, mounts again and compares what it
reads with what it wrote. What came of it is written into the table of docs/testing.md, cell by cell. After a failure
the other cells are gone on with. Needs root, for a network of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trustme

from tests.support import kdc
from tests.vm import kerberos_client, tls_client
from tests.vm.build import REPO
from tests.vm.guest import Guest, GuestError
from tests.vm.kernels import SUITES
from tests.vm.locking import LockHolder
from tests.vm.mounts import VERSIONS, complaints, load_siw
from tests.vm.network import Namespace
from tests.vm.server import RDMA_PORT, TCP_PORT, Server, ServerError

DOCUMENT = REPO / "docs" / "testing.md"
BEGIN, END = "<!-- matrix of kernels -->\n", "<!-- end of the matrix -->"
POINT = "/mnt/matrix"
WAYS = {
    "RDMA": f"proto=rdma,port={RDMA_PORT},sec=sys",
    "TCP": f"proto=tcp,port={TCP_PORT},sec=sys",
    "TCP, TLS": f"proto=tcp,port={TCP_PORT},sec=sys,xprtsec=tls",
    "TCP, krb5p": f"proto=tcp,port={TCP_PORT},sec=krb5p",
}
"""The ways to the server, and what one says to mount(8) for them."""
SECURE = ("3", "4.2")
"""Versions with TLS and Kerberos here; test_tls and test_kerberos have more."""
TLS_SINCE = (6, 5)
LEASE = 10
"""Seconds; short, so that a grace period costs little."""

FILES = 201
WRITE = """\
mkdir {work} && cd {work} || exit
for d in 0 1 2 3; do mkdir d$d; for n in $(seq 50); do echo "$d $n" >d$d/name-$n || exit; done; done
head -c 3000001 /dev/urandom >large && sha256sum large d*/* >/tmp/sums && test $(ls -lR | grep -c ^-) = {files}
"""
RENAME = """\
cd {work} && mv large larger && mv d0 moved && mv d1/name-1 d2/other && mv d1/name-2 d1/name-3 || exit
sed -i '/name-3$/{{/d1/d}};s, large$, larger,;s, d0/, moved/,;s,d1/name-1$,d2/other,;s,d1/name-2$,d1/name-3,' /tmp/sums
"""
READ = """\
cd {work} && sha256sum -c --quiet /tmp/sums && test $(wc -l </tmp/sums) = {left} && test $(ls -lR | grep -c ^-) = {left}
"""


class Mount:
    """One cell: a mount, and what is done on it."""

    def __init__(self, guest: Guest, server: Server, version: str, way: str) -> None:
        self.guest, self.server, self.version, self.way = guest, server, version, way
        self.name = f"v{version}-{list(WAYS).index(way)}"
        self.work = f"{POINT}/{self.name}"

    def mount(self) -> None:
        """As a user does it, with locks, and as it was asked for."""
        address = kerberos_client.HOST if "krb5" in self.way else self.server.address
        options = f"{WAYS[self.way]},vers={self.version}"
        command = f"mount -t nfs -o {options} {address}:/export {POINT}"
        self.guest.run(f"mkdir -p {POINT} && {command}", timeout=90, label=command)
        shown = self.guest.run(f"grep ' {POINT} ' /proc/mounts").output.split()[3].split(",")
        missing = {*options.split(",")} - {*shown} - {f"port={TCP_PORT}"}  # which NFSv4 has by itself
        assert not missing, f"{missing} not in {shown}"

    def umount(self) -> None:
        """Nothing may hold it."""
        self.guest.run(f"umount {POINT}", timeout=60)

    def write(self) -> None:
        """Some hundred names, and one file that needs several calls; all are listed."""
        self.guest.run(WRITE.format(work=self.work, files=FILES), timeout=300, label="write, list")

    def restart(self) -> None:
        """The server is killed while a file is open and locked; both are there afterwards."""
        name = f"{self.name}/locked"
        holder = LockHolder(self.guest, f"{POINT}/{name}")
        try:
            assert not self.server.local_lock_is_free(name), "the server knows nothing of the lock"
            self.server.kill()
            self.server.start()
            holder.check(180)
            assert not self.server.local_lock_is_free(name), "the lock was lost over the restart"
            holder.unlock()
            assert self.server.local_lock_is_free(name), "the lock was not released"
            holder.quit()
        except Exception:
            holder.kill()
            raise
        self.guest.run(f"rm {POINT}/{name}", timeout=60)

    def rename(self) -> None:
        """Files and a directory, to names that were there and that were not."""
        self.guest.run(RENAME.format(work=self.work), timeout=120, label="rename")

    def read(self) -> None:
        """Again, with nothing of it left in the client's caches."""
        self.umount()
        self.mount()
        self.guest.run(READ.format(work=self.work, left=FILES - 1), timeout=300, label="compare, list")
        inside = self.guest.run(f"sha256sum {self.work}/larger", timeout=60).output.split()[0]
        assert inside == self.server.sha256(f"{self.name}/larger")

    def remove(self) -> None:
        """All of it, and the mount."""
        self.guest.run(f"rm -r {self.work}", timeout=200)
        self.umount()

    def kernel_is_content(self) -> None:
        """Its log has nothing but what the restart explains."""
        said = complaints(self.guest, allow="not responding|server .* OK")
        assert not said, said


STEPS = {
    "mount": Mount.mount,
    "write and list": Mount.write,
    "restart under a lock": Mount.restart,
    "rename": Mount.rename,
    "read after a cold mount": Mount.read,
    "remove and unmount": Mount.remove,
    "the kernel's log": Mount.kernel_is_content,
}


def play(cell: Mount) -> str:
    """Take all steps, to the first that fails: ``ok``, or what failed."""
    begun, step = time.monotonic(), ""
    try:
        for step in STEPS:
            STEPS[step](cell)
        result = "ok"
    except (GuestError, ServerError, AssertionError) as error:
        print(f"{cell.version} by {cell.way}, {step}: {error}\n--- server's log\n{cell.server.log_tail()}")
        result = f"failed: {step}"
        cell.guest.run(f"fuser -k -M -m {POINT}; umount -f -l {POINT}", check=False, timeout=120)
    print(
        f"=== {cell.guest.name}: {cell.version} by {cell.way}: {result}, {time.monotonic() - begun:.0f} s", flush=True
    )
    cell.guest.run("dmesg -C", label="forget")
    return result


@contextmanager
def site(name: str, network: Namespace, directory: Path) -> Iterator[tuple[Guest, Server]]:
    """A server that has everything, and a guest that can ask for everything that its kernel knows."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "roots.pem"))
    own = authority.issue_cert(network.server_address)
    own.private_key_pem.write_to_path(str(directory / "server.key"))
    own.cert_chain_pems[0].write_to_path(str(directory / "server.pem"))
    with ExitStack() as stack:
        realm = stack.enter_context(
            kdc.realm(
                directory / "realm",
                host=network.listen_address,
                port=kerberos_client.KDC_PORT,
                enter=network.enter,
            )
        )
        os.environ.update(realm.environment)
        keytab = realm.keytab(f"nfs/{kerberos_client.HOST}", path=directory / "server.keytab")
        settings = {
            "portmapper": True,
            "nfs4": {"lease_time": LEASE, "grace_time": LEASE},
            "tls": {"certificate": str(directory / "server.pem"), "key": str(directory / "server.key")},
            "kerberos": {
                "keytab": str(keytab),
                "principal": f"nfs/{kerberos_client.HOST}",
                "users": {f"host/{kerberos_client.CLIENT}@{kdc.NAME}": "root"},
            },
        }
        export = {"xprtsec": ["none", "tls"], "sec": ["sys", "krb5p"]}
        server = stack.enter_context(Server(directory / "server", network, server=settings, export=export))
        guest = stack.enter_context(Guest(f"matrix-{name}", network, cpus=1, time_limit=3 * 3600, kernel=name))
        load_siw(guest)
        kerberos_client.join(guest, realm, server.address)
        guest.run("rpcbind -w 2>/dev/null || rpcbind; rpc.statd --no-notify", label="what locks of NFSv3 need")
        if guest.linux >= TLS_SINCE:
            tls_client.start_tlshd(guest)
            tls_client.put(guest, "roots.pem", authority.cert_pem)
        yield guest, server


def cells(linux: tuple[int, int], versions: Sequence[str], ways: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What can be tried with a kernel: version and way."""
    for version in versions:
        for way in ways:
            secure = "TLS" in way or "krb5" in way
            if not (secure and version not in SECURE) and not ("TLS" in way and linux < TLS_SINCE):
                yield version, way


def play_kernel(name: str, versions: Sequence[str], ways: Sequence[str]) -> bool:
    """Try one kernel, and write each result; whether nothing failed."""
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="rnfsd-matrix-", dir="/var/tmp") as directory,
        Namespace() as network,
        site(name, network, Path(directory)) as (guest, server),
    ):
        release = guest.run("uname -r").output.strip()
        for version, way in cells(guest.linux, versions, ways):
            result = play(Mount(guest, server, version, way))
            write(f"{name} ({release})", version, way, result)
            failed += result != "ok"
    return not failed


def write(kernel: str, version: str, way: str, result: str) -> None:
    """Put a result into the document's table, where rows of another release of this kernel go."""
    text = DOCUMENT.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    name = kernel.split()[0]
    rows: dict[tuple[str, str], list[str]] = {}
    for line in text[begin:end].splitlines()[2:]:
        there, known, *results = (word.strip() for word in line.strip("|").split("|"))
        if there == kernel or there.split()[0] != name:
            rows[there, known] = results
    rows.setdefault((kernel, version), ["-"] * len(WAYS))[list(WAYS).index(way)] = result
    order = list(SUITES)
    body = [
        f"| {row[0]} | {row[1]} | {' | '.join(rows[row])} |"
        for row in sorted(rows, key=lambda row: (order.index(row[0].split()[0]), row[1]))
    ]
    table = [f"| Linux | NFS | {' | '.join(WAYS)} |", "|---" * (2 + len(WAYS)) + "|", *body]
    DOCUMENT.write_text(text[:begin] + "\n".join(table) + "\n" + text[end:])


def main() -> int:
    """Play all, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.matrix", description="Mount with each kernel.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(SUITES)}; without one, all")
    parser.add_argument("--version", choices=VERSIONS, help="only this one")
    parser.add_argument("--way", choices=WAYS, help="only this one")
    options = parser.parse_args()
    versions, ways = [options.version] if options.version else VERSIONS, [options.way] if options.way else list(WAYS)
    well = [play_kernel(name, versions, ways) for name in options.kernels or list(SUITES)]
    return int(not all(well))


if __name__ == "__main__":
    sys.exit(main())
