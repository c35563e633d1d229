"""NFSv3's procedures about names are answered natively whatever they need, and decline nothing but malformed calls."""

import asyncio
import errno
import os
import struct

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import CREATE3res, LOOKUP3res, RENAME3res, createmode3, ftype3
from nfsd.vfs.service import FileService
from rpcrdma.xdr import unpack
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import LOOKUP, Both, handle, name, run
from tests.unit.test_nfs3_native_changes import (
    CREATE,
    KINDS,
    LINK,
    MKDIR,
    MKNOD,
    REMOVE,
    RENAME,
    RMDIR,
    SYMLINK,
    creation,
    linking,
    linking_to,
    making,
    making_special,
    removal,
    renaming,
    unmaking,
)
from tests.unit.test_nfs3_native_shortage import one_descriptor_left
from tests.unit.test_nfs3_needs import Recalling, natively, same, status
from tests.unit.test_vfs_mounts import command, unmounted
from tests.unit.test_waiting_calls import until

OK, NOENT, ACCES, EXIST, XDEV, ROFS, STALE, BADHANDLE, BADTYPE, JUKEBOX = (
    0,
    2,
    13,
    17,
    18,
    30,
    70,
    10001,
    10007,
    10008,
)
GARBAGE = struct.pack(">I", 4)


@pytest.fixture(params=["memory", "disk", "slow"])
def kind(request):
    """In memory, on a disk, on a file system where every look at a file may wait."""
    return request.param


async def found(both, *path):
    node = both.root
    for each in path:
        node, _ = await both.service.lookup(vfs_support.ROOT, node, each)
    return node


def make(both, *paths):
    """Directories for anyone where a path ends in a slash, files elsewhere."""
    for path in paths:
        whole = os.path.join(both.path, path)
        if path.endswith("/"):
            os.mkdir(whole)
            os.chmod(whole, 0o777)
        else:
            with open(whole, "wb") as file:
                file.write(b"0123456789")
            os.chmod(whole, 0o666)


def every_change(directory, file):
    """A change by each procedure: in a directory that has ``full/`` and ``d/``, and one file of two names, ``f`` and
    ``g``."""
    return {
        CREATE: creation(directory, b"c"),
        MKDIR: making(directory, b"m"),
        SYMLINK: linking_to(directory, b"s", b"text"),
        MKNOD: making_special(directory, b"n", ftype3.NF3FIFO),
        REMOVE: removal(directory, b"g"),
        RMDIR: unmaking(directory, b"d"),
        RENAME: renaming(directory, b"f", directory, b"r"),
        LINK: linking(file, directory, b"l"),
    }


