"""Directories that are treated alike over two ways, and what changes the names in them."""

import os
import stat
import struct

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, wanted
from tests.unit.test_nfs4_native import putfh
from tests.unit.test_nfs4_native_changes import SECONDS, at, change_of, directories, mode

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
        self.wire = (both.native, both.general)[which]

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
    assert shown[0] == shown[1], make(pair[0])
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


async def natively(both, *operations, times=1, slot=0, **how):
    """The results of a COMPOUND that is answered natively, behind SEQUENCE."""
    before = both.answered
    status, results = Client4.parse(await both.native.call(None, both.message(slot, *operations, **how)))
    assert (status, both.answered) == (OK, before + times)
    return [result for number, result in results if number != p.OP_SEQUENCE]


async def confirmed(both, owner=b"owner"):
    """An owner of NFSv4.0 that has confirmed itself."""
    if not both.minor:
        made = await both.client.open("/0", b"first file", create=fattr(ATTRIBUTES[0]), owner=owner)
        await both.client.close(*made, owner)
