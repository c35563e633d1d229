"""Names made and removed natively: the answers, the files and the server's tables are those of the general path."""

import asyncio
import contextlib
import os
import random
import stat
import struct

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import (
    CREATE3args,
    CREATE3res,
    REMOVE3args,
    REMOVE3res,
    createhow3,
    createmode3,
    diropargs3,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    sattr3,
    set_atime,
    set_mtime,
    time_how,
)
from nfsd.vfs.service import FileService
from rpcrdma.xdr import pack, unpack
from tests.unit import vfs_support
from tests.unit.raw_tcp_support import connect_from, reset, some_host
from tests.unit.test_nfs3_native import CALLERS, LOOKUP, WRITE, Both, Delegated, handle, name, run
from tests.unit.test_vfs_mounts import command, unmounted

CREATE, REMOVE = 8, 12
OK, NOENT, EXIST, JUKEBOX = (struct.pack(">I", status) for status in (0, 2, 17, 10008))
NAMES = (b"a", b"b", b"c", b"kept", b"sub", b"link", b"x" * 255, b"x" * 256, b".", b"..", b"", b"a/b", b"a\0")

HOW = (*[createmode3.UNCHECKED] * 3, *[createmode3.GUARDED] * 3, createmode3.EXCLUSIVE)
PLAIN_MODES = (0o644, 0o600, 0o444, 0, None, 0o1777)
MODES = (*PLAIN_MODES, 0o4755, 0o2755, 0o100644)
ATTRIBUTES = (
    {"size": 9},
    {"size": 1 << 63},
    {"uid": 1002},
    {"gid": 1001},
    {"uid": 0xFFFFFFFF},
    {"times": time_how.SET_TO_SERVER_TIME},
    {"times": time_how.SET_TO_CLIENT_TIME},
    {"times": time_how.SET_TO_CLIENT_TIME, "nseconds": 2_000_000_000},
)


def sattr(mode=None, uid=None, gid=None, size=None, times=time_how.DONT_CHANGE, nseconds=0):
    time = nfstime3(1_500_000_000, nseconds) if times == time_how.SET_TO_CLIENT_TIME else None
    return sattr3(mode, uid, gid, size, set_atime(times, time), set_mtime(times, time))


def creation(directory, text, mode=0o644, how=createmode3.UNCHECKED, **attributes):
    if how == createmode3.EXCLUSIVE:
        wanted = createhow3(how, verf=b"verifier")
    else:
        wanted = createhow3(how, obj_attributes=sattr(mode, **attributes))
    return pack(CREATE3args, CREATE3args(diropargs3(nfs_fh3(directory.handle), text), wanted))


def removal(directory, text):
    return pack(REMOVE3args, REMOVE3args(diropargs3(nfs_fh3(directory.handle), text)))


async def made(both, *names):
    """Directories for anyone, known to the server and open to be synchronised. In ``two`` names are changed by the file
    service's functions."""
    nodes = []
    for each in names:
        os.mkdir(os.path.join(both.path, each), 0o777)
        os.chmod(os.path.join(both.path, each), 0o777)
        with vfs_support.where_looks_may_wait(both.root.mount) if each == "two" else contextlib.nullcontext():
            node, _ = await both.service.lookup(vfs_support.ROOT, both.root, each.encode())
        assert (await both.general.call(CREATE, creation(node, b"first")))[20:24] == OK
        assert (await both.general.call(REMOVE, removal(node, b"first")))[20:24] == OK
        nodes.append(node)
    return nodes


def status(reply):
    return reply[20:24]


def comparable(kind, reply):
    """The results without what differs between two files and two moments."""
    result = unpack(kind, reply[24 - 4 :])
    ok = result.resok
    if ok is None:
        attributes = [result.resfail.dir_wcc.after]
        assert result.resfail.dir_wcc.before is None
    elif kind is REMOVE3res:
        attributes = [ok.dir_wcc.after]
    else:
        attributes = [ok.dir_wcc.after, ok.obj_attributes]
    before = None if ok is None else ok.dir_wcc.before.size
    seen = [
        (a.type, a.mode, a.nlink, a.uid, a.gid, a.size, a.used, a.rdev, a.fsid) for a in attributes if a is not None
    ]
    return reply[4:20], result.status, before, seen


