"""SETCLIENTID, SETCLIENTID_CONFIRM, RENEW and the ends of leases, as clients of 4.0 and 4.1 meet them; and the special
stateids of 4.1, TEST_STATEID, FREE_STATEID."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from tests.support.nfs4 import Client4, LoopbackTransport, mode, with_client

MINORS = [0, 1, 2]
CURRENT = p.stateid4(1, bytes(12))
SHORT = Limits(grace=0, courtesy=0)


def setclientid(name=b"client", verifier=b"verifier"):
    callback = p.cb_client4(0x40000000, p.netaddr4(b"tcp", b"127.0.0.1.0.0"))
    return (p.OP_SETCLIENTID, p.SETCLIENTID4args(p.nfs_client_id4(verifier, name), callback, 1))


def confirming(made):
    return (p.OP_SETCLIENTID_CONFIRM, p.SETCLIENTID_CONFIRM4args(made.clientid, made.setclientid_confirm))


def renewing(clientid):
    return (p.OP_RENEW, p.RENEW4args(clientid))


def expire(server):
    """Let every lease run out."""
    server.engine.handle_timer(server.engine.now() + server.engine.limits.lease + 2)


async def introduce(client, **how):
    (made,) = await client.run(setclientid(**how))
    return made.resok4


def test_a_client_is_one_when_it_is_confirmed(tmp_path):
    async def test(client, export, server):
        made = await introduce(client, name=b"new")
        assert await client.status(renewing(made.clientid)) == p.NFS4ERR_STALE_CLIENTID
        wrong = p.SETCLIENTID_CONFIRM4args(made.clientid, bytes(8))
        assert await client.status((p.OP_SETCLIENTID_CONFIRM, wrong)) == p.NFS4ERR_STALE_CLIENTID
        assert await client.status(confirming(made)) == p.NFS4_OK
        assert await client.status(confirming(made)) == p.NFS4_OK  # sent again
        assert await client.status(renewing(made.clientid)) == p.NFS4_OK
        assert await client.status(renewing(0)) == p.NFS4ERR_STALE_CLIENTID

    with_client(tmp_path, 0, test)


def test_a_client_that_only_changes_its_callback_keeps_its_state(tmp_path):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        made = await introduce(client)
        assert made.clientid == client.clientid
        assert await client.status(confirming(made)) == p.NFS4_OK
        reading = (p.OP_READ, p.READ4args(stateid, 0, 9))
        assert await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), reading) == p.NFS4_OK

    with_client(tmp_path, 0, test)


def test_a_client_that_begins_anew_loses_its_state_when_it_confirms(tmp_path):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        there, reading = (p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_READ, p.READ4args(stateid, 0, 9))
        made = await introduce(client, verifier=b"rebooted")
        assert made.clientid != client.clientid
        assert await client.status(there, reading) == p.NFS4_OK
        assert await client.status(confirming(made)) == p.NFS4_OK
        assert await client.status(there, reading) == p.NFS4ERR_EXPIRED
        assert await client.status(renewing(client.clientid)) == p.NFS4ERR_EXPIRED

    with_client(tmp_path, 0, test)


def test_a_name_in_use_is_not_given_to_somebody_else(tmp_path):
    async def test(client, export, server):
        await client.open("/0", b"f", create=mode(0o666))
        thief = Client4(server, 0, uid=1000, transport=LoopbackTransport())
        status, [(_, result)] = await thief.raw(setclientid(verifier=b"stranger"))
        assert status == p.NFS4ERR_CLID_INUSE
        assert result.client_using.na_r_netid == b"tcp"

    with_client(tmp_path, 0, test)


def test_what_a_lease_held_is_expired_with_it(tmp_path):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        expire(server)
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        opening = (p.OP_OPEN, client.open_args(b"f", owner=b"late"))
        for operations in (
            (renewing(client.clientid),),
            (there, (p.OP_READ, p.READ4args(stateid, 0, 9))),
            (there, (p.OP_CLOSE, p.CLOSE4args(client.seqid(b"owner"), stateid))),
            (*client.path("/0"), opening),
            (there, (p.OP_LOCKT, p.LOCKT4args(p.nfs_lock_type4.READ_LT, 0, 9, p.lock_owner4(client.clientid, b"l")))),
        ):
            assert await client.status(*operations) == p.NFS4ERR_EXPIRED
        await client.connect()
        await client.open("/0", b"f", owner=b"again")

    with_client(tmp_path, 0, test, limits=SHORT)


@pytest.mark.parametrize("minor", MINORS)
def test_a_client_away_gives_way_and_its_file_is_free(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o666), deny=p.OPEN4_SHARE_DENY_BOTH)
        other = await Client4(server, minor, name=b"other", transport=LoopbackTransport()).connect()
        await other.run(p.OP_PUTROOTFH)
        server.engine.handle_timer(server.engine.now())
        client_record = next(one for one in server.engine.clients.all() if one.owner == b"client")
        client_record.lease_end -= server.engine.limits.lease + 5
        server.engine.watch(server.engine.now())
        server.engine.handle_timer(server.engine.now() + 1)
        assert client_record.courtesy
        await other.open("/0", b"f")
        gone = p.NFS4ERR_BADSESSION if minor else p.NFS4ERR_EXPIRED
        reading = (p.OP_READ, p.READ4args(stateid, 0, 9))
        assert await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), reading) == gone

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_the_current_stateid_is_the_last_one_made(tmp_path, minor):
    async def test(client, export, server):
        opening = (p.OP_OPEN, client.open_args(b"f", create=mode(0o644)))
        writing = (p.OP_WRITE, p.WRITE4args(CURRENT, 0, p.stable_how4.FILE_SYNC4, b"data"))
        closing = (p.OP_CLOSE, p.CLOSE4args(0, CURRENT))
        here = client.path("/0")
        assert await client.status(*here, opening, writing, closing) == p.NFS4_OK
        assert (export / "f").read_bytes() == b"data"
        assert await client.status(*here, opening, p.OP_SAVEFH, p.OP_PUTROOTFH, p.OP_RESTOREFH, closing) == p.NFS4_OK
        # Another current file has no stateid with it, nor has what was closed.
        lookup = (p.OP_LOOKUP, p.LOOKUP4args(b"f"))
        assert await client.status(*here, opening, *here, lookup, closing) == p.NFS4ERR_BAD_STATEID
        assert await client.status(*here, opening, closing, closing) == p.NFS4ERR_BAD_STATEID
        assert await client.status(*here, lookup, writing) == p.NFS4ERR_BAD_STATEID

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", [1, 2])
def test_stateids_are_tested_and_freed(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        new = p.open_to_lock_owner4(0, stateid, 0, p.lock_owner4(client.clientid, b"locker"))
        kind = p.nfs_lock_type4.WRITE_LT
        (locked,) = await client.on(
            handle, (p.OP_LOCK, p.LOCK4args(kind, False, 0, 9, p.locker4(True, open_owner=new)))
        )
        lock = locked.resok4.lock_stateid
        ahead, unknown = p.stateid4(stateid.seqid + 1, stateid.other), p.stateid4(1, b"x" * 12)
        asked = [stateid, lock, p.stateid4(0, lock.other), ahead, unknown, p.stateid4(0, bytes(12))]
        (tested,) = await client.run((p.OP_TEST_STATEID, p.TEST_STATEID4args(asked)))
        bad = p.NFS4ERR_BAD_STATEID
        assert tested.tsr_resok4.tsr_status_codes == [0, 0, 0, bad, bad, bad]

        async def free(one):
            return await client.status((p.OP_FREE_STATEID, p.FREE_STATEID4args(one)))

        assert await free(lock) == p.NFS4ERR_LOCKS_HELD
        assert await free(stateid) == p.NFS4ERR_LOCKS_HELD
        assert await free(unknown) == bad
        (unlocked,) = await client.on(handle, (p.OP_LOCKU, p.LOCKU4args(kind, 0, lock, 0, 9)))
        assert await free(lock) == p.NFS4ERR_OLD_STATEID
        assert await free(unlocked.lock_stateid) == p.NFS4_OK
        assert await free(unlocked.lock_stateid) == bad
        await client.close(stateid, handle)

    with_client(tmp_path, minor, test)
