"""NFSv4 operations on files, over a real directory, for every minor version."""

import os

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, mode, values, wanted, with_client

MINORS = [0, 1, 2]
TYPE_SIZE = wanted(p.FATTR4_TYPE, p.FATTR4_SIZE)
ANONYMOUS = p.stateid4(0, bytes(12))


async def list_names(client, path, **how):
    found, cookie = [], 0
    while True:
        args = p.READDIR4args(cookie, bytes(8), 8192, how.get("maxcount", 8192), wanted(p.FATTR4_FILEID).attr_request)
        *_, result = await client.run(*client.path(path), (p.OP_READDIR, args))
        listed = result.resok4.reply
        found += [entry.name for entry in listed.entries]
        if listed.eof:
            return found
        assert listed.entries, "a page without entries that is not the last"
        cookie = listed.entries[-1].cookie


@pytest.mark.parametrize("minor", MINORS)
def test_the_root_leads_to_the_exports(tmp_path, minor):
    async def test(client, export, server):
        (export / "file").write_bytes(b"hello")
        assert await list_names(client, "/") == [b"0"]
        *_, result = await client.run(*client.path("/0/file"), (p.OP_GETATTR, TYPE_SIZE))
        d = values(result.resok4.obj_attributes)
        assert (d.uint32(), d.uint64()) == (p.nfs_ftype4.NF4REG, 5)
        assert await client.status(*client.path("/1")) == p.NFS4ERR_NOENT
        # up again: from the export's root into the pseudo file system, and not beyond its root
        assert await client.status(*client.path("/0"), p.OP_LOOKUPP) == p.NFS4_OK
        assert await client.status(*client.path("/0"), p.OP_LOOKUPP, p.OP_LOOKUPP) == p.NFS4ERR_NOENT

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_create_write_read_close(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"new", create=mode(0o640))
        data = os.urandom(70_001)
        [written] = await client.on(handle, (p.OP_WRITE, p.WRITE4args(stateid, 5, p.stable_how4.UNSTABLE4, data)))
        assert written.resok4.count == len(data)
        [committed] = await client.on(handle, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        root = await server.service.root(server.service.exports.exports[0])
        assert committed.resok4.writeverf == written.resok4.writeverf == root.write_back.verifier
        [read] = await client.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 1 << 20)))
        assert (bytes(read.resok4.data), read.resok4.eof) == (bytes(5) + data, True)
        [closed] = await client.close(stateid, handle)
        assert closed.open_stateid.seqid == stateid.seqid + 1 or client.minor
        assert (export / "new").read_bytes() == bytes(5) + data
        assert (export / "new").stat().st_mode & 0o7777 == 0o640
        bad = await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_READ, p.READ4args(stateid, 0, 1)))
        assert bad in (p.NFS4ERR_BAD_STATEID, p.NFS4ERR_OLD_STATEID)

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_names_come_and_go(tmp_path, minor):
    async def test(client, export, server):
        make = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"dir", mode(0o755))
        *_, made = await client.run(*client.path("/0"), (p.OP_CREATE, make))
        assert made.resok4.cinfo.atomic
        assert made.resok4.cinfo.after > made.resok4.cinfo.before
        link = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4LNK, linkdata=b"../x"), b"sym\xff", p.fattr4([], b""))
        await client.run(*client.path("/0/dir"), (p.OP_CREATE, link))
        assert os.readlink(os.fsencode(export / "dir") + b"/sym\xff") == b"../x"
        (export / "file").write_bytes(b"1")
        names = (*client.path("/0/file"), p.OP_SAVEFH, *client.path("/0/dir"))
        await client.run(*names, (p.OP_LINK, p.LINK4args(b"hard")))
        assert (export / "dir/hard").stat().st_nlink == 2
        names = (*client.path("/0/dir"), p.OP_SAVEFH, *client.path("/0"))
        await client.run(*names, (p.OP_RENAME, p.RENAME4args(b"hard", b"moved")))
        assert (export / "moved").exists()
        assert not (export / "dir/hard").exists()
        assert await client.status(*client.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"dir"))) == p.NFS4ERR_NOTEMPTY
        await client.run(*client.path("/0/dir"), (p.OP_REMOVE, p.REMOVE4args(b"sym\xff")))
        await client.run(*client.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"dir")))
        assert sorted(await list_names(client, "/0")) == [b"file", b"moved"]

    with_client(tmp_path, minor, test)


