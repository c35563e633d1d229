"""NFSv3 for a client: one procedure, one method. Owns :class:`Nfs3`; imports the protocol's declarations and the
calls.

The client waits while the server answers NFS3ERR_JUKEBOX (RFC 1813 section 2.6). If a reply leaves out what is needed
(post_op_attr, post_op_fh3), the client asks for it. It has no cache, so it does not use weak cache consistency data.

RFC 1813 section 3.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nfsd.client.errors import os_error
from nfsd.client.mount import Mounts
from nfsd.client.rpc import Caller, Patience
from nfsd.client.types import NOW, Changes, Found, Name, Space, Stat
from nfsd.protocol import nfs3 as p

_TYPES: Final = {
    p.ftype3.NF3REG: 0o100000, p.ftype3.NF3DIR: 0o040000, p.ftype3.NF3BLK: 0o060000, p.ftype3.NF3CHR: 0o020000,
    p.ftype3.NF3LNK: 0o120000, p.ftype3.NF3SOCK: 0o140000, p.ftype3.NF3FIFO: 0o010000,
}  # fmt: skip
_DIRECTORY_REPLY: Final = 1 << 16
"""Octets of one reply with names."""
_ATTRIBUTES_REPLY: Final = 1024
"""More than any result of NFSv3 without data or names."""
_LONGEST_LINK: Final = 4096
"""PATH_MAX: no longer text leads anywhere."""
_BILLION: Final = 1_000_000_000


@dataclass(slots=True)
class Opened3:
    """A file in use; NFSv3 knows no open files."""

    handle: bytes


class Nfs3:
    """The operations of :class:`nfsd.client.types.Backend`."""

    version = "3"

    def __init__(self, caller: Caller, mounts: Mounts, patience: Patience, *, size: int, depth: int) -> None:
        self.caller = caller
        self._mounts = mounts
        self._patience = patience
        self._wanted_size = size
        self.read_size = self.write_size = size
        self.depth = depth

    async def _call(
        self, number: int, arguments: Any, *, into: memoryview | None = None, reply_max: int = _ATTRIBUTES_REPLY
    ) -> Any:
        """The ``resok`` of a procedure. Raises OSError."""
        types = p.PROCEDURES[number]
        patience = self._patience.start()
        while True:
            result = await self.caller.call(
                p.NFS_PROGRAM, p.NFS_V3, number, (types.arguments, arguments), types.results, into=into,
                reply_max=reply_max,
            )  # fmt: skip
            if result.status == p.NFS3_OK:
                return result.resok
            if result.status != p.NFS3ERR_JUKEBOX or not await patience.wait("the server says it is busy (JUKEBOX)"):
                raise os_error(result.status, 3)

    async def null(self) -> None:
        """NULL: whether the server has NFSv3. Raises VersionRefused."""
        await self.caller.call(p.NFS_PROGRAM, p.NFS_V3, p.NFSPROC3_NULL, (None, None), None, reply_max=0)

    # -- where the server's names begin ------------------------------------------------------------------------------
    async def attach(self, names: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """MOUNT the export that ``names`` lead into, and learn what the server takes at a time."""
        handle, rest = await self._mounts.mount(names)
        info = await self._call(p.NFSPROC3_FSINFO, p.FSINFOargs(p.nfs_fh3(handle)))
        # A limit of nothing would never move a file; servers that do not care say 0.
        self.read_size = min(self._wanted_size, info.rtmax or self._wanted_size, p.DATA_LIMIT)
        self.write_size = min(self._wanted_size, info.wtmax or self._wanted_size, p.DATA_LIMIT)
        return handle, rest

    # -- attributes --------------------------------------------------------------------------------------------------
    async def getattr(self, handle: bytes) -> Stat:
        """GETATTR (section 3.3.1)."""
        return _stat((await self._call(p.NFSPROC3_GETATTR, p.GETATTR3args(p.nfs_fh3(handle)))).obj_attributes)

    async def setattr(self, handle: bytes, changes: Changes, opened: Any = None) -> None:
        """SETATTR (section 3.3.2)."""
        await self._call(p.NFSPROC3_SETATTR, p.SETATTR3args(p.nfs_fh3(handle), _sattr(changes), None))

    async def space(self, handle: bytes) -> Space:
        """FSSTAT (section 3.3.18)."""
        found = await self._call(p.NFSPROC3_FSSTAT, p.FSSTAT3args(p.nfs_fh3(handle)))
        return Space(found.tbytes, found.fbytes, found.abytes, found.tfiles, found.ffiles, found.afiles)

    async def _of(self, attributes: p.fattr3 | None, handle: bytes) -> Stat:
        return _stat(attributes) if attributes is not None else await self.getattr(handle)

    # -- names -------------------------------------------------------------------------------------------------------
    async def lookup(self, directory: bytes, name: bytes) -> Found:
        """LOOKUP (section 3.3.3)."""
        found = await self._call(p.NFSPROC3_LOOKUP, p.LOOKUP3args(_at(directory, name)))
        handle = found.object.data
        return Found(handle, await self._of(found.obj_attributes, handle))

    async def walk(self, directory: bytes, names: Sequence[bytes]) -> Found | None:
        """Nothing: NFSv3 looks up one name at a time."""
        return None

    async def readlink(self, handle: bytes) -> bytes:
        """READLINK (section 3.3.5)."""
        arguments = p.READLINK3args(p.nfs_fh3(handle))
        reply_max = _ATTRIBUTES_REPLY + _LONGEST_LINK
        return bytes((await self._call(p.NFSPROC3_READLINK, arguments, reply_max=reply_max)).data)

    async def readdir(self, directory: bytes) -> AsyncIterator[Name]:
        """READDIRPLUS (section 3.3.17), or READDIR where the server has no such thing."""
        cookie, verifier, plus = 0, bytes(8), True
        while True:
            fh = p.nfs_fh3(directory)
            try:
                if plus:
                    wide = p.READDIRPLUS3args(fh, cookie, verifier, _DIRECTORY_REPLY // 4, _DIRECTORY_REPLY)
                    found = await self._call(p.NFSPROC3_READDIRPLUS, wide, reply_max=_DIRECTORY_REPLY + 256)
                else:
                    narrow = p.READDIR3args(fh, cookie, verifier, _DIRECTORY_REPLY)
                    found = await self._call(p.NFSPROC3_READDIR, narrow, reply_max=_DIRECTORY_REPLY + 256)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP and plus and not cookie:
                    plus = False
                    continue
                raise
            verifier = found.cookieverf
            for entry in found.reply.entries:
                cookie = entry.cookie
                if entry.name in (b".", b".."):
                    continue
                if plus:
                    handle = None if entry.name_handle is None else entry.name_handle.data
                    stat = None if entry.name_attributes is None else _stat(entry.name_attributes)
                    yield Name(entry.name, handle, stat)
                else:
                    yield Name(entry.name, None, None)
            if found.reply.eof:
                return
            if not found.reply.entries:
                raise OSError(errno.EREMOTEIO, "the server neither continues nor ends the directory")

    async def mkdir(self, directory: bytes, name: bytes, mode: int) -> bytes | None:
        """MKDIR (section 3.3.9)."""
        arguments = p.MKDIR3args(_at(directory, name), _sattr(Changes(mode=mode)))
        made = await self._call(p.NFSPROC3_MKDIR, arguments)
        return None if made.obj is None else bytes(made.obj.data)

    async def symlink(self, directory: bytes, name: bytes, text: bytes) -> None:
        """SYMLINK (section 3.3.10)."""
        data = p.symlinkdata3(_sattr(Changes(mode=0o777)), memoryview(text))
        await self._call(p.NFSPROC3_SYMLINK, p.SYMLINK3args(_at(directory, name), data))

    async def link(self, handle: bytes, directory: bytes, name: bytes) -> None:
        """LINK (section 3.3.15)."""
        await self._call(p.NFSPROC3_LINK, p.LINK3args(p.nfs_fh3(handle), _at(directory, name)))

    async def remove(self, directory: bytes, name: bytes) -> None:
        """REMOVE (section 3.3.12)."""
        await self._call(p.NFSPROC3_REMOVE, p.REMOVE3args(_at(directory, name)))

    async def rmdir(self, directory: bytes, name: bytes) -> None:
        """RMDIR (section 3.3.13)."""
        await self._call(p.NFSPROC3_RMDIR, p.RMDIR3args(_at(directory, name)))

    async def rename(self, source: bytes, old: bytes, target: bytes, new: bytes) -> None:
        """RENAME (section 3.3.14)."""
        await self._call(p.NFSPROC3_RENAME, p.RENAME3args(_at(source, old), _at(target, new)))

    # -- files -------------------------------------------------------------------------------------------------------
    async def create(self, directory: bytes, name: bytes, mode: int, *, exclusive: bool) -> tuple[Opened3, Stat | None]:
        """CREATE (section 3.3.8). EXCLUSIVE, so that a call sent twice creates one file and says so; its mode follows,
        since this kind of CREATE has no room for it."""
        if exclusive:
            how = p.createhow3(p.createmode3.EXCLUSIVE, verf=secrets.token_bytes(p.NFS3_CREATEVERFSIZE))
        else:
            how = p.createhow3(p.createmode3.UNCHECKED, obj_attributes=_sattr(Changes(mode=mode)))
        made = await self._call(p.NFSPROC3_CREATE, p.CREATE3args(_at(directory, name), how))
        handle = (await self.lookup(directory, name)).handle if made.obj is None else made.obj.data
        if exclusive:
            # The server may keep the verifier in the times: they are set as well (section 3.3.8).
            await self.setattr(handle, Changes(mode=mode, atime_ns=NOW, mtime_ns=NOW))
            return Opened3(handle), None
        return Opened3(handle), None if made.obj_attributes is None else _stat(made.obj_attributes)

    async def open(self, found: bytes, *, write: bool) -> Opened3:
        """Ask whether the file may be used so (ACCESS, section 3.3.4): the READ that would find out comes later."""
        wanted = p.ACCESS3_MODIFY | p.ACCESS3_EXTEND if write else p.ACCESS3_READ
        granted = (await self._call(p.NFSPROC3_ACCESS, p.ACCESS3args(p.nfs_fh3(found), wanted))).access
        # Who may execute a file may read it over NFS, and an owner always may: servers decide that at the READ.
        if write and not granted & wanted:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return Opened3(found)

    async def read(self, opened: Opened3, offset: int, into: memoryview) -> tuple[int, bool]:
        """READ (section 3.3.6)."""
        count = len(into)
        arguments = p.READ3args(p.nfs_fh3(opened.handle), offset, count)
        found = await self._call(p.NFSPROC3_READ, arguments, into=into)
        return self.caller.placed(found.data, into), found.eof

    async def write(self, opened: Opened3, offset: int, data: bytes | memoryview) -> tuple[int, bytes | None]:
        """WRITE, UNSTABLE (section 3.3.7)."""
        arguments = p.WRITE3args(
            p.nfs_fh3(opened.handle), offset, len(data), p.stable_how.UNSTABLE, self.caller.payload(data)
        )
        written = await self._call(p.NFSPROC3_WRITE, arguments)
        if not 0 < written.count <= len(data):
            raise OSError(errno.EREMOTEIO, f"the server says that it wrote {written.count} octets of {len(data)}")
        return written.count, None if written.committed == p.stable_how.FILE_SYNC else written.verf

    async def commit(self, opened: Opened3) -> bytes:
        """COMMIT of the whole file (section 3.3.21)."""
        arguments = p.COMMIT3args(p.nfs_fh3(opened.handle), 0, 0)
        return bytes((await self._call(p.NFSPROC3_COMMIT, arguments)).verf)

    async def release(self, opened: Opened3) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Tell mountd, and close the connection."""
        await self._mounts.close()
        await self.caller.close()


