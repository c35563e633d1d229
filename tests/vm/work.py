"""Ordinary work on a mounted export; each function fails where something is not as it must be.

It is the same work whatever carries the mount: the embedded provider (test_mount) or RDMA devices (test_verbs_mount).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.vm import samples
from tests.vm.guest import Guest
from tests.vm.mounts import RdmaTransport, Served, mount, rdma_transports, umount

POINT = "/mnt/nfs"

FIO_JOBS = (("write", "1m", "64m", 4), ("randrw", "1m", "32m", 4), ("rw", "4k", "6m", 8), ("randrw", "4k", "6m", 8))
"""fio's rw, block size, file size, queue depth."""


class Exporter(Served, Protocol):
    """A server whose export can be looked at behind its back."""

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file of the export, as the server's own file system has it."""
        ...

    def assert_running(self) -> None:
        """Raises where the server has ended by itself."""
        ...


class Client:
    """A guest, the server it mounts, and the mount: over one NFS version, on ``point``, with a directory of its own.

    ``shared`` is a directory of the host that the guest sees under the same name.
    """

    def __init__(
        self,
        guest: Guest,
        server: Exporter,
        version: str,
        shared: Path,
        point: str = POINT,
        name: str = "",
    ) -> None:
        self.guest = guest
        self.server = server
        self.version = version
        self.shared = shared
        self.point = point
        self.name = name or f"v{version}"
        self.work = f"{point}/{self.name}"

    def mount(self, extra: str = "") -> None:
        """Mount, and make the directory."""
        mount(self.guest, self.server, self.version, self.point, extra)
        self.guest.run(f"mkdir -p {self.work}")

    def umount(self) -> None:
        """Unmount."""
        umount(self.guest, self.point)

    def transports(self) -> list[RdmaTransport]:
        """The mount's RDMA connections."""
        return rdma_transports(self.guest, self.point)


def tree_of_files(client: Client, files: int = 2000) -> None:
    """A tree is copied in, compared, tarred, renamed and removed."""
    archive = client.shared / f"tree-{files}.tar"
    counts = samples.make_tree(archive, files=files)
    guest, work = client.guest, client.work
    guest.run(f"rm -rf /tmp/in && mkdir /tmp/in && tar -xpf {archive} -C /tmp/in", timeout=120)
    guest.run(f"cp -a /tmp/in/tree {work}/", timeout=600)
    found = guest.run(f"for t in f d l; do find {work}/tree -type $t | tr -cd '\\n' | wc -c; done", label="count")
    # every name is one path; the name with a newline in it makes two lines
    expected = [counts["files"] + counts["hardlinks"] + 1, counts["directories"], counts["symlinks"]]
    assert [int(word) for word in found.output.split()] == expected
    listing = "find . -printf '%y %m %n %s %T@ %p %l\\n' | sed -E '/^d/s/^(d [0-9]+ )[0-9]+ [0-9]+/\\1/' | sort"
    guest.run(
        f"cd /tmp/in/tree && {listing} >/tmp/a; cd {work}/tree && {listing} >/tmp/b; cmp /tmp/a /tmp/b || "
        "{ diff -a /tmp/a /tmp/b | head -20; exit 1; }",
        timeout=120,
        label="modes, links, sizes, times",
    )
    # Again, with nothing of it left in the client's caches.
    client.umount()
    client.mount()
    guest.run(f"diff -r --no-dereference /tmp/in/tree {work}/tree", timeout=300)
    guest.run(f"cd {work} && tar -cf tree.tar tree && tar -df tree.tar", timeout=300)
    guest.run(
        f"cd {work} && mv tree renamed && mkdir deep && mv renamed deep/tree && mv deep/tree/d1 deep/d1 && "
        "test ! -e tree && test -d deep/d1 && mv deep/d1 deep/tree/d1 && "
        "(cd deep/tree && find . | sort) >/tmp/renamed && (cd /tmp/in/tree && find . | sort) | cmp - /tmp/renamed",
        timeout=300,
    )
    guest.run(f'cd {work} && rm -r deep tree.tar && test -z "$(ls -A)" && rm -r /tmp/in', timeout=300)


