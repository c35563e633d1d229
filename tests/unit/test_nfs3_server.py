"""NFSv3 and MOUNT from socket to disk: the TCP server, the dispatcher, the procedures and the real file service."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from nfsd.protocol.nfs3 import (
    NFS_PROGRAM,
    PROCEDURES,
    ACCESS3args,
    COMMIT3args,
    CREATE3args,
    FSINFOargs,
    FSSTAT3args,
    GETATTR3args,
    LINK3args,
    LOOKUP3args,
    MKDIR3args,
    MKNOD3args,
    PATHCONF3args,
    READ3args,
    READDIR3args,
    READDIRPLUS3args,
    READLINK3args,
    REMOVE3args,
    RENAME3args,
    RMDIR3args,
    SETATTR3args,
    SYMLINK3args,
    WRITE3args,
    createhow3,
    createmode3,
    diropargs3,
    ftype3,
    mknoddata3,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    set_mtime,
    stable_how,
    symlinkdata3,
    time_how,
)
from rpcrdma.rpc.messages import accept_stat, rpc_msg
from rpcrdma.xdr import Decoder, pack
from tests.nfs3_client import Nfs3Client, Nfs3Failure, RpcFailure, attributes, auth_sys
from tests.support.nfs3_server import OWNER, serving


def served(test: Callable[[Nfs3Client, Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test against a server of a fresh directory."""

    def run(tmp_path: Path) -> None:
        async def main() -> None:
            async with serving(tmp_path) as (client, directory):
                await test(client, directory)

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def status_of(client: Nfs3Client, name: str, arguments: object) -> nfsstat3:
    status: nfsstat3 = (await client.nfs(name, arguments)).status
    return status


