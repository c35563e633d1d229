"""LOCK, LOCKT, LOCKU, RELEASE_LOCKOWNER of NFSv4 clients: order, replay, ranges, conflicts."""

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport, mode, with_client

MINORS = [0, 1, 2]
READ_LT, WRITE_LT = p.nfs_lock_type4.READ_LT, p.nfs_lock_type4.WRITE_LT
MAX = 2**64 - 1


def locking(client, stateid, offset=0, length=MAX, *, owner=b"locker", kind=WRITE_LT, seqid=0, open_seqid=None):
    """LOCK by a new lock owner."""
    if open_seqid is None:
        open_seqid = 0 if client.minor else client.seqid(b"owner")
    new = p.open_to_lock_owner4(open_seqid, stateid, seqid, p.lock_owner4(client.clientid, owner))
    return (p.OP_LOCK, p.LOCK4args(kind, False, offset, length, p.locker4(True, open_owner=new)))


def relocking(stateid, seqid, offset=0, length=MAX, *, kind=WRITE_LT):
    """LOCK by a lock owner that is known."""
    known = p.exist_lock_owner4(stateid, seqid)
    return (p.OP_LOCK, p.LOCK4args(kind, False, offset, length, p.locker4(False, lock_owner=known)))


def unlocking(stateid, seqid, offset=0, length=MAX):
    return (p.OP_LOCKU, p.LOCKU4args(WRITE_LT, seqid, stateid, offset, length))


def probing(client, offset=0, length=MAX, *, owner=b"somebody", kind=WRITE_LT):
    return (p.OP_LOCKT, p.LOCKT4args(kind, offset, length, p.lock_owner4(client.clientid, owner)))


def there(handle):
    return (p.OP_PUTFH, p.PUTFH4args(handle))


@pytest.mark.parametrize("minor", MINORS)
def test_ranges_that_are_none(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        for offset, length, status in (
            (5, 0, p.NFS4ERR_INVAL),
            (MAX, 2, p.NFS4ERR_INVAL),
            (MAX - 1, 1, p.NFS4_OK),
            (9, MAX - 20, p.NFS4_OK),
        ):
            assert await client.status(there(handle), probing(client, offset, length)) == status
            asked = locking(client, stateid, offset, length, owner=b"%d" % length)
            assert await client.status(there(handle), asked) == status

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_denied_lock_names_its_holder(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o666))
        (locked,) = await client.on(handle, locking(client, stateid, 10, 20))
        status, results = await client.raw(*client.in_session(there(handle), probing(client, 0, 15)))
        assert status == p.NFS4ERR_DENIED
        denied = results[-1][1].denied
        assert (denied.offset, denied.length, denied.locktype, denied.owner.owner) == (10, 20, WRITE_LT, b"locker")
        assert denied.owner.clientid == client.clientid
        assert await client.status(there(handle), probing(client, 0, 10)) == p.NFS4_OK
        assert await client.status(there(handle), probing(client, owner=b"locker")) == p.NFS4_OK
        lock = locked.resok4.lock_stateid
        await client.on(handle, unlocking(lock, 1, 15, 5))
        assert await client.status(there(handle), probing(client, 15, 5)) == p.NFS4_OK
        assert await client.status(there(handle), probing(client, 14, 1)) == p.NFS4ERR_DENIED
        assert await client.status(there(handle), probing(client, 20, 1)) == p.NFS4ERR_DENIED

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_lock_needs_an_open_for_its_kind(tmp_path, minor):
    async def test(client, export, server):
        await client.open("/0", b"f", create=mode(0o666), owner=b"maker")
        stateid, handle = await client.open("/0", b"f", access=p.OPEN4_SHARE_ACCESS_READ)
        assert await client.status(there(handle), locking(client, stateid)) == p.NFS4ERR_OPENMODE
        assert await client.status(there(handle), locking(client, stateid, kind=READ_LT)) == p.NFS4_OK

    with_client(tmp_path, minor, test)


def test_a_lock_under_an_unknown_client_id_is_refused(tmp_path):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        other = await Client4(server, 0, name=b"other", transport=LoopbackTransport()).connect()
        seqid = client.seqid(b"owner")
        for clientid, status in ((0, p.NFS4ERR_STALE_CLIENTID), (other.clientid, p.NFS4ERR_BAD_STATEID)):
            right, client.clientid = client.clientid, clientid
            asked = locking(client, stateid, open_seqid=seqid)
            client.clientid = right
            assert await client.status(there(handle), asked) == status
        # Neither has used the seqid up.
        assert await client.status(there(handle), locking(client, stateid, open_seqid=seqid)) == p.NFS4_OK

    with_client(tmp_path, 0, test)


def test_a_seqid_is_replayed_for_the_same_operation_only(tmp_path):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        asked = locking(client, stateid, 0, 50)
        (locked,) = await client.on(handle, asked)
        assert (await client.on(handle, asked))[0] == locked
        lock = locked.resok4.lock_stateid
        again = relocking(lock, 1, 100, 50)
        (grown,) = await client.on(handle, again)
        assert (await client.on(handle, again))[0] == grown
        lock = grown.resok4.lock_stateid
        for seqid in (0, 1, 3):
            assert await client.status(there(handle), unlocking(lock, seqid)) == p.NFS4ERR_BAD_SEQID
        (unlocked,) = await client.on(handle, unlocking(lock, 2))
        assert (await client.on(handle, unlocking(lock, 2)))[0] == unlocked
        assert unlocked.lock_stateid.seqid == lock.seqid + 1

    with_client(tmp_path, 0, test)


@pytest.mark.parametrize("minor", MINORS)
def test_closing_gives_the_locks_up(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        (locked,) = await client.on(handle, locking(client, stateid))
        await client.close(stateid, handle)
        assert await client.status(there(handle), probing(client)) == p.NFS4_OK
        gone = await client.status(there(handle), unlocking(locked.resok4.lock_stateid, 1))
        assert gone == p.NFS4ERR_BAD_STATEID

    with_client(tmp_path, minor, test)


def test_a_lock_owner_is_released_once_it_holds_nothing(tmp_path):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        (locked,) = await client.on(handle, locking(client, stateid))
        releasing = (p.OP_RELEASE_LOCKOWNER, p.RELEASE_LOCKOWNER4args(p.lock_owner4(client.clientid, b"locker")))
        assert await client.status(releasing) == p.NFS4ERR_LOCKS_HELD
        (unlocked,) = await client.on(handle, unlocking(locked.resok4.lock_stateid, 1))
        assert await client.status(releasing) == p.NFS4_OK
        assert await client.status(there(handle), relocking(unlocked.lock_stateid, 2)) == p.NFS4ERR_BAD_STATEID

    with_client(tmp_path, 0, test)


@pytest.mark.parametrize("minor", MINORS)
def test_what_is_no_regular_file_cannot_be_locked(tmp_path, minor):
    async def test(client, export, server):
        (export / "link").symlink_to("f")
        (export / "directory").mkdir()
        link = p.NFS4ERR_SYMLINK if minor else p.NFS4ERR_INVAL
        for name, status in (("directory", p.NFS4ERR_ISDIR), ("link", link)):
            assert await client.status(*client.path(f"/0/{name}"), probing(client)) == status

    with_client(tmp_path, minor, test)
