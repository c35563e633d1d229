"""OPEN, CLOSE, LOCK and LOCKU have one body: what used to be declined is carried out natively, once."""

import asyncio
import os
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from rpcrdma.server.tcp_connection import TcpConnection
from tests.support.delegations import READ, WRITE_DELEGATION, holder, stateid_of
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import Wire, handle_of
from tests.unit.nfs4_names_support import OK, confirmed, how, making
from tests.unit.test_nfs4_native import getattr_, on, putfh
from tests.unit.test_nfs4_native_locks import lock_more, lock_new, unlock
from tests.unit.test_nfs4_native_opens import closing, next_seqid, opening
from tests.unit.test_waiting_calls import until

OURS = {p.OP_OPEN, p.OP_OPEN_CONFIRM, p.OP_CLOSE, p.OP_LOCK, p.OP_LOCKU}
KINDS, CLAIMS = p.createmode4, p.open_claim_type4
ACL = {12: struct.pack(">IIIII", 1, 0, 0, 0x1F01FF, 6) + b"OWNER@\0\0"}
"""Of the owner, everything."""


def status_of(reply):
    return Client4.parse(reply)[0]


async def sent(both, *operations, slot=0):
    """The results of a COMPOUND on the native way."""
    status, results = Client4.parse(await both.native.call(None, both.message(slot, *operations)))
    return status, results[-1][1] if results else None


def claiming(both, claim, *, share=1, seqid=0):
    who = p.open_owner4(both.client.clientid, b"owner")
    return (p.OP_OPEN, p.OPEN4args(seqid, share, 0, who, p.openflag4(p.opentype4.OPEN4_NOCREATE), claim))


def test_rare_opens_are_carried_out_natively(tmp_path, kind, minor, done_in_python):
    async def scenario(both):
        (both.path / "sub").mkdir()
        (both.path / "link").symlink_to("sub")
        os.mkfifo(both.path / "fifo")
        (both.path / "there").write_bytes(b"content")
        root = await handle_of(both)
        await confirmed(both)
        done_in_python.clear()

        async def opens(operation):
            return (await sent(both, putfh(root), operation))[0]

        def seqid():
            return 0 if minor else next_seqid(both, b"owner")

        for name, status in (
            (b"none", p.NFS4ERR_NOENT), (b"sub", p.NFS4ERR_ISDIR), (b"link", p.NFS4ERR_SYMLINK), (b"", p.NFS4ERR_INVAL),
            (b"fifo", p.NFS4ERR_WRONG_TYPE if minor else p.NFS4ERR_SYMLINK), (b"..", p.NFS4ERR_BADNAME),
            (b"n" * 300, p.NFS4ERR_NAMETOOLONG), (b"there", OK),
        ):  # fmt: skip
            assert await opens(opening(both, name, seqid=seqid())) == status, name
        assert await opens(opening(both, b"there", share=0)) == p.NFS4ERR_INVAL
        # The retransmission of an exclusive creation finds its own file; another one finds a file that is there.
        for values in (b"verifier", b"verifier", b"another."):
            flag = p.openflag4(p.opentype4.OPEN4_CREATE, how(KINDS.EXCLUSIVE4, None, values))
            who = p.open_owner4(both.client.clientid, b"owner")
            claim = p.open_claim4(CLAIMS.CLAIM_NULL, file=b"once")
            made = (p.OP_OPEN, p.OPEN4args(seqid(), 3, 0, who, flag, claim))
            assert await opens(made) == (OK if values == b"verifier" else p.NFS4ERR_EXIST)
        assert await opens(making(both, b"there", values={4: bytes(8)}, share=2, seqid=seqid())) == OK
        assert (both.path / "there").read_bytes() == b""
        assert await opens(making(both, b"sub", values={}, seqid=seqid())) == p.NFS4ERR_EXIST
        assert await opens(making(both, b"there", KINDS.GUARDED4, {}, seqid=seqid())) == p.NFS4ERR_EXIST
        if kind == "disk":
            assert await opens(making(both, b"acl", values=ACL, seqid=seqid())) == OK
            assert (both.path / "acl").stat().st_mode & 0o777 == 0o700
        # Claims of before, and of delegations that nobody has.
        previous = p.open_claim4(CLAIMS.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4.OPEN_DELEGATE_NONE)
        assert await opens(claiming(both, previous, seqid=seqid())) == p.NFS4ERR_NO_GRACE
        lost = p.open_claim4(CLAIMS.CLAIM_DELEGATE_PREV, file_delegate_prev=b"there")
        assert await opens(claiming(both, lost, seqid=seqid())) == p.NFS4ERR_NOTSUPP
        info = p.open_claim_delegate_cur4(p.stateid4(1, b"none of ours"), b"there")
        current = p.open_claim4(CLAIMS.CLAIM_DELEGATE_CUR, delegate_cur_info=info)
        assert await opens(claiming(both, current, seqid=seqid())) in (p.NFS4ERR_BAD_STATEID, p.NFS4ERR_STALE_STATEID)
        assert not OURS & set(done_in_python)

    on(kind, tmp_path, minor, scenario, limits=Limits(grace=0))


