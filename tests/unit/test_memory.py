"""Pool, accounts and leases: bounds, reuse, counting, waiters."""

import gc
import itertools
import random

import pytest

from rpcrdma.memory import Lease, OutOfMemory, Pool

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "capacity"),
    [(0, 1024), (1, 1024), (1024, 1024), (1025, 2048), (4096, 4096), (MIB + 1, 2 * MIB), (4 * MIB, 4 * MIB)],
)
def test_size_classes_are_powers_of_two(size: int, capacity: int) -> None:
    lease = Pool(64 * MIB).account(64 * MIB).lease(size)
    assert lease.capacity == capacity
    assert len(lease.view) == capacity
    assert not lease.view.readonly
    assert lease.address % capacity == 0
    lease.release()


@pytest.mark.parametrize("size", [-1, 4 * MIB + 1, 1 << 40])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    account = Pool(64 * MIB).account(64 * MIB)
    with pytest.raises(ValueError, match="octets"):
        account.lease(size)
    with pytest.raises(ValueError, match="octets"):
        account.when_available(size, lambda: None)


def test_leases_do_not_overlap_and_are_reused() -> None:
    rng = random.Random(7)
    pool = Pool(16 * MIB)
    account = pool.account(16 * MIB)
    held: list[tuple[Lease, int]] = []
    for step in range(4000):
        if held and (rng.random() < 0.5 or pool.in_use > 12 * MIB):
            lease, mark = held.pop(rng.randrange(len(held)))
            assert lease.view[:8] == mark.to_bytes(8, "big")
            assert lease.view[-8:] == mark.to_bytes(8, "big")
            lease.release()
        else:
            try:
                lease = account.lease(1 << rng.randrange(0, 22))
            except OutOfMemory:
                continue
            lease.view[:8] = lease.view[-8:] = step.to_bytes(8, "big")
            held.append((lease, step))
    spans = sorted((lease.address, lease.address + lease.capacity) for lease, _ in held)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert pool.in_use == account.in_use == sum(lease.capacity for lease, _ in held)
    for lease, _ in held:
        lease.release()
    assert pool.in_use == account.in_use == 0
    assert pool.mapped <= 32 * MIB
    assert pool.mapped == sum(length for _, length in pool.arena_list())


def test_free_neighbours_are_joined_again_when_the_pool_is_full_of_small_blocks() -> None:
    pool = Pool(4 * MIB)
    account = pool.account(4 * MIB)
    small = [account.lease(1024) for _ in range(4096)]
    assert pool.in_use == 4 * MIB
    for lease in small:
        lease.release()
    for _ in range(3):
        whole = account.lease(4 * MIB)
        whole.release()
        small = [account.lease(1024) for _ in range(4096)]
        for lease in small:
            lease.release()
    assert pool.mapped <= 8 * MIB


def test_bounds_of_pool_and_account() -> None:
    pool = Pool(8192)
    first, second = pool.account(4096), pool.account(100_000)
    held = first.lease(4096)
    with pytest.raises(OutOfMemory, match="connection"):
        first.lease(1)
    other = second.lease(4096)
    with pytest.raises(OutOfMemory, match="pool"):
        second.lease(1)
    held.release()
    assert second.lease(1024).capacity == 1024
    other.release()


def test_counts_and_double_release() -> None:
    pool = Pool(MIB)
    lease = pool.account(MIB).lease(100)
    assert lease.retain() is lease
    lease.release()
    assert pool.in_use == 1024
    lease.release()
    assert pool.in_use == 0
    with pytest.raises(RuntimeError):
        lease.release()
    with pytest.raises(RuntimeError):
        lease.retain()
    with pytest.raises(BufferError):
        _ = lease.view
    assert pool.in_use == 0


def test_a_lease_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError):
        Lease()


def test_a_collected_lease_returns_its_buffer_and_is_counted() -> None:
    pool = Pool(MIB)
    account = pool.account(MIB)
    lease = account.lease(100)
    del lease
    lease = account.lease(100)
    lease.view[0] = 1  # the cached view makes a cycle that the collector must break
    del lease
    gc.collect()
    assert (pool.in_use, account.in_use, pool.leaked) == (0, 0, 2)