def test_the_names_of_a_directory_and_of_the_one_above_it(kind, tmp_path):
    async def scenario(both):
        make(both, "sub/", "sub/inner/", "closed/", "file")
        sub, inner, closed, file = [
            await found(both, *path) for path in ((b"sub",), (b"sub", b"inner"), (b"closed",), (b"file",))
        ]
        os.chmod(os.path.join(both.path, "closed"), 0o700)
        for node, text, caller, wanted in (
            (inner, ".", (0, 0), inner), (inner, "..", (1001, 1001), sub), (sub, "..", (0, 0), both.root),
            (both.root, "..", (0, 0), both.root), (both.root, ".", (1001, 1001), both.root),
        ):  # fmt: skip
            reply = await same(both, LOOKUP, handle(node) + name(text), caller)
            assert unpack(LOOKUP3res, reply[20:]).resok.object.data == wanted.handle
        for node, text, caller, outcome in (
            (closed, ".", (1001, 1001), ACCES), (closed, "..", (1001, 1001), ACCES), (file, "..", (0, 0), 20),
        ):  # fmt: skip
            assert status(await same(both, LOOKUP, handle(node) + name(text), caller)) == outcome

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("crossing", [True, False])
def test_what_is_mounted_inside_an_export(kind, tmp_path, crossing):
    async def scenario(both):
        make(both, "inner/", "file")
        inner = os.path.join(both.path, "inner")
        assert command("mount", "-t", "tmpfs", "-o", "size=4m", "none", inner)
        try:
            reply = await same(both, LOOKUP, handle(both.root) + name("inner"))
            assert status(reply) == (OK if crossing else ACCES)
            for procedure, arguments in (
                (RMDIR, unmaking(both.root, b"inner")),
                (RENAME, renaming(both.root, b"inner", both.root, b"new")),
            ):
                assert status(await same(both, procedure, arguments)) == ACCES
            if crossing:
                within = await found(both, b"inner")
                reply = await same(both, LOOKUP, handle(within) + name(".."))
                assert unpack(LOOKUP3res, reply[20:]).resok.object.data == both.root.handle
                for procedure, arguments in (
                    (RENAME, renaming(both.root, b"file", within, b"new")),
                    (LINK, linking(await found(both, b"file"), within, b"new")),
                ):
                    assert status(await same(both, procedure, arguments)) == XDEV
                assert status(await natively(both, CREATE, creation(within, b"new"))) == OK
                del within
            for _ in range(6):
                both.service.sweep()
            assert await unmounted(inner)
        except BaseException:
            command("umount", "-l", inner)
            raise

    run(kind, tmp_path, scenario, cross_mounts=crossing)


def test_files_that_are_not_in_use(kind, tmp_path):
    """Neither the first file of a call nor the second one is among those that the server has open."""

    async def scenario(both):
        make(both, "sub/", "sub/f", "sub/d/")
        os.link(os.path.join(both.path, "sub/f"), os.path.join(both.path, "sub/g"))
        sub, file = await found(both, b"sub"), await found(both, b"sub", b"f")
        for procedure, arguments in every_change(sub, file).items():
            for node in (sub, file):
                both.service.nodes.forget(node)
            assert status(await natively(both, procedure, arguments, (1001, 1001))) == OK, procedure
        assert sorted(os.listdir(os.path.join(both.path, "sub"))) == ["c", "l", "m", "n", "r", "s"]

    run(kind, tmp_path, scenario)


def test_handles_of_nothing(kind, tmp_path):
    async def scenario(both):
        make(both, "gone/", "f")
        gone, file = await found(both, b"gone"), await found(both, b"f")
        os.rmdir(os.path.join(both.path, "gone"))
        requests = {**every_change(gone, file), LOOKUP: handle(gone) + name("x")}
        for procedure, arguments in requests.items():
            assert status(await same(both, procedure, arguments)) == STALE, procedure
        both.service.nodes.forget(gone)
        for procedure, arguments in requests.items():
            assert status(await same(both, procedure, arguments)) == STALE, procedure
            octets = handle(gone)
            assert arguments.count(octets)
            bad = arguments.replace(octets, struct.pack(">I", 32) + bytes(32))
            assert status(await same(both, procedure, bad)) == BADHANDLE, procedure
            assert status(await same(both, procedure, arguments.replace(octets, bytes(4)))) == BADHANDLE, procedure
        # Of the second one only: the first file's attributes are told.
        for second, outcome in ((handle(gone), STALE), (bytes(4), BADHANDLE)):
            reply = await same(both, RENAME, handle(both.root) + name("f") + second + name("r"))
            failed = unpack(RENAME3res, reply[20:]).resfail
            assert status(reply) == outcome
            assert (failed.fromdir_wcc.after is not None, failed.todir_wcc.after) == (True, None)
        assert os.listdir(both.path) == ["f"]

    run(kind, tmp_path, scenario)