@pytest.mark.parametrize("minor", [1, 2])
def test_reclaims_are_carried_out_natively(tmp_path, minor, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        handle = await handle_of(both, b"a")
        engine = both.server.engine
        done_in_python.clear()
        engine.grace.active = True
        both.session.client.may_reclaim, both.session.client.reclaim_complete = True, False
        previous = p.open_claim4(CLAIMS.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4.OPEN_DELEGATE_NONE)
        status, opened = await sent(both, putfh(handle), claiming(both, previous, share=3))
        assert status == OK
        status, _ = await sent(both, putfh(handle), lock_new(2, opened.resok4.stateid, b"o", 0, 10, reclaim=True))
        assert status == OK
        status, _ = await sent(both, putfh(handle), opening(both, None))
        assert status == p.NFS4ERR_GRACE
        engine.grace.active = False
        assert not OURS & set(done_in_python)

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_malformed_arguments_are_told_natively(tmp_path, minor, done_in_python):
    async def scenario(both):
        handle = await handle_of(both)
        done_in_python.clear()
        for number in sorted(OURS - {p.OP_OPEN_CONFIRM}):
            message = both.message(0, putfh(handle), p.OP_GETFH)
            status = status_of(await both.native.call(None, message[:-4] + number.to_bytes(4, "big")))
            assert status == p.NFS4ERR_BADXDR, number
        assert not OURS & set(done_in_python)

    on("memory", tmp_path, minor, scenario)


def test_an_open_waits_for_a_delegation_natively(tmp_path, done_in_python):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        other = await holder(both.server, 1)
        given = await other.opening(b"a", 3)
        assert given.delegation.delegation_type == WRITE_DELEGATION
        root = await handle_of(both)
        done_in_python.clear()
        before = both.answered
        status, _ = await sent(both, putfh(root), opening(both, b"a", share=READ))
        assert (status, both.answered - before) == (OK, 1)
        assert other.end.recalls == 1
        assert not OURS & set(done_in_python)

    on("memory", tmp_path, 1, scenario, limits=Limits(grace=0))


@pytest.mark.parametrize("kept", [True, False])
def test_a_lock_that_waits_is_taken_once(tmp_path, monkeypatch, minor, kept, done_in_python):
    """A LOCK has begun when its COMPOUND turns out not to be kept where it was received: it goes on elsewhere, with the
    same LOCK."""

    async def scenario(both):
        await confirmed(both)
        (both.path / "a").write_bytes(b"content")
        opened, handle = await both.client.open("/0", b"a", access=3)
        engine = both.server.engine
        node = both.server.nfs4.service.nodes.find(handle)
        file, client = engine.opens.file(node.key), engine.clients.lookup(both.client.clientid)
        seqid = 0 if minor else next_seqid(both, b"owner")
        locker = p.open_to_lock_owner4(seqid, opened, 1, p.lock_owner4(both.client.clientid, b"locker"))
        args = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, 0, 10, p.locker4(True, open_owner=locker))
        await both.native.call(None, both.message(0, putfh(handle)))
        refused = []
        if not kept:
            monkeypatch.setattr(TcpConnection, "begin_held", lambda connection: bool(refused.append(connection)))
        done_in_python.clear()
        file.gate = file.gate or asyncio.Lock()
        await file.gate.acquire()
        both.native.send(both.message(0, putfh(handle), (p.OP_LOCK, args)))
        await until(lambda: file.gate._waiters)
        await asyncio.sleep(0)
        assert file.locks is None
        assert len(file.gate._waiters) == 1
        file.gate.release()
        status, results = Client4.parse(await both.native.reply())
        assert status == OK
        assert results[-1][1].resok4.lock_stateid.seqid == 1
        assert (client.lock_states, client.locks, len(refused)) == (1, 1, 0 if kept else 1)
        assert not OURS & set(done_in_python)

    on("memory", tmp_path, minor, scenario, limits=Limits(grace=0))


