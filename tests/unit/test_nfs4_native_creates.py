"""OPEN that creates, answered natively: replies, files and state are those of the general path."""

import os
import random
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.vfs import flushes
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport
from tests.unit.nfs4_names_support import (
    ATTRIBUTES,
    NEW,
    OF_DIRECTORY,
    OK,
    agree,
    confirmed,
    fattr,
    fill,
    making,
    mkdir,
    natively,
    sides,
)
from tests.unit.test_nfs4_native import CALLERS, OF_CONTENT, SESSIONS, access, getattr_, on, putfh, read
from tests.unit.test_nfs4_native_changes import change_of, directories, mode
from tests.unit.test_nfs4_native_opens import NO_DELEGATION, closing, next_seqid


def test_what_is_there_is_opened_natively(tmp_path, minor):
    """UNCHECKED4: the file keeps its attributes (RFC 8881 section 18.16.3)."""

    async def scenario(both):
        pair = await sides(both)
        for side in pair:
            (side.path / "a").write_bytes(b"content")
            (side.path / "a").chmod(0o640)
            (side.path / "sub").mkdir()
            side.owner = b"owner" + side.path.name.encode()
            await confirmed(both, side.owner)
        before = both.answered

        def make(name):
            return lambda side: [
                making(both, name, values={33: mode(0o777)}, owner=side.owner,
                       seqid=0 if minor else next_seqid(both, side.owner)),
                p.OP_GETFH, access(0x3F), getattr_(OF_CONTENT),
            ]  # fmt: skip

        assert (await agree(pair, make(b"a")))[0] == OK
        assert both.answered == before + 1
        assert (await agree(pair, make(b"sub")))[0] == p.NFS4ERR_EXIST
        assert (pair[0].path / "a").stat().st_mode & 0o777 == 0o640

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("seed", range(2))
def test_random_openings_of_new_files(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = await sides(both)
        if not minor:
            for side in pair:
                side.owner = b"owner" + side.path.name.encode()
                made = await both.client.open(
                    "/0/" + side.path.name, b"first", create=fattr(ATTRIBUTES[0]), owner=side.owner
                )
                await both.client.close(*made, side.owner)
        done = 0
        for step in range(140):
            if step % 12 == 0:
                state = rng.getstate()
                for side in pair:
                    rng.setstate(state)
                    fill(side.path, rng)
            kinds = p.createmode4
            how_ = rng.choice(
                (*[kinds.UNCHECKED4] * 3, *[kinds.GUARDED4] * 3, kinds.EXCLUSIVE4, *[kinds.EXCLUSIVE4_1] * 2)
            )
            values, new = rng.choice((ATTRIBUTES[0], *[rng.choice(ATTRIBUTES)] * 2)), rng.choice(NEW)
            share, deny = rng.choice((1, 2, 2, 3, 3, 0)), rng.choice((0, 0, 0, 0, 1, 3))
            if minor:
                share |= rng.choice((0, NO_DELEGATION, 0))
            behind = rng.choice(
                (
                    [p.OP_GETFH, access(0x2D), getattr_(OF_CONTENT)],
                    [p.OP_GETFH, access(0x3F), getattr_(OF_CONTENT)],
                    [p.OP_GETFH, getattr_(OF_CONTENT)],
                    [p.OP_GETFH],
                    [p.OP_GETFH, 9999],
                )
            )

            def make(side, new=new, how_=how_, values=values, share=share, deny=deny, behind=behind):
                owner = b"owner" if minor else side.owner
                seqid = 0 if minor else next_seqid(both, owner)
                return [making(both, new, how_, values, share=share, deny=deny, owner=owner, seqid=seqid), *behind]

            caller = rng.choice((*CALLERS, (0, 0)))
            shown = await agree(pair, make, caller=caller, cache=rng.random() < 0.3)
            done += shown[0] == OK
            for side in pair:
                if any(number == p.OP_GETFH and not result.status for number, result in side.results):
                    stateid, handle = side.result(p.OP_OPEN).resok4.stateid, side.file()
                    owner = b"owner" if minor else side.owner
                    side.read = await side.run(putfh(handle), read(stateid, 0, 100), caller=caller)
                    end = closing(stateid, 0 if minor else next_seqid(both, owner))
                    await side.run(putfh(handle), end)
                    assert side.status == OK
                else:
                    side.read = None
            assert pair[0].read == pair[1].read
        assert all(file.idle for file in both.server.engine.opens._files.values())
        return both.answered, done

    answered, done = on(kind, tmp_path, minor, scenario)
    assert done > 30
    assert answered > 25


def test_a_retransmission_of_an_opening_has_its_reply(kind, tmp_path, minor):
    async def scenario(both):
        one, _ = await directories(both)
        await confirmed(both)
        seqid = 0 if minor else next_seqid(both, b"owner")
        message = both.message(
            0,
            putfh(one),
            making(both, b"new", p.createmode4.GUARDED4, seqid=seqid),
            p.OP_GETFH,
            getattr_(OF_CONTENT),
            cache=True,
        )
        before = both.answered
        reply = await both.native.call(None, message)
        assert (Client4.parse(reply)[0], both.answered) == (OK, before + 1)
        assert await both.native.call(None, message) == reply
        if not minor:
            # In another call, the owner's last result is given again (RFC 7530 section 9.1.9).
            again = both.message(0, putfh(one), making(both, b"new", p.createmode4.GUARDED4, seqid=seqid), p.OP_GETFH,
                                 getattr_(OF_CONTENT))  # fmt: skip
            assert (await both.native.call(None, again))[4:] == reply[4:]
        assert len(both.server.engine.stateids.entries) == 1

    on(kind, tmp_path, minor, scenario)


def test_a_default_acl_takes_the_place_of_the_umask(tmp_path):
    """RFC 8275 section 3."""
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, bits, 0xFFFFFFFF) for tag, bits in ((1, 7), (4, 7), (0x20, 5))
    )

    async def scenario(both):
        pair = await sides(both)
        for side in pair:
            os.setxattr(side.path, "system.posix_acl_default", acl)
        for number, bits in enumerate((0o666, 0o777, 0o640, 0o2777)):
            values = {81: struct.pack(">II", bits, 0o077)}
            before = both.answered
            looks = p.OP_GETFH, access(0x3F), getattr_(OF_CONTENT)
            making_ = [mkdir(b"d%d" % number, values), p.OP_GETFH, getattr_(OF_DIRECTORY)]
            await agree(pair, lambda _, making_=making_: making_)
            making_ = [making(both, b"f%d" % number, values=values), *looks]
            await agree(pair, lambda _, making_=making_: making_)
            assert both.answered == before + 2
        assert (pair[0].path / "f0").stat().st_mode & 0o777 == 0o664

    on("disk", tmp_path, 2, scenario)