def listing(path):
    """What is in a directory."""
    found = []
    for entry in sorted(os.scandir(path), key=lambda one: one.name):
        of = entry.stat(follow_symlinks=False)
        found.append((entry.name, oct(of.st_mode), of.st_uid, of.st_gid, of.st_size, of.st_nlink))
    return found


def remembered(both, directory, text):
    """What the server's tables have of a regular file: its open files, who uses it, and whether a turn is taken."""
    path = os.path.join(both.path, directory, os.fsdecode(text))
    try:
        found = os.stat(path, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    number = found.st_ino
    for node in both.service.nodes.recent.values():
        if os.stat(f"/proc/self/fd/{node.fd}", follow_symlinks=True).st_ino == number and node.type == 1:
            opens = {key: (one.epoch == node.inode.epoch, one.count) for key, one in node.inode.opens.items()}
            return opens, node.inode.used_count, node.inode.serial.busy
    return ({}, 0, False) if stat.S_ISREG(found.st_mode) else None


def disturb(rng, both):
    """Something a local process might do, in both directories."""
    kind, text, target = rng.randrange(7), rng.choice(("a", "b", "c")), rng.choice(("a", "b", "c"))
    mode, owner = rng.choice((0o777, 0o755, 0o1777, 0o2777, 0o700, 0o555)), rng.choice(CALLERS)
    for directory in ("one", "two"):
        path = os.path.join(both.path, directory)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            match kind:
                case 0:
                    os.chmod(path, mode)
                case 1:
                    os.chown(path, *owner)
                case 2:
                    os.unlink(os.path.join(path, text))
                case 3:
                    with open(os.path.join(path, text), "ab") as file:
                        file.write(bytes(5000))
                case 4:
                    os.rename(os.path.join(path, text), os.path.join(path, target))
                case 5:
                    os.link(os.path.join(path, text), os.path.join(path, target))
                case 6:
                    os.chmod(path, 0o777)


@pytest.mark.parametrize("seed", range(4))
def test_random_creations_and_removals(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        one, two = await made(both, "one", "two")
        for path in ("one", "two"):
            os.mkdir(os.path.join(both.path, path, "sub"))
            os.symlink("nowhere", os.path.join(both.path, path, "link"))
        for step in range(400):
            if step % 6 == 0:
                disturb(rng, both)
            caller, text = rng.choice(CALLERS), rng.choice(NAMES[: rng.choice((3, 3, 3, len(NAMES)))])
            if rng.random() < 0.5:
                how = rng.choice(HOW)
                mode, more = rng.choice(PLAIN_MODES), rng.choice(({}, {}, {"size": 0}))
                if rng.random() < 0.3:
                    mode, more = rng.choice(MODES), rng.choice(ATTRIBUTES)
                arguments = [creation(node, text, mode, how, **more) for node in (one, two)]
                procedure, result = CREATE, CREATE3res
            else:
                arguments = [removal(node, text) for node in (one, two)]
                procedure, result = REMOVE, REMOVE3res
            native = await both.native.call(procedure, arguments[0], caller)
            general = await both.general.call(procedure, arguments[1], caller)
            assert comparable(result, native) == comparable(result, general)
            assert listing(os.path.join(both.path, "one")) == listing(os.path.join(both.path, "two"))
            if status(native) == EXIST:
                # Only the general path has looked at what is there.
                await both.service.lookup(vfs_support.ROOT, one, text)
            assert remembered(both, "one", text) == remembered(both, "two", text)
        return both.answered(CREATE), both.answered(REMOVE)

    counts = run(kind, tmp_path, scenario)
    assert min(counts) > 20, counts


def test_attributes_around_a_change_are_the_directorys_own(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        last, value = None, one.inode.change
        for number in range(20):
            for procedure, arguments, result in (
                (CREATE, creation(one, b"f%d" % number), CREATE3res),
                (REMOVE, removal(one, b"f%d" % (number - 1)), REMOVE3res),
            ):
                if number == 0 and procedure == REMOVE:
                    continue
                before = await both.service.attributes(one)
                reply = await both.native.call(procedure, arguments)
                wcc = unpack(result, reply[20:]).resok.dir_wcc
                after = await both.service.attributes(one)
                assert (wcc.before.size, wcc.before.mtime.nseconds) == (before.size, before.mtime.nanoseconds)
                assert (wcc.after.size, wcc.after.mtime.nseconds) == (after.size, after.mtime.nanoseconds)
                assert after.change > before.change
                last = after
        assert last is not None
        assert value is one.inode.change
        assert both.answered(CREATE) == 20
        assert both.answered(REMOVE) == 19

    run("memory", tmp_path, scenario)


def test_retransmissions_are_answered_as_before_whoever_answered_first(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        call, path = both.native.call, os.path.join(both.path, "one")
        guarded = creation(one, b"n", how=createmode3.GUARDED)
        # Natively answered; then removed, and asked for again.
        first = await call(CREATE, guarded, xid=500)
        gone = await call(REMOVE, removal(one, b"n"), xid=501)
        assert (both.answered(CREATE), both.answered(REMOVE)) == (1, 1)
        assert status(first) == status(gone) == OK
        assert await call(CREATE, guarded, xid=500) == first
        assert await call(REMOVE, removal(one, b"n"), xid=501) == gone
        assert os.listdir(path) == []
        assert (both.answered(CREATE), both.answered(REMOVE)) == (1, 1)
        # With another XID it is another call.
        assert status(await call(REMOVE, removal(one, b"n"), xid=502)) == NOENT
        # Somebody else has the turn on the directory.
        first = await vfs_support.in_turn(one, call(CREATE, guarded, xid=503))
        assert both.answered(CREATE) == 2
        assert status(first) == OK
        os.unlink(os.path.join(path, "n"))
        assert await call(CREATE, guarded, xid=503) == first
        assert os.listdir(path) == []
        assert status(await vfs_support.in_turn(one, call(REMOVE, removal(one, b"n"), xid=504))) == NOENT
        assert status(await call(CREATE, guarded, xid=505)) == OK
        assert status(await call(REMOVE, removal(one, b"n"), xid=504)) == NOENT
        assert os.listdir(path) == ["n"]
        # On another connection as well: clients reconnect, from the port they had.
        host = some_host()
        reader, writer = await connect_from(both.listeners[0].address, host, 0)
        removed = await type(both.native)(reader, writer).call(REMOVE, removal(one, b"n"), xid=506)
        answered = both.answered(REMOVE)
        port = writer.get_extra_info("sockname")[1]
        await reset(writer)
        reader, writer = await connect_from(both.listeners[0].address, host, port)
        again = type(both.native)(reader, writer)
        assert await again.call(REMOVE, removal(one, b"n"), xid=506) == removed
        assert status(removed) == OK
        assert both.answered(REMOVE) == answered
        writer.close()

    run("memory", tmp_path, scenario)


def test_an_exclusive_creation_is_found_again_by_its_verifier(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        exclusive = creation(one, b"n", how=createmode3.EXCLUSIVE)
        first = await both.native.call(CREATE, exclusive, xid=700)
        assert both.answered(CREATE) == 1
        # As when the replay cache does not know it any more: another XID.
        second = await both.native.call(CREATE, exclusive, xid=701)
        made_once = [unpack(CREATE3res, reply[20:]).resok.obj.data for reply in (first, second)]
        assert made_once[0] == made_once[1]
        assert both.answered(CREATE) == 2
        with open(os.path.join(both.path, "one", "n"), "wb") as file:
            file.write(b"data")
        assert status(await both.native.call(CREATE, exclusive, xid=702)) == EXIST

    run("memory", tmp_path, scenario)


def test_a_new_file_is_its_creators_to_write_whatever_its_mode(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        reply = await both.native.call(CREATE, creation(one, b"n", 0), (1001, 1001))
        node = unpack(CREATE3res, reply[20:]).resok.obj
        write = struct.pack(">I", len(node.data)) + node.data + bytes(-len(node.data) & 3)
        write += struct.pack(">QIII", 0, 4, 0, 4) + b"data"
        assert status(await both.native.call(WRITE, write, (1001, 1001))) == OK
        assert both.answered(WRITE) == 1
        assert status(await both.native.call(WRITE, write, (1002, 1002))) == struct.pack(">I", 13)

    run("memory", tmp_path, scenario)


@pytest.mark.parametrize("size", [0, 100, 8 << 20])
def test_a_removed_file_takes_no_space_and_no_descriptor(tmp_path, size):
    async def scenario(both):
        (one,) = await made(both, "one")
        path = os.path.join(both.path, "one", "n")
        for known in (True, False, None):
            await both.native.call(CREATE, creation(one, b"n"))
            os.truncate(path, size)
            with open(path, "r+b") as file:
                file.write(bytes(size))
            if not known:
                # Not in use any more, or nothing known of it at all.
                both.service.open_files.forget_all(both.service.nodes.recent[await handle_of(both, one, b"n")].inode)
                both.service.nodes.forget(both.service.nodes.recent[await handle_of(both, one, b"n")])
                if known is None:
                    both.service.nodes.remembered.clear()
            number = os.stat(path).st_ino
            assert status(await both.native.call(REMOVE, removal(one, b"n"))) == OK
            for _ in range(200):
                if not any(number == of for of in descriptors()):
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("it is held open")
        assert both.answered(REMOVE) == 3

    run("memory", tmp_path, scenario)


def test_a_file_removed_through_one_export_is_let_go_of_in_all(tmp_path):
    with vfs_support.directory_on("memory", tmp_path) as path:
        exports = [Export(id=number, path=path, pseudo=f"/{number}", squash="none") for number in (7, 8)]

        async def scenario():
            service = FileService(ExportTable(tuple(exports)), str(tmp_path))
            await service.start()
            roots = [await service.root(export) for export in exports]
            async with Both(service, roots[0], path) as both:
                (one,) = await made(both, "one")
                assert status(await both.native.call(CREATE, creation(one, b"n"))) == OK
                other, _ = await service.lookup(vfs_support.ROOT, roots[1], b"one")
                handles = [await handle_of(both, directory, b"n") for directory in (one, other)]
                assert [each in service.nodes.recent for each in handles] == [True, True]
                assert status(await both.native.call(REMOVE, removal(one, b"n"))) == OK
                assert both.answered(REMOVE) == 1
                assert [each in service.nodes.recent for each in handles] == [False, False]
            await service.close()

        asyncio.run(scenario())


def descriptors():
    """The inode numbers of what this process has open in file systems in memory."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/shm/"):
                yield os.fstat(int(fd)).st_ino


async def handle_of(both, directory, text):
    node, _ = await both.service.lookup(vfs_support.ROOT, directory, text)
    return node.handle


def test_removed_files_are_not_remembered(kind, tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        remembered = len(both.service.nodes.remembered)
        for number in range(20):
            client = (both.native, both.general)[number % 2]
            assert status(await client.call(CREATE, creation(one, b"f%d" % number))) == OK
            assert len(both.service.nodes.remembered) == remembered + 1
            assert status(await client.call(REMOVE, removal(one, b"f%d" % number))) == OK
            assert len(both.service.nodes.remembered) == remembered

    run(kind, tmp_path, scenario)


def test_a_file_that_has_another_name_is_kept(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        await both.native.call(CREATE, creation(one, b"n"))
        os.link(os.path.join(both.path, "one", "n"), os.path.join(both.path, "one", "m"))
        before = await handle_of(both, one, b"m")
        assert status(await both.native.call(REMOVE, removal(one, b"n"))) == OK
        assert before in both.service.nodes.recent
        assert status(await both.native.call(LOOKUP, handle(one) + name("m"))) == OK
        assert status(await both.native.call(LOOKUP, handle(one) + name("n"))) == NOENT
        assert both.answered(REMOVE) == 1

    run("memory", tmp_path, scenario)


def test_a_file_that_somebody_has_open_lives_on(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        await both.native.call(CREATE, creation(one, b"n"))
        node, _ = await both.service.lookup(vfs_support.ROOT, one, b"n")
        opened = await both.service.open(vfs_support.ROOT, node, read=True, write=True)
        assert status(await both.native.call(REMOVE, removal(one, b"n"))) == OK
        await both.same(1, handle(node))  # GETATTR: it is still there
        opened.release()
        del opened
        assert status(await both.native.call(1, handle(node))) == struct.pack(">I", nfsstat3.NFS3ERR_STALE)
        assert both.answered(REMOVE) == 1

    run("memory", tmp_path, scenario)


def test_a_delegation_is_recalled_before_its_file_is_removed(tmp_path):
    delegated = Delegated()

    async def scenario(both):
        (one,) = await made(both, "one")
        for each in (b"a", b"b"):
            assert status(await both.native.call(CREATE, creation(one, each))) == OK
        node, _ = await both.service.lookup(vfs_support.ROOT, one, b"a")
        delegated.key, node.inode.delegated = node.key, 1
        assert status(await both.native.call(REMOVE, removal(one, b"a"))) == JUKEBOX
        assert delegated.asked == 1
        assert status(await both.native.call(REMOVE, removal(one, b"b"))) == OK
        assert status(await both.native.call(CREATE, creation(one, b"c"))) == OK
        assert delegated.asked == 1
        assert (both.answered(CREATE), both.answered(REMOVE), both.declined()) == (3, 2, 0)
        assert os.listdir(os.path.join(both.path, "one")).count("a") == 1

    run("memory", tmp_path, scenario, delegated)


def test_nothing_is_made_or_removed_on_a_read_only_export(tmp_path):
    async def scenario(both):
        with open(os.path.join(both.path, "a"), "wb"):
            pass
        await both.service.opening.own_open(both.root, "")
        for arguments, procedure in ((creation(both.root, b"b"), CREATE), (removal(both.root, b"a"), REMOVE)):
            assert status(await both.native.call(procedure, arguments)) == struct.pack(">I", nfsstat3.NFS3ERR_ROFS)
        assert os.listdir(both.path) == ["a"]

    run("memory", tmp_path, scenario, read_only=True)


def test_squashed_callers_make_files_as_nobody(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        assert status(await both.native.call(CREATE, creation(one, b"n"))) == OK
        assert both.answered(CREATE) == 1
        made_by = os.stat(os.path.join(both.path, "one", "n"))
        assert (made_by.st_uid, made_by.st_gid) == (65534, 65534)
        assert os.getuid() == 0

    run("memory", tmp_path, scenario, squash="root")


def test_what_was_made_and_removed_keeps_no_file_system_mounted(tmp_path):
    async def scenario(both):
        inner = os.path.join(both.path, "inner")
        os.mkdir(inner)
        assert command("mount", "-t", "tmpfs", "-o", "size=4m", "none", inner)
        try:
            directory, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"inner")
            await both.service.opening.own_open(directory, "")
            for each in (b"a", b"b"):
                assert status(await both.native.call(CREATE, creation(directory, each))) == OK
            assert status(await both.native.call(REMOVE, removal(directory, b"a"))) == OK
            assert (both.answered(CREATE), both.answered(REMOVE)) == (2, 1)
            del directory
            for _ in range(6):
                both.service.sweep()
            assert await unmounted(inner)
        except BaseException:
            command("umount", "-l", inner)
            raise

    run("memory", tmp_path, scenario, cross_mounts=True)


@pytest.fixture(params=["disk", "memory"])
def kind(request):
    return request.param


def test_nothing_is_recalled_for_who_may_not_look(tmp_path):
    """The server looks as itself what a name leads to, and recalls for those only that may look as well."""
    delegated = Delegated()

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"f")
        node.inode.delegated, delegated.key = 1, node.key
        os.chmod(both.path, 0o700)
        stranger = await both.native.call(REMOVE, removal(both.root, b"f"), (4242, 4242))
        assert status(stranger) == struct.pack(">I", nfsstat3.NFS3ERR_ACCES)
        assert delegated.asked == 0
        assert status(await both.native.call(REMOVE, removal(both.root, b"f"))) == JUKEBOX
        assert delegated.asked == 1

    run("disk", tmp_path, scenario, delegated)
