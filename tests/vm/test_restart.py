"""The server is killed (SIGKILL) and started again under load: the client over proto=rdma carries on as if nothing had
been."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import HERE
from tests.vm.guest import Guest
from tests.vm.locking import LockHolder, try_lock
from tests.vm.mounts import VERSIONS, complaints, load_siw, mount, umount
from tests.vm.network import Network
from tests.vm.server import Server

LEASE = 10
"""Seconds; short, so that a grace period costs the test little."""
APPENDER = HERE / "inside" / "appender.py"


@pytest.fixture(scope="module")
def short_lease_server(network: Network, directory: Path) -> Iterator[Server]:
    nfs4 = {"lease_time": LEASE, "grace_time": LEASE}
    with Server(directory / "restarted", network, server={"nfs4": nfs4}) as made:
        yield made


@pytest.fixture(scope="module")
def other(network: Network, short_lease_server: Server) -> Iterator[Guest]:
    """A second client, to see from outside what the first one holds."""
    with Guest("other", network, memory=1024, cpus=1, time_limit=1500) as guest:
        load_siw(guest)
        mount(guest, short_lease_server, "4.1")
        yield guest


MARKS = {"4.1": [pytest.mark.newest]}
"""Versions that are not here take minutes more."""


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=MARKS.get(version, [pytest.mark.long])) for version in VERSIONS]
)
def test_client_carries_on_over_two_kills(
    network: Network, short_lease_server: Server, other: Guest, version: str
) -> None:
    """A verified fio load and a writer with an open file run across two kills; an open file and its lock survive."""
    server = short_lease_server
    point, name = "/mnt/nfs", f"r{version}"
    with Guest(f"busy-v{version.replace('.', '')}", network, memory=1536, time_limit=420) as guest:
        load_siw(guest)
        mount(guest, server, version)
        guest.run(f"mkdir {point}/{name}")
        # NFSv3 locks are NLM's affair; this mount has none (nolock), so the lock is local there and only v4 asks the
        # other.
        holder = LockHolder(guest, f"{point}/{name}/locked")
        appender = guest.start(f"python3 {APPENDER} {point}/{name}/appended 60", 300, "append for 60 s")
        load = guest.start(
            f"cd {point}/{name} && fio --name=load --filename=load --rw=randrw --bs=16k --size=24m --ioengine=libaio "
            "--iodepth=8 --direct=1 --rate_iops=30,30 --verify=crc32c --verify_fatal=1 --verify_state_save=0 "
            ">/tmp/fio.out 2>&1 || { cat /tmp/fio.out; exit 1; }",
            300,
            "fio with verification",
        )
        appender.wait_for("wrote 5\n")
        for _ in range(2):
            server.kill()
            time.sleep(1)
            server.start()
            if version != "3":
                assert not try_lock(other, f"{point}/{name}/locked"), "the lock was lost over the restart"
            holder.check()
            time.sleep(2)
        load.wait()
        written = appender.wait().output.split()
        assert written[-2] == "total"
        # Nothing acknowledged is missing, nothing stands twice: the file on the server is what the writer counts.
        guest.run(f"python3 {APPENDER} check {point}/{name}/appended {written[-1]}")
        lines = (server.export / name / "appended").read_text().splitlines()
        assert lines == [f"line {number:08d}" for number in range(int(written[-1]))]
        if version != "3":
            assert not try_lock(other, f"{point}/{name}/locked")
            holder.unlock()
            assert try_lock(other, f"{point}/{name}/locked")
        holder.quit()
        umount(guest)
        assert complaints(guest, allow="not responding|server .* OK") == []
    server.assert_running()