def test_what_is_malformed_is_garbage(tmp_path):
    """Before its handle, which may be bad, is looked at."""

    async def scenario(both):
        make(both, "sub/", "f")
        sub, file = await found(both, b"sub"), await found(both, b"f")
        requests = [*every_change(sub, file).items(), (LOOKUP, handle(sub) + name("x"))]
        requests += [(CREATE, creation(sub, b"c", how=createmode3.EXCLUSIVE))]
        requests += [(MKNOD, making_special(sub, b"n", ftype3.NF3BLK, (1, 1)))]
        for procedure, arguments in requests:
            for octets in (handle(sub), struct.pack(">I", 4) + bytes(4)):
                whole = arguments.replace(handle(sub), octets)
                for length in range(0, len(whole), 4):
                    reply = await both.native.call(procedure, whole[:length])
                    assert reply[16:20] == GARBAGE, (procedure, length)
        reply = await both.native.call(CREATE, handle(sub) + name("c") + struct.pack(">I", 3) + bytes(40))
        assert reply[16:20] == GARBAGE
        for kind in (0, 1, 2, 5, 8, 0xFFFFFFFF):
            reply = await same(both, MKNOD, handle(sub) + name("n") + struct.pack(">I", kind))
            assert status(reply) == BADTYPE
        assert os.listdir(os.path.join(both.path, "sub")) == []

    run("memory", tmp_path, scenario)


def test_octets_behind_the_arguments_do_no_harm(kind, tmp_path):
    async def scenario(both):
        make(both, "sub/", "sub/f", "sub/d/")
        os.link(os.path.join(both.path, "sub/f"), os.path.join(both.path, "sub/g"))
        sub, file = await found(both, b"sub"), await found(both, b"sub", b"f")
        for procedure, arguments in every_change(sub, file).items():
            assert status(await natively(both, procedure, arguments + bytes(8))) == OK, procedure
        assert status(await natively(both, LOOKUP, handle(sub) + name("r") + bytes(8))) == OK

    run(kind, tmp_path, scenario)


def test_who_may_not_use_the_export(kind, tmp_path):
    async def scenario(both):
        make(both, "f")
        file = await found(both, b"f")
        for procedure, arguments in {**every_change(both.root, file), LOOKUP: handle(file) + name("f")}.items():
            assert status(await same(both, procedure, arguments)) == ACCES
        assert os.listdir(both.path) == ["f"]

    run(kind, tmp_path, scenario, clients=("192.0.2.1",))


def test_a_second_file_in_an_export_that_is_not_the_callers(tmp_path):
    """It may use one of them, and only read another."""
    for each in ("mine", "other", "read"):
        (tmp_path / each).mkdir()
    (tmp_path / "mine" / "f").write_text("x")
    exports = [
        Export(7, str(tmp_path / "mine"), "/mine", squash="none"),
        Export(8, str(tmp_path / "other"), "/other", squash="none", clients=("192.0.2.1",)),
        Export(9, str(tmp_path / "read"), "/read", squash="none", read_only=True),
    ]

    async def scenario():
        service = FileService(ExportTable(tuple(exports)), str(tmp_path))
        await service.start()
        mine, other, read = [await service.root(export) for export in exports]
        async with Both(service, mine, str(tmp_path / "mine")) as both:
            file = await found(both, b"f")
            for second, outcome in ((other, ACCES), (read, ROFS)):
                assert status(await same(both, RENAME, renaming(mine, b"f", second, b"n"))) == outcome
                assert status(await same(both, LINK, linking(file, second, b"n"))) == outcome
        await service.close()

    asyncio.run(scenario())


