"""CREATE, REMOVE, RENAME and LINK are carried out natively whatever they need: devices, ACLs, recalls, slow disks."""

import asyncio
import errno
import os
import stat
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.vfs import mounts
from nfsd.vfs.posix_acl import ACCESS_NAME
from tests.support.delegations import WRITE, holder, until
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import BothRdma, handle_of, run
from tests.unit import vfs_support
from tests.unit.nfs4_names_support import OK, confirmed, fattr, link, making, mkdir, rename, symlink
from tests.unit.test_nfs3_native_shortage import one_descriptor_left
from tests.unit.test_nfs4_native import on, putfh
from tests.unit.test_nfs4_native_changes import directories, mode, remove
from tests.unit.test_nfs4_native_opens import next_seqid

TYPES = p.nfs_ftype4
OURS = {p.OP_CREATE, p.OP_REMOVE, p.OP_RENAME, p.OP_LINK}
READERS = struct.pack(">IIIII4s", 1, p.ACE4_ACCESS_ALLOWED_ACE_TYPE, 0, p.ACE4_READ_DATA, 4, b"1001")


@pytest.fixture(params=["memory", "disk", "slow"])
def kind(request, monkeypatch):
    """In memory, on a disk, on a file system where every look at a file may wait."""
    if request.param == "slow":
        monkeypatch.setattr(mounts, "_CACHING", frozenset())
        return "disk"
    return request.param


@pytest.fixture
def way(kind, tmp_path, minor, done_in_python):
    """Run a scenario with ``ask``, which sees that Python carries out nothing of ours."""

    def go(scenario, **options):
        async def whole(both):
            async def ask(*operations, caller=(0, 0)):
                done_in_python.clear()
                reply = await both.native.call(None, both.message(0, *operations, caller=caller))
                assert not OURS & set(done_in_python)
                status, results = Client4.parse(reply)
                return status, [result for number, result in results if number in OURS]

            await scenario(both, ask)

        on(kind, tmp_path, minor, whole, **options)

    return go


def creating(name, kind, values, **of):
    return (p.OP_CREATE, p.CREATE4args(p.createtype4(kind, **of), name, fattr(values)))


def moved(info):
    return (info.atomic, info.after != info.before)


def test_devices_and_the_like(way):
    async def scenario(both, ask):
        one, _ = await directories(both)
        device = p.specdata4(3, 7)
        for name, kind, made, of in (
            (b"blk", TYPES.NF4BLK, stat.S_IFBLK, {"devdata": device}),
            (b"chr", TYPES.NF4CHR, stat.S_IFCHR, {"devdata": device}),
            (b"sock", TYPES.NF4SOCK, stat.S_IFSOCK, {}),
            (b"fifo", TYPES.NF4FIFO, stat.S_IFIFO, {}),
        ):
            status, (result,) = await ask(putfh(one), creating(name, kind, {33: mode(0o640)}, **of), p.OP_GETFH)
            assert (status, moved(result.resok4.cinfo)) == (OK, (True, True))
            assert result.resok4.attrset == [0, 2]
            there = os.lstat(both.path / "one" / os.fsdecode(name))
            assert there.st_mode == made | 0o640
            assert there.st_rdev == (os.makedev(3, 7) if of else 0)
            assert (await ask(putfh(one), creating(name, kind, {}, **of)))[0] == p.NFS4ERR_EXIST
        for kind in (TYPES.NF4REG, TYPES.NF4ATTRDIR, 0, 77):
            assert (await ask(putfh(one), creating(b"bad", kind, {})))[0] == p.NFS4ERR_BADTYPE
        far = creating(b"far", TYPES.NF4BLK, {}, devdata=p.specdata4(1 << 20, 1))
        assert (await ask(putfh(one), far))[0] == p.NFS4ERR_INVAL

    way(scenario)


def test_the_current_file_is_what_was_made(way):
    async def scenario(both, ask):
        one, _ = await directories(both)
        wanted = (p.OP_GETATTR, p.GETATTR4args([1 << 1, 1 << 1]))
        for number, make in enumerate(
            (mkdir, lambda name, values: creating(name, TYPES.NF4FIFO, values), lambda *of: symlink(of[0], b"x", of[1]))
        ):
            reply = await both.native.call(
                None, both.message(0, putfh(one), make(b"%d" % number, {33: mode(0o700)}), p.OP_GETFH, wanted)
            )
            status, results = Client4.parse(reply)
            assert status == OK
            handle = results[-2][1].resok4.object
            assert handle == await handle_of(both, b"one/%d" % number)

    way(scenario)