def test_a_large_directory_is_listed_whole_and_once(tmp_path):
    async def test(client, export, server):
        expected = {b"file-%05d" % number for number in range(3000)}
        for name in expected:
            os.close(os.open(os.fsencode(export) + b"/" + name, os.O_CREAT))
        for maxcount in (700, 8192):
            listed = await list_names(client, "/0", maxcount=maxcount)
            assert len(listed) == len(expected)
            assert set(listed) == expected

    with_client(tmp_path, 1, test)


def test_readdir_says_when_nothing_fits(tmp_path):
    async def test(client, export, server):
        (export / ("x" * 200)).touch()
        args = p.READDIR4args(0, bytes(8), 100, 100, wanted(p.FATTR4_FILEID).attr_request)
        assert await client.status(*client.path("/0"), (p.OP_READDIR, args)) == p.NFS4ERR_TOOSMALL
        args = p.READDIR4args(2, bytes(8), 1000, 1000, [])
        assert await client.status(*client.path("/0"), (p.OP_READDIR, args)) == p.NFS4ERR_BAD_COOKIE

    with_client(tmp_path, 1, test)


@pytest.mark.parametrize("minor", MINORS)
def test_every_advertised_attribute_can_be_read(tmp_path, minor):
    async def test(client, export, server):
        (export / "file").touch()
        for path in ("/", "/0", "/0/file"):
            *_, result = await client.run(*client.path(path), (p.OP_GETATTR, wanted(p.FATTR4_SUPPORTED_ATTRS)))
            d = values(result.resok4.obj_attributes)
            words = [d.uint32() for _ in range(d.uint32())]
            set_only = [p.FATTR4_TIME_ACCESS_SET, p.FATTR4_TIME_MODIFY_SET, p.FATTR4_MODE_SET_MASKED]
            for number in (*set_only, p.FATTR4_TIME_DELEG_ACCESS, p.FATTR4_TIME_DELEG_MODIFY):
                if number // 32 < len(words):
                    words[number // 32] &= ~(1 << number % 32)
            *_, result = await client.run(*client.path(path), (p.OP_GETATTR, p.GETATTR4args(words)))
            d = values(result.resok4.obj_attributes)
            answered = list(result.resok4.obj_attributes.attrmask)
            if minor == 2:
                words[p.FATTR4_MODE_UMASK // 32] &= ~(1 << p.FATTR4_MODE_UMASK % 32)
            while words and not words[-1]:
                words.pop()
            assert answered == words
            for number in range(32 * len(words)):
                if words[number // 32] >> number % 32 & 1:
                    d.decode(p.ATTRIBUTE_TYPES[number])
            d.finish(strict=True)

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_setattr_sets_size_mode_and_times(tmp_path, minor):
    async def test(client, export, server):
        (export / "file").write_bytes(b"0123456789")
        *_, handle = await client.run(*client.path("/0/file"), p.OP_GETFH)
        handle = handle.resok4.object
        [result] = await client.on(handle, (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o600, size=4))))
        assert result.status == 0
        assert (export / "file").read_bytes() == b"0123"
        assert (export / "file").stat().st_mode & 0o7777 == 0o600
        size = p.fattr4([1 << p.FATTR4_SIZE], (1 << 45).to_bytes(8, "big"))
        status = await client.status(
            (p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, size))
        )
        assert status in (p.NFS4_OK, p.NFS4ERR_FBIG)
        owner = p.fattr4([0, 1 << p.FATTR4_OWNER - 32], (5).to_bytes(4, "big") + b"alice\0\0\0")
        bad = await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, owner)))
        assert bad == p.NFS4ERR_BADOWNER

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_exclusive_create_is_recognised_when_repeated(tmp_path, minor):
    kind = p.createmode4.EXCLUSIVE4_1 if minor else p.createmode4.EXCLUSIVE4

    def how(verifier):
        if minor:
            return p.createhow4(kind, ch_createboth=p.creatverfattr(verifier, mode(0o600)))
        return p.createhow4(kind, createverf=verifier)

    async def test(client, export, server):
        _, handle = await client.open("/0", b"once", how=how(b"verifier"))
        _, again = await client.open("/0", b"once", how=how(b"verifier"))
        assert again == handle
        with pytest.raises(Failed) as refused:
            await client.open("/0", b"once", how=how(b"VERIFIER"))
        assert refused.value.status == p.NFS4ERR_EXIST

    with_client(tmp_path, minor, test)


