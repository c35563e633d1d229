"""OPEN and CLOSE answered natively give the results of the general path, and leave the same state behind."""

import os
import random

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.support.nfs4_native import handle_of
from tests.unit.test_nfs4_native import CALLERS, OF_CONTENT, SESSIONS, access, getattr_, on, putfh, read

NO_DELEGATION, ANY = p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG, p.OPEN4_SHARE_ACCESS_WANT_ANY_DELEG


def opening(both, name, *, share=1, deny=0, owner=b"owner", create=p.opentype4.OPEN4_NOCREATE, seqid=0):
    """OPEN of a name, or of the current file."""
    kinds = p.open_claim_type4
    claim = p.open_claim4(kinds.CLAIM_FH) if name is None else p.open_claim4(kinds.CLAIM_NULL, file=name)
    who = p.open_owner4(both.client.clientid, owner)
    return (p.OP_OPEN, p.OPEN4args(seqid, share, deny, who, p.openflag4(create), claim))


def closing(stateid, seqid=0):
    return (p.OP_CLOSE, p.CLOSE4args(seqid, stateid))


def next_seqid(both, owner):
    """Of an owner of NFSv4.0."""
    known = both.server.engine.clients.lookup(both.client.clientid).open_owners.get(owner)
    return 1 if known is None or known.seqid is None else known.seqid + 1


class Side:
    """One of two files that are treated alike, one over each way."""

    def __init__(self, both, which, name):
        self.both, self.which, self.name = both, which, name
        self.wire = (both.native, both.general)[which]
        self.stateids = {}

    async def prepare(self):
        self.handle = await handle_of(self.both, self.name)
        self.root = await handle_of(self.both)

    async def run(self, *operations, **how):
        """What of the outcome does not depend on the file."""
        self.results = Client4.parse(await self.wire.call(None, self.both.message(self.which, *operations, **how)))
        status, results = self.results
        shown = [status]
        for number, result in results[1:]:
            if number == p.OP_OPEN and not result.status:
                opened = result.resok4
                shown.append(("open", opened.stateid.seqid, opened.cinfo.atomic, opened.rflags, opened.attrset))
                shown.append(repr(opened.delegation))
                shown.append(opened.cinfo.before == opened.cinfo.after)
            elif number == p.OP_CLOSE and not result.status:
                shown.append(("close", result.open_stateid.seqid))
            elif number == p.OP_GETFH and not result.status:
                shown.append(result.resok4.object == self.handle)
            else:
                shown.append(repr(result))
        return shown

    async def open(self, name, owner, *, behind=(), **how):
        shown = await self.run(putfh(self.root if name else self.handle), *behind[:0], self.opening(name, owner, **how),
                               *behind, cache=how.get("cache", True), caller=how.get("caller", (0, 0)))  # fmt: skip
        for number, result in self.results[1]:
            if number == p.OP_OPEN and not result.status:
                self.stateids[owner] = result.resok4.stateid
        return shown

    def opening(self, name, owner, *, share=1, deny=0, cache=True, caller=None, ahead=0):
        """``ahead``: of the owner's next seqid."""
        named, owner = self.name if name else None, owner + self.name
        seqid = next_seqid(self.both, owner) + ahead
        return opening(self.both, named, share=share, deny=deny, owner=owner, seqid=seqid)

    def closing(self, stateid, owner, ahead=0):
        return closing(stateid, next_seqid(self.both, owner + self.name) + ahead)

    def state(self):
        """What the engine knows of the file."""
        key = next(node.key for node in self.both.server.service.nodes.all() if node.handle == self.handle)
        file = self.both.server.engine.opens.file(key)
        if file is None or file.idle:
            return None  # the general path leaves its record a moment longer, for its gate
        opens = sorted((one.owner.owner[:3], one.access, one.deny, one.combos, one.seqid) for one in file.opens)
        return opens, file.access_read, file.access_write, file.deny_read, file.deny_write, len(file.reservations)