def test_attributes_that_native_code_does_not_know(way):
    async def scenario(both, ask):
        one, _ = await directories(both)
        path = both.path / "one"
        bits = p.FATTR4_ACL, p.FATTR4_MODE
        status, (result,) = await ask(putfh(one), mkdir(b"acl", {bits[0]: READERS, bits[1]: mode(0o700)}))
        if status == OK:
            assert result.resok4.attrset == [1 << p.FATTR4_ACL, 2]
            assert os.getxattr(path / "acl", ACCESS_NAME)
        else:
            assert status == p.NFS4ERR_ATTRNOTSUPP
            assert not (path / "acl").exists()
        for values, status in (
            ({36: struct.pack(">I4s", 4, b"no@x")}, p.NFS4ERR_BADOWNER),
            ({33: mode(0o10755)}, p.NFS4ERR_INVAL),
            ({1: struct.pack(">I", 1)}, p.NFS4ERR_INVAL),
            ({33: b"\0\0\1"}, p.NFS4ERR_BADXDR),
            ({4: bytes(8), 33: mode(0o750)}, OK),
            ({200: b""}, p.NFS4ERR_ATTRNOTSUPP),
        ):
            assert (await ask(putfh(one), mkdir(b"new", values)))[0] == status, values
        assert os.stat(path / "new").st_mode & 0o777 == 0o750
        refused = await ask(putfh(one), symlink(b"link", b"x", {p.FATTR4_ACL: READERS}))
        assert refused[0] == p.NFS4ERR_ATTRNOTSUPP
        assert sorted(set(os.listdir(path)) - {"acl"}) == ["new"]

    way(scenario)


def test_names_too_long_and_texts(way):
    async def scenario(both, ask):
        one, _ = await directories(both)
        long = b"x" * 256
        file = both.path / "one" / "a"
        file.touch()
        handle = await handle_of(both, b"one/a")
        for operations in (
            [mkdir(long, {})],
            [symlink(long, b"x", {})],
            [remove(long)],
            [p.OP_SAVEFH, rename(long, b"x")],
            [p.OP_SAVEFH, rename(b"a", b"x" * 60000)],
            [symlink(b"new", b"x" * 4096, {})],
            [symlink(b"new", b"x" * 60000, {})],
        ):
            assert (await ask(putfh(one), *operations))[0] == p.NFS4ERR_NAMETOOLONG
        assert (await ask(putfh(handle), p.OP_SAVEFH, putfh(one), link(long)))[0] == p.NFS4ERR_NAMETOOLONG
        for text in (b"", b"a\0b"):
            assert (await ask(putfh(one), symlink(b"new", text, {})))[0] == p.NFS4ERR_INVAL
        assert os.listdir(both.path / "one") == ["a"]

    way(scenario)


def test_changes_of_each_kind(way):
    async def scenario(both, ask):
        one, two = await directories(both)
        (both.path / "one" / "a").write_bytes(b"a")
        (both.path / "one" / "b").write_bytes(b"b")
        (both.path / "one" / "sub").mkdir()
        file = await handle_of(both, b"one/a")
        status, (result,) = await ask(putfh(file), p.OP_SAVEFH, putfh(two), link(b"further"))
        assert (status, moved(result.resok4.cinfo)) == (OK, (True, True))
        status, (result,) = await ask(putfh(one), p.OP_SAVEFH, putfh(two), rename(b"b", b"moved"))
        assert (status, moved(result.resok4.source_cinfo), moved(result.resok4.target_cinfo)) == (
            OK, (True, True), (True, True),
        )  # fmt: skip
        assert (await ask(putfh(two), p.OP_SAVEFH, rename(b"moved", b"further")))[0] == OK
        assert (await ask(putfh(one), p.OP_SAVEFH, rename(b"a", b"sub")))[0] == p.NFS4ERR_EXIST
        for name in (b"a", b"sub"):
            status, (result,) = await ask(putfh(one), remove(name))
            assert (status, moved(result.resok4.cinfo)) == (OK, (True, True))
        assert os.listdir(both.path / "one") == []
        assert (both.path / "two" / "further").read_bytes() == b"b"
        assert os.listdir(both.path / "two") == ["further"]
        assert (await ask(putfh(one), p.OP_SAVEFH, rename(b"a", b"sub")))[0] == p.NFS4ERR_NOENT

    way(scenario)


