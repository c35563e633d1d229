"""What every kind of stable storage must do: scenarios, and the kinds' part in them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

from nfsd.stable.commits import GroupCommit
from nfsd.state import ClientRecord, Limits, Recovered, StateEngine, StoreWrite
from nfsd.state.types import NLM


class Kind(Protocol):
    """One server's storage."""

    def make(self, now: float = 100.5) -> GroupCommit:
        """The next instance's; ``now``: seconds since 1970."""

    async def crashed(self) -> Recovered:
        """What an instance would start from if the running one lost its power now. It does not go on afterwards."""

    def failing(self, storage: GroupCommit) -> AbstractContextManager[str]:
        """A time in which nothing can be committed; a word of what is said then."""


class Promises:
    """The store's side of an engine: writes to hand out, and how many came back."""

    def __init__(self) -> None:
        self.writes: list[StoreWrite] = []
        self.writes_issued = 0
        self.writes_committed = 0

    def promise(self, *writes: StoreWrite) -> None:
        self.writes += writes
        self.writes_issued += len(writes)

    def take_writes(self) -> list[StoreWrite]:
        writes, self.writes = self.writes, []
        return writes

    def writes_done(self, count: int) -> None:
        self.writes_committed += count


def record(owner: bytes, epoch: int = 1, principal: str = "1:0", minor: int = 1) -> StoreWrite:
    return StoreWrite("record", minor, owner, principal, epoch)


async def epochs_count_up(kind: Kind) -> None:
    epochs = []
    for _ in range(3):
        storage = kind.make()
        recovered = await storage.start(lease=45)
        epochs.append(recovered.epoch)
        await storage.close()
    assert epochs == [100, 101, 102]
    assert recovered.lease == 45
    assert recovered.records == ()


async def a_clock_that_was_set_back_brings_no_epoch_back(kind: Kind) -> None:
    epochs = []
    for now in (1000, 1500, 900):
        storage = kind.make(now)
        epochs.append((await storage.start()).epoch)
        await storage.close()
    assert epochs == [1000, 1500, 1501]


async def flushed_changes_survive_a_crash(kind: Kind) -> None:
    storage, engine = kind.make(), Promises()
    await storage.start()
    long = bytes(range(256)) * 4  # NFS4_OPAQUE_LIMIT
    engine.promise(record(b"a"), record(b"b\0\xff", principal="1:7"), record(b"c", minor=0), record(long, minor=NLM))
    await storage.flush(engine)
    assert engine.writes_committed == 4
    recovered = await kind.crashed()
    assert set(recovered.records) == {
        ClientRecord(1, b"a", "1:0", 1),
        ClientRecord(1, b"b\0\xff", "1:7", 1),
        ClientRecord(0, b"c", "1:0", 1),
        ClientRecord(NLM, long, "1:0", 1),
    }
    storage = kind.make()
    await storage.start()
    again = record(b"a", 3)
    engine.promise(StoreWrite("remove", 1, b"a", "1:0"), StoreWrite("remove", 1, b"never there"), again)
    engine.promise(record(b"d", 1), record(b"e", 3), StoreWrite("remove", 1, b"e", "1:0"), record(b"c", 2, minor=0))
    engine.promise(StoreWrite("grace_done", epoch=2))
    await storage.flush(engine)
    recovered = await kind.crashed()
    assert set(recovered.records) == {ClientRecord(0, b"c", "1:0", 2), ClientRecord(1, b"a", "1:0", 3)}


async def what_is_not_flushed_may_be_lost(kind: Kind) -> None:
    storage, engine = kind.make(), Promises()
    await storage.start()
    engine.promise(record(b"a"))
    assert (await kind.crashed()).records == ()


async def many_records_come_back(kind: Kind) -> None:
    storage, engine = kind.make(), Promises()
    await storage.start()
    engine.promise(*(record(b"%d" % number, 1 + number % 2) for number in range(3000)))
    await storage.flush(engine)
    await storage.close()
    storage = kind.make()
    assert {int(one.owner) for one in (await storage.start()).records} == set(range(3000))
    engine.promise(StoreWrite("grace_done", epoch=2))
    await storage.flush(engine)
    await storage.close()
    storage = kind.make()
    assert {int(one.owner) for one in (await storage.start()).records} == set(range(1, 3000, 2))
    await storage.close()