@pytest.mark.parametrize("seed", range(2))
def test_random_opens_and_closes(kind, minor, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        sides = [Side(both, which, name) for which, name in enumerate((b"a", b"b"))]
        for side in sides:
            (both.path / os.fsdecode(side.name)).write_bytes(b"content")
            (both.path / os.fsdecode(side.name)).chmod(0o666)
            await side.prepare()
            if not minor:
                for owner in (b"one" + side.name, b"two" + side.name):  # that have confirmed themselves
                    await both.client.close(*await both.client.open("/0", side.name, owner=owner), owner)
        wishes = (0, NO_DELEGATION, ANY, 0x20000) if minor else (0, 0, 0, 0x200)
        for step in range(120 if minor else 250):
            if step % 10 == 9:
                bits, whose = rng.choice((0o666, 0o644, 0o600, 0o444)), rng.choice(CALLERS)
                for side in sides:
                    os.chown(both.path / os.fsdecode(side.name), *whose)
                    (both.path / os.fsdecode(side.name)).chmod(bits)
            owner = rng.choice((b"one", b"two"))
            how = {"share": rng.choice((1, 1, 2, 3, 3, 0, 4)) | rng.choice(wishes),
                   "deny": rng.choice((0, 0, 0, 0, 1, 2, 4)), "caller": rng.choice((CALLERS[1], *CALLERS)),
                   "cache": rng.random() < 0.8}  # fmt: skip
            behind = rng.choice(
                (
                    [],
                    [p.OP_GETFH, access(0x2D), getattr_(OF_CONTENT)],
                    [access(0x2D), getattr_(OF_CONTENT)],
                    [p.OP_READLINK],
                )
            )
            name, close, wrong = rng.random() < 0.5 or not minor, rng.random() < 0.4, rng.random() < 0.1
            ahead = 0 if minor else rng.choice((0, 0, 0, 0, 0, 0, 0, 0, -1, 1))
            shown = []
            for side in sides:
                stateid = side.stateids.get(owner, p.stateid4(1, bytes(11) + b"x"))
                if wrong:
                    stateid = p.stateid4(stateid.seqid + 1, stateid.other)
                if close:
                    front = [getattr_(OF_CONTENT)] if step % 2 else []
                    shown.append(await side.run(putfh(side.handle), *front, side.closing(stateid, owner, ahead)))
                else:
                    shown.append(await side.open(name, owner, behind=behind, ahead=ahead, **how))
            assert shown[0] == shown[1]
            assert sides[0].state() == sides[1].state()
            both.same_progress()
        for side in sides:
            for owner, stateid in side.stateids.items():
                entry = both.server.engine.stateids.entries.get(stateid.other, stateid)
                await side.run(putfh(side.handle), side.closing(p.stateid4(entry.seqid, stateid.other), owner))
        assert all(file.idle for file in both.server.engine.opens._files.values())
        assert all(entry.kind not in (1, 2) for entry in both.server.engine.stateids.entries.values())
        return both.answered

    assert on(kind, tmp_path, minor, scenario) > 15


@pytest.mark.parametrize("minor", SESSIONS)
def test_what_was_opened_natively_is_open_until_it_is_closed(tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle, root = await handle_of(both, b"a"), await handle_of(both)
        opened = both.message(
            4, putfh(root), opening(both, b"a", share=3), p.OP_GETFH, access(0x2D), getattr_(), cache=True
        )
        reply = await both.native.call(None, opened)
        assert both.answered == 1
        # Not opened again by a retransmission, over whichever connection.
        assert (await both.general.call(None, opened))[4:] == reply[4:]
        stateid = Client4.parse(reply)[1][2][1].resok4.stateid
        (both.path / "a").unlink()
        await both.same(putfh(handle), read(stateid, 0, 7), getattr_(OF_CONTENT))
        closed = Client4.parse(await both.native.call(None, both.message(4, putfh(handle), closing(stateid))))
        assert (closed[0], closed[1][2][1].open_stateid) == (0, p.stateid4(2**32 - 1, bytes(12)))
        assert both.answered == 4
        again = await both.native.call(None, both.message(4, putfh(handle), closing(stateid)))
        assert Client4.parse(again)[0] in (p.NFS4ERR_BAD_STATEID, p.NFS4ERR_STALE)

    on("memory", tmp_path, minor, scenario)


def test_an_open_in_conflict_with_a_deny_is_refused(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        other = await Client4(both.general, 1, name=b"other", transport=LoopbackTransport()).connect()
        stateid, _ = await other.open("/0", b"a", access=1, deny=1)
        for _ in range(2):
            await both.same(putfh(handle), opening(both, None))
        await other.close(stateid, handle)
        answered = both.answered
        done = await both.native.call(None, both.message(0, putfh(handle), opening(both, None)))
        assert (Client4.parse(done)[0], both.answered) == (0, answered + 1)

    on("memory", tmp_path, 1, scenario)


def test_an_open_of_what_a_courtesy_client_denies_waits_until_that_one_cannot_reclaim_it(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle, engine = await handle_of(both, b"a"), both.server.engine
        engine.end_grace()
        away = await Client4(both.general, 1, name=b"away", transport=LoopbackTransport()).connect()
        await away.open("/0", b"a", access=1, deny=1)
        engine.clients.lookup(away.clientid).courtesy = True
        issued = engine.writes_issued
        for written in (1, 0):
            before = both.answered
            done = await both.native.call(None, both.message(0, putfh(handle), opening(both, None)))
            assert (Client4.parse(done)[0], both.answered - before, engine.stable) == (0, 1, True)
            issued, before = engine.writes_issued, issued
            assert (issued > before) == bool(written)

    on("memory", tmp_path, 1, scenario)


def test_an_open_is_given_a_delegation_natively(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        end = CallbackEnd()
        transport = LoopbackTransport(callbacks=end)
        client = await Client4(both.server, 1, name=b"called back", transport=transport).connect()
        both.client, both.sequences = client, {}
        for which, wire in enumerate((both.native, both.general)):
            await wire.call(None, both.message(which))

        async def opened(share):
            before = both.answered
            reply = await both.native.call(None, both.message(0, putfh(handle), opening(both, None, share=share)))
            result = Client4.parse(reply)[1][2][1].resok4
            return both.answered - before, result.delegation

        natively, delegation = await opened(1 | NO_DELEGATION)
        assert (natively, delegation.od_whynone.ond_why) == (1, p.why_no_delegation4.WND4_NOT_WANTED)
        natively, delegation = await opened(1)
        assert (natively, delegation.delegation_type) == (1, p.open_delegation_type4.OPEN_DELEGATE_READ)
        # It has one now.
        natively, delegation = await opened(1 | ANY)
        assert (natively, delegation.od_whynone.ond_why) == (1, p.why_no_delegation4.WND4_RESOURCE)

    on("memory", tmp_path, 1, scenario, limits=Limits(grace=0))


def test_nothing_is_opened_before_reclaim_complete_or_in_the_grace_period(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        both.session.client.reclaim_complete = False
        await both.same(putfh(handle), opening(both, None))
        both.session.client.reclaim_complete = True
        both.server.engine.grace.active = True
        await both.same(putfh(handle), opening(both, None))
        both.server.engine.grace.active = False
        assert both.answered == 4  # in each of the two ways
        assert not both.server.engine.opens._files

    on("memory", tmp_path, 1, scenario)