def test_a_directory_that_is_gone(way):
    async def scenario(both, ask):
        one, _ = await directories(both)
        os.rmdir(both.path / "one")
        moving = [p.OP_GETFH, p.OP_SAVEFH, rename(b"x", b"y")]
        for operations in ([mkdir(b"x", {})], [symlink(b"x", b"x", {})], [remove(b"x")], moving):
            assert (await ask(putfh(one), *operations))[0] == p.NFS4ERR_STALE

    way(scenario)


def test_what_is_cut_short(way, done_in_python):
    """The peer's arguments end before what they promise: that operation's BADXDR, and nothing is done."""

    async def scenario(both, ask):
        one, _ = await directories(both)
        (both.path / "one" / "a").touch()
        done_in_python.clear()
        device = creating(b"x", TYPES.NF4BLK, {}, devdata=p.specdata4(1, 1))
        for operation in (mkdir(b"new", {33: mode(0o700)}), symlink(b"new", b"text", {}), remove(b"aaaa"), device):
            for short in (4, 8):
                message = both.message(0, putfh(one), operation)[:-short]
                assert Client4.parse(await both.native.call(None, message))[0] == p.NFS4ERR_BADXDR
                assert not OURS & set(done_in_python)
        assert os.listdir(both.path / "one") == ["a"]

    way(scenario)


@pytest.mark.parametrize("what", ["remove", "rename", "replace", "link"])
def test_a_delegation_comes_back_first(way, what, minor):
    """RFC 8881 section 10.4.1: whoever has a delegation relies on the names, too."""

    async def scenario(both, ask):
        one, _ = await directories(both)
        root = await handle_of(both)
        (both.path / "a").write_bytes(b"a")
        (both.path / "a").chmod(0o666)
        (both.path / "b").write_bytes(b"b")
        other = await holder(both.server, minor or 1)
        opened = await other.opening(b"a", WRITE)
        assert opened.delegation.delegation_type == p.open_delegation_type4.OPEN_DELEGATE_WRITE
        operations = {
            "remove": [putfh(root), remove(b"a")],
            "rename": [putfh(root), p.OP_SAVEFH, putfh(one), rename(b"a", b"x")],
            "replace": [putfh(root), p.OP_SAVEFH, rename(b"b", b"a")],
            "link": [putfh(other.handles[b"a"]), p.OP_SAVEFH, putfh(one), link(b"x")],
        }[what]
        other.end.keep = True
        assert (await ask(*operations))[0] == p.NFS4ERR_DELAY
        assert other.end.recalls == 1
        assert (both.path / "a").read_bytes() == b"a"
        other.end.keep = False
        await other.give_back(opened.delegation.write.stateid, other.handles[b"a"])
        status, _ = await ask(*operations)
        assert status == OK
        assert both.server.engine.delegations.count == 0

    way(scenario, limits=Limits(grace=0))


def test_nothing_is_changed_when_it_is_not_known_what_is_delegated(way, monkeypatch):
    """A shortage may be over before the change."""

    async def scenario(both, ask):
        root = await handle_of(both)
        (both.path / "a").write_bytes(b"a")
        (both.path / "a").chmod(0o666)
        (both.path / "b").write_bytes(b"b")
        other = await holder(both.server, 1)
        await other.opening(b"a", WRITE)

        async def short(*_):
            raise OSError(errno.EMFILE, "no descriptors")

        monkeypatch.setattr(both.server.service, "lookup", short)
        for operations in ([remove(b"a")], [p.OP_SAVEFH, rename(b"b", b"a")]):
            assert (await ask(putfh(root), *operations))[0] == p.NFS4ERR_DELAY
        assert (both.path / "a").read_bytes() == b"a"

    way(scenario, limits=Limits(grace=0))


def test_what_the_service_fails_with_is_a_server_fault(way, monkeypatch):
    """It is the operation's, and the connection lives on."""

    async def scenario(both, ask):
        one, _ = await directories(both)

        async def broken(*_):
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(both.server.service, "mknod", broken)
            assert (await ask(putfh(one), creating(b"x", TYPES.NF4FIFO, {})))[0] == p.NFS4ERR_SERVERFAULT
        assert (await ask(putfh(one), creating(b"x", TYPES.NF4FIFO, {})))[0] == OK

    way(scenario)


