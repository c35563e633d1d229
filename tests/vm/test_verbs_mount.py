"""A Linux client mounts over the server's RDMA devices: rdma_rxe (RoCE v2) and siw (iWARP), every NFS version.

Server and client are two guests with both devices each; the work is that of test_mount in smaller portions, because a
software device under emulation is slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import work
from tests.vm.build import HERE
from tests.vm.captured import ROCE_PORT, iwarp_operations, roce_operations
from tests.vm.guest import Guest
from tests.vm.guest_server import DEVICES, SOFTIWARP_PORT, GuestServer, load_devices
from tests.vm.locking import LockHolder
from tests.vm.mounts import VERSIONS, complaints, mount, rdma_transports, umount
from tests.vm.network import Namespace
from tests.vm.server import RDMA_PORT
from tests.vm.work import Client

pytestmark = pytest.mark.timeout(1800)

LEASE = 10
"""Seconds; short, so that a grace period costs the test little."""
APPENDER = HERE / "inside" / "appender.py"
FIO_JOBS = (("randrw", "1m", "16m", 4), ("randrw", "4k", "2m", 8))


class Pair:
    """The server's guest and the client's."""

    def __init__(self, server: GuestServer, guest: Guest, shared: Path) -> None:
        self.server = server
        self.guest = guest
        self.shared = shared

    def client(self, kind: str, version: str) -> Client:
        name = f"{kind}-v{version}"
        return Client(self.guest, self.server.door(kind), version, self.shared, f"/mnt/{name}", name)


@pytest.fixture(scope="module")
def pair(directory: Path) -> Iterator[Pair]:
    shared = directory / "shared"
    shared.mkdir()
    nfs4 = {"lease_time": LEASE, "grace_time": LEASE}
    with (
        Namespace() as network,
        GuestServer(network, server={"nfs4": nfs4}) as server,
        Guest("client", network, memory=1536, shares=[shared], interfaces=2, time_limit=3600) as guest,
    ):
        load_devices(guest)
        guest.run("modprobe rpcrdma")
        yield Pair(server, guest, shared)


@pytest.fixture(scope="module", params=[(kind, version) for kind in DEVICES for version in VERSIONS], ids="-".join)
def client(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Client]:
    made = pair.client(*request.param)
    made.mount()
    yield made
    made.guest.run(f"umount -f -l {made.point} 2>/dev/null", check=False)


def device_of(client: Client) -> str:
    """The name of the device under a client's mount."""
    return DEVICES[client.name.partition("-")[0]]


def hardware_counters(guest: Guest, device: str) -> dict[str, int]:
    """The counters of a device's port; none for siw, which has no such directory."""
    place = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
    lines = guest.run(f"grep -H . {place}/* 2>/dev/null || true", label=f"counters of {device}").output.split()
    return {path.rpartition("/")[2]: int(value) for path, _, value in (line.partition(":") for line in lines)}


def test_the_mount_is_on_the_device(client: Client, pair: Pair) -> None:
    line = client.guest.run(f"grep ' {client.point} ' /proc/mounts").output
    address = client.server.address
    for option in ("proto=rdma", f"vers={client.version}", "rsize=1048576", "wsize=1048576", f"addr={address}"):
        assert option in line
    for guest in (client.guest, pair.server.guest):
        pairs = guest.run(f"rdma resource show qp link {device_of(client)}").output
        assert "type RC" in pairs, f"{guest.name} has no connection on {device_of(client)}"


def test_tree_of_files(client: Client) -> None:
    work.tree_of_files(client, files=24)


def test_program_built(client: Client) -> None:
    work.program_built(client)


def test_fio_verifies(client: Client) -> None:
    work.fio_verified(client, direct=1, jobs=FIO_JOBS)


def test_send_with_invalidate(client: Client, pair: Pair) -> None:
    before = hardware_counters(pair.server.guest, device_of(client))
    # one memory region per call: rxe's hold 128 KiB, and of several a Send can invalidate only one
    work.sends_invalidate(client, blocks="4k 64k", calls=60)
    after = hardware_counters(pair.server.guest, device_of(client))
    if before:  # rxe
        assert after["rdma_sends"] - before["rdma_sends"] >= 120, "a Send for every reply"
        assert after["rdma_recvs"] - before["rdma_recvs"] >= 120, "a Receive for every call"
        for name in ("send_rnr_err", "rcvd_rnr_err", "retry_rnr_exceeded_err", "retry_exceeded_err"):
            assert after[name] == before[name], f"{name}: a Send met no Receive, or got no answer"


