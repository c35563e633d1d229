"""CREATE, RENAME, LINK and OPEN that creates, answered natively: all is as the general path would have it."""

import os
import random
import shutil
import stat
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport, wanted
from tests.support.nfs4_direct import handle_of
from tests.unit.test_nfs4_direct import ANONYMOUS, CALLERS, OF_CONTENT, SESSIONS, access, getattr_, on, putfh, read
from tests.unit.test_nfs4_direct_changes import SECONDS, SPARE, at, change_of, directories, mode, remove
from tests.unit.test_nfs4_direct_opens import NO_DELEGATION, closing, next_seqid

OK = 0
NAMES = (b"a", b"b", b"c", b"d", b"sub", b"full", b"link", b"x" * 255, b"x" * 256, b".", b"..", b"", b"a/b", b"a\0")
NEW = (*[b"n%d" % number for number in range(90)], *NAMES)
TEXTS = (b"a", b"none", b"x" * 4095, b"x" * 5000, b"", b"a\0b")
OF_DIRECTORY = wanted(1, 33, 35, 36, 37)
VERIFIER = b"\x11\x22\x33\x44\x55\x66\x77\x88"
CLASHING, SIZED = {33: mode(0o640), 81: struct.pack(">II", 0o666, 0o022)}, {4: struct.pack(">Q", 7), 33: mode(0o644)}
ATTRIBUTES = (
    *({33: mode(bits)} for bits in (0o644, 0o600, 0o444, 0, 0o1777, 0o4755, 0o2755, 0o10644)),
    *({81: struct.pack(">II", bits, umask)} for bits in (0o666, 0o777, 0o2775) for umask in (0o022, 0o077, 0)),
    {4: bytes(8), 33: mode(0o644)},
    {4: bytes(8), 81: struct.pack(">II", 0o666, 0o022)},
    {33: mode(0o640), 36: struct.pack(">I4s", 4, b"1001")},
    {33: mode(0o4755), 36: struct.pack(">I4s", 4, b"1002"), 37: struct.pack(">I4s", 4, b"1001")},
    {33: mode(0o640), 37: struct.pack(">I4s", 4, b"some")},
    {33: mode(0o640), 48: at(SECONDS), 54: at(SECONDS)},
    {36: struct.pack(">I4s", 3, b"10x\0")},
    CLASHING,
    SIZED,
    {},
)


@pytest.fixture(params=[0, 1, 2])
def minor(request):
    return request.param


@pytest.fixture(params=["disk", "memory"])
def kind(request):
    return request.param


def fattr(values):
    octets = b"".join(values[number] for number in sorted(values))
    return p.fattr4(wanted(*values).attr_request, octets)


def mkdir(name, values):
    return (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), name, fattr(values)))


def symlink(name, text, values):
    return (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4LNK, linkdata=text), name, fattr(values)))


def fifo(name):
    return (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4FIFO), name, fattr({33: mode(0o600)})))


def rename(old, new):
    return (p.OP_RENAME, p.RENAME4args(old, new))


def link(name):
    return (p.OP_LINK, p.LINK4args(name))


def how(kind, values, verifier=VERIFIER):
    """A createhow4."""
    modes = p.createmode4
    if kind == modes.EXCLUSIVE4:
        return p.createhow4(kind, createverf=verifier)
    if kind == modes.EXCLUSIVE4_1:
        return p.createhow4(kind, ch_createboth=p.creatverfattr(verifier, fattr(values)))
    return p.createhow4(kind, createattrs=fattr(values))


def making(
    both, name, kind=p.createmode4.UNCHECKED4, values=ATTRIBUTES[0], *, share=2, deny=0, owner=b"owner", seqid=0
):
    """OPEN that creates."""
    claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=name)
    flag = p.openflag4(p.opentype4.OPEN4_CREATE, how(kind, values))
    who = p.open_owner4(both.client.clientid, owner)
    return (p.OP_OPEN, p.OPEN4args(seqid, share, deny, who, flag, claim))


