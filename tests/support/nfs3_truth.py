"""What GETATTR, ACCESS and READ have to answer, from what the kernel says of a file and the declarations of NFSv3."""

from __future__ import annotations

import os
import stat
from typing import Any

from nfsd.protocol.nfs3 import (
    ACCESS3args,
    ACCESS3res,
    ACCESS3resok,
    GETATTR3res,
    GETATTR3resok,
    READ3args,
    READ3res,
    READ3resfail,
    READ3resok,
    fattr3,
    ftype3,
    nfsstat3,
    nfstime3,
    specdata3,
)
from rpcrdma.xdr import pack, uint32, unpack

GETATTR, ACCESS, READ = 1, 4, 6
READ_MAX = 1 << 20
_TYPES = {
    stat.S_IFREG: ftype3.NF3REG,
    stat.S_IFDIR: ftype3.NF3DIR,
    stat.S_IFBLK: ftype3.NF3BLK,
    stat.S_IFCHR: ftype3.NF3CHR,
    stat.S_IFLNK: ftype3.NF3LNK,
    stat.S_IFSOCK: ftype3.NF3SOCK,
    stat.S_IFIFO: ftype3.NF3FIFO,
}


def _time(nanoseconds: int) -> nfstime3:
    return nfstime3(*divmod(nanoseconds, 1_000_000_000))


def attributes(node: Any) -> fattr3:
    """Of a node's file now, whose times are those of these years."""
    found = os.fstat(node.fd)
    major, minor = node.mount.fsid
    device = stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode)
    return fattr3(
        _TYPES[stat.S_IFMT(found.st_mode)],
        stat.S_IMODE(found.st_mode),
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_size,
        found.st_blocks * 512,
        specdata3(os.major(found.st_rdev), os.minor(found.st_rdev)) if device else specdata3(0, 0),
        (major * 0x9E3779B97F4A7C15 + minor) % (1 << 64),
        found.st_ino,
        _time(found.st_atime_ns),
        _time(found.st_mtime_ns),
        _time(found.st_ctime_ns),
    )


def _permissions(found: fattr3, caller: tuple[int, int]) -> int:
    """rwx of a caller without further groups."""
    uid, gid = caller
    if uid == 0:
        return 7 if found.mode & 0o111 or found.type == ftype3.NF3DIR else 6
    return found.mode >> (6 if uid == found.uid else 3 if gid == found.gid else 0) & 7


def _access(found: fattr3, caller: tuple[int, int], wanted: int) -> ACCESS3res:
    may = _permissions(found, caller)
    granted = 0x01 if may & 4 else 0
    if found.type == ftype3.NF3DIR:
        granted |= (0x02 | (0x1C if may & 2 else 0)) if may & 1 else 0
    else:
        granted |= (0x0C if may & 2 else 0) | (0x20 if may & 1 else 0)
    return ACCESS3res(nfsstat3.NFS3_OK, resok=ACCESS3resok(found, granted & wanted))


def _read(node: Any, found: fattr3, caller: tuple[int, int], offset: int, count: int) -> READ3res:
    if found.type != ftype3.NF3REG:
        return READ3res(nfsstat3.NFS3ERR_INVAL, resfail=READ3resfail(found))
    # Section 4.4: the owner may, and who may execute the file.
    if caller[0] not in (0, found.uid) and not _permissions(found, caller) & 5:
        return READ3res(nfsstat3.NFS3ERR_ACCES, resfail=READ3resfail(found))
    count = min(count, READ_MAX)
    with open(f"/proc/self/fd/{node.fd}", "rb") as file:
        data = os.pread(file.fileno(), count, offset) if offset < 1 << 62 else b""
    return READ3res(nfsstat3.NFS3_OK, resok=READ3resok(found, len(data), offset + len(data) >= found.size, data))


def results(node: Any, procedure: int, arguments: bytes, caller: tuple[int, int]) -> bytes | None:
    """The octets behind the RPC header of a reply; None: of this procedure nothing is said here."""
    found = attributes(node)
    if found.nlink == 0 and procedure in (GETATTR, ACCESS, READ):
        return pack(uint32, nfsstat3.NFS3ERR_STALE) + (b"" if procedure == GETATTR else bytes(4))
    if procedure == GETATTR:
        return pack(GETATTR3res, GETATTR3res(nfsstat3.NFS3_OK, resok=GETATTR3resok(found)))
    if procedure == ACCESS:
        return pack(ACCESS3res, _access(found, caller, unpack(ACCESS3args, arguments).access))
    if procedure == READ:
        given = unpack(READ3args, arguments)
        return pack(READ3res, _read(node, found, caller, given.offset, given.count))
    return None
