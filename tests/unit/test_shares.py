"""Places for descriptors: bounded in all, by host and by export; given out in turns, one waiter for each."""

import asyncio
import errno
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.vfs import shares as shares_module
from nfsd.vfs.open_accounts import Bound
from nfsd.vfs.resources import FileLimits, most_calls, most_connections
from nfsd.vfs.shares import Shares
from nfsd.vfs.types import Credential, SetAttributes
from tests.support.hosts import on_site
from tests.unit.vfs_support import ROOT, directory_on, run, write_file


class Nothing:
    """A cache with nothing in it; counts how often it was asked."""

    def __init__(self):
        self.asked = 0

    def let_go(self, share, bound):
        self.asked += 1
        return False


def two_exports(limit, host_limit):
    shares = Shares(limit, host_limit, Nothing())
    shares.exports = 2
    return shares


def filled(shares, host, lane=1):
    """As many as the host can have at once."""
    taken = []
    while (share := shares.at_once(host, lane)) is not None:
        taken.append(share)
    return taken


async def take(shares, host, lane):
    """As those do who open files."""
    return shares.at_once(host, lane) or await shares.wait(host, lane)


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


def test_one_host_has_its_share_and_no_more():
    shares = Shares(160, 40, Nothing())
    assert len(filled(shares, "a")) == 40
    assert shares.at_once("b", 1) is not None


def test_one_host_has_three_quarters_of_its_share_of_one_export():
    shares = two_exports(160, 40)
    assert len(filled(shares, "a")) == 30
    assert len(filled(shares, "a", 2)) == 10
    assert shares.at_once("b", 1) is not None


def test_a_host_with_little_gets_in_when_others_have_all_the_rest():
    shares = Shares(160, 80, Nothing())
    crowds = [filled(shares, f"crowd{number}", lane) for number in range(6) for lane in (1, 2)]
    assert sum(map(len, crowds)) < 160
    assert shares.at_once("crowd0", 1) is None
    assert len(filled(shares, "honest")) >= 4
    # And however many come, there are not more than all.
    for number in range(100):
        filled(shares, f"other{number}")
    assert shares.in_use == 160


def test_one_export_does_not_take_all_from_the_others():
    shares = two_exports(160, 80)
    for host in "abcd":
        filled(shares, host, 1)
    for host in "abcd":
        assert shares.at_once(host, 2) is not None


def test_a_place_wakes_one_waiter_and_hosts_take_turns():
    async def main():
        shares = Shares(64, 8, Nothing())
        had = {host: filled(shares, host) for host in ("a", "b")}
        order = []

        async def want(host):
            await take(shares, host, 1)
            order.append(host)

        tasks = [asyncio.create_task(want("a")) for _ in range(20)] + [asyncio.create_task(want("b"))]
        await turns()
        assert shares.waiting == 21
        for given_back in range(1, 4):
            had["a"].pop().give_back()
            await turns()
            assert order == ["a"] * given_back
        had["b"].pop().give_back()
        await turns()
        assert order[3:] == ["b"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert shares.waiting == 0
        shares.close()

    asyncio.run(main())


def test_when_all_is_taken_hosts_take_turns_for_what_is_given_back():
    async def main():
        shares = Shares(160, 150, Nothing())
        for host in "acd":  # none of them has little
            for _ in range(10):
                shares.at_once(host, 2)
        had = filled(shares, "crowd", 1) + filled(shares, "crowd", 2)
        order = []

        async def want(host):
            await take(shares, host, 2)
            order.append(host)

        tasks = [asyncio.create_task(want(host)) for host in "aaaaaacccddd"]
        await turns()
        assert shares.waiting == 12
        for _ in range(9):
            had.pop().give_back()
            await turns()
        assert Counter(order) == Counter("acd" * 3)
        assert set(order[:3]) == set("acd")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shares.close()

    asyncio.run(main())


def test_who_waits_for_long_is_told_to_come_again(monkeypatch):
    monkeypatch.setattr(shares_module, "PATIENCE", 0.01)

    async def main():
        cache = Nothing()
        shares = Shares(64, 8, cache)
        had = filled(shares, "a")
        with pytest.raises(OSError, match="files open for a") as told:
            await take(shares, "a", 1)
        assert told.value.errno == errno.EMFILE
        assert shares.events["refused_" + Bound.HOST.value] == 1
        assert cache.asked
        for one in had:
            one.give_back()
        assert shares.in_use == 0
        assert not shares._hosts
        shares.close()

    asyncio.run(main())


def test_what_is_idle_later_closes_for_those_who_wait():
    """At first everything is in use, so that there is nothing to close."""

    class Later(Nothing):
        def let_go(self, share, bound):
            super().let_go(share, bound)
            if self.asked < 4 or not had:
                return False
            had.pop().give_back()
            return True

    async def main():
        cache.asked = 0
        await asyncio.wait_for(take(shares, "a", 1), 30)
        shares.close()

    cache = Later()
    shares = Shares(64, 8, cache)
    cache.asked = -100
    had = []
    had += filled(shares, "a")
    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from(["take", "back", "cancel"]))))