def test_a_view_keeps_its_memory_mapped_after_everything_else_is_gone() -> None:
    lease = Pool(MIB).account(MIB).lease(10)
    view = lease.view[:10]
    lease.release()
    del lease
    gc.collect()
    assert bytes(view) == bytes(10)


def test_a_lease_survives_its_account() -> None:
    pool = Pool(MIB)
    account = pool.account(MIB)
    lease = account.lease(100)
    account.close()
    lease.view[:3] = b"abc"
    del account
    assert bytes(lease.view[:3]) == b"abc"
    lease.release()
    assert pool.in_use == 0


def test_waiters_are_served_in_order_and_once() -> None:
    pool = Pool(4096)
    account = pool.account(4096)
    held = account.lease(4096)
    taken: list[tuple[str, Lease]] = []
    account.when_available(2048, lambda: taken.append(("first", account.lease(2048))))
    account.when_available(4096, lambda: taken.append(("second", account.lease(4096))))
    account.when_available(1024, lambda: taken.append(("third", account.lease(1024))))
    assert taken == []
    held.release()
    assert [name for name, _ in taken] == ["first"]  # the second does not fit, and the third queues behind it
    taken[0][1].release()
    assert [name for name, _ in taken] == ["first", "second"]
    taken[1][1].release()
    assert [name for name, _ in taken] == ["first", "second", "third"]
    taken[2][1].release()
    assert pool.in_use == 0


def test_a_waiter_behind_its_own_bound_does_not_hold_up_others() -> None:
    pool = Pool(8192)
    narrow, wide = pool.account(1024), pool.account(8192)
    stuck, filler = narrow.lease(1024), wide.lease(4096)
    rest = wide.lease(2048)
    blocker = wide.lease(1024)
    called: list[str] = []
    narrow.when_available(1024, lambda: called.append("narrow"))
    wide.when_available(1024, lambda: called.append("wide"))
    blocker.release()
    assert called == ["wide"]
    stuck.release()
    assert called == ["wide", "narrow"]
    filler.release()
    rest.release()


def test_waiting_when_there_is_room_calls_at_once_and_hopeless_waits_are_refused() -> None:
    account = Pool(8192).account(4096)
    called: list[int] = []
    account.when_available(4096, lambda: called.append(1))
    assert called == [1]
    with pytest.raises(OutOfMemory):
        account.when_available(8192, lambda: called.append(2))


def test_close_forgets_waiters_and_lets_those_behind_go() -> None:
    pool = Pool(4096)
    first, second = pool.account(4096), pool.account(4096)
    held = first.lease(2048)
    called: list[str] = []
    first.when_available(4096, lambda: called.append("first"))
    second.when_available(1024, lambda: called.append("second"))
    first.close()
    assert called == ["second"]
    held.release()
    assert called == ["second"]


def test_a_failing_waiter_hurts_neither_the_release_nor_the_next_waiter(caplog: pytest.LogCaptureFixture) -> None:
    account = Pool(1024).account(1024)
    held = account.lease(1024)
    called: list[int] = []

    def fail() -> None:
        raise OSError("broken")

    account.when_available(1024, fail)
    account.when_available(1024, lambda: called.append(1))
    held.release()
    assert called == [1]
    assert "broken" in caplog.text


def test_leases_that_become_garbage_with_their_account_return_their_buffers() -> None:
    """A connection and all it holds is one cycle: whatever the collector clears first, the buffers come back."""
    pool = Pool(4 * MIB)
    for _ in range(200):
        account = pool.account(MIB)
        connection: list[object] = [account, [account.lease(100) for _ in range(5)]]
        for lease in connection[1]:  # type: ignore[attr-defined]
            assert len(lease.view) == 1024
        connection.append(connection)
        del account, connection, lease
        gc.collect(0)
    gc.collect()
    assert (pool.in_use, pool.leaked) == (0, 1000)


def test_a_whole_pool_may_become_garbage_with_leases_out() -> None:
    for _ in range(50):
        cycle: list[object] = [Pool(4 * MIB)]
        cycle.append(cycle[0].account(MIB))  # type: ignore[attr-defined]
        cycle.append(cycle[1].lease(100))  # type: ignore[attr-defined]
        cycle[2].view[0] = 1  # type: ignore[attr-defined]
        cycle.append(cycle)
        del cycle
        gc.collect()