def test_nconnect(client: Client) -> None:
    work.four_connections(client, size="1m")
    work.nothing_wrong_on_the_transport(client)


def test_unmounts(client: Client) -> None:
    client.umount()
    client.server.assert_running()


@pytest.mark.parametrize("kind", DEVICES)
def test_operations_on_the_wire(pair: Pair, kind: str) -> None:
    """WRITE is RDMA Reads, READ is RDMA Writes, and the replies are Sends with Invalidate: as the packets say."""
    client = pair.client(kind, "4.2")
    client.mount()
    guest, file, capture = pair.guest, f"{client.work}/wire", pair.shared / f"{kind}.pcap"
    guest.run(f"dd if=/dev/zero of={file} bs=1M count=1 oflag=direct status=none; sleep 1", label="make the file")
    which = f"udp port {ROCE_PORT}" if kind == "rxe" else f"tcp port {RDMA_PORT}"
    guest.run(
        f"tcpdump -Z root -i {pair.server.netdev(kind)} -U -s 0 -B 16384 -w {capture} {which} 2>/tmp/tcpdump & pid=$!\n"
        "until grep -q 'listening on' /tmp/tcpdump; do kill -0 $pid || { cat /tmp/tcpdump; exit 1; }; sleep 0.1; done\n"
        f"dd if=/dev/urandom of={file} bs=256k count=2 oflag=direct conv=notrunc status=none\n"
        f"dd if={file} of=/dev/null bs=256k count=2 iflag=direct status=none\n"
        "sleep 1; kill $pid; wait $pid; grep dropped /tmp/tcpdump",
        timeout=60,
        label=f"two WRITEs and two READs, captured on {pair.server.netdev(kind)}",
    )
    seen = roce_operations(capture) if kind == "rxe" else iwarp_operations(capture, RDMA_PORT)
    served, asked = client.server.address, pair.server.door(kind).address.rpartition(".")[0] + "."
    (mine,) = {source for source, _ in seen if source.startswith(asked) and source != served}
    assert seen[served, "Read Request"] >= 2
    assert seen[mine, "Read Response"] >= 2
    assert seen[served, "Write"] >= 2
    assert seen[served, "Send with Invalidate"] >= 4, "two replies to WRITE and two to READ"
    assert seen[mine, "Write"] == seen[mine, "Read Request"] == 0, "a client moves no data itself"
    assert seen[mine, "Send"] >= 4
    client.umount()


@pytest.mark.parametrize("kind", DEVICES)
def test_over_ipv6(pair: Pair, kind: str) -> None:
    guest, door = pair.guest, pair.server.door(kind, 6)
    # mount.nfs looks for an IPv6 address only where the transport is named so.
    command = f"mount -t nfs -o proto=rdma6,port={RDMA_PORT},vers=4.2 {door.address}:/export /mnt/six"
    guest.run(f"mkdir -p /mnt/six && {command}", timeout=90, label=command)
    line = guest.run("grep ' /mnt/six ' /proc/mounts").output
    assert f"addr={door.address.strip('[]')}" in line
    assert "proto=rdma6" in line
    guest.run("dd if=/dev/urandom of=/mnt/six/six bs=1M count=4 oflag=direct status=none", timeout=60)
    sum_here = guest.run("dd if=/mnt/six/six bs=1M iflag=direct status=none | sha256sum", timeout=60).output.split()[0]
    assert sum_here == pair.server.sha256("six")
    assert len(rdma_transports(guest, "/mnt/six")) == 1
    umount(guest, "/mnt/six")


@pytest.mark.parametrize("kind", DEVICES)
def test_a_port_goes_down_and_comes_back(pair: Pair, kind: str) -> None:
    """Under load: the client carries on, and so does what the other device serves."""
    guest, server = pair.guest, pair.server
    (other,) = set(DEVICES) - {kind}
    client, beside = pair.client(kind, "4.1"), pair.client(other, "4.2")
    for each in (client, beside):
        each.mount()
    job = (
        "fio --name={0} --filename={1}/port --rw=randrw --bs=16k --size=2m --ioengine=libaio --iodepth=4 --direct=1 "
        "--rate_iops=8,8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 >/tmp/{0}.out 2>&1 "
        "|| {{ cat /tmp/{0}.out; exit 1; }}"
    )
    loads = [guest.start(job.format(f"port-{each.name}", each.work), 300, each.name) for each in (client, beside)]
    time.sleep(3)
    link = f"ip link set {server.netdev(kind)}"
    server.guest.run(f"{link} down; sleep 3; {link} up", label=f"the port of {DEVICES[kind]} goes down for 3 s")
    loads[1].wait()
    loads[0].wait()
    assert f"{DEVICES[kind]} port 1 is down" in server.log_tail(1000)
    server.assert_running()
    load_devices(server.guest, server.kinds, added=True)  # IPv6 addresses went with the link
    for each in (client, beside):
        each.umount()