def program_built(client: Client) -> None:
    """An archive is unpacked, its program built, and after a change only what depends on it is built again."""
    archive = client.shared / "project.tar.gz"
    answer = samples.make_c_project(archive)
    guest, work = client.guest, client.work
    guest.run(f"cd {work} && cp {archive} . && tar -xzf project.tar.gz && make -s -j2 -C project", timeout=300)
    assert guest.run(f"{work}/project/prog").output.strip() == answer
    again = guest.run(f"cd {work}/project && make && touch m3.c && make", timeout=120).output
    assert "up to date" in again
    assert len(re.findall(r"^(?:cc|gcc) .* -c", again, re.MULTILINE)) == 1, "only the touched module is compiled again"
    guest.run(f"rm -r {work}/project {work}/project.tar.gz")


def fio_verified(client: Client, direct: int, jobs: Sequence[tuple[str, str, str, int]] = FIO_JOBS) -> None:
    """Sequential and random mixes, blocks checked by fio, then the file as the server has it."""
    guest, work = client.guest, client.work
    for pattern, block, size, depth in jobs:
        name = f"fio-{pattern}-{block}"
        done = guest.run(
            f"cd {work} && fio --name={name} --filename={name} --rw={pattern} --bs={block} --size={size} "
            f"--ioengine=libaio --iodepth={depth} --direct={direct} --end_fsync=1 --verify=crc32c --verify_fatal=1 "
            f"--verify_state_save=0 --output-format=json --output=/tmp/fio.json || {{ cat /tmp/fio.json; exit 1; }}; "
            f"tr -d '\\n' </tmp/fio.json",
            timeout=240,
            label=f"fio {pattern} {block} {'direct' if direct else 'buffered'}",
        )
        (job,) = json.loads(done.output[done.output.index("{") :])["jobs"]
        assert job["error"] == 0
        assert job["write"]["io_bytes"] > 0
        assert job["read"]["io_bytes"] > 0, "fio read nothing back"
        inside = guest.run(f"sha256sum {work}/{name}", timeout=120).output.split()[0]
        assert inside == client.server.sha256(f"{client.name}/{name}")
        guest.run(f"rm {work}/{name}")


def sends_invalidate(client: Client, blocks: str = "4k 64k 512k", calls: int = 200) -> None:
    """Aligned I/O with one memory region per call: the server invalidates it, the client never has to."""
    guest, work = client.guest, client.work
    guest.run(f"dd if=/dev/zero of={work}/inv bs=1M count=8 oflag=direct status=none")
    (before,) = client.transports()
    guest.run(
        f"cd {work} && for bs in {blocks}; do fio --name=inv --filename=inv --rw=randrw --bs=$bs --size=8m "
        f"--number_ios={calls} --ioengine=libaio --iodepth=8 --direct=1 --norandommap=1 --output=/dev/null || "
        "exit; done",
        timeout=120,
        label="fio aligned direct",
    )
    (after,) = client.transports()
    assert after.read_chunks > before.read_chunks, "no WRITE carried a Read chunk"
    assert after.write_chunks > before.write_chunks, "no READ carried a Write chunk"
    assert after.local_inv_needed == before.local_inv_needed
    guest.run(f"rm {work}/inv")


def nothing_wrong_on_the_transport(client: Client) -> None:
    """The client dropped no reply and refused none."""
    for transport in client.transports():
        assert (transport.bad_xids, transport.bad_replies) == (0, 0)


def four_connections(client: Client, size: str = "8m") -> None:
    """nconnect: four connections for one mount, all used.

    (NFSv4 of older kernels takes nconnect for TCP only: one connection, no error.)
    """
    client.umount()
    client.mount("nconnect=4")
    client.guest.run(
        f"cd {client.work} && fio --name=nc --rw=randrw --bs=64k --size={size} --numjobs=4 --ioengine=libaio "
        "--iodepth=4 --direct=1 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --group_reporting >/tmp/out || "
        "{ cat /tmp/out; exit 1; }; rm -f nc.*",
        timeout=120,
        label="fio on four jobs",
    )
    transports = client.transports()
    assert len(transports) == (4 if client.version == "3" or client.guest.linux >= (6, 12) else 1)
    assert all(transport.sends > 20 for transport in transports)
