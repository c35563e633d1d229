"""Places for descriptors among networks: a customer with many hosts keeps nobody else out, and what it has idle goes
first."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs import shares as shares_module
from nfsd.vfs.shares import Shares
from nfsd.vfs.types import Credential
from rpcrdma.addresses import networks_of
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, mode, serving
from tests.unit.test_shares import Nothing, filled, take, turns
from tests.unit.vfs_support import directory_on, run, write_file

CROWDS = {
    "a /24": [f"192.0.2.{number}" for number in range(1, 255)],
    "a /16": [f"192.0.{network}.{number}" for network in range(100) for number in (1, 2, 3)],
    "a /56": [f"2001:db8::{number:x}:0:0:0:0" for number in range(256)],
    "a /48": [f"2001:db8:0:{number:x}00::" for number in range(256)],
    "a /32": [f"2001:db8:{number:x}::" for number in range(256)],
}
CROWDS = {name: [host if "." in host else host + "/64" for host in hosts] for name, hosts in CROWDS.items()}
OUTSIDE = {
    "a /24": "192.0.3.1",
    "a /16": "192.1.0.1",
    "a /56": "2001:db8:0:100::/64",
    "a /48": "2001:db8:1::/64",
    "a /32": "2001:db9::/64",
}


@pytest.mark.parametrize("limit", [64, 160, 4096])
@pytest.mark.parametrize("name", list(CROWDS))
def test_whoever_is_in_another_network_has_a_place_at_once(name, limit):
    """All places that the crowd has are in use for good: nothing gives way."""
    shares = Shares(limit, limit // 4, Nothing())
    held = [share for _ in range(3) for host in CROWDS[name] for share in filled(shares, host)]
    assert len(held) >= limit * 7 // 8
    for host in CROWDS[name]:
        assert shares.at_once(host, 1) is None
    assert len(filled(shares, OUTSIDE[name])) >= (2 if limit > 64 else 1)
    for share in held:
        share.give_back()


@pytest.mark.parametrize("name", list(CROWDS))
def test_networks_take_turns_at_waiting(name):
    async def main():
        shares = Shares(160, 40, Nothing())
        crowd = CROWDS[name][:: len(CROWDS[name]) // 20][:20]
        for host in (OUTSIDE[name], *crowd):  # nobody has little
            had = [shares.at_once(host, 1) for _ in range(20 if host == OUTSIDE[name] else 6)]
        assert all(shares.at_once(host, 1) is None for host in (OUTSIDE[name], *crowd))
        had = [shares._hosts[host].lanes[1] for _ in range(6) for host in crowd]
        order = []

        async def want(host):
            await take(shares, host, 1)
            order.append(host)

        tasks = [asyncio.create_task(want(host)) for host in crowd for _ in range(5)]
        tasks += [asyncio.create_task(want(OUTSIDE[name])) for _ in range(3)]
        await turns()
        assert shares.waiting == len(tasks)
        for _ in range(6):
            had.pop().give_back()
            await turns()
        assert len(order) == 6
        assert order.count(OUTSIDE[name]) == 3, "however many hosts of the other network wait"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not shares.everybody.queue
        shares.close()

    asyncio.run(main())


def test_what_the_largest_network_has_idle_closes_first(tmp_path):
    """The honest host's descriptors have not been used for longer."""

    async def scenario(service, root):
        service.shares.bound(200, 50)
        honest = Credential(4000, 4000, host="198.51.100.1")
        mine = []
        for number in range(20):
            node = await write_file(service, root, b"honest%d" % number)
            service.open_files.forget_all(node.inode)
            opened = await service.open(honest, node, read=True, write=False)
            opened.release()
            mine.append(opened)
        for number in range(400):
            node = await write_file(service, root, b"f%d" % number)
            service.open_files.forget_all(node.inode)
            crowd = Credential(4001, 4001, host=f"2001:db8::{number % 256:x}:0:0:0:0/64")
            (await service.open(crowd, node, read=True, write=False)).release()
        assert service.shares.in_use > 150
        assert all(opened.cached is not None for opened in mine)
        service.shares.bound(4096, 4096)

    with directory_on("memory", tmp_path) as path:
        run(path, tmp_path, scenario)


def test_a_customers_hosts_that_keep_files_open_leave_places_for_others(tmp_path, monkeypatch):
    """Over NFSv4.1, as clients do."""
    monkeypatch.setattr(shares_module, "PATIENCE", 0.05)

    async def main():
        for name in ("export", "state"):
            (tmp_path / name).mkdir(mode=0o777)
        async with asyncio.timeout(120), serving(tmp_path / "export", state_dir=tmp_path / "state") as server:
            server.service.shares.bound(64, 32)
            held = 0
            for number in range(24):
                address = f"2001:db8:0:{number:x}::1"
                client = Client4(server, 1, name=address.encode(), transport=LoopbackTransport(address))
                await client.connect()
                with contextlib.suppress(Failed):
                    for _ in range(33):
                        await client.open("/0", b"f%d" % held, create=mode(0o666), owner=b"o%d" % held)
                        held += 1
            assert held >= 50
            server.service.shares.events.clear()
            honest = Client4(server, 1, name=b"honest", transport=LoopbackTransport("2001:db8:0:100::1"))
            await honest.connect()
            stateid, handle = await honest.open("/0", b"f0", access=1)
            await honest.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 1)))
            assert server.service.shares.events["waited"] == 0

    asyncio.run(main())


def test_counts_and_ranks_of_networks_are_right_after_anything():
    chance = random.Random(4)
    hosts = [host for crowd in CROWDS.values() for host in crowd[::40]] + ["", "10.0.0.1"]
    shares = Shares(4000, 300, Nothing())
    held = []
    for step in range(6000):
        if held and chance.random() < (0.3 if step < 3000 else 0.7):
            share = held.pop(chance.randrange(len(held)))
            if share.host.in_use == 1:
                share.host.hide()  # who has nothing has nothing in the cache
            share.give_back()
        else:
            share = shares.at_once(chance.choice(hosts[: 3 if chance.random() < 0.5 else None]), chance.randrange(2))
            if share is not None:
                held.append(share)
        if step % 3 == 0:  # something of a host is in the cache, or nothing is
            host = shares._hosts.get(chance.choice(hosts))
            if host is not None:
                chance.choice([host.find, host.hide])()
        if step % 100 == 0:
            check(shares, held)
    for share in held:
        share.host.hide()
        share.give_back()
    check(shares, [])
    assert shares.everybody.most == 0


def check(shares, held):
    counts = Counter(key for share in held for key in ("", *networks(share.host.key)))
    assert shares.in_use == counts[""] == len(held)
    for host in shares._hosts.values():
        assert host.in_use == sum(share.host is host for share in held)
        group = host.parent
        while group is not None:
            assert group.has == counts[group.key]
            ranks = {weight: bag.some(10**6) for weight, bag in group._ranks.items()}
            for weight, parts in ranks.items():
                for part in parts:
                    assert part.weight == weight
                    assert max(part.has, group.floor) <= weight < max(2 * part.has, group.floor + 1)
            assert group.most == max(ranks, default=0)
            group = group.parent


def networks(host):
    try:
        return networks_of(host)
    except ValueError:
        return ()