def test_four_ways_in_at_once(pair: Pair) -> None:
    """RoCE, iWARP, the embedded provider and TCP beside each other; what one writes, the others read.

    Each by another version: a client that finds one server behind several addresses uses one connection for them all.
    """
    guest, server = pair.guest, pair.server
    points = {"rxe": "3", "siw": "4.2", "softiwarp": "4.0", "tcp": "4.1"}
    for way, version in points.items():
        if way == "tcp":
            command = f"mount -t nfs -o vers={version} {server.address}:/export /mnt/tcp"
            guest.run(f"mkdir -p /mnt/tcp && {command}", label=command)
        else:
            door = server.door(way if way in DEVICES else "siw")
            port = SOFTIWARP_PORT if way == "softiwarp" else RDMA_PORT
            mount(guest, door, version, f"/mnt/{way}", port=port)
    assert [len(rdma_transports(guest, f"/mnt/{way}")) for way in points] == [1, 1, 1, 0]
    guest.run(
        "mkdir -p /mnt/tcp/ways; for way in rxe siw softiwarp tcp; do "
        "fio --name=$way --filename=/mnt/$way/ways/$way --rw=randrw --bs=32k --size=4m --ioengine=libaio --iodepth=4 "
        "--direct=1 --verify=crc32c --verify_fatal=1 --verify_state_save=0 >/tmp/$way.out 2>&1 & done; "
        "for job in $(jobs -p); do wait $job || { cat /tmp/*.out; exit 1; }; done",
        timeout=240,
        label="fio by four ways at once",
    )
    sums = {way: guest.run(f"cd /mnt/{way}/ways && sha256sum rxe siw softiwarp tcp").output for way in points}
    assert len(set(sums.values())) == 1, sums
    assert sums["tcp"].split()[0] == server.sha256("ways/rxe")
    for way in points:
        umount(guest, f"/mnt/{way}")


@pytest.mark.parametrize("kind", DEVICES)
def test_client_carries_on_over_two_kills(pair: Pair, kind: str) -> None:
    """SIGKILL twice under load: writers by every version and a verified fio load carry on, a lock is kept."""
    guest, server = pair.guest, pair.server
    clients = [pair.client(kind, version) for version in VERSIONS]
    for client in clients:
        client.mount()
    last = clients[-1]
    holder = LockHolder(guest, f"{last.work}/locked")
    appenders = guest.start(
        "".join(f"python3 {APPENDER} {c.work}/appended 60 >/tmp/{c.name} 2>&1 & " for c in clients)
        + "for job in $(jobs -p); do wait $job || { cat /tmp/*-v*; exit 1; }; done; "
        + "".join(f"tail -n 1 /tmp/{c.name}; " for c in clients),
        300,
        "append for 60 s, by four versions",
    )
    load = guest.start(
        f"cd {last.work} && fio --name=load --filename=load --rw=randrw --bs=16k --size=8m --ioengine=libaio "
        "--iodepth=8 --direct=1 --rate_iops=20,20 --verify=crc32c --verify_fatal=1 --verify_state_save=0 "
        ">/tmp/fio.out 2>&1 || { cat /tmp/fio.out; exit 1; }",
        300,
        "fio with verification",
    )
    time.sleep(5)
    for _ in range(2):
        server.kill()
        time.sleep(1)
        server.start()
        holder.check()
        time.sleep(2)
    load.wait()
    totals = [int(line.split()[1]) for line in appenders.wait().output.splitlines() if line.startswith("total ")]
    assert len(totals) == len(clients)
    for client, total in zip(clients, totals, strict=True):
        # Nothing acknowledged is missing, nothing stands twice.
        assert total > 0
        lines = server.read_text(f"{client.name}/appended").splitlines()
        assert lines == [f"line {number:08d}" for number in range(total)]
    holder.unlock()
    holder.quit()
    for client in clients:
        client.umount()


def test_nobody_complained(pair: Pair) -> None:
    assert complaints(pair.guest, allow="not responding|server .* OK") == []
    assert complaints(pair.server.guest) == []
    assert "Traceback" not in pair.server.log_tail(100_000)
    pair.server.stop()
