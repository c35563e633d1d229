"""Who pays for a descriptor that clients of several hosts keep open: one of those who do, at any time."""

import asyncio
import random
from collections import Counter

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs import shares as shares_module
from nfsd.vfs.open_accounts import held_by, let_by
from nfsd.vfs.types import Credential
from tests.support.hosts import on_site
from tests.support.nfs4 import Failed
from tests.unit.test_shares_of_clients import NO_GRACE, files
from tests.unit.test_v4_locks import locking, there, unlocking
from tests.unit.vfs_support import directory_on, run, write_file

ONE, TWO, THREE = "127.0.0.2", "127.0.0.3", "127.0.0.4"
HOSTS = [f"192.0.2.{number}" for number in range(1, 5)]
READ_LT = p.nfs_lock_type4.READ_LT


def counted(shares):
    """What each host pays, and what it keeps open in the places of others."""
    return {host.key: (host.in_use, host.guests) for host in shares._hosts.values()}


def gives_way(shares, idle):
    """Whether who is to give way has something idle. Nobody need be, where nobody has."""
    crowd = shares.crowd()
    return not any(idle.values()) if crowd is None else idle[crowd.key] > 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_model_of_opens_by_many_hosts_agrees(tmp_path, kind, seed):
    """Four hosts of one user open, keep, and close eight files; some are forgotten meanwhile, or used for a moment."""
    chance = random.Random(seed)

    async def scenario(service, root):
        shares = service.shares
        nodes = [await write_file(service, root, b"f%d" % number) for number in range(8)]
        for node in nodes:
            service.open_files.forget_all(node.inode)
        credentials = {host: Credential(0, 0, host=host) for host in HOSTS}
        held = []
        for _ in range(400):
            action = chance.choice(["keep", "keep", "close", "close", "touch", "forget", "sweep"])
            host = chance.choice(HOSTS)
            if action == "keep":
                opened = await service.open(credentials[host], chance.choice(nodes), read=True, write=False)
                held.append((held_by(opened, host), host))
                opened.release()
            elif action == "close" and held:
                opened, owner = held.pop(chance.randrange(len(held)))
                let_by(opened, owner)
            elif action == "touch":
                (await service.open(credentials[host], chance.choice(nodes), read=True, write=False)).release()
            elif action == "forget":
                service.open_files.forget_all(chance.choice(nodes).inode)
            else:
                service.sweep()
            await asyncio.sleep(0)
            opened = action = None
            check(service, held)
        while held:
            opened, owner = held.pop(chance.randrange(len(held)))
            let_by(opened, owner)
            opened = None
            check(service, held)
        for node in nodes:
            service.open_files.forget_all(node.inode)
        for _ in range(1000):
            if not shares.in_use:
                break
            await asyncio.sleep(0.005)
        assert (shares.in_use, dict(shares._hosts)) == (0, {})
        assert shares.everybody.most == 0

    def check(service, held):
        keeping = {}
        for opened, host in held:
            keeping.setdefault(opened, Counter())[host] += 1
        pays, shared = Counter(), Counter()
        for opened, holders in keeping.items():
            payer = opened.share.host.key
            assert payer in holders, "who has the place keeps it open"
            assert opened not in opened.share.cached, "and it is not to be closed for want of places"
            pays[payer] += 1
            shared.update(host for host in holders if host != payer)
            assert opened.holders == dict(holders)
        found = counted(service.shares)
        idle = {
            host.key: sum(len(one.cached) for one in host.lanes.values()) for host in service.shares._hosts.values()
        }
        assert gives_way(service.shares, idle)
        for host in HOSTS:
            in_use, guests = found.get(host, (0, 0))
            assert guests == shared[host]
            assert in_use >= pays[host] + idle.get(host, 0)  # and what is about to be closed
            if kind == "memory":
                assert in_use == pays[host] + idle.get(host, 0)

    with directory_on(kind, tmp_path) as path:
        run(path, tmp_path, scenario)


