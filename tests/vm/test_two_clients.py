"""Two Linux clients on one export over proto=rdma: each sees what the other does, and locks exclude."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vm.build import HERE
from tests.vm.kernel_server import KernelServer
from tests.vm.locking import LOCKER, LockHolder, try_lock
from tests.vm.marks import V4
from tests.vm.mounts import complaints
from tests.vm.network import Network
from tests.vm.pair import Pair, eventually, two_guests
from tests.vm.server import Server


@pytest.fixture(scope="module")
def pair(network: Network, server: Server | KernelServer) -> Iterator[Pair]:
    with two_guests(network, server) as made:
        yield made


@pytest.mark.parametrize("version", ["3", "4.2"])
def test_each_sees_what_the_other_does(pair: Pair, version: str) -> None:
    point = pair.mount(version)
    work = f"{point}/shared-{version}"
    one, two = pair.one, pair.two
    one.run(f"mkdir {work} && echo first >{work}/file")
    eventually(two, f"test -d {work}")
    # Close-to-open: what was written before the close is there after the open, at once.
    for turn, (writer, reader) in enumerate([(one, two), (two, one), (one, two)]):
        writer.run(f"head -c 300000 /dev/urandom >{work}/file; (echo; echo turn {turn}) >>{work}/file")
        sums = [guest.run(f"sha256sum <{work}/file").output for guest in (writer, reader)]
        assert sums[0] == sums[1]
        assert reader.run(f"tail -n 1 {work}/file").output == f"turn {turn}\n"
    # Sizes both ways: an append and a truncation.
    two.run(f"echo more >>{work}/file")
    assert one.run(f"tail -n 1 {work}/file").output == "more\n"
    one.run(f": >{work}/file")
    assert two.run(f"cat {work}/file").output == ""
    # Names, modes and links.
    one.run(f"cd {work} && mv file renamed && mkdir dir && ln -s target link && chmod 600 renamed")
    eventually(two, f"test ! -e {work}/file -a -d {work}/dir -a -L {work}/link")
    eventually(two, f"test $(stat -c %a {work}/renamed) = 600")
    two.run(f"rm -r {work}/dir {work}/link {work}/renamed")
    eventually(one, f'test -z "$(ls -A {work})"')
    one.run(f"rmdir {work}")


@pytest.mark.parametrize("version", V4)
def test_byte_range_locks_exclude_the_other_client(pair: Pair, version: str) -> None:
    point = pair.mount(version)
    path = f"{point}/locked-{version}"
    holder = LockHolder(pair.one, path)
    eventually(pair.two, f"test -e {path}")
    assert not try_lock(pair.two, path)
    assert not try_lock(pair.two, path, 99, 1)
    assert try_lock(pair.two, path, 100, 50), "bytes beyond the lock are free"
    if isinstance(pair.server, Server):
        assert not pair.server.local_lock_is_free(f"locked-{version}"), "a lock of a client excludes local processes"
    # Someone who waits gets it when it is released.
    waiter = pair.two.start(f"python3 {LOCKER} try {path} 0 100 wait", 120, "wait for the lock")
    holder.check()
    assert not waiter.done()
    holder.unlock()
    assert waiter.wait().output == "got\n"
    holder.quit()
    if isinstance(pair.server, Server):
        assert pair.server.local_lock_is_free(f"locked-{version}")


def test_locks_and_data_of_many_increments(pair: Pair) -> None:
    """Both clients add to one counter under a lock: no addition may be lost."""
    point = pair.mount("4.1")
    script = HERE / "inside" / "counter.py"
    pair.one.run(f"echo 0 >{point}/counter")
    eventually(pair.two, f"test -e {point}/counter")
    jobs = [guest.start(f"python3 {script} {point}/counter 50", 240, "count to 50") for guest in (pair.one, pair.two)]
    for job in jobs:
        job.wait()
    assert pair.one.run(f"cat {point}/counter").output.split() == ["100"]


def test_the_kernels_never_complained(pair: Pair) -> None:
    assert complaints(pair.one) == []
    assert complaints(pair.two) == []
    pair.server.assert_running()
