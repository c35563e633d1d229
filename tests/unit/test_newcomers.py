"""Who comes while there is no memory waits for it, and is refused when there is none for seconds."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rpcrdma.hosts import HostLimits
from rpcrdma.memory import OutOfMemory
from rpcrdma.server import newcomers
from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.peer import NULL, accept_status, header, rpc_call, run

POOL = 8 << 20
PROVIDERS = pytest.mark.parametrize("provider", [LoopbackProvider, SoftIwarp], ids=["loopback", "softiwarp"])


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A busy machine takes its time."""
    monkeypatch.setattr(newcomers, "PATIENCE", 60.0)


def hog(rig):
    """All memory that there is, as the leases of somebody else."""
    account = rig.pool.account(POOL)
    leases = [account.lease(1 << 20) for _ in range(7)]
    with contextlib.suppress(OutOfMemory):
        while True:
            leases.append(account.lease(4096))
    return leases


async def works(peer):
    return accept_status((await peer.call(header(7) + rpc_call(7, procedure=NULL))).payload) == 0


@PROVIDERS
def test_a_newcomer_waits_for_memory(provider):
    async def test(rig):
        leases = hog(rig)
        coming = [asyncio.ensure_future(rig.peer()) for _ in range(3)]
        await rig.until(lambda: len(rig.server._newcomers) == 3)
        assert (rig.server.accepted, rig.hosts.connections) == (0, 3)
        leases.pop().release()
        await coming[0]  # first come, first served
        assert (rig.server.accepted, len(rig.server._newcomers)) == (1, 2)
        for lease in leases:
            lease.release()
        assert [await works(await each) for each in coming] == [True] * 3
        assert (rig.server.accepted, rig.server.rejected, rig.pool.waiting) == (3, 0, 0)

    run(test, provider=provider, pool_limit=POOL)


@PROVIDERS
def test_a_newcomer_for_whom_there_is_none_is_refused(provider, monkeypatch):
    monkeypatch.setattr(newcomers, "PATIENCE", 0.05)

    async def test(rig):
        leases = hog(rig)
        with pytest.raises(ConnectionRefusedError):
            await rig.peer()
        assert (rig.server.rejected, rig.hosts.events["refused_memory"]) == (1, 1)
        assert (rig.hosts.connections, rig.pool.waiting, rig.server._newcomers) == (0, 0, set())
        for lease in leases:
            lease.release()
        assert await works(await rig.peer())

    run(test, provider=provider, pool_limit=POOL)


def test_a_newcomer_gives_way_as_a_silent_connection_does():
    async def test(rig):
        leases = hog(rig)
        first, second = (asyncio.ensure_future(rig.peer()) for _ in range(2))
        await rig.until(lambda: len(rig.server._newcomers) == 2)
        third = asyncio.ensure_future(rig.peer())
        with pytest.raises(ConnectionRefusedError):
            await first
        for lease in leases:
            lease.release()
        assert await works(await second)
        assert await works(await third)
        assert (rig.hosts.events["evicted_room"], rig.hosts.events["refused_memory"]) == (1, 0)

    run(test, pool_limit=POOL, hosts=HostLimits(host_connections=2, host_memory=POOL))


def test_a_newcomer_that_has_gone_meanwhile_takes_nothing():
    async def test(rig):
        leases = hog(rig)
        coming = asyncio.ensure_future(rig.peer())
        await rig.until(lambda: rig.server._newcomers)
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming
        for lease in leases:
            lease.release()
        await rig.until(lambda: not rig.server._newcomers and not rig.server.connections)
        await rig.until(lambda: not rig.pool.in_use)
        assert rig.hosts.connections == 0

    run(test, provider=SoftIwarp, pool_limit=POOL)


def test_newcomers_are_refused_when_the_server_stops():
    async def test(rig):
        leases = hog(rig)
        coming = asyncio.ensure_future(rig.peer())
        await rig.until(lambda: rig.server._newcomers)
        await rig.server.close()
        with pytest.raises(ConnectionError):
            await coming
        assert not rig.server._newcomers
        for lease in leases:
            lease.release()

    run(test, pool_limit=POOL)