def test_an_open_sent_again_leads_to_its_file(tmp_path, kind):
    """NFSv4.0: the file of the first OPEN has left the tables since (RFC 7530 section 9.1.9)."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        await confirmed(both)
        root, nodes = await handle_of(both), both.server.nfs4.service.nodes
        asked = opening(both, b"a", seqid=next_seqid(both, b"owner"))
        replies = []
        for _ in range(2):
            replies.append(await both.native.call(None, both.message(0, putfh(root), asked, p.OP_GETFH)))
            (handle,) = [
                result.resok4.object for number, result in Client4.parse(replies[-1])[1] if number == p.OP_GETFH
            ]
            nodes.forget(nodes.find(handle))
        assert replies[0][4:] == replies[1][4:]

    on(kind, tmp_path, 0, scenario, limits=Limits(grace=0))


def test_what_is_denied_is_told_natively(tmp_path, minor, done_in_python):
    """SHARE_DENIED, and the lock in the way with its owner's name."""

    async def scenario(both):
        await confirmed(both)
        (both.path / "a").write_bytes(b"content")
        opened, handle = await both.client.open("/0", b"a", access=3, deny=2)
        root = await handle_of(both)
        owner = b"x" * 1024
        seqid = 0 if minor else next_seqid(both, b"owner")
        locker = p.open_to_lock_owner4(seqid, opened, 1, p.lock_owner4(both.client.clientid, owner))
        args = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, 5, 10, p.locker4(True, open_owner=locker))
        done_in_python.clear()
        status, locked = await sent(both, putfh(handle), (p.OP_LOCK, args))
        assert status == OK
        seqid = 0 if minor else next_seqid(both, b"owner")
        status, _ = await sent(both, putfh(root), opening(both, b"a", share=2, seqid=seqid))
        assert status == p.NFS4ERR_SHARE_DENIED
        seqid = 0 if minor else next_seqid(both, b"owner")
        locker = p.open_to_lock_owner4(seqid, opened, 1, p.lock_owner4(both.client.clientid, b"other"))
        args = p.LOCK4args(p.nfs_lock_type4.READ_LT, False, 0, 6, p.locker4(True, open_owner=locker))
        status, result = await sent(both, putfh(handle), (p.OP_LOCK, args))
        denied = result.denied
        assert (status, denied.offset, denied.length) == (p.NFS4ERR_DENIED, 5, 10)
        assert (denied.locktype, denied.owner.owner) == (p.nfs_lock_type4.WRITE_LT, owner)
        if minor:
            assert (await sent(both, putfh(handle), unlock(locked.resok4.lock_stateid, 0, 0)))[0] == p.NFS4ERR_INVAL
            wrong = lock_more(p.nfs_lock_type4.READ_LT, opened, 0, 1)
            assert (await sent(both, putfh(handle), wrong))[0] == p.NFS4ERR_BAD_STATEID
            assert (await sent(both, putfh(handle), closing(opened)))[0] == OK
            assert (await sent(both, putfh(handle), closing(opened)))[0] == p.NFS4ERR_BAD_STATEID
        assert not OURS & set(done_in_python)

    on("memory", tmp_path, minor, scenario, limits=Limits(grace=0))


