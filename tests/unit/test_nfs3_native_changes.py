"""Directories, links and renames made natively: the answers and the files are those of the file service's functions."""

import contextlib
import dataclasses
import os
import random
import stat

import pytest

from nfsd.protocol import nfs3 as p
from nfsd.protocol.nfs3 import diropargs3, nfs_fh3, nfsstat3, symlinkdata3
from rpcrdma.xdr import pack, unpack
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import CALLERS, Delegated, run
from tests.unit.test_nfs3_native_names import ATTRIBUTES, MODES, creation, removal, sattr

CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK = 8, 9, 10, 11, 12, 13, 14, 15
KINDS = {
    CREATE: p.CREATE3res,
    MKDIR: p.MKDIR3res,
    SYMLINK: p.SYMLINK3res,
    MKNOD: p.MKNOD3res,
    REMOVE: p.REMOVE3res,
    RMDIR: p.RMDIR3res,
    RENAME: p.RENAME3res,
    LINK: p.LINK3res,
}
CHANGES = (MKDIR, SYMLINK, MKNOD, RMDIR, RENAME, LINK)
NAMES = (b"a", b"b", b"c")
ODD = (b"kept", b"x" * 255, b"x" * 256, b"x" * 5000, b".", b"..", b"", b"a/b", b"a\0", b"\xff")
UNMADE = (p.ftype3.NF3REG, p.ftype3.NF3DIR, p.ftype3.NF3LNK)
DEVICES = ((0, 0), (1, 3), (4095, (1 << 20) - 1), (4096, 0), (0, 1 << 20))
TEXTS = (b"a", b"../b", b"t" * 4095, b"t" * 4096, b"t" * 9000, b"", b"a\0b")
PLACES = ("", "s1", "s2")
SETTLED = nfsstat3.NFS3_OK


def where(node, text):
    return diropargs3(nfs_fh3(node.handle), text)


def making(node, text, **attributes):
    return pack(p.MKDIR3args, p.MKDIR3args(where(node, text), sattr(**attributes)))


def linking_to(node, text, target, **attributes):
    data = symlinkdata3(sattr(**attributes), memoryview(target))
    return pack(p.SYMLINK3args, p.SYMLINK3args(where(node, text), data))


def making_special(node, text, kind, device=(0, 0), **attributes):
    wanted = sattr(**attributes)
    if kind in (p.ftype3.NF3CHR, p.ftype3.NF3BLK):
        what = p.mknoddata3(kind, device=p.devicedata3(wanted, p.specdata3(*device)))
    else:
        what = p.mknoddata3(kind, pipe_attributes=None if kind in UNMADE else wanted)
    return pack(p.MKNOD3args, p.MKNOD3args(where(node, text), what))


def unmaking(node, text):
    return pack(p.RMDIR3args, p.RMDIR3args(where(node, text)))


def renaming(source, old, target, new):
    return pack(p.RENAME3args, p.RENAME3args(where(source, old), where(target, new)))


def linking(file, directory, text):
    return pack(p.LINK3args, p.LINK3args(nfs_fh3(file.handle), where(directory, text)))


def shape(value):
    """A result without what differs between two files and two moments."""
    if isinstance(value, p.fattr3):
        return value.type, value.mode, value.nlink, value.uid, value.gid, value.size, value.used, value.rdev, value.fsid
    if isinstance(value, p.wcc_attr):
        return value.size
    if isinstance(value, nfs_fh3):
        return len(value.data)
    if dataclasses.is_dataclass(value):
        return [shape(getattr(value, each.name)) for each in dataclasses.fields(value)]
    return value


def outcome(procedure, reply):
    result = unpack(KINDS[procedure], reply[20:])
    return result.status, shape(result)


def tree(path):
    """All that is below a directory."""
    found = []
    for at, directories, names in os.walk(path):
        directories.sort()
        for name in sorted([*directories, *names]):
            each = os.path.join(at, name)
            of = os.lstat(each)
            target = os.readlink(each) if stat.S_ISLNK(of.st_mode) else None
            set_to = of.st_mtime_ns // 10**9 == 1_500_000_000
            found.append((each[len(path) :], of.st_mode, of.st_uid, of.st_gid, of.st_nlink, target, set_to))
    return found