def test_guarded_and_unchecked_creates(tmp_path):
    async def test(client, export, server):
        (export / "there").write_bytes(b"old content")
        guarded = p.createhow4(p.createmode4.GUARDED4, createattrs=mode(0o600))
        with pytest.raises(Failed) as refused:
            await client.open("/0", b"there", how=guarded)
        assert refused.value.status == p.NFS4ERR_EXIST
        await client.open("/0", b"there", create=mode(0o600))
        assert (export / "there").read_bytes() == b"old content"
        await client.open("/0", b"there", create=mode(0o600, size=0))
        assert (export / "there").read_bytes() == b""
        assert (export / "there").stat().st_mode & 0o7777 != 0o600, "an existing file keeps its mode"

    with_client(tmp_path, 1, test)


def test_a_share_deny_refuses_opens_and_protects_from_truncation(tmp_path):
    async def test(client, export, server):
        (export / "file").write_bytes(b"precious")
        other = await Client4(server, 1, name=b"other").connect()
        await client.open("/0", b"file", access=1, deny=2)
        for how in ({"access": 2}, {"access": 3, "create": mode(0o644, size=0)}):
            with pytest.raises(Failed) as refused:
                await other.open("/0", b"file", **how)
            assert refused.value.status == p.NFS4ERR_SHARE_DENIED
        assert (export / "file").read_bytes() == b"precious"
        await other.open("/0", b"file", access=1)

    with_client(tmp_path, 1, test)


@pytest.mark.parametrize("minor", MINORS)
def test_locks_exclude_other_clients_and_local_processes(tmp_path, minor):
    import fcntl

    async def lock(client, handle, stateid, offset, length, owner=b"lock owner"):
        new = p.open_to_lock_owner4(
            0 if client.minor else client.seqid(b"owner"), stateid, 0, p.lock_owner4(client.clientid, owner)
        )
        args = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, offset, length, p.locker4(True, open_owner=new))
        return await client.on(handle, (p.OP_LOCK, args))

    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"file", create=mode(0o666))
        other = await Client4(server, minor, name=b"other").connect()
        others, _ = await other.open("/0", b"file")
        [locked] = await lock(client, handle, stateid, 0, 10)
        with pytest.raises(Failed) as refused:
            await lock(other, handle, others, 5, 10)
        assert refused.value.status == p.NFS4ERR_DENIED
        denied = refused.value.results[-1][1].denied
        assert (denied.offset, denied.length, denied.owner.owner) == (0, 10, b"lock owner")
        with open(export / "file", "r+b") as local:
            with pytest.raises(BlockingIOError):
                fcntl.lockf(local, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            fcntl.lockf(local, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)
            test_ = p.LOCKT4args(p.nfs_lock_type4.WRITE_LT, 105, 1, p.lock_owner4(client.clientid, b"lock owner"))
            with pytest.raises(Failed) as refused:
                await client.on(handle, (p.OP_LOCKT, test_))
            assert refused.value.status == p.NFS4ERR_DENIED
        seqid = 0 if minor else 1
        unlock = p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, seqid, locked.resok4.lock_stateid, 0, 10)
        await client.on(handle, (p.OP_LOCKU, unlock))
        with open(export / "file", "r+b") as local:
            fcntl.lockf(local, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
            fcntl.lockf(local, fcntl.LOCK_UN, 10, 0)
        await lock(other, handle, others, 5, 10)

    with_client(tmp_path, minor, test)


def test_a_retransmitted_compound_is_answered_from_its_slot(tmp_path):
    async def test(client, export, server):
        make = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"dir", mode(0o755))
        message = client.message(*client.in_session(*client.path("/0"), (p.OP_CREATE, make), cache=True))
        first = await server.call(client.transport, message)
        elsewhere = LoopbackTransport()
        again = await server.call(elsewhere, message)
        assert again == first
        assert client.parse(again)[0] == 0

    with_client(tmp_path, 1, test)


