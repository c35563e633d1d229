"""Gateways over one CephFS directory that have their grace periods together: what a client had locked at a gateway
which was killed is nobody else's, until it is reclaimed or given up."""

import asyncio
import os

import pytest

from nfsd.protocol import nfs4 as p
from tests.ceph.conftest import Place
from tests.ceph.gateways import HOST, gateways
from tests.ceph.test_gateways import BOUND
from tests.support.nfs4 import Client4, Failed
from tests.support.over_tcp import OverTcp
from tests.unit.test_v4_locks import locking

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]

NAME = b"f"
LEASE = 10
HELD_BACK, RESUMED = "no new opens and locks are granted", "new opens and locks are granted: no server"


class Holder:
    """A client of NFSv4.1 that has locked the beginning of a file, and knows how to reclaim that."""

    def __init__(self, gateway):
        self._gateway = gateway

    async def connect(self):
        """Anew, as the same client."""
        self._client = Client4(OverTcp(HOST, self._gateway.port), 1, name=b"the holder")
        await self._client.connect(b"the same", reclaim_complete=False)

    async def complete(self):
        await self._client.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))

    async def lock(self):
        stateid, self._handle = await self._client.open("/tried", NAME)
        await self._client.on(self._handle, locking(self._client, stateid, 0, 8))

    async def reclaim(self):
        """Raises Failed."""
        args = self._client.open_args(b"")
        none = p.open_delegation_type4.OPEN_DELEGATE_NONE
        args.claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=none)
        [opened] = await self._client.on(self._handle, (p.OP_OPEN, args))
        _, lock = locking(self._client, opened.resok4.stateid, 0, 8)
        lock.reclaim = True
        await self._client.on(self._handle, (p.OP_LOCK, lock))


async def status_of(asked):
    try:
        await asked
    except Failed as failed:
        return failed.status
    return p.NFS4_OK


def with_both(rados, cluster, tmp_path, test):
    """``test(one, two, ours, theirs)``: ours has a lock at one, theirs has the file open at two."""

    async def whole(one, two):
        for gateway in (one, two):
            await gateway.ready()
        ours, theirs = Holder(one), await two.client("4.1")
        await theirs.write(NAME, b"kept")
        await ours.connect()
        await ours.complete()
        await ours.lock()
        handle = await theirs.opened(NAME)
        assert not await theirs.lock(handle, 0, 8)
        await test(one, two, ours, lambda start: status_of(locked(theirs, handle, start)))

    async def locked(theirs, handle, start):
        if not await theirs.lock(handle, start, 8):
            raise Failed(p.NFS4ERR_DENIED, [])

    pool = {"config": rados.pool.config, "pool": rados.pool.pool, "namespace": rados.pool.namespace}
    settings = {"stable_storage": {"rados": pool}, "nfs4": {"lease_time": LEASE, "grace_time": 60}}
    names = f"one-{os.getpid()}", f"two-{os.getpid()}"
    with gateways(tmp_path, Place(cluster).options, *names, **settings) as (one, two):
        asyncio.run(asyncio.wait_for(whole(one, two), 800))


def test_what_a_killed_gateway_had_granted_is_reclaimed_there(rados, cluster, tmp_path):
    """It comes back at once, before the other one has found out."""

    async def test(one, two, ours, theirs):
        one.kill()
        one.start()
        await one.ready()
        # Its files were not touched, and so its locks of before stood, until the other one held back.
        assert await theirs(0) == await theirs(100) == p.NFS4ERR_GRACE
        await two.says(HELD_BACK)
        await ours.connect()
        await ours.reclaim()
        await ours.complete()
        await two.says(RESUMED, 2)
        assert (await theirs(0), await theirs(100)) == (p.NFS4ERR_DENIED, p.NFS4_OK)
        assert await one.stop() == 0
        assert await two.stop() == 0

    with_both(rados, cluster, tmp_path, test)


def test_what_a_gateway_had_granted_that_stays_away_is_given_up(rados, cluster, tmp_path):
    async def test(one, two, ours, theirs):
        one.kill()
        await two.says("its clients may reclaim what they had")
        await two.says(HELD_BACK)
        assert await theirs(0) == p.NFS4ERR_GRACE
        await two.says("has not come back")
        await two.says(RESUMED, 2)
        async with asyncio.timeout(BOUND):  # until the cluster has ended its session
            while await theirs(0) != p.NFS4_OK:  # noqa: ASYNC110 (the cluster's doing)
                await asyncio.sleep(0.5)
        one.start()
        await one.ready()
        await ours.connect()
        assert await status_of(ours.reclaim()) == p.NFS4ERR_NO_GRACE
        await ours.complete()

    with_both(rados, cluster, tmp_path, test)


def test_a_gateway_that_stops_with_clients_has_the_other_one_hold_back_first(rados, cluster, tmp_path):
    """Its locks go with its session, as soon as it ends that."""

    async def test(one, two, ours, theirs):
        assert await one.stop() == 0
        assert await theirs(0) == p.NFS4ERR_GRACE
        one.start()
        await one.ready()
        await ours.connect()
        await ours.reclaim()
        await ours.complete()
        await two.says(RESUMED, 2)
        assert (await theirs(0), await theirs(100)) == (p.NFS4ERR_DENIED, p.NFS4_OK)

    with_both(rados, cluster, tmp_path, test)