def test_a_read_only_export(way):
    async def scenario(both, ask):
        (both.path / "a").touch()
        root, file = await handle_of(both), await handle_of(both, b"a")
        for operations in (
            [putfh(root), mkdir(b"x", {})],
            [putfh(root), creating(b"x", TYPES.NF4FIFO, {})],
            [putfh(root), remove(b"a")],
            [putfh(root), p.OP_SAVEFH, rename(b"a", b"x")],
            [putfh(file), p.OP_SAVEFH, putfh(root), link(b"x")],
        ):
            assert (await ask(*operations))[0] == p.NFS4ERR_ROFS
        assert os.listdir(both.path) == ["a"]

    way(scenario, read_only=True)


def test_a_shortage_of_descriptors_leaves_nothing_behind(tmp_path, minor, done_in_python):
    async def scenario(both):
        one, _ = await directories(both)
        await both.native.call(None, both.message(0, putfh(one), remove(b"x")))
        with one_descriptor_left():
            spare = os.dup(0)
            done_in_python.clear()
            reply = await both.native.call(None, both.message(0, putfh(one), creating(b"x", TYPES.NF4FIFO, {})))
            os.close(spare)
        assert not OURS & set(done_in_python)
        made = (both.path / "one" / "x").exists()
        assert Client4.parse(reply)[0] == (OK if made else p.NFS4ERR_DELAY)

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize("how", [p.createmode4.UNCHECKED4, p.createmode4.GUARDED4])
def test_an_open_short_of_descriptors_makes_no_file(tmp_path, minor, how):
    """A new file needs two descriptors, of which there is one: the client is to come again, and makes the file then."""

    async def scenario(both):
        one, _ = await directories(both)
        await confirmed(both)
        with one_descriptor_left():
            seqid = 0 if minor else next_seqid(both, b"owner")
            reply = await both.native.call(None, both.message(0, putfh(one), making(both, b"x", how, seqid=seqid)))
        made = (both.path / "one" / "x").exists()
        assert (Client4.parse(reply)[0], made) in ((OK, True), (p.NFS4ERR_DELAY, False))
        if not made:
            seqid = 0 if minor else next_seqid(both, b"owner")
            reply = await both.native.call(None, both.message(0, putfh(one), making(both, b"x", how, seqid=seqid)))
            assert Client4.parse(reply)[0] == OK

    on("memory", tmp_path, minor, scenario)


def test_a_retransmission_joins_an_errand(tmp_path, done_in_python):
    """NFSv4.1: while an errand is under way its slot is in use; afterwards the slot has its reply, made once."""

    async def scenario(both):
        one, _ = await directories(both)
        gate, begun = asyncio.Event(), []
        original = both.server.service.mknod
        done_in_python.clear()

        async def slowly(*of):
            begun.append(of)
            await gate.wait()
            return await original(*of)

        both.server.service.mknod = slowly
        message = both.message(0, putfh(one), creating(b"x", TYPES.NF4FIFO, {}), cache=True)
        both.native.send(message)
        await until(lambda: begun)
        both.native.send(message)
        again = await both.native.reply()
        assert Client4.parse(again)[0] == p.NFS4ERR_DELAY
        gate.set()
        reply = await both.native.reply()
        assert Client4.parse(reply)[0] == OK
        assert Client4.parse(await both.native.call(None, message)) == Client4.parse(reply)
        assert len(begun) == 1
        assert not OURS & set(done_in_python)

    on("memory", tmp_path, 1, scenario)


@pytest.mark.parametrize("length", [8, 5, 4000])
def test_the_text_of_a_link_may_come_in_a_read_chunk(tmp_path, minor, length, done_in_python):
    """RFC 8267 section 5: linkdata is DDP-eligible."""

    async def scenario(both):
        root = await handle_of(both)
        text = (b"t%d-" % length * 1000)[:length]
        done_in_python.clear()
        outcome = await both.call(0, 0, putfh(root), symlink(b"link", text, {33: mode(0o777)}), p.OP_GETFH, data=text)
        assert struct.unpack(">I", outcome[4][20:24]) == (OK,)
        assert not OURS & set(done_in_python)
        assert os.readlink(both.path / "link") == text.decode()

    with vfs_support.directory_on("disk", tmp_path) as path:
        run(path, tmp_path, minor, scenario, BothRdma)