def _at(directory: bytes, name: bytes) -> p.diropargs3:
    return p.diropargs3(p.nfs_fh3(directory), name)


def _sattr(changes: Changes) -> p.sattr3:
    def time(made: type[p.set_atime] | type[p.set_mtime], field: str, value: int | None) -> Any:
        if value is None:
            return made(p.time_how.DONT_CHANGE)
        if value == NOW:
            return made(p.time_how.SET_TO_SERVER_TIME)
        seconds, rest = divmod(value, _BILLION)
        # Times before 1970 or after 2106 do not fit: the nearest that does.
        clamped = p.nfstime3(min(max(seconds, 0), 0xFFFFFFFF), rest)
        return made(p.time_how.SET_TO_CLIENT_TIME, **{field: clamped})

    return p.sattr3(
        changes.mode, changes.uid, changes.gid, changes.size,
        time(p.set_atime, "atime", changes.atime_ns), time(p.set_mtime, "mtime", changes.mtime_ns),
    )  # fmt: skip


def _stat(a: p.fattr3) -> Stat:
    return Stat(
        st_mode=_TYPES.get(a.type, 0) | a.mode & 0o7777,
        st_ino=a.fileid,
        st_nlink=a.nlink,
        st_uid=a.uid,
        st_gid=a.gid,
        st_size=a.size,
        st_blocks=(a.used + 511) // 512,
        st_atime_ns=a.atime.seconds * _BILLION + a.atime.nseconds,
        st_mtime_ns=a.mtime.seconds * _BILLION + a.mtime.nseconds,
        st_ctime_ns=a.ctime.seconds * _BILLION + a.ctime.nseconds,
        st_rdev=(a.rdev.specdata1, a.rdev.specdata2),
        fsid=(a.fsid, 0),
        owner=str(a.uid),
        group=str(a.gid),
    )
