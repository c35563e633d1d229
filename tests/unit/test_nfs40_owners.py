"""NFSv4.0's owners natively: first OPENs, OPEN_CONFIRM, LOCK and LOCKU leave what the general path leaves."""

import os
import random

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import handle_of
from tests.unit.test_nfs4_native import OF_CONTENT, access, getattr_, on, putfh
from tests.unit.test_nfs4_native_opens import closing, next_seqid, opening

READ, WRITE, WAIT_READ, _ = p.nfs_lock_type4
END = (1 << 64) - 1


def confirming(stateid, seqid):
    return (p.OP_OPEN_CONFIRM, p.OPEN_CONFIRM4args(stateid, seqid))


def lock_new(client, kind, opened, seqid, owner, lock_seqid, offset, length):
    new = p.open_to_lock_owner4(seqid, opened, lock_seqid, p.lock_owner4(client, owner))
    return (p.OP_LOCK, p.LOCK4args(kind, False, offset, length, p.locker4(True, open_owner=new)))


def lock_more(kind, locked, seqid, offset, length):
    more = p.locker4(False, lock_owner=p.exist_lock_owner4(locked, seqid))
    return (p.OP_LOCK, p.LOCK4args(kind, False, offset, length, more))


def unlock(locked, seqid, offset, length):
    return (p.OP_LOCKU, p.LOCKU4args(WRITE, seqid, locked, offset, length))


class Side:
    """One of two files that undergo the same, one over each way."""

    def __init__(self, both, which, name):
        self.both, self.which, self.name = both, which, name
        self.wire = (both.native, both.general)[which]
        self.locked, self.opened = {}, {}

    async def prepare(self):
        path = self.both.path / os.fsdecode(self.name)
        path.write_bytes(b"x" * 1000)
        path.chmod(0o666)
        self.root, self.handle = await handle_of(self.both), await handle_of(self.both, self.name)
        return self

    @property
    def client(self):
        return self.both.server.engine.clients.lookup(self.both.client.clientid)

    def seqid(self, owner, *, locks=False):
        """The next of an owner."""
        known = (self.client.lock_owners if locks else self.client.open_owners).get(owner + self.name)
        return 7 if known is None or known.seqid is None else known.seqid + 1

    async def run(self, *operations):
        """What does not depend on the file, and the last result."""
        status, results = Client4.parse(await self.wire.call(None, self.both.message(self.which, *operations)))
        number, last = results[-1]
        shown, stateid = [status, number], None
        if status == p.NFS4ERR_DENIED:
            shown.append((last.denied.offset, last.denied.length, last.denied.locktype))
        for number, result in results:
            if not status and number in (p.OP_OPEN, p.OP_OPEN_CONFIRM, p.OP_LOCK, p.OP_LOCKU):
                of = {p.OP_OPEN: "stateid", p.OP_OPEN_CONFIRM: "open_stateid", p.OP_LOCK: "lock_stateid"}
                stateid = result.lock_stateid if number == p.OP_LOCKU else getattr(result.resok4, of[number])
                shown.append(stateid.seqid)
            if not status and number == p.OP_OPEN:
                shown.append((result.resok4.rflags, result.resok4.attrset, repr(result.resok4.delegation)))
            if not status and number in (p.OP_GETATTR, p.OP_ACCESS):
                shown.append(repr(result))
        return shown, stateid

    def state(self):
        """What the engine knows of the file and the owners."""
        node = self.both.server.service.nodes.find(self.handle)
        file = self.both.server.engine.opens.file(node.key)
        owners = [
            (
                owner.owner[: -len(self.name)],
                owner.seqid,
                owner.busy,
                owner.replay is None,
                getattr(owner, "confirmed", None),
            )
            for table in (self.client.open_owners, self.client.lock_owners)
            for owner in table.values()
            if owner.owner.endswith(self.name)
        ]
        pieces = {} if file is None or file.locks is None else file.locks.owners
        locks = sorted((one.owner[: -len(self.name)], repr(list(ranges))) for one, ranges in pieces.items())
        local = None if node.inode.locks is None else list(node.inode.locks.ranges)
        return sorted(owners), locks, local


async def sides(both):
    # The first OPEN of all puts the client on record.
    (both.path / "record").touch()
    await both.client.close(*await both.client.open("/0", b"record", access=1))
    return [await Side(both, which, name).prepare() for which, name in enumerate((b"-1", b"-2"))]


