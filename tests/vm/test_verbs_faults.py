"""The server on devices when things go wrong: connections by the hundred, clients that die, devices that are removed.

The clients here are tests/vm/inside/verbs_client.py, in the server's own guest: what a client's kernel would do about
a dead server is not the question. The last one is a Linux client whose power is cut.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.vm.build import HERE, REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import DEVICES, SOFTIWARP_PORT, GuestServer, load_devices
from tests.vm.mounts import complaints
from tests.vm.network import Namespace
from tests.vm.server import RDMA_PORT, TCP_PORT

pytestmark = pytest.mark.timeout(1200)

CONNECTIONS = 200
FIRST = 32
"""Connections after which there are all shared Receives: each brings those that it begins with."""
MOST_PIPES = 32
"""Descriptors of pipes that the server keeps for the next time: two of each."""
MOST_ARENAS = 32
"""Far more than the arenas of 4 MiB that eight calls of 1 MiB at a time need."""


@dataclass
class Used:
    """What the server holds."""

    descriptors: Counter[str]
    """By what they are of, all but pipes."""
    pipes: int
    """Descriptors of pipes. By some, large data of files leave over TCP without a copy: those are made when they are
    first needed, and then kept for the next time (:mod:`rpcrdma.pipes`)."""
    objects: dict[str, int]
    """Of the device, by kind, as ``rdma resource show`` counts them."""
    buffers: int
    """Octets leased."""
    connections: int
    resident: int
    """Kilobytes."""

    @property
    def counted(self) -> tuple[object, ...]:
        return self.descriptors, self.objects, self.buffers, self.connections

    @property
    def bare_objects(self) -> dict[str, int]:
        return {kind: number for kind, number in self.objects.items() if kind != "mr"}

    @property
    def but_arenas(self) -> tuple[object, ...]:
        """The same without registrations: the arenas that much data once needed stay, and stay registered."""
        return self.descriptors, self.bare_objects, self.buffers, self.connections


class Subject:
    """The server, its device, and what is asked of them."""

    def __init__(self, server: GuestServer, kind: str, shared: int) -> None:
        self.server = server
        self.idle_buffers = shared * 4096
        """Octets leased while there are no connections: shared Receives stay."""
        self.guest = server.guest
        self.kind = kind
        self.device = DEVICES[kind]

    def client(self, what: str, count: int) -> str:
        """The command that runs the requester."""
        words = [
            sys.executable,
            f"{HERE}/inside/verbs_client.py",
            what,
            self.server.address,
            str(RDMA_PORT),
            str(count),
        ]
        return f"PYTHONPATH={shlex.quote(str(REPO))} {shlex.join(words)}"

    def churn(self, count: int) -> None:
        done = self.guest.run(self.client("churn", count), timeout=300, check=False, label=f"{count} connections")
        assert f'{{"connections": {count}}}' in done.output, done.output + self.server.log_tail(100)

    def used(self) -> Used:
        text = self.guest.run(
            "pid=$(cat /srv/nfsd/pid); lines=$(wc -l </srv/nfsd/log); kill -USR1 $pid; sleep 1; "
            'for fd in /proc/$pid/fd/*; do echo "fd: $(readlink $fd)"; done; '
            f"rdma resource show | grep {self.device}; grep VmRSS /proc/$pid/status; "
            "tail -n +$((lines + 1)) /srv/nfsd/log",
            label="what the server holds",
        ).output
        resources = re.search(rf"{self.device}: (.*)", text)
        found = re.findall(r"(pd|cq|qp|cm_id|mr|srq) (\d+)", resources[1] if resources else "")
        buffers = re.search(r"buffers: (\d+) of", text)
        resident = re.search(r"VmRSS:\s*(\d+)", text)
        assert resident
        assert buffers
        # Sockets and the like have numbers of their own: "socket:[10990]".
        descriptors = Counter(re.sub(r":\[\d+\]$", "", name) for name in re.findall(r"^fd: (.*)", text, re.MULTILINE))
        pipes = descriptors.pop("pipe", 0)
        connections = re.findall(rf"rdma://\S*:{RDMA_PORT}\S*: (\d+) connections", text)
        return Used(
            descriptors,
            pipes,
            {kind: int(number) for kind, number in found},
            int(buffers[1]),
            sum(map(int, connections)),
            int(resident[1]),
        )

    def until(self, condition: Callable[[Used], bool], seconds: float) -> Used:
        """What the server holds, once ``condition`` holds of it; after ``seconds``, whatever it is then."""
        deadline = time.monotonic() + seconds
        while not condition(used := self.used()) and time.monotonic() < deadline:
            time.sleep(1)
        return used


@pytest.fixture(scope="module", params=[("rxe", 0), ("rxe", 512), ("siw", 0)], ids=["rxe", "rxe-shared", "siw"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """``rxe-shared``: the connections share Receives."""
    kind, shared = request.param
    listen = [
        {"url": f"rdma://*:{RDMA_PORT}", "provider": "verbs"},
        {"url": f"rdma://*:{SOFTIWARP_PORT}", "provider": "softiwarp"},
        f"tcp://*:{TCP_PORT}",
    ]
    limits = {"limits": {"shared_receives": shared}}
    with Namespace() as network, GuestServer(network, (kind,), listen=listen, server=limits) as server:
        subject = Subject(server, kind, shared)
        # The first connection brings the device's own objects, and those stay.
        subject.churn(FIRST)
        assert subject.used().objects["srq"] == bool(shared)
        yield subject
        server.assert_running()
        server.stop()
        assert complaints(server.guest) == []


def test_connections_opened_used_and_dropped_leave_nothing_behind(subject: Subject) -> None:
    before = subject.until(lambda used: used.connections == 0, 30)
    subject.churn(CONNECTIONS)
    after = subject.until(lambda used: used.counted == before.counted, 30)
    assert after.counted == before.counted
    assert after.buffers == subject.idle_buffers
    assert after.resident < before.resident + (16 << 10)


def test_a_client_that_dies_while_its_data_is_being_read(subject: Subject) -> None:
    before = subject.until(lambda used: used.connections == 0, 30)
    for milliseconds in (2, 10, 30, 100):
        died = subject.guest.run(
            f"BEFORE_DEATH={milliseconds / 1000} {subject.client('die', 8)}", timeout=90, check=False, label="die"
        )
        assert died.rc == 128 + 9
    after = subject.until(lambda used: used.but_arenas == before.but_arenas, 90)
    assert after.but_arenas == before.but_arenas
    assert after.objects["mr"] < MOST_ARENAS
    subject.churn(4)


def test_a_device_is_removed_under_load_and_comes_back(subject: Subject) -> None:
    guest, server = subject.guest, subject.server
    before = subject.until(lambda used: used.connections == 0, 30)
    guest.run(f"mkdir -p /mnt/tcp && mount -t nfs -o vers=4.1,proto=tcp,port={TCP_PORT} 127.0.0.1:/export /mnt/tcp")
    guest.run("rm -f /run/told && mkfifo /run/told")
    busy = guest.start(f"exec 3<>/run/told; {subject.client('hold', 4)} <&3", timeout=180, label="hold")
    busy.wait_for("holding", 90)
    writing = guest.start(
        "while [ ! -e /run/enough ]; do\n"
        "dd if=/dev/urandom of=/mnt/tcp/beside bs=1M count=4 conv=fsync 2>&1 || exit 1\ndone",
        timeout=180,
        label="load over TCP",
    )
    # The kernel's removal waits until the server has let go of the device.
    guest.run(f"timeout 60 rdma link delete {subject.device}", timeout=90)
    assert "was removed" in busy.wait().output
    server.assert_running()
    guest.run("cmp /mnt/tcp/beside /export/beside || sleep 1; touch /run/enough", label="enough")
    writing.wait()
    guest.run("cmp /mnt/tcp/beside /export/beside && umount /mnt/tcp && rm /run/enough")
    gone = subject.used()
    assert gone.connections == 0
    assert gone.buffers == 0
    # A device that appears later is used without a restart.
    load_devices(guest, (subject.kind,))
    subject.churn(FIRST)
    after = subject.until(lambda used: used.but_arenas == before.but_arenas, 30)
    assert after.but_arenas == before.but_arenas
    assert after.pipes <= before.pipes + MOST_PIPES


def test_a_linux_client_loses_its_power_in_the_middle_of_its_writes(subject: Subject) -> None:
    network = subject.guest.network
    idle = (0, subject.idle_buffers)
    before = subject.until(lambda used: used.connections == 0, 30)
    with Guest("victim", network, memory=1024, cpus=1) as client:
        load_devices(client, (subject.kind,))
        client.run(
            f"modprobe rpcrdma; mkdir -p /mnt/nfs && "
            f"mount -t nfs -o vers=4.2,rdma,port={RDMA_PORT} {subject.server.address}:/export /mnt/nfs",
            timeout=90,
        )
        # Four at a time, so that some data is always on its way.
        client.start(
            "for i in 1 2 3 4; do dd if=/dev/zero of=/mnt/nfs/cut$i bs=1M count=150 oflag=direct & done; wait",
            timeout=600,
            label="writes",
        )
        deadline = time.monotonic() + 60
        while int(subject.guest.run("stat -c %s /export/cut1 2>/dev/null || echo 0").output) < 8 << 20:
            assert time.monotonic() < deadline
        client.kill()
    assert int(subject.guest.run("stat -c %s /export/cut1").output) < 150 << 20
    # Nothing tells the server; its own watchdog or the device's retries do.
    after = subject.until(lambda used: (used.connections, used.buffers) == idle, 150)
    assert (after.connections, after.buffers) == idle
    # Its open files are kept for it until its lease is over.
    assert after.bare_objects == before.bare_objects
    subject.churn(4)