@pytest.mark.parametrize("minor", SESSIONS)
def test_nothing_is_made_that_would_not_be_opened(kind, tmp_path, minor):
    async def scenario(both):
        one, _ = await directories(both)
        engine, before = both.server.engine, both.answered
        looks = putfh(one), making(both, b"new"), p.OP_GETFH

        async def refused(status):
            for wire, slot in ((both.native, 0), (both.general, 1)):
                reply = await wire.call(None, both.message(slot, *looks))
                assert Client4.parse(reply)[0] == status
                assert not (both.path / "one" / "new").exists()

        engine.grace.active = True
        await refused(p.NFS4ERR_GRACE)
        engine.grace.active = False
        limits, engine.limits = engine.limits, Limits(opens=0, grace=0)
        await refused(p.NFS4ERR_NOSPC)
        engine.limits = limits
        assert both.answered == before + 2

    on(kind, tmp_path, minor, scenario, limits=Limits(grace=0))


def test_an_owner_is_busy_while_its_opening_waits(tmp_path, monkeypatch):
    async def scenario(both):
        one, _ = await directories(both)
        await confirmed(both)
        seqid, busy = next_seqid(both, b"owner"), []
        owner = both.server.engine.clients.lookup(both.client.clientid).open_owners[b"owner"]
        monkeypatch.setattr(flushes, "on_fsync", lambda _: busy.append(owner.busy))
        await natively(both, putfh(one), making(both, b"new", seqid=seqid), p.OP_GETFH)
        await both.native.call(
            None, both.message(0, putfh(one), making(both, b"new", p.createmode4.GUARDED4, seqid=seqid + 1))
        )
        assert busy
        assert all(busy)
        assert (owner.busy, owner.seqid) == (False, seqid + 1)

    on("disk", tmp_path, 0, scenario)


