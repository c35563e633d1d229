"""NFSv3 locks of Linux clients over proto=rdma, without nolock: NLM over TCP, found through the server's port
mapper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.file_shell import FileShell
from tests.vm.guest import Guest
from tests.vm.mounts import complaints
from tests.vm.network import Network
from tests.vm.pair import CACHING, Pair, eventually, two_guests
from tests.vm.server import RDMA_PORT, Server

POINT = "/mnt/locking"
GRACE = 8
"""Seconds; short, so that a grace period costs the test little."""


def mount_with_locks(guest: Guest, server: Server) -> None:
    """Mount over RDMA with NFSv3, as a user who wants locks does it; rpcbind and statd are what such a client runs."""
    options = f"rdma,port={RDMA_PORT},vers=3,noacl,{CACHING}"
    guest.run(
        "rpcbind -w 2>/dev/null || rpcbind; rpc.statd --no-notify; "
        f"mkdir -p {POINT} && mount -t nfs -o {options} {server.address}:/export {POINT}",
        timeout=120,
        label=f"mount -o {options}",
    )


@pytest.fixture(scope="module")
def pair(network: Network, directory: Path) -> Iterator[Pair]:
    settings = {"portmapper": True, "nfs4": {"lease_time": GRACE, "grace_time": GRACE}}
    with Server(directory / "server", network, server=settings) as server, two_guests(network, server) as made:
        for guest in (made.one, made.two):
            mount_with_locks(guest, server)
        yield made


@pytest.fixture
def shells(request: pytest.FixtureRequest, pair: Pair) -> Iterator[list[FileShell]]:
    """A shell in each guest, with a new file open as ``f``."""
    shells = [FileShell(pair.one), FileShell(pair.two)]
    path = f"{POINT}/{request.node.originalname or request.node.name}"
    shells[0].must(f"open f {path} rw creat")
    eventually(pair.two, f"test -e {path}")
    shells[1].must(f"open f {path} rw")
    yield shells
    for shell in shells:
        shell.end()


def test_clients_find_everything_through_port_111(pair: Pair) -> None:
    """As rpcinfo and showmount ask, over TCP and in datagrams."""
    assert isinstance(pair.server, Server)
    address = pair.server.address
    listed = {tuple(line.split()[:3]) for line in pair.one.run(f"rpcinfo -p {address}").output.splitlines()}
    assert {("100021", "4", "tcp"), ("100024", "1", "udp"), ("100005", "3", "tcp")} <= listed
    pair.one.run(f"rpcinfo -T tcp {address} 100021 4 && rpcinfo -T udp {address} 100024 1")
    assert pair.one.run(f"showmount -e {address}").output.split()[-2:] == ["/export", "*"]


def test_ranges_exclude_the_other_client(pair: Pair, shells: list[FileShell]) -> None:
    one, two = shells
    one.must("lock f ex 0 100", "unlock f 40 20", "lock f sh 10 20")
    assert two.do("getlk f ex 35 0") == "ok ex 30 10"
    assert two.do("lock f ex 39 1") == "error EAGAIN"
    two.must("lock f ex 40 20", "lock f sh 10 20")
    assert one.do("lock f ex 10 1") == "error EAGAIN", "the other shares it"
    assert one.do("getlk f sh 40 5") == "ok ex 40 20"
    two.must("unlock f 0 0")
    one.must("lock f ex 10 20", "unlock f 0 0", "flock f ex")
    assert two.do("flock f sh") == "error EAGAIN"
    one.must("flock f un")
    two.must("flock f sh", "flock f un")


def test_a_wait_ends_with_the_release_and_a_deadlock_is_told(pair: Pair, shells: list[FileShell]) -> None:
    one, two = shells
    one.must("lock f ex 0 10")
    waiting = two.begin("lock f ex 5 10 wait")
    time.sleep(2)
    assert not waiting.done()
    released = time.monotonic()
    one.must("unlock f 0 10")
    assert waiting.answer(60) == "ok"
    took = time.monotonic() - released
    print(f"NLM_GRANTED: {took:.1f} s from the release to the lock")
    assert took < 20, "Linux asks again after 30 seconds by itself: it has not been called"
    # A wait that is given up leaves nothing behind.
    assert one.do("lock f ex 5 10 wait 1.5") == "error EINTR"
    two.must("unlock f 0 0")
    one.must("lock f ex 5 10", "unlock f 0 0")
    one.must("lock f ex 0 10")
    two.must("lock f ex 10 10")
    first = one.begin("lock f ex 10 10 wait")
    time.sleep(1)
    assert two.do("lock f ex 0 10 wait") == "error EDEADLK"
    two.must("unlock f 0 0")
    assert first.answer(60) == "ok"
    one.must("unlock f 0 0")


def test_nfsv4_clients_and_local_processes_are_kept_out(pair: Pair, shells: list[FileShell]) -> None:
    assert isinstance(pair.server, Server)
    name = "test_nfsv4_clients_and_local_processes_are_kept_out"
    one, two = shells
    path = f"{pair.mount('4.2')}/{name}"
    eventually(pair.two, f"test -e {path}")
    two.must(f"open g {path} rw")
    one.must("lock f ex 0 50")
    assert two.do("lock g ex 10 1") == "error EAGAIN"
    assert not pair.server.local_lock_is_free(name)
    waiting = two.begin("lock g ex 0 50 wait")
    time.sleep(1)
    assert not waiting.done()
    one.must("unlock f 0 0")
    assert waiting.answer(60) == "ok"
    assert one.do("lock f ex 10 1") == "error EAGAIN"
    waiting = one.begin("lock f ex 0 50 wait")
    time.sleep(1)
    assert not waiting.done()
    two.must("unlock g 0 0")
    assert waiting.answer(60) == "ok"
    one.must("unlock f 0 0")
    with pair.server.local_lock(name):
        assert one.do("lock f ex 0 10") == "error EAGAIN"


def test_locks_survive_the_server(pair: Pair, shells: list[FileShell]) -> None:
    """Killed and started again: the client is told (SM_NOTIFY) and reclaims what it had before anybody else may have
    it."""
    assert isinstance(pair.server, Server)
    one, two = shells
    one.must("lock f ex 0 100")
    pair.server.kill()
    time.sleep(1)
    pair.server.start()
    # This waits for the grace period to be over.
    assert two.do("lock f ex 50 100", 150) == "error EAGAIN", "it was lost over the restart"
    assert not pair.server.local_lock_is_free("test_locks_survive_the_server")
    one.must("unlock f 0 0")
    assert two.do("lock f ex 50 100") == "ok"


def test_a_client_that_was_restarted_has_lost_its_locks(pair: Pair, shells: list[FileShell]) -> None:
    """As a host says when it comes up: sm-notify, which calls by datagrams; its status monitor, which the server asks
    whether that is true, begins with the new state number."""
    assert isinstance(pair.server, Server)
    one, _ = shells
    name = "test_a_client_that_was_restarted_has_lost_its_locks"
    one.must("lock f ex 0 100")
    assert not pair.server.local_lock_is_free(name)
    pair.one.run(
        "ls /var/lib/nfs/sm; kill $(pidof rpc.statd); while pidof rpc.statd; do sleep 0.2; done; "
        "sm-notify -f -m 1; rpc.statd --no-notify",
        timeout=60,
    )
    deadline = time.monotonic() + 60
    while not pair.server.local_lock_is_free(name):
        assert time.monotonic() < deadline, f"the server has not heard of it:\n{pair.server.log_tail()}"
        time.sleep(0.2)


def test_the_kernels_never_complained(pair: Pair) -> None:
    for guest in (pair.one, pair.two):
        assert complaints(guest, allow="lockd: server .* (not responding|OK)|not responding|server .* OK") == []
    pair.server.assert_running()
