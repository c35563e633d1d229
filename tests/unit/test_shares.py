"""Places for descriptors: bounded in all, by host and by export; given out in turns, one waiter for each."""

import asyncio
import errno
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.vfs import shares as shares_module
from nfsd.vfs.resources import FileLimits, most_calls, most_connections
from nfsd.vfs.shares import Bound, Shares


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
        assert not shares._ring
        assert not any(lane.in_use for lane in shares._lanes.values())
        shares.close()

    asyncio.run(main())


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