@pytest.mark.parametrize("minor", MINORS)
def test_illegal_unsupported_and_misplaced_operations(tmp_path, minor):
    async def test(client, export, server):
        status, results = await client.raw(*client.in_session(*client.path("/"), 2))
        assert status == p.NFS4ERR_OP_ILLEGAL
        assert results[-1][0] == p.OP_ILLEGAL
        assert await client.status(p.OP_GETFH) == p.NFS4ERR_NOFILEHANDLE
        assert await client.status(p.OP_PUTROOTFH, (p.OP_OPENATTR, p.OPENATTR4args(False))) == p.NFS4ERR_NOTSUPP
        if minor:
            assert (await client.raw(p.OP_PUTROOTFH))[0] == p.NFS4ERR_OP_NOT_IN_SESSION
            renew = (p.OP_RENEW, p.RENEW4args(0))
            assert await client.status(renew) == p.NFS4ERR_NOTSUPP

    with_client(tmp_path, minor, test)


def test_an_unknown_minor_version_is_refused(tmp_path):
    async def test(client, export, server):
        client.minor = 3
        status, results = await client.raw(p.OP_PUTROOTFH)
        assert (status, results) == (p.NFS4ERR_MINOR_VERS_MISMATCH, [])

    with_client(tmp_path, 1, test)


def test_a_client_that_is_not_admitted_sees_nothing(tmp_path):
    async def test(client, export, server):
        (export / "file").touch()
        *_, handle = await client.run(*client.path("/0/file"), p.OP_GETFH)
        stranger = Client4(server, 1, name=b"stranger", transport=LoopbackTransport("192.0.2.7"))
        await stranger.connect()
        assert await list_names(stranger, "/") == []
        assert await stranger.status(*stranger.path("/0")) == p.NFS4ERR_NOENT
        stolen = (p.OP_PUTFH, p.PUTFH4args(handle.resok4.object))
        assert await stranger.status(stolen, p.OP_GETFH) == p.NFS4ERR_ACCESS

    with_client(tmp_path, 1, test, clients=("127.0.0.1",))


def test_a_read_only_export_refuses_changes(tmp_path):
    async def test(client, export, server):
        (export / "file").write_bytes(b"x")
        for operations in (
            ((p.OP_REMOVE, p.REMOVE4args(b"file")),),
            ((p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d", mode(0o755))),),
            ((p.OP_OPEN, client.open_args(b"new", create=mode(0o644))),),
            ((p.OP_OPEN, client.open_args(b"file", access=2)),),
        ):
            assert await client.status(*client.path("/0"), *operations) == p.NFS4ERR_ROFS
        await client.open("/0", b"file", access=1)

    with_client(tmp_path, 1, test, read_only=True)