def test_names_that_are_taken(kind, tmp_path):
    async def scenario(both):
        make(both, "f", "sub/")
        os.symlink("f", os.path.join(both.path, "link"))
        for how, text, outcome in (
            (createmode3.UNCHECKED, b"f", OK), (createmode3.UNCHECKED, b"sub", EXIST),
            (createmode3.UNCHECKED, b"link", EXIST), (createmode3.GUARDED, b"f", EXIST),
            (createmode3.EXCLUSIVE, b"f", EXIST), (createmode3.EXCLUSIVE, b"sub", EXIST),
        ):  # fmt: skip
            assert status(await same(both, CREATE, creation(both.root, text, how=how))) == outcome, (how, text)
        reply = await natively(both, CREATE, creation(both.root, b"f", mode=0o600, size=3))
        made = unpack(CREATE3res, reply[20:]).resok.obj_attributes
        assert (made.size, made.mode, os.stat(os.path.join(both.path, "f")).st_size) == (3, 0o666, 3)
        exclusive = creation(both.root, b"mine", how=createmode3.EXCLUSIVE)
        replies = [await natively(both, CREATE, exclusive) for _ in range(2)]
        first, second = [unpack(CREATE3res, reply[20:]).resok for reply in replies]
        assert (first.obj, first.obj_attributes) == (second.obj, second.obj_attributes)
        os.truncate(os.path.join(both.path, "mine"), 1)
        assert status(await natively(both, CREATE, exclusive)) == EXIST

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("role", ["removed", "moved", "replaced", "linked", "truncated"])
def test_delegations_come_back_before_names_change(kind, tmp_path, role):
    delegations = Recalling()

    async def scenario(both):
        delegations.given_back = asyncio.Event()
        make(both, "f", "other", "sub/")
        file, sub = await found(both, b"f"), await found(both, b"sub")
        procedure, arguments = {
            "removed": (REMOVE, removal(both.root, b"f")),
            "moved": (RENAME, renaming(both.root, b"f", sub, b"new")),
            "replaced": (RENAME, renaming(both.root, b"other", both.root, b"f")),
            "linked": (LINK, linking(file, sub, b"new")),
            "truncated": (CREATE, creation(both.root, b"f", size=0)),
        }[role]
        delegations.key, file.inode.delegated = file.key, 1
        reply = await same(both, procedure, arguments)
        assert status(reply) == JUKEBOX
        assert unpack(KINDS[procedure], reply[20:]).resfail is not None
        assert (delegations.held, sorted(os.listdir(both.path))) == (0, ["f", "other", "sub"])
        both.native.send(procedure, arguments)
        await until(lambda: delegations.held)
        file.inode.delegated = 0
        delegations.given_back.set()
        assert (await both.native.reply())[24:28] == bytes(4)
        await until(lambda: not delegations.held)
        assert (file.inode.changing, both.declined()) == (0, 0)

    run(kind, tmp_path, scenario, delegations)


@pytest.mark.parametrize("role", ["moved", "truncated"])
def test_a_shortage_while_a_delegation_is_looked_for_lets_nothing_change(role, tmp_path):
    """It may be over a moment later, when the file is changed."""
    delegations = Recalling()

    async def scenario(both):
        delegations.given_back = asyncio.Event()
        make(both, "f", "sub/")
        os.truncate(os.path.join(both.path, "f"), 5)
        file, sub = await found(both, b"f"), await found(both, b"sub")
        procedure, arguments = {
            "moved": (RENAME, renaming(both.root, b"f", sub, b"new")),
            "truncated": (CREATE, creation(both.root, b"f", size=0)),
        }[role]
        delegations.key, file.inode.delegated = file.key, 1
        lookup, asked = both.service.lookup, []

        async def short_of_descriptors(credential, directory, name):
            asked.append(name)
            if name == b"f" and asked.count(name) == 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return await lookup(credential, directory, name)

        both.service.lookup = short_of_descriptors
        try:
            outcome = status(await natively(both, procedure, arguments))
        finally:
            del both.service.lookup
        assert (outcome, bool(asked)) == (JUKEBOX, True)
        assert os.stat(os.path.join(both.path, "f")).st_size == 5

    run("slow", tmp_path, scenario, delegations)


