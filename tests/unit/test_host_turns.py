"""Listings share the workers: hosts take turns, other calls of the same export do not wait for them."""

import asyncio
import os
import time

from nfsd.protocol.nfs3 import READDIRPLUS3args
from nfsd.vfs.streams import Stream, Streams
from rpcrdma.host_turns import HostTurns
from tests.nfs3_client import Nfs3Client
from tests.support.nfs3_server import serving
from tests.unit.vfs_support import ALICE, ROOT, run


def test_hosts_take_turns_however_many_listings_they_have():
    async def scenario():
        turns, order, all_wait = HostTurns(), [], asyncio.Event()

        async def one(host):
            async with turns.turn(1, host, 1):
                order.append(host)
                await all_wait.wait()

        tasks = [asyncio.ensure_future(one(host)) for host in (*["many"] * 10, "few", "one", "few")]
        await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*tasks)
        assert order[:6] == ["many", "many", "few", "one", "many", "few"]
        assert order[6:] == ["many"] * 7
        assert not turns._lanes

    asyncio.run(scenario())


def test_hosts_have_as_many_turns_as_their_weights_say():
    async def scenario():
        weights = {(1, "heavy"): 3, (2, "light"): 9}
        turns, order, all_wait = HostTurns(lambda *who: weights.get(who, 1)), [], asyncio.Event()

        async def one(host):
            async with turns.turn(1, host, 1):
                order.append(host[0])
                await all_wait.wait()

        tasks = [asyncio.ensure_future(one(host)) for host in ("x", *["heavy"] * 8, *["light"] * 8, "other")]
        await asyncio.sleep(0)
        tasks[1].cancel()  # one that waits no more is no turn
        await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert "".join(order) == "x" + "hhhlo" + "hhhl" + "hl" + "l" * 5
        assert not turns._lanes

    asyncio.run(scenario())


def test_a_host_has_few_listings_begun_at_a_time():
    async def scenario():
        turns, all_wait = HostTurns(), asyncio.Event()
        begun, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}

        async def one(host):
            for number in range(4):
                async with turns.turn(1, host, 1, begun=number > 0):
                    begun[host] += number == 0
                    most[host] = max(most[host], begun[host])
                    await all_wait.wait()
            begun[host] -= 1

        tasks = [asyncio.ensure_future(one(host)) for host in ("a",) * 10 + ("b",) * 5]
        await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*tasks)
        assert max(most.values()) <= 2

    asyncio.run(scenario())


def test_as_many_turns_at_once_as_the_lane_allows_and_lanes_apart():
    async def scenario():
        turns, running, most = HostTurns(), {1: 0, 2: 0}, {1: 0, 2: 0}

        async def one(lane):
            async with turns.turn(lane, "host", lane):
                running[lane] += 1
                most[lane] = max(most[lane], running[lane])
                await asyncio.sleep(0.001)
                running[lane] -= 1

        await asyncio.gather(*(one(lane) for lane in (1, 2) for _ in range(10)))
        assert most == {1: 1, 2: 2}

    asyncio.run(scenario())


def test_a_turn_that_is_given_up_goes_to_the_next():
    async def scenario():
        turns, order = HostTurns(), []
        begun = asyncio.Event()

        async def one(name):
            async with turns.turn(1, name, 1):
                order.append(name)
                begun.set()
                await asyncio.sleep(0)

        first = asyncio.ensure_future(one("first"))
        await begun.wait()
        waiting = [asyncio.ensure_future(one(name)) for name in ("second", "third", "fourth")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await first
        waiting[1].cancel()  # perhaps in the moment it is told
        await asyncio.wait_for(waiting[2], 5)
        assert order[-1] == "fourth"
        assert not turns._lanes

    asyncio.run(scenario())


def test_streams_are_bounded_and_closed(tmp_path):
    async def scenario(service, root):
        closed = []
        streams = Streams(lambda fd, lane: closed.append(fd))
        key = (root.key, ROOT)
        for number in range(20):
            streams.keep(Stream(key, number, root.inode.epoch, 1, number))
        assert closed == [0, 1, 2, 3]
        assert streams.take(ROOT, root, 3, 0) is None
        assert streams.take(ALICE, root, 5, 0) is None
        taken = streams.take(ROOT, root, 5, 0)
        assert (taken.fd, len(streams)) == (5, 15)
        root.inode.permissions_changed()
        assert streams.take(ROOT, root, 6, 0) is None
        assert closed == [0, 1, 2, 3, 6]
        for number in range(400):
            streams.keep(Stream((b"%d" % number, ROOT), 100 + number, 0, 1, 3))
        assert len(streams) == 256
        streams.clear()
        assert sorted(closed) == sorted({*range(20), *range(100, 500)} - {5})

    run(tmp_path, tmp_path, scenario)


def test_a_small_call_overtakes_large_listings(tmp_path):
    """Listings in turns leave the loop to others: a call that comes behind 40 of them is answered among the first."""

    async def scenario():
        async with serving(tmp_path) as (client, directory):
            for number in range(1500):
                os.mknod(directory / f"{number:0100}")
            root = await client.mount("/export")
            plus = READDIRPLUS3args(root, 0, bytes(8), 1 << 20, 1 << 20)
            peer = client._writer.get_extra_info("peername")
            hosts = [await Nfs3Client.connect(peer[0], peer[1]) for _ in range(4)]
            listings = [asyncio.ensure_future(host.nfs("READDIRPLUS", plus)) for host in hosts for _ in range(10)]
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await client.getattr(root)
            done = sum(one.done() for one in listings)
            assert done < 30, f"{done} of 40 listings were answered first, in {time.monotonic() - began:.1f} s"
            for listed in await asyncio.gather(*listings):
                assert len(listed.resok.reply.entries) == 1502
                assert listed.resok.reply.eof
            for host in hosts:
                await host.close()

    asyncio.run(scenario())
