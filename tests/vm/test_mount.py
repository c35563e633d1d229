"""One Linux client, every NFS version, over proto=rdma: ordinary work on files. One boot per version."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import samples
from tests.vm.guest import Guest
from tests.vm.kernel_server import KernelServer
from tests.vm.mounts import VERSIONS, complaints, load_siw, mount, rdma_transports, umount
from tests.vm.network import Network
from tests.vm.server import Server

POINT = "/mnt/nfs"


class Client:
    """A guest with the export mounted on POINT."""

    def __init__(self, guest: Guest, server: Server | KernelServer, version: str, shared: Path) -> None:
        self.guest = guest
        self.server = server
        self.version = version
        self.shared = shared
        self.work = f"{POINT}/v{version}"


@pytest.fixture(scope="module", params=VERSIONS)
def client(
    request: pytest.FixtureRequest, network: Network, server: Server | KernelServer, directory: Path
) -> Iterator[Client]:
    version = request.param
    shared = directory / f"shared-{version}"
    shared.mkdir()
    with Guest(f"client-v{version.replace('.', '')}", network, shares=[shared], time_limit=1200) as guest:
        load_siw(guest)
        mount(guest, server, version)
        made = Client(guest, server, version, shared)
        guest.run(f"mkdir -p {made.work}")
        yield made


def test_mount_says_rdma_and_one_mebibyte(client: Client) -> None:
    line = client.guest.run(f"grep ' {POINT} ' /proc/mounts").output
    for option in ("proto=rdma", "port=20049", f"vers={client.version}", "rsize=1048576", "wsize=1048576"):
        assert option in line
    (transport,) = rdma_transports(client.guest)
    assert transport.sends > 0
    client.server.assert_running()


def test_tree_of_files(client: Client) -> None:
    """A tree is copied in, compared, tarred, renamed and removed."""
    archive = client.shared / "tree.tar"
    counts = samples.make_tree(archive, files=2000)
    guest, work = client.guest, client.work
    guest.run(f"mkdir /tmp/in && tar -xpf {archive} -C /tmp/in", timeout=120)
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
    umount(guest)
    mount(guest, client.server, client.version)
    guest.run(f"diff -r --no-dereference /tmp/in/tree {work}/tree", timeout=300)
    guest.run(f"cd {work} && tar -cf tree.tar tree && tar -df tree.tar", timeout=300)
    guest.run(
        f"cd {work} && mv tree renamed && mkdir deep && mv renamed deep/tree && mv deep/tree/d1 deep/d1 && "
        "test ! -e tree && test -d deep/d1 && mv deep/d1 deep/tree/d1 && "
        "(cd deep/tree && find . | sort) >/tmp/renamed && (cd /tmp/in/tree && find . | sort) | cmp - /tmp/renamed",
        timeout=300,
    )
    guest.run(f'cd {work} && rm -r deep tree.tar && test -z "$(ls -A)" && rm -r /tmp/in', timeout=300)


def test_archive_unpacked_and_program_built(client: Client) -> None:
    archive = client.shared / "project.tar.gz"
    answer = samples.make_c_project(archive)
    guest, work = client.guest, client.work
    guest.run(f"cd {work} && cp {archive} . && tar -xzf project.tar.gz && make -s -j2 -C project", timeout=300)
    assert guest.run(f"{work}/project/prog").output.strip() == answer
    again = guest.run(f"cd {work}/project && make && touch m3.c && make", timeout=120).output
    assert "up to date" in again
    assert len(re.findall(r"^(?:cc|gcc) .* -c", again, re.MULTILINE)) == 1, "only the touched module is compiled again"
    guest.run(f"rm -r {work}/project {work}/project.tar.gz")


@pytest.mark.parametrize("direct", [1, 0], ids=["direct", "buffered"])
def test_fio_verifies(client: Client, direct: int) -> None:
    """Sequential and random mixes, 4k and 1M, blocks checked by fio, then the file as the server has it."""
    guest, work = client.guest, client.work
    jobs = [("write", "1m", "64m", 4), ("randrw", "1m", "32m", 4), ("rw", "4k", "6m", 8), ("randrw", "4k", "6m", 8)]
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
        assert inside == client.server.sha256(f"v{client.version}/{name}")
        guest.run(f"rm {work}/{name}")


def test_send_with_invalidate(client: Client) -> None:
    """Aligned I/O with one memory region per call: the server invalidates it, the client never has to."""
    guest, work = client.guest, client.work
    guest.run(f"dd if=/dev/zero of={work}/inv bs=1M count=8 oflag=direct status=none")
    (before,) = rdma_transports(guest)
    guest.run(
        f"cd {work} && for bs in 4k 64k 512k; do fio --name=inv --filename=inv --rw=randrw --bs=$bs --size=8m "
        "--number_ios=200 --ioengine=libaio --iodepth=8 --direct=1 --norandommap=1 --output=/dev/null || exit; done",
        timeout=120,
        label="fio aligned direct",
    )
    (after,) = rdma_transports(guest)
    assert after.read_chunks > before.read_chunks, "no WRITE carried a Read chunk"
    assert after.write_chunks > before.write_chunks, "no READ carried a Write chunk"
    assert after.local_inv_needed == before.local_inv_needed
    guest.run(f"rm {work}/inv")


def test_nothing_went_wrong_on_the_transport(client: Client) -> None:
    (transport,) = rdma_transports(client.guest)
    assert (transport.bad_xids, transport.bad_replies) == (0, 0)


def test_nconnect(client: Client) -> None:
    """Four connections for one NFSv3 mount.

    (This kernel's NFSv4 takes nconnect for TCP only: one connection, no error.)
    """
    umount(client.guest)
    mount(client.guest, client.server, client.version, extra="nconnect=4")
    client.guest.run(
        f"cd {client.work} && fio --name=nc --rw=randrw --bs=64k --size=8m --numjobs=4 --ioengine=libaio --iodepth=4 "
        "--direct=1 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --group_reporting >/tmp/out || "
        "{ cat /tmp/out; exit 1; }; rm -f nc.*",
        timeout=120,
        label="fio on four jobs",
    )
    transports = rdma_transports(client.guest)
    assert len(transports) == (4 if client.version == "3" else 1)
    assert all(transport.sends > 20 for transport in transports)


def test_unmounts_and_the_kernel_never_complained(client: Client) -> None:
    umount(client.guest)
    assert complaints(client.guest) == []
    client.server.assert_running()