@pytest.mark.parametrize("minor", SESSIONS)
def test_who_has_made_a_file_may_write_it_whatever_its_mode(kind, tmp_path, minor):
    async def scenario(both):
        one, _ = await directories(both)
        caller = (1001, 1001)
        _, opened, handle = await natively(
            both, putfh(one), making(both, b"new", values={33: mode(0o400)}, share=3), p.OP_GETFH, caller=caller
        )
        stateid, file = opened.resok4.stateid, handle.resok4.object
        data = (p.OP_WRITE, p.WRITE4args(stateid, 0, 2, b"data"))
        await natively(both, putfh(file), data, caller=caller)
        (both.path / "one" / "new").unlink()
        await natively(both, putfh(file), read(stateid, 0, 4), caller=caller)

    on(kind, tmp_path, minor, scenario)


@pytest.mark.parametrize(("kind", "leases"), [("disk", False), ("disk", True), ("memory", False)])
@pytest.mark.parametrize("minor", SESSIONS)
def test_a_new_file_is_delegated_natively(kind, tmp_path, minor, leases):
    """RFC 8881 section 18.16.3: a write delegation for whoever has made a file and can be called back."""

    async def scenario(both):
        one, two = await directories(both)
        end = CallbackEnd()
        client = await Client4(both.server, minor, name=b"called", transport=LoopbackTransport(callbacks=end)).connect()
        both.client, both.sequences = client, {}
        for which, wire in enumerate((both.native, both.general)):
            await wire.call(None, both.message(which))
        _, opened, _ = await natively(both, putfh(one), making(both, b"a", share=2 | NO_DELEGATION), p.OP_GETFH)
        assert opened.resok4.delegation.od_whynone.ond_why == p.why_no_delegation4.WND4_NOT_WANTED
        looks = p.OP_GETFH, access(0x2D), getattr_(OF_CONTENT)
        shown, handles, table = [], [], both.server.engine.delegations
        for wire, slot, directory in ((both.native, 0, one), (both.general, 1, two)):
            before = both.answered
            for name, share in ((b"b", 2), (b"c", 3), (b"d", 1)):
                reply = await wire.call(
                    None, both.message(slot, putfh(directory), making(both, name, share=share), *looks)
                )
                status, results = Client4.parse(reply)
                opened = results[2][1].resok4
                given = opened.delegation.write if share != 1 else opened.delegation.read
                handles.append((results[3][1].resok4.object, given.stateid))
                shown.append([status, opened.rflags, opened.delegation.delegation_type, given.recall, given.permissions,
                              repr(getattr(given, "space_limit", None)), *map(repr, results[4:])])  # fmt: skip
            # For a read lease, the descriptor of the creation has to go first; that is waited for.
            assert both.answered - before == (0 if slot else 3)
        assert shown[:3] == shown[3:]
        assert table.count == 6
        key = both.server.service.nodes.find(handles[0][0]).key
        held = table.held_by(both.server.engine.clients.lookup(client.clientid), key)
        assert held.referring == (client.session, 1, both.sequences[1] - 2)
        assert held.change == await change_of(both, handles[0][0])
        # It is called back when somebody else wants the file.
        other = await Client4(both.general, minor, name=b"other", transport=LoopbackTransport()).connect()
        await other.raw(*other.in_session(putfh(one), (p.OP_OPEN, other.open_args(b"b", access=1))))
        assert held.recall_by is not None
        for handle, stateid in handles:
            back = (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid))
            assert Client4.parse(await both.native.call(None, both.message(0, putfh(handle), back)))[0] == OK
        assert table.count == 0

    on(kind, tmp_path, minor, scenario, limits=Limits(grace=0), leases=leases)


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_new_file_without_a_lease_is_not_delegated(tmp_path, minor):
    """Where the kernel gives no lease, as for a file that a local process has opened, both ways say so."""

    async def scenario(both):
        one, two = await directories(both)
        client = await Client4(
            both.server, minor, name=b"called", transport=LoopbackTransport(callbacks=CallbackEnd())
        ).connect()
        both.client, both.sequences = client, {}
        for which, wire in enumerate((both.native, both.general)):
            await wire.call(None, both.message(which))
        both.server.service.take_lease = lambda *_, **how: None
        told = []
        for wire, slot, directory in ((both.native, 0, one), (both.general, 1, two)):
            before = both.answered
            wish = making(both, b"a", share=2 | p.OPEN4_SHARE_ACCESS_WANT_ANY_DELEG)
            opened = Client4.parse(await wire.call(None, both.message(slot, putfh(directory), wish)))[1][2][1].resok4
            told.append((repr(opened.delegation), opened.stateid.seqid))
            assert both.answered - before == 1 - slot
        assert told[0] == told[1]
        assert both.server.engine.delegations.count == 0

    on("disk", tmp_path, minor, scenario, limits=Limits(grace=0), leases=True)
