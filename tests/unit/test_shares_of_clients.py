"""Clients of several hosts and what they keep open: who pays, who is told what, over TCP."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4 as n
from tests.support.hosts import on_site
from tests.support.nfs4 import Client4
from tests.support.nlm import GRANTED, locking_server
from tests.unit.test_v4_locks import locking, there

NO_GRACE = "  nfs4: {grace_time: 0}\n"


def files(tmp_path, count):
    (tmp_path / "export").mkdir(exist_ok=True)
    for number in range(count):
        (tmp_path / "export" / f"f{number}").touch(0o666)
        (tmp_path / "export" / f"f{number}").chmod(0o666)


@pytest.mark.parametrize(("minor", "status"), [(0, p.NFS4ERR_RESOURCE), (1, p.NFS4ERR_SERVERFAULT)])
def test_a_lock_that_the_hosts_own_opens_leave_no_descriptor_for_is_not_to_be_asked_for_again(tmp_path, minor, status):
    async def test(site):
        site.daemon.service.shares.bound(64, 8)
        client = await (await site.client("127.0.0.2", minor, name=b"greedy")).connect()
        held = [await client.open("/export", b"f%d" % number) for number in range(8)]
        stateid, handle = held[0]
        assert await client.status(there(handle), locking(client, stateid)) == status
        if minor == 0:
            client.seqids[b"owner"] -= 1  # RFC 7530 section 9.1.7: RESOURCE leaves it as it was
        await client.close(*held[1])
        found = p.NFS4ERR_DELAY
        while found == p.NFS4ERR_DELAY:  # a descriptor is about to be closed for it
            found = await client.status(there(handle), locking(client, stateid))
        assert found == p.NFS4_OK

    files(tmp_path, 8)
    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_lock_that_others_leave_no_descriptor_for_is_to_be_asked_for_again(tmp_path, minor):
    async def test(site):
        shares = site.daemon.service.shares
        client = await (await site.client("127.0.0.2", minor, name=b"modest")).connect()
        stateid, handle = await client.open("/export", b"f0")
        shares.bound(1, 8)
        assert await client.status(there(handle), locking(client, stateid)) == p.NFS4ERR_DELAY
        shares.bound(64, 8)
        assert await client.status(there(handle), locking(client, stateid)) == p.NFS4_OK

    files(tmp_path, 1)
    on_site(tmp_path, test, server=NO_GRACE)


def test_the_lock_manager_says_so_too(tmp_path):
    async def main():
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            shares = server.parts.service.shares
            host = server.host(2)
            client = await Client4(server.parts, 1).connect()
            _, host.handle = await client.open("/0", b"f", access=1)
            held = [shares.at_once("127.0.0.2", 0) for _ in range(8)]
            shares.bound(64, 8)
            assert await host.lock() == n.nlm4_stats.NLM4_DENIED_NOLOCKS
            held.pop().give_back()
            assert await host.lock() == GRANTED
            for share in held:
                share.give_back()

    asyncio.run(main())