async def the_longest_lease_is_kept_until_a_grace_period_has_ended(kind: Kind) -> None:
    leases = []
    for lease in (90, 10, 20):
        storage, engine = kind.make(), Promises()
        leases.append((await storage.start(lease=lease)).lease)
        engine.promise(record(b"a"))
        await storage.flush(engine)
        await storage.close()
    assert leases == [0, 90, 90]
    storage, engine = kind.make(), Promises()
    recovered = await storage.start(lease=20)
    engine.promise(StoreWrite("grace_done", epoch=recovered.epoch))
    await storage.flush(engine)
    await storage.close()
    storage = kind.make()
    assert (await storage.start()).lease == 20
    await storage.close()


async def waiting_flushes_share_one_commit(kind: Kind) -> None:
    storage, engine = kind.make(), Promises()
    await storage.start()
    batches, gate, apply = [], threading.Event(), storage._apply

    def held(batch: list[StoreWrite]) -> None:
        gate.wait(10)
        batches.append(len(batch))
        apply(batch)

    storage._apply = held  # type: ignore[method-assign]

    async def promise(index: int) -> None:
        engine.promise(record(b"%d" % index))
        await storage.flush(engine)
        assert engine.writes_committed > index

    tasks = [asyncio.create_task(promise(0))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(promise(index)) for index in range(1, 20)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert sum(batches) == 20
    assert len(batches) == 2
    await storage.close()


async def a_cancelled_flush_loses_nothing(kind: Kind) -> None:
    storage, engine = kind.make(), Promises()
    await storage.start()
    engine.promise(record(b"a"))
    task = asyncio.create_task(storage.flush(engine))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await storage.flush(engine)
    assert engine.writes_committed == 1
    await storage.close()


async def a_failed_commit_fails_the_flush_and_is_tried_again(kind: Kind) -> None:
    storage, engine = kind.make(), Promises()
    await storage.start()
    with kind.failing(storage) as word:
        engine.promise(record(b"a"))
        with pytest.raises(OSError, match=word):
            await storage.flush(engine)
        assert engine.writes_committed == 0
        engine.promise(record(b"b"))
        with pytest.raises(OSError, match=word):
            await storage.flush(engine)
    await storage.flush(engine)
    assert engine.writes_committed == 2
    await storage.close()
    storage = kind.make()
    assert sorted(r.owner for r in (await storage.start()).records) == [b"a", b"b"]
    await storage.close()


async def a_client_reclaims_over_a_crash(kind: Kind) -> None:
    """A v4.1 client, with a real engine in each of two instances."""

    async def instance(check: Any) -> None:
        storage = kind.make()
        engine = StateEngine(Limits(), lambda: 0.0, await storage.start())
        check(engine)
        await storage.flush(engine)
        assert engine.stable
        await kind.crashed()

    def connect(engine: StateEngine) -> Any:
        made = engine.clients.exchange_id(owner=b"a", verifier=bytes(8), flags=0, principal="1:0")
        client = engine.clients.lookup(made.clientid)
        engine.clients.make_confirmed(client)
        return client

    def first(engine: StateEngine) -> None:
        engine.clients.reclaim_complete(connect(engine), one_fs=False)

    def second(engine: StateEngine) -> None:
        client = connect(engine)
        assert engine.grace.active
        assert client.may_reclaim

    await instance(first)
    await instance(second)


SCENARIOS = [
    epochs_count_up,
    a_clock_that_was_set_back_brings_no_epoch_back,
    flushed_changes_survive_a_crash,
    what_is_not_flushed_may_be_lost,
    many_records_come_back,
    the_longest_lease_is_kept_until_a_grace_period_has_ended,
    waiting_flushes_share_one_commit,
    a_cancelled_flush_loses_nothing,
    a_failed_commit_fails_the_flush_and_is_tried_again,
    a_client_reclaims_over_a_crash,
]
