"""The pool shared out among hosts: bounds, the reserve, turns of those who wait, pages given back."""

import ctypes
import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rpcrdma.memory import Account, Lease, OutOfMemory, Pool

KIB = 1 << 10
MIB = 1 << 20


def fill(account: Account, size: int) -> list[Lease]:
    """Lease until no more is to be had."""
    held = []
    while True:
        try:
            held.append(account.lease(size))
        except OutOfMemory:
            return held


def release(leases: list[Lease]) -> None:
    while leases:
        leases.pop().release()


def resident(pool: Pool) -> int:
    """Octets of the pool's arenas that have pages, as the kernel has it (mincore(2))."""
    libc, total = ctypes.CDLL(None, use_errno=True), 0
    for address, length in pool.arena_list():
        pages = (ctypes.c_ubyte * (length // 4096))()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), pages) == 0
        total += 4096 * sum(page & 1 for page in pages)
    return total


def write(lease: Lease) -> None:
    """Have a page behind every part of it."""
    for at in range(0, lease.capacity, 4096):
        lease.view[at] = 1


def test_a_host_has_a_bound_for_all_its_accounts() -> None:
    pool = Pool(16 * MIB)
    host, other = pool.host(4 * MIB), pool.host(4 * MIB)
    first, second = host.account(4 * MIB), host.account(4 * MIB)
    held = [first.lease(2 * MIB), second.lease(2 * MIB)]
    with pytest.raises(OutOfMemory, match="host"):
        second.lease(1)
    assert (host.in_use, pool.short_of_host) == (4 * MIB, 1)
    other.account(4 * MIB).lease(4 * MIB).release()
    release(held)
    assert (host.in_use, pool.in_use) == (0, 0)


def test_the_reserve_is_for_small_leases_of_hosts_that_use_little() -> None:
    pool = Pool(64 * MIB, 4 * MIB)
    greedy = [pool.host(24 * MIB).account(32 * MIB) for _ in range(3)]
    held = [lease for account in greedy for lease in fill(account, MIB)]
    held += fill(pool.host(24 * MIB).account(32 * MIB), MIB)  # which may have that much in any case
    assert (pool.in_use, greedy[2].in_use) == (60 * MIB, 8 * MIB)
    with pytest.raises(OutOfMemory, match="pool"):
        greedy[2].lease(1024)  # it has had enough
    modest = pool.host(32 * MIB).account(32 * MIB)
    with pytest.raises(OutOfMemory):
        modest.lease(65 * KIB)
    held += [modest.lease(64 * KIB) for _ in range(4)]
    with pytest.raises(OutOfMemory):
        modest.lease(64 * KIB)
    # What is left is for many: the more of it is gone, the less one may have.
    for _ in range(10):
        held.append(pool.host(32 * MIB).account(MIB).lease(64 * KIB))
    release(held)
    with pytest.raises(ValueError, match="half"):
        Pool(64 * MIB, 33 * MIB)


@pytest.mark.parametrize("hosts", [2, 4, 8, 16])
def test_hosts_that_want_all_they_can_get_leave_half_of_what_each_has(hosts: int) -> None:
    pool = Pool(512 * MIB, 32 * MIB)
    greedy = [pool.host(512 * MIB).account(512 * MIB) for _ in range(hosts)]
    held: list[Lease] = []
    took = True
    while took:
        took = False
        for account in greedy:
            try:
                held.append(account.lease(MIB))
                took = True
            except OutOfMemory:
                pass
    part = 2 * 480 * MIB // (2 * hosts + 1)
    assert all(abs(account.in_use - part) <= 4 * MIB for account in greedy)
    modest = pool.host(512 * MIB).account(512 * MIB)
    assert len(fill(modest, MIB)) * MIB >= part // 4
    assert greedy[0].lease(64 * KIB), "small leases go on, or what is begun would not end"


def test_a_host_alone_has_two_thirds_and_one_that_has_too_much_waits_for_others() -> None:
    pool = Pool(64 * MIB, 4 * MIB)
    first, second = (pool.host(64 * MIB).account(64 * MIB) for _ in range(2))
    held = fill(first, MIB)
    assert len(held) == 40
    assert not fill(first, 64 * KIB), "nor by small leases"
    little = second.lease(KIB)
    told: list[Lease] = []
    first.when_available(MIB, lambda: told.append(first.lease(MIB)))
    others = fill(second, MIB)
    assert not told
    assert len(others) == 13
    while len(others) > 3:
        others.pop().release()
    assert not told
    for _ in range(6):
        held.pop().release()
    assert told
    assert pool.waiting == 0
    release(held + others + told + [little])


def test_hosts_take_turns_and_so_do_their_accounts() -> None:
    pool = Pool(4 * MIB)
    held = fill(pool.account(4 * MIB), MIB)
    called: list[str] = []
    got: list[Lease] = []

    def wait(account: Account, name: str) -> None:
        def available() -> None:
            called.append(name)
            got.append(account.lease(MIB))

        account.when_available(MIB, available)

    many = pool.host(4 * MIB)
    for number in range(2):
        account = many.account(4 * MIB)
        for _ in range(3):
            wait(account, f"many {number}")
    few = pool.host(4 * MIB).account(4 * MIB)
    wait(few, "few")
    while held or got:
        (held or got).pop().release()
    assert called == ["many 0", "few", "many 1", "many 0", "many 1", "many 0", "many 1"]
    assert pool.waiting == 0


@pytest.mark.parametrize("hosts", [3, 7, 8, 9])
def test_hosts_take_turns_however_many_they_are(hosts: int) -> None:
    pool = Pool(4 * MIB)
    held = fill(pool.account(4 * MIB), MIB)
    called: list[int] = []
    got: list[Lease] = []

    def wait(account: Account, number: int) -> None:
        def available() -> None:
            called.append(number)
            got.append(account.lease(MIB))

        account.when_available(MIB, available)

    accounts = [pool.host(4 * MIB).account(4 * MIB) for _ in range(hosts)]
    for _ in range(3):
        for number, account in enumerate(accounts):
            wait(account, number)
    while held or got:
        (held or got).pop(0).release()
    turns = [called[at : at + hosts] for at in range(0, 3 * hosts, hosts)]
    assert [sorted(turn) for turn in turns] == [list(range(hosts))] * 3
    assert turns[1] == turns[2] == turns[0]


def test_a_waiter_for_whom_there_is_no_room_holds_up_nobody_else() -> None:
    pool = Pool(4 * MIB)
    blocker = pool.account(4 * MIB)
    held = fill(blocker, 64 * KIB)
    called: list[str] = []
    pool.account(4 * MIB).when_available(4 * MIB, lambda: called.append("large"))
    small = pool.account(4 * MIB)
    small.when_available(64 * KIB, lambda: called.append("small"))
    held.pop().release()
    assert called == ["small"]
    release(held)
    assert called == ["small", "large"]


def test_a_large_request_is_not_passed_over_for_ever() -> None:
    """Others lease and release all the time, so that four MiB are never free by chance."""
    pool = Pool(16 * MIB)
    others = [pool.account(16 * MIB) for _ in range(4)]
    held = [lease for account in others for lease in fill(account, 256 * KIB)]
    got: list[Lease] = []
    large = pool.account(16 * MIB)
    large.when_available(4 * MIB, lambda: got.append(large.lease(4 * MIB)))
    rng = random.Random(3)
    for _ in range(2000):
        held.pop(rng.randrange(len(held))).release()
        if got:
            break
        try:
            held.append(rng.choice(others).lease(256 * KIB))
        except OutOfMemory:
            continue
    assert got
    release(held + got)


def test_every_waiter_is_called_in_the_end() -> None:
    rng = random.Random(5)
    pool = Pool(16 * MIB, MIB)
    hosts = [pool.host(rng.choice((4, 8, 16)) * MIB) for _ in range(30)]
    accounts = [host.account(rng.choice((2, 4)) * MIB) for host in hosts for _ in range(3)]
    held = fill(pool.account(16 * MIB), 64 * KIB)
    called = 0

    def wait(account: Account, size: int) -> None:
        def available() -> None:
            nonlocal called
            called += 1
            held.append(account.lease(size))

        account.when_available(size, available)

    for _ in range(1000):
        wait(rng.choice(accounts), 1 << rng.randrange(10, 22))
    while held:
        held.pop(rng.randrange(len(held))).release()
    assert (called, pool.waiting, pool.in_use) == (1000, 0, 0)


def test_a_release_costs_the_same_however_many_wait() -> None:
    """10,000 waiters of 100 accounts that their own bounds hold up: looking at each takes half a minute."""
    pool = Pool(64 * MIB)
    held = []
    for account in [pool.account(4096) for _ in range(100)]:
        held.append(account.lease(4096))
        for _ in range(100):
            account.when_available(4096, lambda: None)
    account = pool.account(MIB)
    leases = [account.lease(1024) for _ in range(1000)]
    begun = time.thread_time()
    release(leases)
    assert time.thread_time() - begun < 1
    assert pool.waiting == 10_000


def test_pages_stay_within_the_bound_whatever_sizes_are_asked_for() -> None:
    pool = Pool(64 * MIB)
    for size in [1024, 4 * MIB, 2048, MIB, 4096, 2 * MIB, 64 * KIB]:
        account = pool.account(64 * MIB)
        held = fill(account, size)
        for lease in held:
            write(lease)
        assert resident(pool) <= (64 + 8) * MIB
        # Every other one stays for a while, so that no neighbours can be joined.
        kept = held[::2]
        release(held[1::2])
        more = fill(pool.account(64 * MIB), min(2 * size, 4 * MIB))
        for lease in more:
            write(lease)
        assert resident(pool) <= (64 + 8) * MIB
        assert resident(pool) <= pool.resident
        release(kept + more)


def test_pages_that_are_not_wanted_go_back_and_what_is_leased_stays() -> None:
    pool = Pool(64 * MIB)
    account = pool.account(64 * MIB)
    held = fill(account, 256 * KIB)
    for number, lease in enumerate(held):
        write(lease)
        lease.view[:4] = number.to_bytes(4, "big")
    assert resident(pool) == 64 * MIB
    kept = dict(itertools.islice(enumerate(held), 0, None, 16))
    release([lease for number, lease in enumerate(held) if number not in kept])
    pool.tidy()
    assert resident(pool) == 64 * MIB  # it may be wanted again
    for _ in range(60):
        pool.tidy()
    assert resident(pool) <= 24 * MIB
    assert resident(pool) <= pool.resident
    for number, lease in kept.items():
        assert lease.view[:4] == number.to_bytes(4, "big")
        lease.release()


def in_huge_pages(pool: Pool) -> int:
    """Octets of the pool that are."""
    found = 0
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M):
        first, last = entry.partition(" ")[0].split("-") if entry else ("0", "0")
        if any(int(first, 16) < address + length and address < int(last, 16) for address, length in pool.arena_list()):
            found += int(re.findall(r"AnonHugePages: +(\d+) kB", entry)[0]) << 10
    return found


@pytest.mark.skipif(
    "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(),
    reason="the kernel gives no huge pages",
)
def test_large_buffers_are_in_huge_pages_and_small_ones_are_not() -> None:
    pool = Pool(64 * MIB)
    account = pool.account(64 * MIB)
    large = account.lease(MIB)
    write(large)
    assert in_huge_pages(pool) == pool.resident == 2 * MIB
    small = fill(pool.account(8 * MIB), 4096)
    for lease in small:
        write(lease)
    assert in_huge_pages(pool) == 2 * MIB
    assert resident(pool) <= pool.resident
    release([large, *small])
    for _ in range(200):
        pool.tidy()
    again = fill(pool.account(64 * MIB), 4096)  # in what was one huge page, too
    for lease in again[::512]:
        write(lease)
    assert resident(pool) <= pool.resident


@pytest.mark.parametrize("order", [sorted, reversed])
def test_any_mix_of_sizes_fits_again_after_any_other(order: Callable[[list[int]], list[int]]) -> None:
    pool = Pool(32 * MIB)
    for size in order([1 << power for power in range(10, 23)]):
        account = pool.account(32 * MIB)
        held = fill(account, size)
        assert len(held) == 32 * MIB // size
        write(held[-1])
        release(held)


def test_who_waits_no_more_is_not_what_others_wait_behind() -> None:
    pool = Pool(16 * MIB)
    account = pool.account(4 * MIB)
    held, told = [account.lease(2 * MIB), account.lease(MIB)], []

    def large() -> None:
        told.append("large")

    account.when_available(2 * MIB, large)
    account.when_available(MIB, lambda: told.append("small"))
    assert told == []
    account.wait_no_more(print)
    account.wait_no_more(large)
    assert (told, pool.waiting) == (["small"], 0)
    account.wait_no_more(large)
    release(held)
    assert (told, pool.waiting, pool.in_use) == (["small"], 0, 0)


def test_a_host_has_as_many_turns_as_its_weight_says() -> None:
    pool = Pool(4 * MIB)
    held = fill(pool.account(4 * MIB), MIB)
    called, got = "", list[Lease]()

    def wait(account: Account, name: str) -> None:
        def available() -> None:
            nonlocal called
            called += name
            got.append(account.lease(MIB))

        account.when_available(MIB, available)

    heavy, light = pool.host(64 * MIB), pool.host(64 * MIB)
    assert (heavy.weight, light.weight) == (1, 1)
    heavy.weight = 3
    with pytest.raises(ValueError, match="one turn"):
        light.weight = 0
    accounts = [heavy.account(4 * MIB), light.account(4 * MIB), heavy.account(4 * MIB)]
    for _ in range(8):
        for account, name in zip(accounts, "HlH", strict=True):
            wait(account, name)
    while len(called) < 12:
        (held or got).pop().release()
    assert called == "HHHlHHHlHHHl"
    heavy.weight = 1
    while held or got:
        (held or got).pop().release()
    assert called[12:] == "HHHlHlHlHlHl", "what a turn has begun with it keeps"
    assert pool.waiting == 0
