"""Locks between two Linux clients over proto=rdma: fcntl and flock, splitting and merging, blocking, deadlock."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.file_shell import FileShell
from tests.vm.marks import V4
from tests.vm.mounts import complaints
from tests.vm.network import Network
from tests.vm.pair import Pair, eventually, two_guests
from tests.vm.server import Server

METRICS_PORT = 9587


class Metrics:
    """What the server counts."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def notifications(self) -> int:
        """CB_NOTIFY_LOCKs that clients have answered with NFS4_OK."""
        url = f"http://{self._network.listen_address}:{METRICS_PORT}/metrics"
        script = f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())"
        text = subprocess.run(
            [*self._network.enter, sys.executable, "-c", script], check=True, capture_output=True, text=True
        ).stdout
        found = re.search(
            r'^rdma_nfsd_callbacks_total\{operation="CB_NOTIFY_LOCK",result="ok"\} ([\d.e+]+)$', text, re.M
        )
        return int(float(found[1])) if found else 0


@pytest.fixture(scope="module")
def metrics(network: Network) -> Metrics:
    return Metrics(network)


@pytest.fixture(scope="module")
def pair(network: Network, directory: Path) -> Iterator[Pair]:
    listen = f"{network.listen_address}:{METRICS_PORT}"
    with (
        Server(directory / "server", network, server={"metrics": {"listen": listen}}) as server,
        two_guests(network, server) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def shells(pair: Pair) -> list[FileShell]:
    return [FileShell(pair.one), FileShell(pair.two)]


@pytest.fixture(params=V4)
def opened(request: pytest.FixtureRequest, pair: Pair, shells: list[FileShell]) -> Iterator[str]:
    """A version, with a new file open as ``f`` in both shells."""
    version: str = request.param
    for index, shell in enumerate(shells):
        if not shell.idle:  # a test has failed
            shell.end()
            shells[index] = FileShell(shell.guest)
    path = f"{pair.mount(version)}/{request.node.originalname}"
    one, two = shells
    one.must(f"open f {path} rw creat")
    eventually(pair.two, f"test -e {path}")
    two.must(f"open f {path} rw")
    yield version
    for shell in shells:
        if shell.idle:
            shell.must("close f")


def test_ranges_split_merge_and_change_kind(opened: str, shells: list[FileShell]) -> None:
    one, two = shells
    one.must("lock f ex 0 100", "unlock f 40 20")
    assert two.do("getlk f ex 0 0") == "ok ex 0 40"
    assert two.do("getlk f sh 50 0") == "ok ex 60 40"
    assert two.do("lock f ex 39 1") == "error EAGAIN"
    assert two.do("lock f sh 59 2") == "error EAGAIN"
    two.must("lock f ex 40 20", "lock f ex 100 0")
    assert one.do("getlk f sh 0 0") == "ok ex 40 20"
    two.must("unlock f 40 20")
    # A part becomes shared: others may share it, the rest stays exclusive.
    one.must("lock f sh 10 20")
    two.must("lock f sh 10 20")
    assert two.do("lock f sh 9 1") == "error EAGAIN"
    assert one.do("lock f ex 10 20") == "error EAGAIN", "another shares it now"
    two.must("unlock f 10 20")
    one.must("lock f ex 10 90")
    # Now one range again: one request is enough to give it up, and nothing is left behind.
    assert two.do("getlk f ex 0 0") == "ok ex 0 100"
    one.must("unlock f 0 100")
    assert two.do("getlk f ex 0 0") == "ok free"
    # A file's end is no border, and what reaches to the end of the file reaches on.
    assert one.do(f"lock f ex {1 << 40} 1") == "error EAGAIN"
    two.must("unlock f 0 0")
    one.must(f"lock f ex {1 << 40} 1")
    assert two.do("getlk f ex 5 0") == f"ok ex {1 << 40} 1"
    one.must("unlock f 0 0")


def test_closing_the_file_or_the_end_of_the_process_unlocks(opened: str, shells: list[FileShell]) -> None:
    one, two = shells
    path = f"/mnt/v{opened}/test_closing_the_file_or_the_end_of_the_process_unlocks"
    one.must("lock f ex 0 10", f"open g {path} rd", "close g")
    assert two.do("lock f ex 0 10") == "ok", "POSIX: any close of the file gives the process's locks up"
    two.must("unlock f 0 0")
    third = FileShell(one.guest)
    third.must(f"open f {path} rw", "lock f ex 0 10")
    assert two.do("lock f ex 0 10") == "error EAGAIN"
    third.end()
    deadline = time.monotonic() + 20
    while two.do("lock f ex 0 10") != "ok":
        assert time.monotonic() < deadline, "the lock of a process that is dead"
    two.must("unlock f 0 0")


def test_flock(opened: str, shells: list[FileShell]) -> None:
    one, two = shells
    one.must("flock f sh")
    two.must("flock f sh")
    assert one.do("flock f ex") == "error EAGAIN"
    two.must("flock f un")
    one.must("flock f ex")
    assert two.do("flock f sh") == "error EAGAIN"
    waiting = two.begin("flock f sh wait")
    time.sleep(0.5)
    assert not waiting.done()
    one.must("flock f un")
    assert waiting.answer(40) == "ok"
    two.must("flock f un")


def test_a_blocked_lock_wakes_soon_after_the_release(opened: str, shells: list[FileShell], metrics: Metrics) -> None:
    """By CB_NOTIFY_LOCK in 4.1 and later: Linux would ask again after 30 seconds only. In 4.0 it asks after 1, 2, 4…"""
    one, two = shells
    before = metrics.notifications()
    one.must("lock f ex 0 10")
    waiting = two.begin("lock f ex 5 10 wait")
    time.sleep(4)
    assert not waiting.done()
    released = time.monotonic()
    one.must("unlock f 0 10")
    assert waiting.answer(40) == "ok"
    took = time.monotonic() - released
    # The client may ask again, and be answered, before its reply to the callback is counted.
    while opened != "4.0" and metrics.notifications() == before and time.monotonic() < released + 30:
        time.sleep(0.1)
    told = metrics.notifications() - before
    print(f"NFSv{opened}: {took:.1f} s from the release to the lock, {told} CB_NOTIFY_LOCK")
    if opened == "4.0":
        assert told == 0
        assert took < 25
    else:
        assert told == 1
        assert took < 15
    two.must("unlock f 0 0")


def test_whoever_locks_again_and_again_does_not_starve_who_waits(opened: str, shells: list[FileShell]) -> None:
    one, two = shells
    one.must("lock f ex 0 10")
    waiting = two.begin("lock f ex 0 10 wait")
    refused = 0
    deadline = time.monotonic() + 30
    while not waiting.done():
        assert time.monotonic() < deadline
        if one.do("unlock f 0 10") == "ok" and one.do("lock f ex 0 10") != "ok":
            refused += 1
    assert waiting.answer() == "ok"
    assert refused, "the range was free for the other one only by chance"
    two.must("unlock f 0 0")
    one.must("unlock f 0 0")


def test_a_deadlock_is_told_to_one_and_the_other_goes_on(
    opened: str, shells: list[FileShell], metrics: Metrics
) -> None:
    one, two = shells
    one.must("lock f ex 0 10")
    two.must("lock f ex 10 10")
    begun = time.monotonic()
    waits = {one: one.begin("lock f ex 10 10 wait")}
    time.sleep(1)
    waits[two] = two.begin("lock f ex 0 10 wait")
    while not any(waiting.done() for waiting in waits.values()):
        assert time.monotonic() < begun + 40
        time.sleep(0.05)
    (victim,) = [shell for shell, waiting in waits.items() if waiting.done()]
    (other,) = [shell for shell in waits if shell is not victim]
    assert waits[victim].answer() == "error EDEADLK"
    print(f"NFSv{opened}: EDEADLK {time.monotonic() - begun - 1:.1f} s after the circle was closed")
    assert time.monotonic() < begun + (30 if opened == "4.0" else 20)
    assert not waits[other].done(), "the other one's wait is not over before the victim gives up what it has"
    victim.must("unlock f 0 0")
    assert waits[other].answer(40) == "ok"
    other.must("unlock f 0 0")


def test_two_that_share_and_both_want_to_write(opened: str, shells: list[FileShell]) -> None:
    """flock this time, whose upgrade is a deadlock between clients like fcntl's."""
    one, two = shells
    one.must("flock f sh")
    two.must("flock f sh")
    waits = {shell: shell.begin("flock f ex wait") for shell in shells}
    deadline = time.monotonic() + 40
    while not any(waiting.done() for waiting in waits.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (victim,) = [shell for shell, waiting in waits.items() if waiting.done()]
    (other,) = [shell for shell in waits if shell is not victim]
    assert waits[victim].answer() == "error EDEADLK"
    victim.must("flock f un")
    assert waits[other].answer(40) == "ok"
    other.must("flock f un")


def test_an_interrupted_wait_is_no_deadlock(opened: str, shells: list[FileShell]) -> None:
    """A signal ends a wait and the server is not told: whoever waits for that process then waits, and no more."""
    one, two = shells
    one.must("lock f ex 0 10")
    two.must("lock f ex 10 10")
    assert one.do("lock f ex 10 10 wait 1.5") == "error EINTR"
    waiting = two.begin("lock f ex 0 10 wait")
    time.sleep(5)
    assert not waiting.done()
    one.must("unlock f 0 0")
    assert waiting.answer(40) == "ok"
    two.must("unlock f 0 0")
    assert one.do("lock f ex 0 20") == "ok", "kept for one that has stopped waiting"
    one.must("unlock f 0 0")


def test_a_local_process_that_lets_go_wakes_the_client(opened: str, pair: Pair, shells: list[FileShell]) -> None:
    assert isinstance(pair.server, Server)
    one, _ = shells
    with pair.server.local_lock("test_a_local_process_that_lets_go_wakes_the_client"):
        assert one.do("lock f ex 0 10") == "error EAGAIN"
        assert one.do("getlk f ex 0 0") == "ok ex 0 100"
        waiting = one.begin("lock f ex 0 10 wait")
        time.sleep(2)
        assert not waiting.done()
    assert waiting.answer(40) == "ok"
    assert waiting.seconds < 25
    one.must("unlock f 0 0")


def test_the_kernels_never_complained(pair: Pair) -> None:
    assert complaints(pair.one) == []
    assert complaints(pair.two) == []
    pair.server.assert_running()
