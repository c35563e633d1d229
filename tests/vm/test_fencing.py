"""A client that was away longer than its lease has lost its locks to another: nothing it still has to say does harm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.file_shell import FileShell, Pending
from tests.vm.mounts import complaints
from tests.vm.network import Network
from tests.vm.pair import Pair, two_guests
from tests.vm.server import Server

LEASE = 10
"""Seconds."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(network: Network, directory: Path) -> Iterator[Pair]:
    nfs4 = {"lease_time": LEASE, "grace_time": 0}
    with (
        Server(directory / "server", network, server={"nfs4": nfs4}) as server,
        two_guests(network, server) as made,
    ):
        yield made


@pytest.mark.parametrize(("how", "versions"), [("frozen", ("4.0", "4.1", "4.2")), ("cut_off", ("4.2",))])
def test_a_client_that_comes_back_after_its_lease_is_fenced(pair: Pair, how: str, versions: tuple[str, ...]) -> None:
    assert isinstance(pair.server, Server)
    # What it writes stays in its cache until it is told to write it back, however slow this machine is: the flusher
    # looks ten minutes after an inode became dirty. (With 0 it looks at once, and writes if it was there before fsync.)
    pair.one.run("sysctl -qw vm.dirty_writeback_centisecs=60000 vm.dirty_expire_centisecs=600000")
    both = FileShell(pair.one), FileShell(pair.two)
    shells = dict.fromkeys(versions, both)
    points = {version: pair.mount(version) for version in versions}
    names = {version: f"{how}-{version}" for version in versions}
    for version, (one, two) in shells.items():
        path = f"{points[version]}/{names[version]}"
        one.must(
            f"open {version} {path} rw creat",
            f"lock {version} ex 0 100",
            f"write {version} 0 first-of-one",
        )
        two.must(f"open {version} {path} rw")
        assert two.do(f"lock {version} ex 0 100") == "error EAGAIN"
    for version, (one, _) in shells.items():
        one.must(f"dirty {version} 0 late-of-one!")  # in its cache only, when it goes
    for version in versions:
        assert (pair.server.export / names[version]).read_text() == "first-of-one"
    with pair.one.frozen() if how == "frozen" else pair.one.cut_off():
        gone = time.monotonic()
        for version in versions:
            two = shells[version][1]
            waiting: Pending = two.begin(f"lock {version} ex 0 100 wait")
            assert waiting.answer(LEASE + 40) == "ok"
            print(f"NFSv{version}: the lock was had {time.monotonic() - gone:.1f} s after its holder fell silent")
            two.must(f"write {version} 0 first-of-two")
        assert time.monotonic() - gone > LEASE / 2, "a lease is not over so soon"
    for version, (one, _) in shells.items():
        # What it had not written yet, and what it writes now as if it still had the lock.
        late = one.do(f"sync {version}", 120)
        assert (pair.server.export / names[version]).read_text() == "first-of-two"
        assert late == "error EIO"
        assert one.do(f"write {version} 0 again-of-one", 120) == "error EIO"
        assert (pair.server.export / names[version]).read_text() == "first-of-two"
        assert one.do(f"getlk {version} ex 0 0") == "ok ex 0 100"
    for version, (one, two) in shells.items():
        path = f"{points[version]}/{names[version]}"
        two.must(f"write {version} 0 after-of-two", f"unlock {version} 0 0")
        # A new start is a good one.
        assert one.do(f"close {version}") in ("ok", "error EIO")
        one.must(f"open {version} {path} rw")
        assert one.do(f"lock {version} ex 0 100") == "ok"
        assert one.do(f"read {version} 0 100") == "ok after-of-two"
        one.must(f"write {version} 0 last-of-one!")
        assert (pair.server.export / names[version]).read_text() == "last-of-one!"
        one.must(f"close {version}")
        two.must(f"close {version}")
    for shell in both:
        shell.end()


def test_the_kernels_only_complained_of_the_lost_locks(pair: Pair) -> None:
    assert complaints(pair.one, allow="not responding|server .* OK|lock reclaim|lost|rpcrdma") == []
    assert complaints(pair.two) == []
    pair.server.assert_running()