class Twins:
    """Two trees that stay alike: in one names are changed natively, in the other by the file service's functions."""

    def __init__(self, both, rng):
        self.both, self.rng = both, rng

    async def start(self):
        self.nodes = []
        for twin in ("one", "two"):
            for place in PLACES:
                path = os.path.join(self.both.path, twin, place)
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o777)
            with vfs_support.where_looks_may_wait(self.both.root.mount) if twin == "two" else contextlib.nullcontext():
                nodes = {"": (await self.both.service.lookup(vfs_support.ROOT, self.both.root, twin.encode()))[0]}
                for place in PLACES[1:]:
                    nodes[place] = (await self.both.service.lookup(vfs_support.ROOT, nodes[""], place.encode()))[0]
            self.nodes.append(nodes)

    def paths(self, *parts):
        return [os.path.join(self.both.path, twin, *parts) for twin in ("one", "two")]

    def text(self):
        return self.rng.choice(NAMES if self.rng.random() < 0.9 else ODD)

    def disturb(self):
        """Something a local process might do to both."""
        rng = self.rng
        place, text, mode = rng.choice(PLACES), rng.choice("abc"), rng.choice((0o777, 0o755, 0o1777, 0o2777, 0o555))
        owner, kind = rng.choice(CALLERS), rng.randrange(5)
        for path in self.paths(place):
            with contextlib.suppress(OSError):
                match kind:
                    case 0:
                        os.chmod(path, mode)
                    case 1:
                        os.chown(path, *owner)
                    case 2:
                        os.unlink(os.path.join(path, text))
                    case 3:
                        os.rename(os.path.join(path, text), os.path.join(path, "d"))
                    case 4:
                        os.chmod(path, 0o777)

    async def calls(self):
        """(procedure, arguments for either tree) of something that changes names."""
        rng = self.rng
        procedure = rng.choice((*CHANGES, *CHANGES, RENAME, CREATE, REMOVE))
        place, text, other, new = rng.choice(PLACES), self.text(), rng.choice(PLACES), self.text()
        wanted = {"mode": rng.choice(MODES)} | (rng.choice(ATTRIBUTES) if rng.random() < 0.2 else {})
        target, special, device = rng.choice(TEXTS), rng.choice(tuple(p.ftype3)), rng.choice(DEVICES)
        how = rng.choice((*[p.createmode3.UNCHECKED] * 3, p.createmode3.GUARDED, p.createmode3.EXCLUSIVE))
        arguments = []
        for nodes in self.nodes:
            one, two = nodes[place], nodes[other]
            match procedure:
                case 8:
                    arguments.append(creation(one, text, how=how, **wanted))
                case 9:
                    arguments.append(making(one, text, **wanted))
                case 10:
                    arguments.append(linking_to(one, text, target, **wanted))
                case 11:
                    arguments.append(making_special(one, text, special, device, **wanted))
                case 12:
                    arguments.append(removal(one, text))
                case 13:
                    arguments.append(unmaking(one, text))
                case 14:
                    arguments.append(renaming(one, text, two, new))
                case 15:
                    file = one
                    with contextlib.suppress(OSError):
                        file, _ = await self.both.service.lookup(vfs_support.ROOT, one, text)
                    arguments.append(linking(file, two, new))
        return procedure, arguments


@pytest.fixture(params=["disk", "memory", "slow"])
def kind(request):
    """On a disk, in memory, on a file system where every look at a file may wait."""
    return request.param


