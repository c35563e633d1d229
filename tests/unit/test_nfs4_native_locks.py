"""LOCK and LOCKU answered natively: replies, state and local locks are those of the general path."""

import fcntl
import random
import struct

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.nfs4_native import SEQUENCE_AT
from tests.unit.test_nfs4_native import CURRENT, OF_CONTENT, comparable, getattr_, on, putfh

RESULT_AT = SEQUENCE_AT + 44 + 8 - 4
"""Where the result of what follows SEQUENCE and PUTFH stands in what is comparable of a reply."""
READ, WRITE, WAIT_READ, WAIT_WRITE = p.nfs_lock_type4
END = (1 << 64) - 1
KINDS = ["disk", "memory"]


def lock_new(kind, opened, owner, offset, length, *, reclaim=False):
    locker = p.locker4(True, open_owner=p.open_to_lock_owner4(0, opened, 0, p.lock_owner4(0, owner)))
    return (p.OP_LOCK, p.LOCK4args(kind, reclaim, offset, length, locker))


def lock_more(kind, locked, offset, length, *, reclaim=False):
    locker = p.locker4(False, lock_owner=p.exist_lock_owner4(locked, 0))
    return (p.OP_LOCK, p.LOCK4args(kind, reclaim, offset, length, locker))


def unlock(locked, offset, length):
    return (p.OP_LOCKU, p.LOCKU4args(WRITE, 0, locked, offset, length))


class Twin:
    """One of two files that undergo the same."""

    def __init__(self, both, wire, slot, name):
        self.both, self.wire, self.slot, self.name = both, wire, slot, name
        self.path = both.path / name
        self.path.write_bytes(b"x" * 1000)
        self.locked = {}
        self.file = self.path.open("r+b")

    async def open(self):
        self.opened, self.handle = await self.both.client.open("/0", self.name.encode())

    async def call(self, *operations, **how):
        """The comparable reply without stateids, and the stateid of a success."""
        message = self.both.message(self.slot, putfh(self.handle), *operations, **how)
        reply = comparable(await self.wire.call(None, message))
        number, status = struct.unpack_from(">II", reply, RESULT_AT)
        if status or number not in (p.OP_LOCK, p.OP_LOCKU):
            return reply, None
        at = RESULT_AT + 8
        (seqid,) = struct.unpack_from(">I", reply, at)
        return reply[: at + 4] + reply[at + 16 :], p.stateid4(seqid, reply[at + 4 : at + 16])

    def lock_locally(self, start, kind):
        """As another process would."""
        argument = struct.pack("hhqqi", kind, 0, start, 50, 0)
        try:
            fcntl.fcntl(self.file, fcntl.F_OFD_SETLK, argument)
        except OSError as error:
            return error.errno
        return 0

    def state(self):
        """What the server has of it."""
        service, engine = self.both.server.nfs4.service, self.both.server.engine
        node = service.nodes.find(self.handle)
        file = engine.opens.file(node.key)
        pieces = {} if file.locks is None else {o.owner: list(ranges) for o, ranges in file.locks.owners.items()}
        held = node.inode.locks
        assert file.pending_lock is None
        assert not file.gate or not file.gate.locked()
        assert not node.inode.lock_serial.busy
        return pieces, None if held is None else list(held.ranges), len(file.waiters or ())