@pytest.mark.parametrize("minor", [0, 1])
def test_the_place_goes_to_who_still_has_the_file_open(tmp_path, minor):
    async def test(site):
        shares = site.daemon.service.shares
        one = await (await site.client(ONE, minor, name=b"one")).connect()
        two = await (await site.client(TWO, minor, name=b"two")).connect()
        first = [await one.open("/export", b"f%d" % number, access=1) for number in range(6)]
        second = [await two.open("/export", b"f%d" % number, access=1) for number in range(6)]
        assert counted(shares) == {ONE: (6, 0), TWO: (0, 6)}
        for stateid, handle in first:
            await one.close(stateid, handle)
        assert counted(shares) == {TWO: (6, 0)}
        for stateid, handle in second:
            await two.close(stateid, handle)
        assert counted(shares) == {TWO: (6, 0)}, "of what nobody needs any more"

    files(tmp_path, 6)
    on_site(tmp_path, test, server=NO_GRACE)


def test_nobody_keeps_more_open_than_a_host_may_in_the_places_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(shares_module, "PATIENCE", 0.05)

    async def test(site):
        shares = site.daemon.service.shares
        shares.bound(64, 8)
        payers = [await (await site.client(host, name=host.encode())).connect() for host in (ONE, THREE)]
        for number in range(14):
            await payers[number // 7].open("/export", b"f%d" % number, access=1)
        greedy = await (await site.client(TWO, name=b"greedy")).connect()
        for number in range(8):
            await greedy.open("/export", b"f%d" % number, access=1)
        with pytest.raises(Failed) as failed:
            await greedy.open("/export", b"f9", access=1)
        assert failed.value.status == p.NFS4ERR_NOSPC
        assert counted(shares)[TWO] == (0, 8)

    files(tmp_path, 14)
    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.parametrize("minor", [0, 1])
def test_the_place_of_locks_goes_to_who_still_has_some(tmp_path, minor):
    async def test(site):
        shares = site.daemon.service.shares
        clients, stateids, locks = {}, {}, {}
        for host in (ONE, TWO):
            clients[host] = await (await site.client(host, minor, name=host.encode())).connect()
            stateids[host], handle = await clients[host].open("/export", b"f0", access=1)
            lock = locking(clients[host], stateids[host], 0, 10, kind=READ_LT)
            (locked,) = await clients[host].on(handle, lock)
            locks[host] = locked.resok4.lock_stateid
        held = next(iter(site.daemon.service.locks.locked.values())).locks
        assert held.opened.share.host.key == ONE
        assert counted(shares) == {ONE: (2, 0), TWO: (0, 2)}
        await clients[ONE].on(handle, unlocking(locks[ONE], 1, 0, 10))
        assert held.opened.share.host.key == TWO
        assert counted(shares) == {ONE: (1, 0), TWO: (1, 1)}
        await clients[ONE].close(stateids[ONE], handle)
        assert counted(shares) == {TWO: (2, 0)}
        # With its client what it has locked goes, and only that.
        (record,) = (one for one in site.engine.clients.all() if one.owner == TWO.encode())
        held = None
        site.engine.expire_client(record)
        await site.daemon._nfs4.clear_all()
        assert not site.daemon.service.locks.locked
        assert all(guests == 0 for _, guests in counted(shares).values())

    files(tmp_path, 1)
    on_site(tmp_path, test, server=NO_GRACE)


def test_locks_in_the_place_of_others_count(tmp_path):
    async def test(site):
        site.daemon.service.shares.bound(64, 8)
        one = await (await site.client(ONE, name=b"one")).connect()
        two = await (await site.client(TWO, name=b"two")).connect()
        stateid, handle = await one.open("/export", b"f0", access=1)
        await one.on(handle, locking(one, stateid, 0, 10, kind=READ_LT))
        held = [await two.open("/export", b"f%d" % number, access=1) for number in range(8)]
        lock = locking(two, held[0][0], 0, 10, kind=READ_LT)
        assert await two.status(there(handle), lock) == p.NFS4ERR_SERVERFAULT

    files(tmp_path, 8)
    on_site(tmp_path, test, server=NO_GRACE)


def test_a_delegation_is_paid_by_who_has_it(tmp_path):
    """Two hosts have read delegations under one lease; the one whose descriptor it is gives its own back."""

    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        service.open_files.forget_all(node.inode)
        opened = await service.open(Credential(0, 0, host=ONE), node, read=True, write=False, exactly=True)
        holds = [await service.wait_for_lease(opened, write=False, on_break=list, host=host) for host in (ONE, TWO)]
        opened.release()
        assert None not in holds
        assert counted(service.shares)[TWO] == (0, 1)
        holds[0].release()
        assert counted(service.shares)[TWO] == (1, 0)
        holds[1].release()

    with directory_on("memory", tmp_path) as path:
        run(path, tmp_path, scenario)
