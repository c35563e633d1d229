"""Two servers over one CephFS directory, with a client at each: what they see of each other (docs/backends.md)."""

import asyncio
import os

import pytest

from nfsd.protocol import nfs4 as p
from tests.ceph.conftest import Place
from tests.ceph.gateways import Version4, gateways
from tests.support.nfs4 import mode

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]
VERSIONS = ["3", "4.0", "4.1", "4.2"]
BOUND = 240
"""Seconds for which a gateway that has died may hold up another one: the 60 that the cluster gives a client which does
not answer (session_timeout), and what a busy machine takes for the rest."""


@pytest.fixture(scope="module")
def pair(cluster, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gateways")
    with gateways(directory, Place(cluster).options, f"one-{os.getpid()}", f"two-{os.getpid()}") as both:
        yield both


@pytest.fixture(
    params=[(one, two) for one, two in zip(VERSIONS, VERSIONS[1:] + VERSIONS[:1], strict=True)], ids="-".join
)
def versions(request):
    """Each version at both gateways, and not the same one."""
    return request.param


def with_clients(pair, versions, test):
    """``test(one, two)``, with a client at each gateway."""

    async def whole():
        async with asyncio.timeout(600):
            for gateway in pair:
                await gateway.ready()
            clients = [await gateway.client(version) for gateway, version in zip(pair, versions, strict=True)]
            try:
                await test(*clients)
            finally:
                for client in clients:
                    await client.close()

    asyncio.run(whole())


async def keep_open(client, name):
    """Have NFSv4 clients open a file; its handle."""
    return await client.opened(name) if isinstance(client, Version4) else (await client.look(name))[0]


def name_of(request):
    return os.fsencode(request.node.name[:200])


def test_what_one_has_written_the_other_reads(pair, versions, request):
    name = name_of(request)

    async def test(one, two):
        here = await one.write(name, b"first")
        there, size, bits = await two.look(name)
        assert (size, bits, await two.read(there)) == (5, 0o666, b"first")
        await two.write(name, b"second, and longer")
        assert (await one.look(name))[1:] == (18, 0o666)
        assert await one.read(here) == b"second, and longer"
        await one.write(name, b"third ")
        assert await two.read(there) == b"third , and longer"

    with_clients(pair, versions, test)


def test_names_are_seen_at_once(pair, versions, request):
    name, new = name_of(request), name_of(request) + b".new"

    async def test(one, two):
        assert await two.look(name) is None
        await one.write(name, b"1")
        there, *_ = await two.look(name)
        await one.rename(name, new)
        assert await two.look(name) is None
        assert (await two.look(new))[1] == 1
        assert await two.read(there) == b"1"  # the handle stays good
        await two.remove(new)
        assert await one.look(new) is None
        assert await one.look(name) is None
        assert await two.is_stale(there)

    with_clients(pair, versions, test)


def test_locks_exclude_each_other(pair, versions, request):
    name = name_of(request)

    async def test(one, two):
        await one.write(name, b"1")
        here, there = await keep_open(one, name), await keep_open(two, name)
        assert await one.lock(here, 10, 10)
        assert not await two.lock(there, 19, 5)
        assert await two.lock(there, 20, 5)
        assert not await one.lock(here, 0, 100)
        await one.unlock(here, 10, 10)
        assert await two.lock(there, 0, 20)
        assert not await one.lock(here, 10, 10)

    with_clients(pair, versions, test)


def test_share_reservations_are_of_one_gateway(pair, request):
    """What docs/backends.md says is not enforced: who is denied at one gateway is not at the other."""
    name = name_of(request)

    async def test(one, two):
        await one.write(name, b"1")
        await one.opened(name, deny=p.OPEN4_SHARE_DENY_BOTH)
        same = await pair[0].client("4.1")
        args = same.client.open_args(name, create=mode(0o666))
        assert await same.client.status(*same.client.path("/tried"), (p.OP_OPEN, args)) == p.NFS4ERR_SHARE_DENIED
        assert await two.opened(name)

    with_clients(pair, ("4.1", "4.1"), test)


def test_handles_are_the_same_only_with_the_same_key(pair, request):
    """Each gateway here has made its own."""
    name = name_of(request)

    async def test(one, two):
        handle = await one.write(name, b"1")
        assert await two.look(name) is not None
        status = await two.client.status((p.OP_PUTFH, p.PUTFH4args(handle)))
        assert status in (p.NFS4ERR_BADHANDLE, p.NFS4ERR_STALE)

    with_clients(pair, ("4.1", "4.1"), test)


def test_a_gateway_that_is_killed_holds_up_the_other_for_a_bounded_time(cluster, tmp_path):
    """What it holds is free once the cluster has ended its session. Then it comes back, with the handles of before."""

    async def goes_on(client, name):
        """What nobody held can be done, and what the other one held."""
        await client.write(b"new-" + name, b"1")
        assert await client.read((await client.look(name))[0]) == b"kept"
        await client.write(name, b"next")
        handle = await keep_open(client, name)
        while not await client.lock(handle, 0, 10):  # noqa: ASYNC110 (the cluster's doing)
            await asyncio.sleep(0.5)
        await client.unlock(handle, 0, 10)

    async def everybody(gateway, work):
        """``work(client, name)`` for a client of each version, with a file of its own; what it returns."""
        await gateway.ready()
        clients = [await gateway.client(version) for version in VERSIONS]
        try:
            work = [work(client, b"f" + version.encode()) for client, version in zip(clients, VERSIONS, strict=True)]
            return await asyncio.gather(*work)
        finally:
            for client in clients:
                await client.close()

    async def take(client, name):
        handle = await client.write(name, b"kept")
        assert await client.lock(await keep_open(client, name), 0, 10)
        return name, handle

    async def test(first, second):
        handles = dict(await everybody(first, take))
        await second.ready()
        first.kill()
        async with asyncio.timeout(BOUND):
            await everybody(second, goes_on)
        first.start()

        async def come_back(client, name):
            assert await client.read(handles[name]) == b"next"
            assert await client.lock(await keep_open(client, name), 0, 10)

        await everybody(first, come_back)
        assert await first.stop() == 0
        assert await second.stop() == 0

    names = f"first-{os.getpid()}", f"second-{os.getpid()}"
    with gateways(tmp_path, Place(cluster).options, *names) as both:
        asyncio.run(asyncio.wait_for(test(*both), 800))