def tree(path):
    """What is there, by name, as far as it depends on nothing but the calls."""
    found = {}
    for place, directories_, files in os.walk(path):
        for name in (*directories_, *files):
            one = os.path.join(place, name)
            of = os.lstat(one)
            text = os.readlink(one) if stat.S_ISLNK(of.st_mode) else ""
            times = of.st_mtime_ns // 10**9 if of.st_mtime_ns // 10**9 <= SECONDS else 0
            found[os.path.relpath(one, path)] = (of.st_mode, of.st_uid, of.st_gid, text, of.st_nlink, times)
    return found


class Side:
    """One of two directories that are treated alike, one over each way."""

    def __init__(self, both, which, handle, path):
        self.both, self.which, self.handle, self.path = both, which, handle, path
        self.wire = (both.direct, both.general)[which]

    async def run(self, *operations, **how):
        """What of the outcome does not depend on the directory: change attributes only whether they move."""
        reply = await self.wire.call(None, self.both.message(self.which, *operations, **how))
        self.status, self.results = Client4.parse(reply)
        shown, self.infos = [self.status], []
        for number, result in self.results:
            if number == p.OP_SEQUENCE:
                continue
            if getattr(result, "status", 0):
                shown.append((number, result.status))
            elif number == p.OP_OPEN:
                opened = result.resok4
                shown.append((opened.stateid.seqid, opened.rflags, opened.attrset, repr(opened.delegation)))
                self.infos.append(opened.cinfo)
            elif number == p.OP_CREATE:
                shown.append(result.resok4.attrset)
                self.infos.append(result.resok4.cinfo)
            elif number in (p.OP_LINK, p.OP_REMOVE):
                self.infos.append(result.resok4.cinfo)
            elif number == p.OP_RENAME:
                self.infos += [result.resok4.source_cinfo, result.resok4.target_cinfo]
            elif number == p.OP_READ:
                shown.append((result.resok4.eof, bytes(result.resok4.data)))
            elif number == p.OP_GETFH:
                shown.append(len(result.resok4.object))
            else:
                shown.append(repr(result))
        shown.append([(info.atomic, info.before == info.after) for info in self.infos])
        return shown

    def result(self, wanted_number):
        return next(result for number, result in self.results if number == wanted_number)

    def file(self):
        """The handle that GETFH has given."""
        return self.result(p.OP_GETFH).resok4.object

    async def change(self, handle):
        return await change_of(self.both, handle)


async def sides(both):
    handles = await directories(both)
    return [
        Side(both, which, handle, both.path / name)
        for which, (handle, name) in enumerate(zip(handles, ("one", "two"), strict=True))
    ]


async def agree(pair, make, **how):
    """Both ways' outcome of what ``make`` makes for a side; the change_info4 are what GETATTR tells."""
    before = [await side.change(side.handle) for side in pair]
    shown = [await side.run(putfh(side.handle), *make(side), **how) for side in pair]
    assert shown[0] == shown[1]
    for side, was in zip(pair, before, strict=True):
        if side.infos and side.infos[-1].before != side.infos[-1].after:
            assert (side.infos[-1].before, side.infos[-1].after) == (was, await side.change(side.handle))
    assert tree(pair[0].path) == tree(pair[1].path)
    return shown[0]


def fill(path, rng):
    for name in ("a", "b", "c"):
        (path / name).write_bytes(b"x" * 10)
    for name in ("sub", "full"):
        (path / name).mkdir(exist_ok=True)
        (path / name).chmod(0o777)
    (path / "full" / "file").touch()
    if not os.path.lexists(path / "link"):
        (path / "link").symlink_to("a")
    path.chmod(rng.choice((0o777, 0o777, 0o1777, 0o2777, 0o755)))
    os.utime(path / "sub")