def test_names_that_lead_elsewhere_when_their_turn_has_come(tmp_path):
    """They are looked up again, as often as is of use; then the file service does it."""

    async def scenario(both):
        make(both, "f", "other", "old", "new")
        path = both.path

        async def meanwhile(procedure, arguments, *renames):
            """While a call waits for its turn on the directory, local processes rename files."""
            serial = both.root.inode.serial
            await serial.acquire()
            both.native.send(procedure, arguments)
            await until(lambda: serial.waited_for)
            for old, new in renames:
                os.rename(os.path.join(path, old), os.path.join(path, new))
            serial.release()
            return (await both.native.reply())[4:]

        reply = await meanwhile(REMOVE, removal(both.root, b"f"), ("other", "f"))
        assert (status(reply), sorted(os.listdir(path))) == (OK, ["new", "old"])
        reply = await meanwhile(RENAME, renaming(both.root, b"old", both.root, b"new"), ("new", "old"))
        assert (status(reply), sorted(os.listdir(path))) == (OK, ["new"])
        make(both, "sub/", "sub/x")
        before = [await found(both, b"sub"), await found(both, b"sub", b"x")]
        reply = await meanwhile(REMOVE, removal(both.root, b"new"), ("sub", "new-sub"), ("new", "sub"))
        assert (status(reply), sorted(os.listdir(path))) == (NOENT, ["new-sub", "sub"])
        del before
        assert (both.answered(REMOVE), both.answered(RENAME), both.declined()) == (2, 1, 0)

    run("disk", tmp_path, scenario)


def test_many_renames_of_the_same_names(tmp_path):
    """Names go to and fro between two directories: each call is answered, none is declined."""

    async def scenario(both):
        make(both, "one/", "two/", "one/a", "two/b")
        one, two = await found(both, b"one"), await found(both, b"two")
        statuses = set()
        for number in range(300):
            source, target = (one, two) if number % 2 else (two, one)
            both.native.send(RENAME, renaming(source, b"ab"[number % 3 % 2 :][:1], target, b"ab"[number % 5 % 2 :][:1]))
            both.native.send(LOOKUP, handle(source) + name("a"))
            if number % 30 == 29:
                statuses |= {int.from_bytes((await both.native.reply())[24:28], "big") for _ in range(60)}
        assert statuses == {OK, NOENT}
        assert (both.answered(RENAME), both.answered(LOOKUP), list(both.dispatcher.declined())) == (300, 300, [])

    run("disk", tmp_path, scenario)


def test_a_shortage_of_descriptors(kind, tmp_path):
    """Whoever needs one lets go of others; if that is of no use the client is to come again."""

    async def scenario(both):
        make(both, "sub/", "sub/f", "sub/d/")
        os.link(os.path.join(both.path, "sub/f"), os.path.join(both.path, "sub/g"))
        sub, file = await found(both, b"sub"), await found(both, b"sub", b"f")
        requests = every_change(sub, file)
        for procedure, arguments in requests.items():
            with one_descriptor_left():
                keep = os.dup(0)
                try:
                    outcome = status(await natively(both, procedure, arguments))
                finally:
                    os.close(keep)
            assert outcome in (OK, JUKEBOX), procedure
            if outcome == JUKEBOX:  # then nothing has been done
                assert status(await natively(both, procedure, arguments)) == OK, procedure

    run(kind, tmp_path, scenario)


def test_failures_are_counted_once(kind, tmp_path):
    async def scenario(both):
        make(both, "f")
        for number, text in enumerate((b"none", b".")):
            assert status(await natively(both, REMOVE, removal(both.root, text))) != OK
            tally = both.service.exports.tally(both.service.exports.exports[0], "127.0.0.1")
            assert tally.errors == number + 1
        assert both.service.exports.usage.statuses[3, "REMOVE", "NOENT"] == 1
        assert status(await natively(both, MKNOD, making_special(both.root, b"f", ftype3.NF3FIFO))) == EXIST
        assert (both.service.exports.usage.statuses[3, "MKNOD", "EXIST"], tally.errors) == (1, 3)

    run(kind, tmp_path, scenario)
