"""Blocked locks of NFSv4 clients: CB_NOTIFY_LOCK, deadlocks, and local processes in the way."""

import asyncio
import fcntl
import struct
from contextlib import asynccontextmanager

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport, mode, serving
from tests.unit.client_support import until
from tests.unit.test_v4_locks import locking, relocking, there, unlocking

MINORS = [0, 1, 2]
WRITEW_LT, READW_LT = p.nfs_lock_type4.WRITEW_LT, p.nfs_lock_type4.READW_LT
F_OFD_SETLK = 37


class Party:
    """A client that takes callbacks, and what it has open."""

    def __init__(self, server, minor, name):
        self.end = CallbackEnd()
        self.client = Client4(server, minor, name=name, transport=LoopbackTransport(callbacks=self.end))
        self.opens = {}
        self.locks = {}
        self.seqid = {}

    async def open(self, name):
        self.opens[name] = await self.client.open("/0", name, create=mode(0o666))

    async def lock(self, name, offset=0, length=10, *, kind=WRITEW_LT):
        """LOCK by the owner ``name``; its status."""
        stateid, handle = self.opens[name]
        owner = b"locker of " + name
        if name in self.locks:
            self.seqid[name] += 1
            asked = relocking(self.locks[name], self.seqid[name], offset, length, kind=kind)
        else:
            asked = locking(self.client, stateid, offset, length, owner=owner, kind=kind)
        status, results = await self.client.raw(*self.client.in_session(there(handle), asked))
        if status == p.NFS4_OK:
            self.seqid.setdefault(name, 0)
            self.locks[name] = results[-1][1].resok4.lock_stateid
        return status

    async def unlock(self, name):
        self.seqid[name] += 1
        asked = unlocking(self.locks[name], self.seqid[name])
        (self.locks[name],) = [one.lock_stateid for one in await self.client.on(self.opens[name][1], asked)]

    async def close(self, name):
        stateid, handle = self.opens.pop(name)
        await self.client.close(stateid, handle)

    async def called(self, count):
        """(handle, owner) of the CB_NOTIFY_LOCKs that have come, of which there must be ``count``."""
        await self.end.arrival(count)
        assert set(self.end.operations) <= {p.OP_CB_NOTIFY_LOCK}
        assert len(self.end.executed) == count
        assert all(args.cnla_lock_owner.clientid == self.client.clientid for _, args in self.end.executed)
        return [(args.cnla_fh, args.cnla_lock_owner.owner) for _, args in self.end.executed]


@asynccontextmanager
async def two(tmp_path, minor):
    for name in ("export", "state"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "export").chmod(0o777)
    async with serving(tmp_path / "export", state_dir=tmp_path / "state") as server:
        parties = [Party(server, minor, name) for name in (b"one", b"two")]
        for party in parties:
            await party.client.connect()
            await party.open(b"f")
        yield server, *parties


def run(test, tmp_path, minor):
    async def main():
        async with two(tmp_path, minor) as parts:
            await test(*parts)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [WRITEW_LT, READW_LT])
@pytest.mark.parametrize("minor", [1, 2])
def test_a_waiting_client_is_told_of_the_unlock(tmp_path, minor, kind):
    async def test(server, one, other):
        assert await one.lock(b"f") == p.NFS4_OK
        assert await other.lock(b"f", kind=kind) == p.NFS4ERR_DENIED
        assert other.end.received == []
        await one.unlock(b"f")
        assert await other.called(1) == [(other.opens[b"f"][1], b"locker of f")]
        assert await one.lock(b"f", kind=p.nfs_lock_type4.WRITE_LT) == p.NFS4ERR_DENIED, "it is another's turn"
        assert await other.lock(b"f", kind=kind) == p.NFS4_OK
        assert one.end.received == []
        # The client's answer to the callback comes over a connection of its own, perhaps behind all of that.
        await until(lambda: server.nfs4.callbacks.counters["CB_NOTIFY_LOCK", "ok"])
        assert server.nfs4.callbacks.counters["CB_NOTIFY_LOCK", "ok"] == 1

    run(test, tmp_path, minor)


