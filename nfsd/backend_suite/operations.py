"""What a backend answers to the operations that it may have or not: the conformance suite's questions, by NFSv4.2.

Each question finds out what the server declares, and raises AssertionError unless the operation then does what it
should, or is refused as the RFC says. It returns the answer for a table (:data:`QUESTIONS`): OK, or the error's name.

RFC 7862 sections 15.1, 15.2, 15.4, 15.11, 15.13; RFC 8276 section 8.4; RFC 8881 sections 5.5, 9.1.4, 9.7, 18.10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from nfsd.backend_suite.peer import Peer
from nfsd.client.compound import Op
from nfsd.client.fattr4 import words
from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Encoder, pack

SIZE: Final = 1 << 17
"""Octets of the file that is asked about."""
PIECE: Final = 1 << 16
_READ, _BOTH = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_BOTH
_ANONYMOUS: Final = p.stateid4(0, bytes(12))
OK: Final = "OK"


@dataclass
class Asked:
    """Whom is asked, and about what."""

    peer: Peer
    directory: bytes
    """The handle of a directory."""
    name: str
    """A file in it, of SIZE octets that are no zeros where it can be written to."""
    writable: bool = True

    async def file(self, name: str = "") -> bytes:
        """The handle of the file, or of another one beside it."""
        found = (p.OP_LOOKUP, p.LOOKUP4args((name or self.name).encode()))
        status, results = await self.peer.on(self.directory, found, (p.OP_GETFH, None))
        assert status == p.NFS4_OK, status
        return bytes(results[1].resok4.object)

    async def opened(self, access: int = _BOTH, name: str = "", **how: Any) -> p.stateid4:
        """A stateid for the file."""
        status, stateid = await self.peer.open(self.directory, name or self.name, access, **how)
        assert stateid is not None, status
        return stateid

    async def closed(self, stateid: p.stateid4, name: str = "") -> None:
        """Close it."""
        status, _ = await self.peer.on(await self.file(name), (p.OP_CLOSE, p.CLOSE4args(0, stateid)))
        assert status == p.NFS4_OK, status

    async def data(self, offset: int, count: int, name: str = "") -> bytes:
        """What can be read there."""
        reading = (p.OP_READ, p.READ4args(_ANONYMOUS, offset, count))
        status, results = await self.peer.on(await self.file(name), reading)
        assert status == p.NFS4_OK, status
        return bytes(results[0].resok4.data)

    async def changed(self, name: str, *operations: Callable[[p.stateid4], Op]) -> tuple[p.nfsstat4, list[Any]]:
        """What operations with the stateid of a file are answered; ROFS where none can be had for writing."""
        status, stateid = await self.peer.open(self.directory, name, _BOTH)
        if stateid is None:
            return status, []
        status, results = await self.peer.on(await self.file(name), *(make(stateid) for make in operations))
        await self.closed(stateid, name)
        return status, results


def _answer(status: p.nfsstat4, *refusals: p.nfsstat4) -> str:
    """The answer, which is none but OK, or one of the refusals."""
    assert status in (p.NFS4_OK, *refusals), f"{status.name} where only {[one.name for one in refusals]} can be said"
    return OK if status == p.NFS4_OK else status.name.removeprefix("NFS4ERR_")


# -- what may be there or not --------------------------------------------------------------------------------------
async def extended_attributes(asked: Asked) -> str:
    """SETXATTR, GETXATTR, LISTXATTRS, REMOVEXATTR."""
    peer, file = asked.peer, await asked.file()
    declared = (await peer.attribute(file, p.FATTR4_XATTR_SUPPORT)).uint32()
    putting = (p.OP_SETXATTR, p.SETXATTR4args(p.setxattr_option4.SETXATTR4_EITHER, b"colour", b"\0blue"))
    getting: Op = (p.OP_GETXATTR, p.GETXATTR4args(b"colour"))
    listing: Op = (p.OP_LISTXATTRS, p.LISTXATTRS4args(0, 4096))
    removing: Op = (p.OP_REMOVEXATTR, p.REMOVEXATTR4args(b"colour"))
    if not declared:
        for operation in (getting, listing):
            status, _ = await peer.on(file, operation)
            assert status == p.NFS4ERR_NOTSUPP, status
        for operation in (putting, removing):
            status, _ = await peer.on(file, operation)
            answer = _answer(status, p.NFS4ERR_NOTSUPP, *([] if asked.writable else [p.NFS4ERR_ROFS]))
            assert answer != OK, "done, though the server declares that there are none"
        return answer
    status, results = await peer.on(file, putting, getting, listing)
    assert status == p.NFS4_OK, status
    assert bytes(results[1].gxr_value) == b"\0blue"
    assert [bytes(one) for one in results[2].lxr_value.lxr_names] == [b"colour"]
    assert (await peer.on(file, removing))[0] == p.NFS4_OK
    assert (await peer.on(file, getting))[0] == p.NFS4ERR_NOXATTR
    return OK


async def access_control_lists(asked: Asked) -> str:
    """SETATTR of ``acl``, which is no attribute there where it is not declared."""
    peer, file = asked.peer, await asked.file()
    supported = (await peer.attribute(file, p.FATTR4_SUPPORTED_ATTRS)).decode(p.bitmap4)
    declared = bool(supported[0] >> p.FATTR4_ACL & 1)
    read = p.ACE4_READ_DATA | p.ACE4_READ_ATTRIBUTES | p.ACE4_READ_ACL | p.ACE4_SYNCHRONIZE
    entries = [p.nfsace4(0, 0, read, who) for who in (b"OWNER@", b"1000", b"GROUP@", b"EVERYONE@")]
    value = pack(p.fattr4_acl, entries)
    setting: Op = (p.OP_SETATTR, p.SETATTR4args(_ANONYMOUS, p.fattr4(words((p.FATTR4_ACL,)), value)))
    status, _ = await peer.on(file, setting)
    refusals = (p.NFS4ERR_ROFS,) if not asked.writable else () if declared else (p.NFS4ERR_ATTRNOTSUPP,)
    answer = _answer(status, *refusals, *([] if declared else [p.NFS4ERR_ATTRNOTSUPP]))
    if answer == OK:
        assert declared, "set, though the server declares that there are none"
        seen = (await peer.attribute(file, p.FATTR4_ACL)).decode(p.fattr4_acl)
        assert any(bytes(one.who).startswith(b"1000") for one in seen)
    return answer


async def allocating(asked: Asked) -> str:
    """ALLOCATE behind the end, which makes the file longer."""
    length = SIZE + PIECE
    status, _ = await asked.changed(asked.name, lambda one: (p.OP_ALLOCATE, p.ALLOCATE4args(one, 0, length)))
    answer = _answer(status, p.NFS4ERR_NOTSUPP, *([] if asked.writable else [p.NFS4ERR_ROFS]))
    if answer == OK:
        assert (await asked.peer.attribute(await asked.file(), p.FATTR4_SIZE)).uint64() == length
        assert await asked.data(SIZE, PIECE) == bytes(PIECE)
    return answer


async def deallocating(asked: Asked) -> str:
    """DEALLOCATE in the middle; what is around it stays."""
    before = await asked.data(0, SIZE)
    punching = p.DEALLOCATE4args
    status, _ = await asked.changed(asked.name, lambda one: (p.OP_DEALLOCATE, punching(one, PIECE // 2, PIECE)))
    answer = _answer(status, p.NFS4ERR_NOTSUPP, *([] if asked.writable else [p.NFS4ERR_ROFS]))
    expected = bytearray(before)
    if answer == OK:
        expected[PIECE // 2 : PIECE // 2 + PIECE] = bytes(PIECE)
    assert await asked.data(0, SIZE) == expected
    return answer


async def seeking(asked: Asked) -> str:
    """SEEK: there is data at the beginning, a hole at the end if not before, and nothing behind that."""
    file, stateid = await asked.file(), await asked.opened(_READ)
    size = (await asked.peer.attribute(file, p.FATTR4_SIZE)).uint64()

    async def seek(offset: int, what: p.data_content4) -> tuple[p.nfsstat4, Any]:
        status, results = await asked.peer.on(file, (p.OP_SEEK, p.SEEK4args(stateid, offset, what)))
        return status, results[0].resok4 if status == p.NFS4_OK else None

    status, found = await seek(0, p.data_content4.NFS4_CONTENT_DATA)
    answer = _answer(status, p.NFS4ERR_NOTSUPP)
    if answer == OK:
        assert found.sr_offset == 0
        _, found = await seek(0, p.data_content4.NFS4_CONTENT_HOLE)
        assert 0 < found.sr_offset <= size
        assert (await seek(size + 1, p.data_content4.NFS4_CONTENT_DATA))[0] == p.NFS4ERR_NXIO
    await asked.closed(stateid)
    return answer


async def _into_another(asked: Asked, operation: Callable[[p.stateid4, p.stateid4], Op]) -> str:
    """The answer to an operation from the file to an empty one beside it."""
    source, reading = await asked.file(), await asked.opened(_READ, owner=b"reader")
    target = asked.name + ".to" if asked.writable else asked.name
    status, writing = await asked.peer.open(asked.directory, target, _BOTH)
    if writing is not None:
        saved: list[Op] = [(p.OP_PUTFH, p.PUTFH4args(source)), (p.OP_SAVEFH, None)]
        into: Op = (p.OP_PUTFH, p.PUTFH4args(await asked.file(target)))
        status, _ = await asked.peer.ask(*saved, into, operation(reading, writing))
        await asked.closed(writing, target)
    await asked.closed(reading)
    answer = _answer(status, p.NFS4ERR_NOTSUPP, *([] if asked.writable else [p.NFS4ERR_ROFS]))
    if answer == OK:
        assert await asked.data(0, SIZE, target) == await asked.data(0, SIZE)
    return answer


async def copying(asked: Asked) -> str:
    """COPY of the whole file."""
    return await _into_another(
        asked, lambda one, two: (p.OP_COPY, p.COPY4args(one, two, 0, 0, SIZE, True, True, []))
    )  # fmt: skip


async def cloning(asked: Asked) -> str:
    """CLONE of the whole file."""
    return await _into_another(asked, lambda one, two: (p.OP_CLONE, p.CLONE4args(one, two, 0, 0, SIZE)))


# -- what every backend has, the server doing it if need be --------------------------------------------------------
async def locking(asked: Asked) -> str:
    """LOCK: exclusive ones exclude, shared ones do not, ranges count, and LOCKU gives them up."""
    access, kinds = _BOTH if asked.writable else _READ, p.nfs_lock_type4
    file, one = await asked.file(), await asked.opened(access, owner=b"one")
    two = await asked.opened(access, owner=b"two")
    kind = kinds.WRITE_LT if asked.writable else kinds.READ_LT

    async def lock(opened: p.stateid4, owner: bytes, offset: int) -> tuple[p.nfsstat4, Any]:
        new = p.open_to_lock_owner4(0, opened, 0, p.lock_owner4(asked.peer.clientid, owner))
        args = p.LOCK4args(kind, False, offset, 10, p.locker4(True, open_owner=new))
        status, results = await asked.peer.on(file, (p.OP_LOCK, args))
        return status, results[-1]

    status, granted = await lock(one, b"first", 0)
    assert status == p.NFS4_OK, status
    status, _ = await lock(two, b"second", 5)
    assert status == (p.NFS4ERR_DENIED if asked.writable else p.NFS4_OK), status
    assert (await lock(two, b"third", 10))[0] == p.NFS4_OK
    unlock = p.LOCKU4args(kind, 0, granted.resok4.lock_stateid, 0, 10)
    assert (await asked.peer.on(file, (p.OP_LOCKU, unlock)))[0] == p.NFS4_OK
    assert (await lock(two, b"fourth", 0))[0] == p.NFS4_OK
    for stateid in (one, two):
        await asked.peer.on(file, (p.OP_CLOSE, p.CLOSE4args(0, stateid)))
    return OK


async def denying(asked: Asked) -> str:
    """OPEN that denies others to read, until it is closed."""
    stateid = await asked.opened(_READ, owner=b"one", deny=p.OPEN4_SHARE_DENY_BOTH)
    status, _ = await asked.peer.open(asked.directory, asked.name, _READ, owner=b"two")
    assert status == p.NFS4ERR_SHARE_DENIED, status
    await asked.closed(stateid)
    await asked.closed(await asked.opened(_READ, owner=b"two"))
    return OK


async def change_attributes(asked: Asked) -> str:
    """The change attribute: it stays as long as nothing changes, and never comes back to what it was."""
    file, peer = await asked.file(), asked.peer

    async def now() -> tuple[int, int]:
        found = [await peer.attribute(one, p.FATTR4_CHANGE) for one in (file, asked.directory)]
        return found[0].uint64(), found[1].uint64()

    seen = [await now()]
    assert await now() == seen[0]
    if not asked.writable:
        return OK
    for number in range(5):
        octet = p.WRITE4args(_ANONYMOUS, number, p.stable_how4.FILE_SYNC4, memoryview(b"c"))
        assert (await peer.on(file, (p.OP_WRITE, octet)))[0] == p.NFS4_OK
        made: Op = (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d%d" % number, _mode(0o755)))
        assert (await peer.on(asked.directory, made))[0] == p.NFS4_OK
        assert (await peer.on(asked.directory, (p.OP_REMOVE, p.REMOVE4args(b"d%d" % number))))[0] == p.NFS4_OK
        seen.append(await now())
    for values in zip(*seen, strict=True):
        assert sorted(set(values)) == list(values), "it has not grown with each change"
    return OK


def _mode(bits: int) -> p.fattr4:
    encoder = Encoder()
    encoder.uint32(bits)
    return p.fattr4(words((p.FATTR4_MODE,)), encoder.getvalue())


Question = Callable[[Asked], Awaitable[str]]
QUESTIONS: Final[dict[str, Question]] = {
    "LOCK, LOCKU": locking,
    "OPEN that denies": denying,
    "change attribute": change_attributes,
    "GETXATTR, SETXATTR": extended_attributes,
    "SETATTR of an ACL": access_control_lists,
    "COPY": copying,
    "CLONE": cloning,
    "SEEK": seeking,
    "ALLOCATE": allocating,
    "DEALLOCATE": deallocating,
}
"""In the order in which they are asked: the last ones change the file's size and data."""