def test_a_lock_that_waited_writes_who_is_in_the_way_within_its_reply(tmp_path, minor):
    """Behind as many results as a COMPOUND may wait with, the longest result of a LOCK goes beyond no memory."""

    async def scenario(both):
        await confirmed(both)
        (both.path / "a").write_bytes(b"content")
        opened, handle = await both.client.open("/0", b"a", access=3)
        file = both.server.engine.opens.file(both.server.nfs4.service.nodes.find(handle).key)
        owner = b"x" * 1024

        def locking(owner, seqid):
            locker = p.open_to_lock_owner4(seqid, opened, 1, p.lock_owner4(both.client.clientid, owner))
            return (p.OP_LOCK, p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, 0, 10, p.locker4(True, open_owner=locker)))

        assert (await sent(both, putfh(handle), locking(owner, 0 if minor else next_seqid(both, b"owner"))))[0] == OK
        before = [putfh(handle), *[getattr_()] * 13]
        reply = await both.native.call(None, both.message(0, *before))
        for at in (2940, 2944, 2948, 3004, 3008, 3020):
            tag = at - (len(reply) - 24)
            assert 0 <= tag <= 1024
            seqid = 0 if minor else next_seqid(both, b"owner")
            message = both.message(0, *before, locking(b"other", seqid))
            message = message[:68] + tag.to_bytes(4, "big") + b"t" * tag + message[72:]
            await file.gate.acquire()
            both.native.send(message)
            await until(lambda: file.gate._waiters)
            # What other calls would have beside its reply.
            beside = [both.pool.account(4096).lease(4096) for _ in range(64)]
            for lease in beside:
                lease.view[:] = b"\xaa" * len(lease.view)
            file.gate.release()
            reply_of_lock = await both.native.reply()
            assert all(bytes(lease.view) == b"\xaa" * len(lease.view) for lease in beside), at
            for lease in beside:
                lease.release()
            assert struct.unpack_from(">I", reply_of_lock, 24) == (p.NFS4ERR_DENIED,)
            assert reply_of_lock[-1028:] == struct.pack(">I", 1024) + owner

    on("memory", tmp_path, minor, scenario, limits=Limits(grace=0))


@pytest.mark.parametrize("minor", [1, 2])
def test_an_owner_whose_open_waits_stays_the_one_it_is(tmp_path, minor):
    """Its last open is closed while another one waits for a delegation: both OPENs of the file are of one owner."""

    async def scenario(both):
        for name in ("a", "b"):
            (both.path / name).write_bytes(b"content")
        other = await holder(both.server, 1)
        given = await other.opening(b"a", 3)
        assert given.delegation.delegation_type == WRITE_DELEGATION
        other.end.keep = True
        root, handle = await handle_of(both), await handle_of(both, b"b")
        _, opened = await sent(both, putfh(root), opening(both, b"b", share=READ))
        both.native.send(both.message(0, putfh(root), opening(both, b"a", share=READ)))
        await until(lambda: other.end.recalls)
        status, _ = Client4.parse(
            await both.general.call(None, both.message(1, putfh(handle), closing(opened.resok4.stateid)))
        )
        assert status == OK
        await other.give_back(stateid_of(given), other.handles[b"a"])
        status, results = Client4.parse(await both.native.reply())
        assert status == OK
        first = results[-1][1].resok4.stateid
        assert list(both.session.client.open_owners) == [b"owner"]
        status, again = await sent(both, putfh(root), opening(both, b"a", share=READ))
        assert (status, again.resok4.stateid) == (OK, p.stateid4(first.seqid + 1, first.other))

    on("memory", tmp_path, minor, scenario, limits=Limits(grace=0))


@pytest.mark.parametrize("kept", ["where it was received", "elsewhere", "nowhere yet"])
def test_an_open_whose_connection_goes_while_it_waits_is_its_owners_last(tmp_path, monkeypatch, kept):
    """NFSv4.0: sent again from another port, with its old seqid, it is given its result (RFC 7530 section 9.1.9)."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        await confirmed(both)
        other = await holder(both.server, 1)
        given = await other.opening(b"a", 3)
        assert given.delegation.delegation_type == WRITE_DELEGATION
        other.end.keep = True
        root, listener = await handle_of(both), both.listeners[0]
        (connection,) = listener.connections
        asked = opening(both, b"a", share=READ, seqid=next_seqid(both, b"owner"))
        engine = both.server.engine
        (owner,) = engine.clients.lookup(both.client.clientid).open_owners.values()
        with monkeypatch.context() as patched:
            if kept == "elsewhere":
                patched.setattr(TcpConnection, "begin_held", lambda connection: False)
            elif kept == "nowhere yet":
                patched.setattr(type(connection._seat), "begin_call", lambda seat: False)
            both.native.send(both.message(0, putfh(root), asked))
            await until(lambda: other.end.recalls)
            connection.close()
            await until(lambda: not listener.connections)
        assert owner.busy
        await other.give_back(stateid_of(given), other.handles[b"a"])
        await until(lambda: not owner.busy)
        (state,) = owner.states.values()
        assert owner.seqid == asked[1].seqid
        again = Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1]))
        status, results = Client4.parse(await again.call(None, both.message(0, putfh(root), asked)))
        assert (status, results[-1][1].resok4.stateid) == (OK, p.stateid4(state.seqid, state.other))
        assert state.seqid == 1
        again.writer.close()

    on("memory", tmp_path, 0, scenario, limits=Limits(grace=0))