def test_places_are_never_lost(steps):
    async def main():
        shares = two_exports(24, 8)
        tasks, had = [], []

        async def want(host, lane):
            had.append(await take(shares, host, lane))

        for host, lane, what in steps:
            if what == "take":
                tasks.append(asyncio.create_task(want(host, lane)))
            elif what == "back" and had:
                had.pop().give_back()
            elif what == "cancel" and tasks:
                tasks.pop(lane % len(tasks)).cancel()
            await asyncio.sleep(0)
            assert shares.in_use <= shares.limit
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await turns()
        for share in had:
            share.give_back()
        assert (shares.in_use, shares.waiting) == (0, 0)
        assert not shares._hosts
        assert not shares.everybody.queue
        assert not shares.everybody._ranks
        assert not any(lane.in_use for lane in shares._lanes.values())
        shares.close()

    asyncio.run(main())


def test_a_place_that_comes_free_just_after_its_waiter_was_cancelled_is_not_lost():
    async def main():
        shares = Shares(160, 4, Nothing())
        held = filled(shares, "a")
        gone = asyncio.create_task(shares.wait("a", 1))
        stays = asyncio.create_task(shares.wait("a", 1))
        await turns()
        gone.cancel()
        held.pop().give_back()  # before the task has heard of it
        await turns()
        assert gone.cancelled()
        held.append(stays.result())
        for share in held:
            share.give_back()
        assert (shares.in_use, shares.waiting) == (0, 0)
        shares.close()

    asyncio.run(main())


def test_a_waiter_that_is_closed_leaves_the_queue():
    async def main():
        shares = Shares(160, 4, Nothing())
        held = filled(shares, "a")
        waiter = shares.wait("a", 1)
        waiter.send(None)
        waiter.close()
        assert shares.waiting == 0
        for share in held:
            share.give_back()
        assert shares.in_use == 0
        shares.close()

    asyncio.run(main())


def test_what_a_host_keeps_open_is_at_no_other_hosts_expense(tmp_path, monkeypatch):
    """Callers of the same user share descriptors, wherever they come from: another host's that nobody holds any more
    are charged to who takes them."""
    monkeypatch.setattr(shares_module, "PATIENCE", 0.5)

    async def scenario(service, root):
        service.shares.bound(64, 16)
        first, second = Credential(0, 0, host="first"), Credential(0, 0, host="second")
        held = []
        for number in range(15):
            node, _, _, _ = await service.create(ROOT, root, b"f%d" % number, SetAttributes(mode=0o644))
            service.open_files.forget_all(node.inode)
            (await service.open(first, node, read=True, write=False)).release()
            held.append(await service.open(second, node, read=True, write=False))
        assert len({opened.fd for opened in held}) == len(held)
        assert "first" not in service.shares._hosts
        assert service.shares._hosts["second"].in_use == 15
        others = [await write_file(service, root, b"g%d" % number) for number in range(8)]
        mine = [await service.open(first, node, read=True, write=False) for node in others]
        # Nobody takes more like that than a host may have.
        for opened in mine:
            opened.release()
        held.append(await service.open(second, others[0], read=True, write=False))
        with pytest.raises(OSError, match="files open for second"):
            await service.open(second, others[1], read=True, write=False)
        assert service.shares._hosts["second"].in_use == 16
        for opened in held:
            opened.release()
        service.shares.bound(64, 64)

    with directory_on("memory", tmp_path) as path:
        run(path, tmp_path, scenario)


@pytest.mark.parametrize("descriptors", [256, 512, 1024, 4096, 20000, 1 << 20])
def test_everything_together_stays_within_what_the_process_may_have(descriptors):
    limits = FileLimits.of(descriptors)
    connections, calls = min(1024, most_connections(descriptors)), min(8192, most_calls(descriptors))
    # A call needs its file, perhaps two, and may have to open one to synchronise it. Every open file has a node.
    nodes = max(limits.files - limits.open_files, limits.open_files + 2 * calls)
    assert connections + calls + limits.open_files + nodes < descriptors
    assert limits.nodes <= limits.files
    assert 0 < limits.host_open_files < limits.open_files


def test_bounds_of_the_configuration_hold_as_far_as_there_are_descriptors():
    assert FileLimits.of(4096, open_files=100, host_open_files=40).open_files == 100
    assert FileLimits.of(4096, open_files=100, host_open_files=40).host_open_files == 40
    assert FileLimits.of(4096, open_files=100).host_open_files == 50
    assert FileLimits.of(1024, open_files=1 << 20) == FileLimits.of(1024)


@pytest.mark.parametrize("minor", [0, 1])
def test_who_opens_what_another_host_has_just_closed_uses_up_its_own_share(tmp_path, minor):
    async def test(site):
        shares = site.daemon.service.shares
        shares.bound(64, 16)
        for number in range(20):
            (tmp_path / "export" / f"f{number}").touch(0o666)
        honest = await (await site.client("127.0.0.2", minor, name=b"honest")).connect()
        follower = await (await site.client("127.0.0.3", minor, name=b"follower")).connect()
        for number in range(15):
            stateid, handle = await honest.open("/export", b"f%d" % number)
            await honest.close(stateid, handle)
            await follower.open("/export", b"f%d" % number)
        assert {key: host.in_use for key, host in shares._hosts.items()} == {"127.0.0.3": 15}
        for number in range(15, 20):
            await honest.open("/export", b"f%d" % number)

    on_site(tmp_path, test, server="  nfs4: {grace_time: 0}\n")