async def twins(both):
    files = [Twin(both, both.native, 0, "one"), Twin(both, both.general, 1, "two")]
    for file in files:
        await file.open()
        await file.call(lock_new(READ, file.opened, b"first", 5000, 1))
    both.answered_before = both.answered
    return files


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_random_locks(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        files = await twins(both)
        for step in range(250):
            owner, what = rng.choice((b"a", b"b", b"c" * 1000)), rng.randrange(12)
            offset = rng.choice((0, 10, 20, 100, 1000, (1 << 63) - 1, 1 << 63, END))
            length = rng.choice((1, 10, 10, 15, 200, END, END - 100, 0))
            types = (READ, READ, WRITE, WAIT_READ) if step < 150 else tuple(p.nfs_lock_type4)
            how, reclaim = rng.choice(types), rng.random() < 0.02
            behind = rng.choice(([], [], [], [getattr_(OF_CONTENT)]))
            seqid = rng.choice((0, None, None, None, 1, 77))
            if what == 0:
                local, kind = rng.choice((0, 15, 300)), rng.choice((fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK))
                assert len({file.lock_locally(local, kind) for file in files}) == 1
                continue
            outcomes = []
            for file in files:
                locked = file.locked.get(owner)
                if locked is not None and seqid is not None:
                    locked = p.stateid4(seqid, locked.other)
                if what < 4 or locked is None:
                    operation = lock_new(how, file.opened, owner, offset, length, reclaim=reclaim)
                elif what < 8:
                    operation = lock_more(how, locked, offset, length, reclaim=reclaim)
                else:
                    operation = unlock(rng.choice((locked,) if what < 11 else (file.opened,)), offset, length)
                reply, stateid = await file.call(operation, *(behind if what == 5 else []), cache=step % 9 == 0)
                if stateid is not None:
                    file.locked[owner] = stateid
                outcomes.append((reply, stateid and stateid.seqid, file.state()))
            assert outcomes[0] == outcomes[1]
        both.client.credential = (0, 0, ())
        return both.answered - both.answered_before

    assert on(kind, tmp_path, 1, scenario) > 20


def test_stateids_that_are_not_of_this_lock(tmp_path):
    async def scenario(both):
        files = await twins(both)
        for file in files:
            _, file.locked[b"a"] = await file.call(lock_new(WRITE, file.opened, b"a", 0, 10))
        before = both.answered
        other = [files[1].opened, files[0].opened]
        for wrong in (
            lambda file, other: lock_more(WRITE, file.opened, 20, 1),
            lambda file, other: lock_new(WRITE, file.locked[b"a"], b"b", 20, 1),
            lambda file, other: lock_new(WRITE, other, b"b", 20, 1),
            lambda file, other: lock_more(WRITE, CURRENT, 20, 1),
            lambda file, other: unlock(CURRENT, 0, 10),
            lambda file, other: unlock(file.opened, 0, 10),
            lambda file, other: unlock(p.stateid4(9, file.locked[b"a"].other), 0, 10),
            lambda file, other: unlock(p.stateid4(1, b"none of ours"), 0, 10),
        ):
            replies = [await file.call(wrong(file, one)) for file, one in zip(files, other, strict=True)]
            assert replies[0] == replies[1]
            assert replies[0][1] is None
            assert files[0].state() == files[1].state()
        assert both.answered == before + 8  # failures

    on("memory", tmp_path, 1, scenario)


def test_locks_at_a_limit(tmp_path):
    async def scenario(both):
        files = await twins(both)
        client, most = both.session.client, both.server.engine.limits.locks
        results = []
        for file in files:
            results.append([])
            locked = CURRENT
            for offset in range(0, 40, 2):
                client.locks += most - 8  # as if it had others
                try:
                    reply, stateid = await file.call(lock_new(WRITE, file.opened, b"a", offset, 1))
                finally:
                    client.locks -= most - 8
                locked = stateid or locked
                results[-1].append((reply[RESULT_AT:], stateid is None))
            await file.call(unlock(p.stateid4(0, locked.other), 0, END))
        return results, both.answered - both.answered_before

    (one, two), answered = on("memory", tmp_path, 1, scenario)
    assert one == two
    assert {refused for _, refused in one} == {True, False}
    assert answered == 21  # with the refusals


def test_a_lock_waits_for_what_other_compounds_promised(tmp_path):
    async def scenario(both):
        file, _ = await twins(both)
        both.server.engine.end_grace()
        _, locked = await file.call(lock_new(WRITE, file.opened, b"a", 0, 10))
        for operation in (lock_more(WRITE, locked, 20, 1), unlock(p.stateid4(0, locked.other), 20, 1)):
            before = both.answered
            both.server.engine._write(None)
            await file.call(operation)
            assert (both.answered, both.server.engine.stable) == (before + 1, True)
        await file.call(unlock(p.stateid4(0, locked.other), 0, 1))
        assert both.answered == before + 2

    on("memory", tmp_path, 1, scenario)


def test_a_lock_of_a_courtesy_clients_waits_until_that_one_cannot_reclaim_it(tmp_path):
    async def scenario(both):
        file, _ = await twins(both)
        both.server.engine.end_grace()
        away = await Client4(both.wires[1], both.minor, name=b"away", transport=LoopbackTransport()).connect()
        opened, handle = await away.open("/0", file.name.encode())
        (held,) = await away.on(handle, lock_new(WRITE, opened, b"a", 0, 10))
        assert held.status == 0
        both.server.engine.clients.lookup(away.clientid).courtesy = True
        for offset, written in ((100, False), (5, True)):
            before, issued = both.answered, both.server.engine.writes_issued
            _, locked = await file.call(lock_new(WRITE, file.opened, b"%d" % offset, offset, 1))
            assert locked is not None
            assert (both.answered - before, both.server.engine.stable) == (1, True)
            assert (both.server.engine.writes_issued > issued) == written

    on("memory", tmp_path, 1, scenario)


def test_while_somebody_changes_the_files_locks_nobody_else_does(tmp_path):
    async def scenario(both):
        file, _ = await twins(both)
        _, locked = await file.call(lock_new(WRITE, file.opened, b"a", 0, 10))
        node = both.server.nfs4.service.nodes.find(file.handle)
        state = both.server.engine.opens.file(node.key)
        await state.gate.acquire()
        before = both.answered
        file.wire.send(both.message(0, putfh(file.handle), lock_more(WRITE, locked, 20, 1)))
        file.wire.send(both.message(3, putfh(file.handle), p.OP_GETFH))
        reply = await file.wire.reply()  # the later one's
        assert struct.unpack_from(">II", reply, RESULT_AT + 4) == (p.OP_GETFH, 0)
        assert state.pending_lock is None
        state.gate.release()
        reply = await file.wire.reply()
        assert struct.unpack_from(">II", reply, RESULT_AT + 4) == (p.OP_LOCK, 0)
        assert both.answered == before + 2  # one of them has waited

    on("memory", tmp_path, 1, scenario)


def test_a_retransmission_is_answered_from_the_slot(tmp_path):
    async def scenario(both):
        file, _ = await twins(both)
        before = both.answered
        message = both.message(0, putfh(file.handle), lock_new(WRITE, file.opened, b"a", 0, 10), cache=True)
        replies = [await file.wire.call(None, message) for _ in range(2)]
        assert replies[0] == replies[1]
        assert both.answered == before + 2
        assert both.session.client.locks == 3

    on("memory", tmp_path, 1, scenario)