@served
async def test_a_files_whole_life(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    made = await client.create(root, b"file", 0o640)
    data = os.urandom(300_001)
    written = await client.write(made, 0, data[:200_000])
    assert (written.count, written.file_wcc.after.size) == (200_000, 200_000)
    again = await client.write(made, 200_000, data[200_000:])
    committed = await client.commit(made)
    assert written.verf == again.verf == committed.verf
    assert (directory / "file").read_bytes() == data
    first = await client.read(made, 0, 200_000)
    assert (bytes(first.data), first.eof) == (data[:200_000], False)
    rest = await client.read(made, 200_000, 200_000)
    assert (bytes(rest.data), rest.eof) == (data[200_000:], True)
    await client.rename(root, b"file", root, b"renamed")
    assert (await client.lookup(root, b"renamed")).data == made.data
    assert stat.S_IMODE((directory / "renamed").stat().st_mode) == 0o640
    await client.remove(root, b"renamed")
    assert os.listdir(directory) == []
    # Linux tells ENOMEM of a handle whose inode it is just freeing.
    while (status := await status_of(client, "GETATTR", GETATTR3args(made))) == nfsstat3.NFS3ERR_JUKEBOX:
        pass
    assert status == nfsstat3.NFS3ERR_STALE


@served
async def test_a_directory_of_5000_entries_is_listed_whole(client: Nfs3Client, directory: Path) -> None:
    names = [b"entry %05d" % number for number in range(5000)]
    for name in names:
        os.close(os.open(os.fsencode(directory) + b"/" + name, os.O_CREAT | os.O_WRONLY, 0o600))
    root = await client.mount("/export")
    entries = await client.listing(root)
    assert sorted(entry.name for entry in entries) == [b".", b"..", *names]
    assert len({entry.cookie for entry in entries}) == 5002
    by_name = {entry.name: entry for entry in entries}
    inode = (directory / "entry 01234").stat().st_ino
    found = by_name[b"entry 01234"]
    assert found.fileid == found.name_attributes.fileid == inode
    assert (await client.lookup(root, b"entry 01234")) == found.name_handle
    assert by_name[b".."].fileid == by_name[b"."].fileid  # nothing above the root is shown


@served
async def test_a_directory_that_shrinks_while_it_is_listed(client: Nfs3Client, directory: Path) -> None:
    """As `rm -r` does it: what is removed behind the cookie neither repeats nor hides other entries."""
    for number in range(1000):
        (directory / f"{number}").touch()
    root = await client.mount("/export")
    seen: list[bytes] = []
    cookie, verifier = 0, bytes(8)
    while True:
        resok = (await client.nfs("READDIR", READDIR3args(root, cookie, verifier, 2048))).resok
        for entry in resok.reply.entries:
            if entry.name not in (b".", b".."):
                seen.append(entry.name)
                await client.remove(root, entry.name)
        if resok.reply.eof:
            break
        cookie, verifier = resok.reply.entries[-1].cookie, resok.cookieverf
    assert sorted(seen) == sorted(b"%d" % number for number in range(1000))
    assert os.listdir(directory) == []


@served
async def test_cookies_are_checked(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    for name, arguments in (
        ("READDIR", READDIR3args(root, 1, bytes(8), 4096)),
        ("READDIRPLUS", READDIRPLUS3args(root, 2, bytes(8), 4096, 4096)),
    ):
        assert await status_of(client, name, arguments) == nfsstat3.NFS3ERR_BAD_COOKIE


@served
async def test_names_and_links_of_every_kind(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    odd = b"\xff\xfe caf\xe9\n"
    inner = await client.mkdir(root, odd)
    file = await client.create(inner, odd)
    data = symlinkdata3(attributes(), memoryview(b"../" + odd))
    link = (await client.nfs("SYMLINK", SYMLINK3args(diropargs3(root, b"link"), data))).resok
    assert link.obj_attributes.type == ftype3.NF3LNK
    assert bytes((await client.nfs("READLINK", READLINK3args(link.obj))).resok.data) == b"../" + odd
    fifo = mknoddata3(ftype3.NF3FIFO, pipe_attributes=attributes(mode=0o622))
    made = (await client.nfs("MKNOD", MKNOD3args(diropargs3(root, b"fifo"), fifo))).resok
    assert made.obj_attributes.type == ftype3.NF3FIFO
    linked = (await client.nfs("LINK", LINK3args(file, diropargs3(root, b"second")))).resok
    assert linked.file_attributes.nlink == 2
    assert (directory / "second").stat().st_nlink == 2
    assert (await client.lookup(inner, b"..")).data == root.data
    assert (await client.lookup(root, b"..")).data == root.data
    with pytest.raises(Nfs3Failure) as refused:
        await client.rmdir(root, odd)
    assert refused.value.status == nfsstat3.NFS3ERR_NOTEMPTY
    await client.remove(inner, odd)
    await client.rmdir(root, odd)
    assert sorted(os.listdir(directory)) == ["fifo", "link", "second"]
    for handle in (root, link.obj, made.obj):
        assert await status_of(client, "READ", READ3args(handle, 0, 1)) == nfsstat3.NFS3ERR_INVAL
        assert await status_of(client, "COMMIT", COMMIT3args(handle, 0, 0)) == nfsstat3.NFS3ERR_INVAL


@served
async def test_exclusive_create_is_idempotent_for_its_verifier(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")

    def exclusive(verifier: bytes) -> CREATE3args:
        return CREATE3args(diropargs3(root, b"file"), createhow3(createmode3.EXCLUSIVE, verf=verifier))

    first = (await client.nfs("CREATE", exclusive(b"\xff234567\x80"))).resok
    again = (await client.nfs("CREATE", exclusive(b"\xff234567\x80"))).resok
    assert first.obj == again.obj
    assert await status_of(client, "CREATE", exclusive(b"otherone")) == nfsstat3.NFS3ERR_EXIST
    wanted = attributes(mode=0o644, mtime=set_mtime(time_how.SET_TO_SERVER_TIME))
    assert await status_of(client, "SETATTR", SETATTR3args(first.obj, wanted, None)) == nfsstat3.NFS3_OK
    assert (directory / "file").stat().st_mode & 0o777 == 0o644


@served
async def test_attributes_are_set_guarded_and_told(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    file = await client.create(root, b"file")
    ctime = (await client.getattr(file)).ctime
    wrong = nfstime3(ctime.seconds, (ctime.nseconds + 1) % 1_000_000_000)
    wanted = attributes(mode=0o600, size=1 << 44, mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(7, 8)))
    assert await status_of(client, "SETATTR", SETATTR3args(file, wanted, wrong)) == nfsstat3.NFS3ERR_NOT_SYNC
    assert (directory / "file").stat().st_size == 0
    resok = (await client.nfs("SETATTR", SETATTR3args(file, attributes(mode=0o600), ctime))).resok
    assert resok.obj_wcc.before.ctime == ctime
    wanted.size = 1 << 40
    after = (await client.nfs("SETATTR", SETATTR3args(file, wanted, None))).resok.obj_wcc.after
    assert (after.mode, after.size, after.mtime, after.used) == (0o600, 1 << 40, nfstime3(7, 8), 0)
    assert (directory / "file").stat().st_mtime_ns == 7_000_000_008


@served
async def test_data_far_out_in_a_sparse_file(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    file = await client.create(root, b"sparse")
    end = 1 << 40
    await client.write(file, end, b"end", stable_how.FILE_SYNC)
    assert (await client.getattr(file)).size == end + 3
    found = await client.read(file, end - 5, 100)
    assert (bytes(found.data), found.eof) == (bytes(5) + b"end", True)
    past = await client.read(file, (1 << 64) - 1, 100)
    assert (past.count, past.eof) == (0, True)


@served
async def test_transfers_of_a_mebibyte_both_ways_and_several_at_a_time(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    file = await client.create(root, b"big")
    size, pieces = 1 << 20, 8
    data = os.urandom(size * pieces)
    await asyncio.gather(*[client.write(file, at, data[at : at + size]) for at in range(0, len(data), size)])
    await client.commit(file)
    found = await asyncio.gather(*[client.read(file, at, size) for at in range(0, len(data), size)])
    assert b"".join(bytes(piece.data) for piece in found) == data
    assert [piece.eof for piece in found] == [False] * (pieces - 1) + [True]


@served
async def test_the_truth_about_the_file_system(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    space = os.statvfs(directory)
    stats = (await client.nfs("FSSTAT", FSSTAT3args(root))).resok
    assert (stats.tbytes, stats.tfiles) == (space.f_blocks * space.f_frsize, space.f_files)
    assert stats.abytes <= stats.fbytes <= stats.tbytes
    info = (await client.nfs("FSINFO", FSINFOargs(root))).resok
    assert (info.rtmax, info.wtmax) == (1 << 20, 1 << 20)
    assert info.maxfilesize >= 1 << 40
    names = (await client.nfs("PATHCONF", PATHCONF3args(root))).resok
    assert names.name_max == os.pathconf(directory, "PC_NAME_MAX")
    assert names.linkmax == os.pathconf(directory, "PC_LINK_MAX")
    assert names.no_trunc
    long = b"n" * names.name_max
    await client.create(root, long)
    too_long = LOOKUP3args(diropargs3(root, long + b"n"))
    assert await status_of(client, "LOOKUP", too_long) == nfsstat3.NFS3ERR_NAMETOOLONG


@served
async def test_access_says_what_the_owner_may(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    assert (await client.nfs("ACCESS", ACCESS3args(root, 0x1F))).resok.access == 0x1F
    file = await client.create(root, b"file", 0o644)
    assert (await client.nfs("ACCESS", ACCESS3args(file, 0x3F))).resok.access & 0x2D == 0x0D


@served
async def test_handles_that_were_never_ours(client: Nfs3Client, directory: Path) -> None:
    root = await client.mount("/export")
    forged = bytes([*root.data[:-1], root.data[-1] ^ 1])
    for data in (forged, root.data[:-4], b"", bytes(64)):
        assert await status_of(client, "GETATTR", GETATTR3args(nfs_fh3(data))) == nfsstat3.NFS3ERR_BADHANDLE
    with pytest.raises(RpcFailure):
        await client.call(NFS_PROGRAM, 3, 1, (65).to_bytes(4, "big") + bytes(68), None)
    assert (await client.getattr(root)).type == ftype3.NF3DIR


@served
async def test_mounts_below_an_export_and_the_lists(client: Nfs3Client, directory: Path) -> None:
    (directory / "a" / "b").mkdir(parents=True)
    (directory / "out").symlink_to("/")
    root = await client.mount("/export")
    inner = await client.lookup(await client.lookup(root, b"a"), b"b")
    assert (await client.mount("/export/a/b")).data == inner.data
    assert (await client.mount(os.fsencode(directory) + b"/a/b/")).data == inner.data
    for path in ("/export/out", "/export/out/etc", "/export/../..", "/nowhere"):
        with pytest.raises(Nfs3Failure):
            await client.mount(path)
    assert await client.exports() == [(b"/export", [b"*"])]
    assert (b"127.0.0.1", b"/export/a/b") in await client.mounts()
    await client.unmount("/export/a/b")
    assert (b"127.0.0.1", b"/export/a/b") not in await client.mounts()
    await client.unmount_all()
    assert await client.mounts() == []


@served
async def test_operations_are_the_callers(client: Nfs3Client, directory: Path) -> None:
    """Where the server may act as others; where it may not, everything is its own user's, which it says at start."""
    root = await client.mount("/export")
    mine = await client.create(root, b"mine", 0o600)
    await client.write(mine, 0, b"secret")
    os.chmod(directory, 0o777)
    client.credential = auth_sys(54321, 54322, (54323,))
    theirs = await client.create(root, b"theirs", 0o444)
    # RFC 1813 section 4.4: an owner may write whatever the mode says, as a local process that had the file open could.
    await client.write(theirs, 0, b"data", stable_how.FILE_SYNC)
    owner = await client.getattr(theirs)
    statuses = [
        await status_of(client, "READ", READ3args(mine, 0, 10)),
        await status_of(client, "SETATTR", SETATTR3args(mine, attributes(mode=0o777), None)),
    ]
    granted = (await client.nfs("ACCESS", ACCESS3args(mine, 0x3F))).resok.access
    if client.acts_as_callers:
        assert (owner.uid, owner.gid) == (54321, 54322)
        assert statuses == [nfsstat3.NFS3ERR_ACCES, nfsstat3.NFS3ERR_PERM]
        assert granted == 0
    else:
        assert owner.uid == OWNER
        assert statuses == [nfsstat3.NFS3_OK, nfsstat3.NFS3_OK]


def mutated(random: Random, octets: bytes) -> bytes:
    """Octets with a few of them changed, cut off or put in."""
    changed = bytearray(octets)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = random.randbytes(random.choice((1, 4, 8)))
            case 2:
                changed[at : at + 4] = random.choice((b"\xff\xff\xff\xff", b"\x80\0\0\0", bytes(4), b"\0\0\0\1"))
            case 3 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


@served
async def test_damaged_arguments_never_reach_further_than_their_call(client: Nfs3Client, directory: Path) -> None:
    random = Random(1813)
    root = await client.mount("/export")
    file = await client.create(root, b"file", 0o666)
    where, verifier = diropargs3(root, b"file"), bytes(8)
    link = symlinkdata3(attributes(), memoryview(b"text"))
    fifo = mknoddata3(ftype3.NF3FIFO, pipe_attributes=attributes(mode=0o600))
    some = attributes(mode=0o666, size=10, mtime=set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(1, 2)))
    valid = {
        "GETATTR": GETATTR3args(file),
        "SETATTR": SETATTR3args(file, some, nfstime3(1, 2)),
        "LOOKUP": LOOKUP3args(where),
        "ACCESS": ACCESS3args(file, 0x3F),
        "READLINK": READLINK3args(file),
        "READ": READ3args(file, 0, 4096),
        "WRITE": WRITE3args(file, 0, 5, stable_how.UNSTABLE, memoryview(b"12345")),
        "CREATE": CREATE3args(where, createhow3(createmode3.UNCHECKED, obj_attributes=some)),
        "MKDIR": MKDIR3args(where, some),
        "SYMLINK": SYMLINK3args(where, link),
        "MKNOD": MKNOD3args(where, fifo),
        "REMOVE": REMOVE3args(diropargs3(root, b"none")),
        "RMDIR": RMDIR3args(diropargs3(root, b"none")),
        "RENAME": RENAME3args(where, diropargs3(root, b"file2")),
        "LINK": LINK3args(file, diropargs3(root, b"file3")),
        "READDIR": READDIR3args(root, 0, verifier, 4096),
        "READDIRPLUS": READDIRPLUS3args(root, 0, verifier, 4096, 4096),
        "FSSTAT": FSSTAT3args(root),
        "FSINFO": FSINFOargs(root),
        "PATHCONF": PATHCONF3args(root),
        "COMMIT": COMMIT3args(file, 0, 0),
    }
    assert len(valid) == 21
    outcomes: dict[accept_stat, int] = {}
    for number, types in PROCEDURES.items():
        if types.arguments is None:
            continue
        octets = pack(types.arguments, valid[types.name])
        for _ in range(40):
            reply = await client.exchange(client.encode(NFS_PROGRAM, 3, number, mutated(random, octets)))
            decoder = Decoder(reply)
            body = decoder.decode(rpc_msg).body.rbody
            assert body is not None
            assert body.areply is not None
            outcome = body.areply.reply_data.stat
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if outcome == accept_stat.SUCCESS:
                decoder.decode(types.results)
                decoder.finish(strict=True)
    assert set(outcomes) == {accept_stat.SUCCESS, accept_stat.GARBAGE_ARGS}
    assert min(outcomes.values()) > 100
    assert (await client.getattr(root)).type == ftype3.NF3DIR


def test_a_read_only_export(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "export").mkdir()
        (tmp_path / "export" / "file").write_bytes(b"data")
        async with serving(tmp_path, read_only=True) as (client, directory):
            root = await client.mount("/export")
            file = await client.lookup(root, b"file")
            assert bytes((await client.read(file, 0, 100)).data) == b"data"
            with pytest.raises(Nfs3Failure) as refused:
                await client.write(file, 0, b"x")
            assert refused.value.status == nfsstat3.NFS3ERR_ROFS
            with pytest.raises(Nfs3Failure):
                await client.create(root, b"new")
            assert os.listdir(directory) == ["file"]

    asyncio.run(main())


def test_handles_survive_a_restart_and_write_verifiers_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            root = await client.mount("/export")
            file = await client.create(root, b"file")
            first = (await client.write(file, 0, b"data")).verf
            await client.rename(root, b"file", root, b"moved")
        async with serving(tmp_path) as (client, _):
            assert bytes((await client.read(file, 0, 100)).data) == b"data"
            assert (await client.lookup(root, b"moved")).data == file.data
            assert (await client.write(file, 0, b"DATA")).verf != first

    asyncio.run(main())