@pytest.mark.parametrize("seed", range(2))
def test_random_directories_and_links(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = await sides(both)
        done = 0
        for step in range(120):
            if step % 12 == 0:
                state = rng.getstate()
                for side in pair:
                    rng.setstate(state)
                    fill(side.path, rng)
            new, text = rng.choice(NEW), rng.choice(TEXTS)
            values = rng.choice((ATTRIBUTES[0], *[rng.choice(ATTRIBUTES)] * 2))
            what = rng.choice((mkdir(new, values), mkdir(new, values), symlink(new, text, values), fifo(b"n0")))
            behind = rng.choice(
                ([], [p.OP_GETFH, getattr_(OF_DIRECTORY)], [p.OP_GETFH, getattr_(OF_DIRECTORY)], [9999])
            )
            shown = await agree(
                pair,
                lambda _, what=what, behind=behind: [what, *behind],
                caller=rng.choice((*CALLERS, (0, 0))),
                cache=rng.random() < 0.3,
            )
            done += shown[0] == OK
        return both.answered, done

    answered, done = on(kind, tmp_path, minor, scenario)
    assert done > 20
    assert answered > 25


@pytest.mark.parametrize("seed", range(2))
def test_random_renames_and_further_names(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = await sides(both)
        done = 0
        for step in range(150):
            if step % 10 == 0:
                state = rng.getstate()
                for side in pair:
                    rng.setstate(state)
                    for one in side.path.iterdir():
                        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
                    fill(side.path, rng)
                    for known in (b"a", b"link", b"sub"):
                        setattr(side, known.decode(), await handle_of(both, os.fsencode(side.path.name) + b"/" + known))
                    # The directory is open to be synchronised.
                    await both.general.call(None, both.message(SPARE, putfh(side.sub), mkdir(b"new", {})))
            likely = (*NAMES[:5] * 3, *NAMES)
            old, new, which = rng.choice(likely), rng.choice(likely), rng.randrange(6)
            behind = rng.choice(([], [], [getattr_(OF_DIRECTORY)], [p.OP_RESTOREFH, getattr_(OF_CONTENT)], [9999]))

            def make(side, which=which, old=old, new=new, behind=behind):
                match which:
                    case 0 | 1:
                        return [p.OP_SAVEFH, putfh(side.handle), rename(old, new), *behind]
                    case 2:
                        return [p.OP_SAVEFH, putfh(side.sub), rename(old, new), putfh(side.handle), *behind[1:]]
                    case 3:
                        return [putfh(side.sub), p.OP_SAVEFH, putfh(side.handle), rename(old, new), *behind]
                    case 4:
                        return [putfh(side.a), p.OP_SAVEFH, putfh(side.handle), link(new), *behind]
                    case _:
                        file = (side.link, side.sub, side.handle)[len(old) % 3]
                        return [putfh(file), p.OP_SAVEFH, putfh(side.handle), link(new), *behind]

            before = [await side.change(side.handle) for side in pair]
            caller, cache = rng.choice((*CALLERS, (0, 0), (0, 0))), rng.random() < 0.2
            shown = [await side.run(putfh(side.handle), *make(side), caller=caller, cache=cache) for side in pair]
            assert shown[0] == shown[1], (which, old, new)
            done += shown[0][0] == OK
            for side, was in zip(pair, before, strict=True):
                now = await side.change(side.handle)
                if side.infos and which != 2:
                    assert (side.infos[-1].before, side.infos[-1].after) == (was, now)
                elif side.infos:
                    assert (side.infos[0].before, side.infos[0].after) == (was, now)
            assert tree(pair[0].path) == tree(pair[1].path)
        return both.answered, done

    answered, done = on(kind, tmp_path, minor, scenario)
    assert done > 15
    assert answered > 25


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


async def natively(both, *operations, times=1, slot=0, **how):
    """The results of a COMPOUND that is answered natively, behind SEQUENCE."""
    before = both.answered
    status, results = Client4.parse(await both.direct.call(None, both.message(slot, *operations, **how)))
    assert (status, both.answered) == (OK, before + times)
    return [result for number, result in results if number != p.OP_SEQUENCE]


async def confirmed(both, owner=b"owner"):
    """An owner of NFSv4.0 that has confirmed itself."""
    if not both.minor:
        made = await both.client.open("/0", b"first file", create=fattr(ATTRIBUTES[0]), owner=owner)
        await both.client.close(*made, owner)


def test_what_linux_sends_is_answered_natively(kind, tmp_path, minor):
    async def scenario(both):
        one, two = await directories(both)
        await confirmed(both)
        umasked = {81: struct.pack(">II", 0o666, 0o022)} if minor == 2 else {33: mode(0o644)}
        looks = p.OP_GETFH, access(0x2D), getattr_(OF_CONTENT)
        kinds = (
            p.createmode4.UNCHECKED4,
            p.createmode4.GUARDED4,
            p.createmode4.EXCLUSIVE4_1 if minor else p.createmode4.EXCLUSIVE4,
        )
        for number, how_ in enumerate(kinds):
            seqid = 0 if minor else next_seqid(both, b"owner")
            made = making(both, b"file %d" % number, how_, umasked, seqid=seqid)
            _, opened, handle, _, _ = await natively(both, putfh(one), made, *looks)
            file = handle.resok4.object
            await natively(both, putfh(file), closing(opened.resok4.stateid, seqid + 1 if not minor else 0))
            bits = os.stat(both.path / "one" / f"file {number}").st_mode & 0o777
            assert bits == (0o600 if how_ == p.createmode4.EXCLUSIVE4 else 0o644)
        await natively(both, putfh(one), mkdir(b"sub", {33: mode(0o755)}), p.OP_GETFH, getattr_(OF_DIRECTORY))
        await natively(
            both, putfh(one), symlink(b"link", b"file 0", {33: mode(0o777)}), p.OP_GETFH, getattr_(OF_DIRECTORY)
        )
        assert os.readlink(both.path / "one" / "link") == "file 0"
        await natively(both, putfh(one), p.OP_SAVEFH, putfh(two), rename(b"file 1", b"moved"))
        await natively(
            both, putfh(file), p.OP_SAVEFH, putfh(two), link(b"further"), p.OP_RESTOREFH, getattr_(OF_CONTENT)
        )
        assert sorted(os.listdir(both.path / "two")) == ["further", "moved"]
        assert (both.path / "two" / "further").stat().st_nlink == 2
        assert not both.server.engine.stateids.entries or not minor

    on(kind, tmp_path, minor, scenario)


def test_failures_are_answered_natively(kind, tmp_path, minor):
    async def scenario(both):
        one, two = await directories(both)
        await confirmed(both)
        fill(both.path / "one", random.Random(0))
        (both.path / "one").chmod(0o755)
        file = await handle_of(both, b"one/a")
        await both.direct.call(None, both.message(0, putfh(one), p.OP_SAVEFH, putfh(two), rename(b"none", b"x")))
        user, root, guarded = (1001, 1001), (0, 0), p.createmode4.GUARDED4

        def opening_(name, how_=guarded):
            return making(both, name, how_, seqid=0 if minor else next_seqid(both, b"owner"))

        for caller, operations, status in (
            (root, lambda: [putfh(one), mkdir(b"sub", {})], p.NFS4ERR_EXIST),
            (root, lambda: [putfh(one), opening_(b"a")], p.NFS4ERR_EXIST),
            (user, lambda: [putfh(one), mkdir(b"new", {})], p.NFS4ERR_ACCESS),
            (user, lambda: [putfh(one), opening_(b"new", p.createmode4.UNCHECKED4)], p.NFS4ERR_ACCESS),
            (user, lambda: [putfh(one), remove(b"a")], p.NFS4ERR_ACCESS),
            (root, lambda: [putfh(one), remove(b"full")], p.NFS4ERR_NOTEMPTY),
            (root, lambda: [putfh(one), remove(b"none")], p.NFS4ERR_NOENT),
            (root, lambda: [putfh(file), remove(b"none")], p.NFS4ERR_NOTDIR),
            (root, lambda: [putfh(one), p.OP_SAVEFH, putfh(two), rename(b"none", b"x")], p.NFS4ERR_NOENT),
            (root, lambda: [putfh(one), p.OP_SAVEFH, rename(b"a", b"full")], p.NFS4ERR_EXIST),
            (root, lambda: [putfh(one), p.OP_SAVEFH, rename(b"sub", b"full")], p.NFS4ERR_NOTEMPTY),
            (root, lambda: [putfh(file), p.OP_SAVEFH, putfh(one), link(b"b")], p.NFS4ERR_EXIST),
            (root, lambda: [putfh(one), p.OP_SAVEFH, putfh(one), link(b"dir")], p.NFS4ERR_ISDIR),
            (root, lambda: [putfh(one), symlink(b"new", b"", {})], p.NFS4ERR_INVAL),
            (root, lambda: [putfh(one), mkdir(b"..", {})], p.NFS4ERR_BADNAME),
            (root, lambda: [putfh(one), mkdir(b"a/b", {})], p.NFS4ERR_BADCHAR),
        ):
            before, tried = both.answered, tree(both.path)
            reply = await both.direct.call(None, both.message(0, *operations(), caller=caller))
            assert (Client4.parse(reply)[0], both.answered) == (status, before + 1), status
            assert tree(both.path) == tried
            again = await both.general.call(None, both.message(1, *operations(), caller=caller))
            assert Client4.parse(again)[0] == status

    on(kind, tmp_path, minor, scenario)


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
        reply = await both.direct.call(None, message)
        assert (Client4.parse(reply)[0], both.answered) == (OK, before + 1)
        assert await both.direct.call(None, message) == reply
        if not minor:
            # In another call, the owner's last result is given again (RFC 7530 section 9.1.9).
            again = both.message(0, putfh(one), making(both, b"new", p.createmode4.GUARDED4, seqid=seqid), p.OP_GETFH,
                                 getattr_(OF_CONTENT))  # fmt: skip
            assert (await both.direct.call(None, again))[4:] == reply[4:]
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
            for wire, slot in ((both.direct, 0), (both.general, 1)):
                reply = await wire.call(None, both.message(slot, *looks))
                assert Client4.parse(reply)[0] == status
                assert not (both.path / "one" / "new").exists()

        engine.grace.active = True
        await refused(p.NFS4ERR_GRACE)
        engine.grace.active = False
        limits, engine.limits = engine.limits, Limits(opens=0, grace=0)
        await refused(p.NFS4ERR_NOSPC)
        engine.limits = limits
        assert both.answered == before

    on(kind, tmp_path, minor, scenario, limits=Limits(grace=0))


def test_an_owner_is_busy_while_its_opening_waits(tmp_path):
    async def scenario(both):
        one, _ = await directories(both)
        await confirmed(both)
        service, seqid, busy = both.server.service, next_seqid(both, b"owner"), []
        settle = service.settle_names
        owner = both.server.engine.clients.lookup(both.client.clientid).open_owners[b"owner"]

        async def looking(*arguments):
            busy.append(owner.busy)
            await settle(*arguments)

        service.settle_names = looking
        await natively(both, putfh(one), making(both, b"new", seqid=seqid), p.OP_GETFH)
        await both.direct.call(
            None, both.message(0, putfh(one), making(both, b"new", p.createmode4.GUARDED4, seqid=seqid + 1))
        )
        service.settle_names = settle
        assert (busy, owner.busy, owner.seqid) == ([True], False, seqid + 1)

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


@pytest.mark.parametrize("seed", range(2))
def test_random_sizes_and_owners(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = []
        for which, name in enumerate((b"one", b"two")):
            (both.path / name.decode()).write_bytes(b"x" * 999)
            (both.path / name.decode()).chmod(0o666)
            both.client.credential = (1001, 1001, ())
            stateid, handle = await both.client.open("/0", name, access=3, owner=b"w" + name)
            reading, _ = await both.client.open("/0", name, access=1, owner=b"r" + name)
            both.client.credential = (0, 0, ())
            side = Side(both, which, handle, both.path)
            side.stateids = (
                stateid,
                reading,
                ANONYMOUS,
                p.stateid4(2**32 - 1, b"\xff" * 12),
                p.stateid4(9, b"none of ours"),
            )
            pair.append(side)
        natively_ = 0
        for _ in range(120):
            what = dict(
                rng.sample(
                    [
                        (4, struct.pack(">Q", rng.choice((0, 1, 5000, 1 << 20, 1 << 63)))),
                        (4, struct.pack(">Q", 100)),
                        (33, mode(rng.choice((0o666, 0o640, 0o4777)))),
                        (36, struct.pack(">I4s", 4, rng.choice((b"1001", b"1002")))),
                        (37, struct.pack(">I4s", 4, b"1001")),
                        (54, at(SECONDS)),
                    ],
                    rng.choice((1, 1, 2)),
                )
            )
            which, caller = rng.choice((0, 0, 0, 0, 1, 2, 3, 4)), rng.choice((*CALLERS, *[(1001, 1001)] * 4))
            behind = rng.choice(([], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT)], [p.OP_GETFH]))
            before = both.answered
            octets = b"".join(what[number] for number in sorted(what))
            values = p.fattr4(wanted(*what).attr_request, octets)
            shown = [
                await side.run(
                    putfh(side.handle),
                    (p.OP_SETATTR, p.SETATTR4args(side.stateids[which], values)),
                    *behind,
                    caller=caller,
                )
                for side in pair
            ]
            assert shown[0] == shown[1], (what, which)
            natively_ += both.answered > before and 4 in what and shown[0][0] == OK
            facts = [(both.path / name).stat() for name in ("one", "two")]
            for field in ("st_mode", "st_uid", "st_gid", "st_size"):
                assert getattr(facts[0], field) == getattr(facts[1], field)
        return natively_

    assert on(kind, tmp_path, minor, scenario) > 3


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_size_is_set_under_a_share(tmp_path, minor):
    """A special stateid does not pass another client's deny (RFC 8881 section 9.7)."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        other = await Client4(both.general, 1, name=b"other", transport=LoopbackTransport()).connect()
        stateid, handle = await other.open("/0", b"a", access=3, deny=2)
        values = p.fattr4(wanted(4).attr_request, bytes(8))
        setting = (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, values))
        for wire, slot in ((both.direct, 0), (both.general, 1)):
            reply = await wire.call(None, both.message(slot, putfh(handle), setting))
            assert Client4.parse(reply)[0] == p.NFS4ERR_LOCKED
        assert (both.path / "a").read_bytes() == b"content"
        await other.close(stateid, handle)
        assert Client4.parse(await both.direct.call(None, both.message(0, putfh(handle), setting)))[0] == OK
        assert (both.path / "a").read_bytes() == b""

    on("memory", tmp_path, minor, scenario)


@pytest.mark.parametrize(("kind", "leases"), [("disk", False), ("disk", True), ("memory", False)])
@pytest.mark.parametrize("minor", SESSIONS)
def test_a_new_file_is_delegated_natively(kind, tmp_path, minor, leases):
    """RFC 8881 section 18.16.3: a write delegation for whoever has made a file and can be called back."""

    async def scenario(both):
        one, two = await directories(both)
        end = CallbackEnd()
        client = await Client4(both.server, minor, name=b"called", transport=LoopbackTransport(callbacks=end)).connect()
        both.client, both.sequences = client, {}
        for which, wire in enumerate((both.direct, both.general)):
            await wire.call(None, both.message(which))
        _, opened, _ = await natively(both, putfh(one), making(both, b"a", share=2 | NO_DELEGATION), p.OP_GETFH)
        assert opened.resok4.delegation.od_whynone.ond_why == p.why_no_delegation4.WND4_NOT_WANTED
        looks = p.OP_GETFH, access(0x2D), getattr_(OF_CONTENT)
        shown, handles, table = [], [], both.server.engine.delegations
        for wire, slot, directory in ((both.direct, 0, one), (both.general, 1, two)):
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
            # For a read lease, the descriptor of the creation has to go first.
            assert both.answered - before == (0 if slot else 2 if leases else 3)
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
            assert Client4.parse(await both.direct.call(None, both.message(0, putfh(handle), back)))[0] == OK
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
        for which, wire in enumerate((both.direct, both.general)):
            await wire.call(None, both.message(which))
        both.server.service.leases.lock = lambda *_, **how: None
        told = []
        for wire, slot, directory in ((both.direct, 0, one), (both.general, 1, two)):
            before = both.answered
            wish = making(both, b"a", share=2 | p.OPEN4_SHARE_ACCESS_WANT_ANY_DELEG)
            opened = Client4.parse(await wire.call(None, both.message(slot, putfh(directory), wish)))[1][2][1].resok4
            told.append((repr(opened.delegation), opened.stateid.seqid))
            assert both.answered - before == 1 - slot
        assert told[0] == told[1]
        assert both.server.engine.delegations.count == 0

    on("disk", tmp_path, minor, scenario, limits=Limits(grace=0), leases=True)