@pytest.mark.parametrize("seed", range(3))
def test_random_owners(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = await sides(both)
        natively = {}
        for step in range(250):
            owner, locker = rng.choice((b"a", b"b", b"c")), rng.choice((b"x", b"y", b"z" * 900))
            what, ahead = rng.randrange(10), rng.choice((0,) * 12 + (1, -1))
            offset, length = rng.choice((0, 10, 100, END)), rng.choice((1, 10, 200, END, 0))
            type_ = rng.choice((READ, READ, WRITE, WAIT_READ) if step < 150 else (READ, WRITE))
            behind = rng.choice(([], [getattr_(OF_CONTENT)], [access(0x3F), getattr_(OF_CONTENT)]))
            outcomes, before = [], both.answered
            share, closes = rng.choice((1, 2, 3, 3, 3)), rng.random() < 0.5
            for side in pair:
                opened, locked = side.opened.get(owner), side.locked.get(locker)
                seqid = side.seqid(owner) + ahead
                lock_seqid = side.seqid(locker, locks=True) + ahead
                front, name = [putfh(side.handle)], None
                if opened is None or what == 0:
                    front = [putfh(side.root)]
                    asked = opening(both, side.name, share=share, owner=owner + side.name, seqid=seqid)
                    name = "open"
                elif what == 1:
                    asked, name = confirming(opened, seqid), "confirm"
                elif what == 2 and closes:
                    asked, name = closing(opened, seqid), "close"
                elif what < 6 or locked is None:
                    where = lock_new(
                        both.client.clientid, type_, opened, seqid, locker + side.name, lock_seqid, offset, length
                    )
                    asked, name = where, "lock"
                elif what < 8:
                    asked, name = lock_more(type_, locked, lock_seqid, offset, length), "more"
                else:
                    asked, name = unlock(locked, lock_seqid, offset, length), "unlock"
                shown, stateid = await side.run(*front, asked, *behind)
                outcomes.append((name, shown))
                if name in ("open", "confirm") and stateid is not None:
                    side.opened[owner] = stateid
                elif name == "close" and not shown[0]:
                    del side.opened[owner]
                    side.locked.clear()
                elif stateid is not None:
                    side.locked[locker] = stateid
            assert outcomes[0] == outcomes[1], step
            assert pair[0].state() == pair[1].state()
            if both.answered > before and not outcomes[0][1][0]:
                natively[outcomes[0][0]] = natively.get(outcomes[0][0], 0) + 1
        return natively

    natively = on(kind, tmp_path, 0, scenario)
    assert sum(natively.values()) > 30, natively


def test_an_owner_begins_confirms_locks_and_ends_natively(kind, tmp_path):
    async def scenario(both):
        side, _ = await sides(both)
        client = both.client.clientid
        # What a disk must be asked for, and the descriptor for local locks, are there already.
        opened, _ = await both.client.open("/0", side.name, access=3, owner=b"before")
        seqid = both.client.seqid(b"before")
        side.wire = both.general
        shown, _ = await side.run(putfh(side.handle), lock_new(client, READ, opened, seqid, b"before", 1, 900, 1))
        assert shown[0] == 0
        side.wire = both.native
        before, done = both.answered, 0

        async def natively(*operations):
            nonlocal done
            done += 1
            shown, stateid = await side.run(*operations)
            assert (shown[0], both.answered) == (0, before + done)
            return shown, stateid

        seqid = next_seqid(both, b"new-1")
        looks = p.OP_GETFH, getattr_(OF_CONTENT)
        shown, opened = await natively(
            putfh(side.root), opening(both, side.name, share=3, owner=b"new-1", seqid=seqid), *looks
        )
        assert shown[3][0] & p.OPEN4_RESULT_CONFIRM
        again = both.message(0, putfh(side.handle), confirming(opened, seqid + 1))
        first = await both.native.call(None, again)
        done += 2  # with what comes next
        # In another call: the owner has kept the result (RFC 7530 section 9.1.9).
        assert (await both.native.call(None, both.message(0, putfh(side.handle), confirming(opened, seqid + 1))))[
            4:
        ] == first[4:]
        assert both.answered == before + done
        opened = Client4.parse(first)[1][-1][1].resok4.open_stateid
        assert side.client.open_owners[b"new-1"].confirmed
        _, locked = await natively(putfh(side.handle), lock_new(client, WRITE, opened, seqid + 2, b"l-1", 1, 0, 10))
        _, locked = await natively(putfh(side.handle), lock_more(WRITE, locked, 2, 20, 10))
        _, locked = await natively(putfh(side.handle), unlock(locked, 3, 0, END))
        assert locked.seqid == 3
        _, second = await natively(putfh(side.root), opening(both, side.name, owner=b"new-1", seqid=seqid + 3))
        assert second.seqid == opened.seqid + 1

    on(kind, tmp_path, 0, scenario)