@pytest.mark.parametrize("end", ["close", "downgrade", "expiry"])
def test_other_ends_of_a_lock_are_told_too(tmp_path, end):
    async def test(server, one, other):
        assert await one.lock(b"f") == p.NFS4_OK
        assert await other.lock(b"f", kind=READW_LT) == p.NFS4ERR_DENIED
        if end == "close":
            await one.close(b"f")
        elif end == "downgrade":
            assert await one.lock(b"f", kind=p.nfs_lock_type4.READ_LT) == p.NFS4_OK
        else:
            server.engine.expire_client(server.engine.clients.lookup(one.client.clientid))
            await server.nfs4._after_timer()
        await other.called(1)
        assert await other.lock(b"f", kind=READW_LT) == p.NFS4_OK

    run(test, tmp_path, 1)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_deadlock_is_told_to_one_and_the_other_goes_on(tmp_path, minor):
    async def test(server, one, other):
        assert await one.lock(b"f", 0) == p.NFS4_OK
        assert await other.lock(b"f", 10) == p.NFS4_OK
        assert await one.lock(b"f", 10) == p.NFS4ERR_DENIED
        assert await other.lock(b"f", 0) == p.NFS4ERR_DENIED
        # Whether the first still waits is found out by calling it: it asks again at once, and so on around the circle.
        assert [owner for _, owner in await one.called(1)] == [b"locker of f"]
        assert await one.lock(b"f", 10) == p.NFS4ERR_DENIED
        await other.called(1)
        assert await other.lock(b"f", 0) == p.NFS4ERR_DEADLOCK
        await other.unlock(b"f")
        await one.called(2)
        assert await one.lock(b"f", 10) == p.NFS4_OK

    run(test, tmp_path, minor)


def test_clients_of_40_are_not_called(tmp_path):
    async def test(server, one, other):
        assert await one.lock(b"f", 0) == p.NFS4_OK
        assert await other.lock(b"f", 10) == p.NFS4_OK
        assert await one.lock(b"f", 10) == p.NFS4ERR_DENIED
        assert await other.lock(b"f", 0) == p.NFS4ERR_DENIED
        assert await one.lock(b"f", 10) == p.NFS4ERR_DENIED
        assert await other.lock(b"f", 0) == p.NFS4ERR_DEADLOCK
        await other.unlock(b"f")
        assert await one.lock(b"f", 10) == p.NFS4_OK
        assert not server.nfs4.callbacks.counters["CB_NOTIFY_LOCK", "ok"]

    run(test, tmp_path, 0)


@pytest.mark.parametrize("minor", MINORS)
def test_a_local_process_in_the_way_is_watched(tmp_path, minor):
    async def test(server, one, other):
        with open(tmp_path / "export" / "f", "r+b") as file:
            fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 5, 0, 0))
            assert await one.lock(b"f", 0, 2**64 - 1) == p.NFS4ERR_DENIED
            await server.nfs4.blocked.watch_local()
            assert one.end.received == []
            assert await other.lock(b"f", 0, 5) == p.NFS4_OK
        await other.unlock(b"f")
        await server.nfs4.blocked.watch_local()
        if minor:
            await one.called(1)
        assert await one.lock(b"f", 0, 2**64 - 1) == p.NFS4_OK

    run(test, tmp_path, minor)


def test_a_client_that_knows_no_notification_is_left_alone(tmp_path):
    async def test(server, one, other):
        assert await one.lock(b"f") == p.NFS4_OK
        assert await other.lock(b"f") == p.NFS4ERR_DENIED
        other.end.answers[p.OP_CB_NOTIFY_LOCK] = [p.CB_NOTIFY_LOCK4res(p.nfsstat4.NFS4ERR_NOTSUPP)]
        await one.unlock(b"f")
        await other.called(1)
        (waiter,) = server.engine.opens.file(next(iter(server.engine.opens._files))).waiters
        for _ in range(100):
            await asyncio.sleep(0)
        assert waiter.deaf
        assert await other.lock(b"f") == p.NFS4_OK

    run(test, tmp_path, 1)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("callbacks", [True, False])
def test_open_says_whether_a_notification_may_come(tmp_path, minor, callbacks):
    async def test(server, one, other):
        client = one.client
        if not callbacks:
            client = await Client4(server, minor, name=b"deaf").connect()
        *_, opened = await client.run(*client.path("/0"), (p.OP_OPEN, client.open_args(b"g", create=mode(0o666))))
        flag = opened.resok4.rflags & p.OPEN4_RESULT_MAY_NOTIFY_LOCK
        assert bool(flag) == (callbacks and minor > 0)

    run(test, tmp_path, minor)


@pytest.mark.parametrize("minor", [1, 2])
def test_stopping_gives_up_calls_under_way(tmp_path, minor):
    async def test(server, one, other):
        assert await one.lock(b"f") == p.NFS4_OK
        assert await other.lock(b"f") == p.NFS4ERR_DENIED
        other.end.gate = asyncio.Event()
        await one.unlock(b"f")
        await other.called(1)
        async with asyncio.timeout(10):
            await server.nfs4.blocked.close()

    run(test, tmp_path, minor)