@pytest.mark.parametrize("seed", range(4))
def test_random_changes(kind, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        twins = Twins(both, rng)
        await twins.start()
        statuses = set()
        for step in range(600):
            if step % 8 == 0:
                twins.disturb()
            caller = rng.choice(CALLERS)
            procedure, arguments = await twins.calls()
            native = outcome(procedure, await both.native.call(procedure, arguments[0], caller))
            general = outcome(procedure, await both.general.call(procedure, arguments[1], caller))
            assert native == general, (step, procedure)
            one, two = (tree(path) for path in twins.paths())
            assert one == two, (step, procedure)
            statuses.add(native[0])
            for nodes in twins.nodes:
                assert not any(node.inode.serial.busy for node in nodes.values())
        assert len(statuses) > 8
        assert both.declined() == 0
        return [both.answered(procedure) for procedure in CHANGES]

    counts = run(kind, tmp_path, scenario)
    assert min(counts) > 40, counts


def test_failures_are_answered_natively(kind, tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        one, two = twins.nodes
        for path in twins.paths("s1", "full"):
            os.makedirs(os.path.join(path, "x"))
        for path in twins.paths("file"):
            with open(path, "w"):
                pass
        node = [(await both.service.lookup(vfs_support.ROOT, each[""], b"file"))[0] for each in (one, two)]
        for procedure, arguments, wanted in (
            (MKDIR, lambda n, f: making(n[""], b"s1"), "EXIST"),
            (MKDIR, lambda n, f: making(n[""], b".."), "EXIST"),
            (MKDIR, lambda n, f: making(f, b"x"), "NOTDIR"),
            (MKDIR, lambda n, f: making(n[""], b"x" * 256), "NAMETOOLONG"),
            (MKDIR, lambda n, f: making(n[""], b"n", uid=0xFFFFFFFF), "INVAL"),
            (MKDIR, lambda n, f: making(n[""], b"n", size=1 << 63), "FBIG"),
            (SYMLINK, lambda n, f: linking_to(n[""], b"file", b"t"), "EXIST"),
            (SYMLINK, lambda n, f: linking_to(n[""], b"n", b""), "INVAL"),
            (SYMLINK, lambda n, f: linking_to(n[""], b"n", b"t" * 4096), "NAMETOOLONG"),
            (RMDIR, lambda n, f: unmaking(n["s1"], b"full"), "NOTEMPTY"),
            (RMDIR, lambda n, f: unmaking(n[""], b"file"), "NOTDIR"),
            (RMDIR, lambda n, f: unmaking(n[""], b"none"), "NOENT"),
            (RMDIR, lambda n, f: unmaking(n[""], b"."), "INVAL"),
            (RMDIR, lambda n, f: unmaking(n[""], b".."), "EXIST"),
            (REMOVE, lambda n, f: removal(n[""], b"s1"), "ISDIR"),
            (REMOVE, lambda n, f: removal(n[""], b"none"), "NOENT"),
            (REMOVE, lambda n, f: removal(n[""], b"a/b"), "ACCES"),
            (RENAME, lambda n, f: renaming(n[""], b"none", n["s1"], b"n"), "NOENT"),
            (RENAME, lambda n, f: renaming(n[""], b"s2", n["s1"], b"full"), "NOTEMPTY"),
            (RENAME, lambda n, f: renaming(n[""], b"file", n["s1"], b"full"), "ISDIR"),
            (RENAME, lambda n, f: renaming(n[""], b"s2", n[""], b"file"), "NOTDIR"),
            (RENAME, lambda n, f: renaming(n[""], b"s1", n["s1"], b"inside"), "INVAL"),
            (RENAME, lambda n, f: renaming(n[""], b"file", n[""], b".."), "INVAL"),
            (LINK, lambda n, f: linking(f, n[""], b"s1"), "EXIST"),
            (LINK, lambda n, f: linking(n["s1"], n[""], b"n"), "ISDIR"),
            (LINK, lambda n, f: linking(f, f, b"n"), "NOTDIR"),
            (CREATE, lambda n, f: creation(n[""], b"file", how=1), "EXIST"),
            (CREATE, lambda n, f: creation(n[""], b"file", how=2), "EXIST"),
            (CREATE, lambda n, f: creation(n[""], b"s1"), "EXIST"),
            (MKNOD, lambda n, f: making_special(n[""], b"file", p.ftype3.NF3FIFO), "EXIST"),
            (MKNOD, lambda n, f: making_special(n[""], b"n", p.ftype3.NF3REG), "BADTYPE"),
            (MKNOD, lambda n, f: making_special(n[""], b"n", p.ftype3.NF3CHR, (4096, 0)), "INVAL"),
            (MKNOD, lambda n, f: making_special(f, b"n", p.ftype3.NF3SOCK), "NOTDIR"),
            (MKNOD, lambda n, f: making_special(n[""], b"a/b", p.ftype3.NF3SOCK), "ACCES"),
        ):
            answered = both.answered(procedure)
            native = outcome(procedure, await both.native.call(procedure, arguments(one, node[0])))
            general = outcome(procedure, await both.general.call(procedure, arguments(two, node[1])))
            assert native == general, wanted
            assert native[0].name == f"NFS3ERR_{wanted}"
            assert both.answered(procedure) == answered + 1, (procedure, wanted)
        assert both.declined() == 0
        told = both.service.exports.usage.statuses
        assert told[3, "RMDIR", "NOTEMPTY"] == told[3, "MKDIR", "NOTDIR"] == 2
        # A caller without permission.
        os.chmod(os.path.join(both.path, "one"), 0o755)
        for procedure, arguments in ((MKDIR, making(one[""], b"n")), (RENAME, renaming(one[""], b"s1", one[""], b"n"))):
            reply = await both.native.call(procedure, arguments, (1001, 1001))
            assert outcome(procedure, reply)[0] == nfsstat3.NFS3ERR_ACCES
        # A directory that is gone.
        os.rmdir(os.path.join(both.path, "one", "s2"))
        reply = await both.native.call(MKDIR, making(one["s2"], b"n"))
        assert outcome(MKDIR, reply)[0] == nfsstat3.NFS3ERR_STALE

    run(kind, tmp_path, scenario)


def test_a_read_only_export_is_not_changed(kind, tmp_path):
    async def scenario(both):
        for procedure, arguments in (
            (MKDIR, making(both.root, b"n")),
            (SYMLINK, linking_to(both.root, b"n", b"t")),
            (RMDIR, unmaking(both.root, b"n")),
            (REMOVE, removal(both.root, b"n")),
            (RENAME, renaming(both.root, b"n", both.root, b"m")),
            (LINK, linking(both.root, both.root, b"n")),
            (CREATE, creation(both.root, b"n")),
            (MKNOD, making_special(both.root, b"n", p.ftype3.NF3FIFO)),
        ):
            general = await both.general.call(procedure, arguments)
            native = await both.native.call(procedure, arguments)
            assert native[4:] == general[4:]
            assert outcome(procedure, native)[0] == nfsstat3.NFS3ERR_ROFS
        assert os.listdir(both.path) == []
        return sum(both.answered(procedure) for procedure in KINDS)

    assert run(kind, tmp_path, scenario, read_only=True) == 8


def test_every_change_shows_in_the_change_attribute_of_all_it_concerns(kind, tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        nodes = twins.nodes[0]
        base, other = nodes["s1"], nodes["s2"]
        file = await vfs_support.write_file(both.service, base, b"file")

        async def changes():
            return [(await both.service.attributes(each)).change for each in (base, other, file)]

        for procedure, arguments, moved in (
            (MKDIR, making(base, b"d"), (1, 0, 0)),
            (SYMLINK, linking_to(base, b"l", b"t"), (1, 0, 0)),
            (RENAME, renaming(base, b"d", base, b"e"), (1, 0, 0)),
            (RENAME, renaming(base, b"e", other, b"e"), (1, 1, 0)),
            (RENAME, renaming(other, b"e", base, b"e"), (1, 1, 0)),
            (LINK, linking(file, other, b"file"), (0, 1, 1)),
            (RENAME, renaming(base, b"file", other, b"file"), (0, 0, 0)),  # both are names of one file
            (RMDIR, unmaking(base, b"e"), (1, 0, 0)),
        ):
            before = await changes()
            result = unpack(KINDS[procedure], (await both.native.call(procedure, arguments))[20:])
            assert result.status == SETTLED
            after = await changes()
            grown = tuple(int(new > old) for new, old in zip(after, before, strict=True))
            assert grown == moved, procedure
        assert sum(both.answered(procedure) for procedure in CHANGES) == 8

    run(kind, tmp_path, scenario)


def test_retransmissions_get_the_first_answer(kind, tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        base = twins.nodes[0][""]
        file = await vfs_support.write_file(both.service, base, b"file")
        for number, (procedure, arguments) in enumerate(
            (
                (MKDIR, making(base, b"d")),
                (SYMLINK, linking_to(base, b"l", b"t")),
                (LINK, linking(file, base, b"m")),
                (RENAME, renaming(base, b"m", base, b"n")),
                (RMDIR, unmaking(base, b"d")),
                (RMDIR, unmaking(base, b"d")),  # a failure is an answer too
            )
        ):
            answered = both.answered(procedure)
            first = await both.native.call(procedure, arguments, xid=900 + number)
            assert await both.native.call(procedure, arguments, xid=900 + number) == first
            assert both.answered(procedure) == answered + 1
        assert sorted(os.listdir(os.path.join(both.path, "one"))) == ["file", "l", "n", "s1", "s2"]

    run(kind, tmp_path, scenario)


def test_renames_between_two_directories_take_both_turns(tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        nodes = twins.nodes[0]
        for turn in ("s1", "s2"):
            await vfs_support.write_file(both.service, nodes["s1"], b"file")
            reply = await vfs_support.in_turn(
                nodes[turn], both.native.call(RENAME, renaming(nodes["s1"], b"file", nodes["s2"], b"f"))
            )
            assert outcome(RENAME, reply)[0] == SETTLED
        assert both.answered(RENAME) == 2
        assert not nodes["s1"].inode.serial.busy
        assert not nodes["s2"].inode.serial.busy

    run("disk", tmp_path, scenario)


def test_many_renames_to_and_fro_at_once(tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        nodes, sent = twins.nodes[0], 0
        for number in range(40):
            place = PLACES[1 + number % 2]
            await vfs_support.write_file(both.service, nodes[place], b"f%d" % number)
        for number in range(40):
            one, other = (nodes[place] for place in (PLACES[1:] if number % 2 == 0 else PLACES[:0:-1]))
            both.native.send(RENAME, renaming(one, b"f%d" % number, other, b"f%d" % number))
            both.native.send(MKDIR, making(one, b"d%d" % number))
            sent += 2
        statuses = {(await both.native.reply())[24:28] for _ in range(sent)}
        assert statuses == {bytes(4)}
        left = [sorted(os.listdir(path)) for path in (twins.paths("s1")[0], twins.paths("s2")[0])]
        assert left[0] == sorted([f"f{number}" for number in range(1, 40, 2)] + [f"d{n}" for n in range(0, 40, 2)])
        assert left[1] == sorted([f"f{number}" for number in range(0, 40, 2)] + [f"d{n}" for n in range(1, 40, 2)])
        assert both.answered(RENAME) == 40

    run("disk", tmp_path, scenario)


@pytest.mark.parametrize("role", ["moved", "replaced", "linked"])
def test_a_delegation_is_recalled_before_names_change(kind, tmp_path, role):
    delegated = Delegated()

    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        base = twins.nodes[0][""]
        file = await vfs_support.write_file(both.service, base, b"file")
        await vfs_support.write_file(both.service, base, b"other")
        delegated.key, file.inode.delegated = file.key, 1
        procedure, arguments = {
            "moved": (RENAME, renaming(base, b"file", base, b"new")),
            "replaced": (RENAME, renaming(base, b"other", base, b"file")),
            "linked": (LINK, linking(file, base, b"new")),
        }[role]
        reply = await both.native.call(procedure, arguments)
        assert outcome(procedure, reply)[0] == nfsstat3.NFS3ERR_JUKEBOX
        assert both.answered(procedure) == 1
        assert file.inode.changing == 0
        delegated.key, file.inode.delegated = b"", 0
        reply = await both.native.call(procedure, arguments)
        assert outcome(procedure, reply)[0] == SETTLED
        assert (both.answered(procedure), file.inode.changing, both.declined()) == (2, 0, 0)

    run(kind, tmp_path, scenario, delegated)


def test_a_replaced_file_and_a_removed_directory_are_let_go_of(kind, tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        base, nodes = twins.nodes[0][""], both.service.nodes
        file = await vfs_support.write_file(both.service, base, b"file", b"data")
        await vfs_support.write_file(both.service, base, b"other")
        directory, _ = await both.service.lookup(vfs_support.ROOT, base, b"s1")
        handles, keys = [each.handle for each in (file, directory)], [each.key for each in (file, directory)]
        del file, directory
        twins.nodes.clear()
        assert all(each in nodes.recent for each in handles)
        assert outcome(RENAME, await both.native.call(RENAME, renaming(base, b"other", base, b"file")))[0] == SETTLED
        assert outcome(RMDIR, await both.native.call(RMDIR, unmaking(base, b"s1")))[0] == SETTLED
        assert not any(each in nodes.recent for each in handles)
        assert not any(each in nodes.remembered for each in keys)
        assert (both.answered(RENAME), both.answered(RMDIR)) == (1, 1)

    run(kind, tmp_path, scenario)
