"""NFSv4.1 for a client: one operation on files or names, one method. Owns :class:`Nfs41`; imports the session and the
protocol.

Operations that must not be done twice ask the server to keep their reply (sa_cachethis). The client opens files by
name when it creates them, and by handle (CLAIM_FH) otherwise. It refuses delegations unless the caller wants them. It
caches nothing, so delegations are only good for showing that it returns them.

RFC 8881 section 18.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat as modes
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from nfsd.client import fattr4
from nfsd.client.compound import Op, putfh
from nfsd.client.errors import Untold, os_error
from nfsd.client.opens import ANONYMOUS, Opened4
from nfsd.client.recovery import Client4
from nfsd.client.session import OVERHEAD, Session
from nfsd.client.types import NOW, Changes, Found, Name, Space, Stat
from nfsd.protocol import nfs4 as p

_log = logging.getLogger(__name__)

_DIRECTORY_REPLY: Final = 1 << 16
_LONGEST_LINK: Final = 4096
_MOST_LOOKUPS: Final = 32
"""Names looked up in one COMPOUND."""
_GETATTR: Final[Op] = (p.OP_GETATTR, p.GETATTR4args(fattr4.STAT))
_GETFH: Final[Op] = (p.OP_GETFH, None)
_NOT_A_DIRECTORY: Final = frozenset((p.NFS4ERR_NOTDIR, p.NFS4ERR_SYMLINK))


class Nfs41:
    """The operations of :class:`nfsd.client.types.Backend`."""

    version = "4.1"

    def __init__(self, session: Session, client: Client4, *, size: int, depth: int, delegations: bool) -> None:
        self.session = session
        self.caller = session.caller
        self.client = client
        self._wanted_size = size
        self.read_size = self.write_size = size
        self.depth = depth
        self._delegations = delegations
        self._returns: set[asyncio.Task[None]] = set()
        self.caller.backchannel.recall = self._recall

    async def start(self) -> None:
        """Make the session, and learn what the server takes at a time."""
        await self.client.start()
        limits = p.GETATTR4args(fattr4.words((p.FATTR4_MAXREAD, p.FATTR4_MAXWRITE)))
        done = await self._run((p.OP_PUTROOTFH, None), (p.OP_GETATTR, limits))
        found = fattr4.values(done[1].resok4.obj_attributes)
        most_read = min(found.get(p.FATTR4_MAXREAD, p.DATA_LIMIT), self.client.max_response - OVERHEAD)
        most_write = min(found.get(p.FATTR4_MAXWRITE, p.DATA_LIMIT), self.client.max_request - OVERHEAD)
        self.read_size = max(min(self._wanted_size, most_read), 512)
        self.write_size = max(min(self._wanted_size, most_write), 512)
        self.depth = max(1, min(self.depth, self.session.slots.usable))

    async def _run(self, *operations: Op, cache: bool = False, reply_max: int = OVERHEAD) -> list[Any]:
        return (await self.session.run(lambda: operations, cache=cache, reply_max=reply_max)).results

    # -- where the server's names begin ------------------------------------------------------------------------------
    async def attach(self, names: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """The root of the server's pseudo file system (RFC 8881 section 7.3): all names are below it."""
        return (await self._run((p.OP_PUTROOTFH, None), _GETFH))[1].resok4.object, names

    # -- attributes --------------------------------------------------------------------------------------------------
    async def getattr(self, handle: bytes) -> Stat:
        """GETATTR (section 18.7)."""
        return _stat((await self._run(putfh(handle), _GETATTR))[1])

    async def setattr(self, handle: bytes, changes: Changes, opened: Any = None) -> None:
        """SETATTR (section 18.30): a new size needs the stateid of an open for writing, if there is one."""

        def build() -> list[Op]:
            stateid = ANONYMOUS if opened is None else opened.current
            return [putfh(handle), (p.OP_SETATTR, p.SETATTR4args(stateid, fattr4.fattr(changes)))]

        await self.session.run(build, cache=True)

    async def space(self, handle: bytes) -> Space:
        """GETATTR of the file system's room (section 5.8.2), as far as the server has it."""
        wanted = (p.OP_GETATTR, p.GETATTR4args(fattr4.SPACE))
        found = fattr4.values((await self._run(putfh(handle), wanted))[1].resok4.obj_attributes)
        return fattr4.space_of(found)

    # -- names -------------------------------------------------------------------------------------------------------
    async def lookup(self, directory: bytes, name: bytes) -> Found:
        """LOOKUP (section 18.13), or LOOKUPP: ``..`` is no name in NFSv4."""
        step: Op = (p.OP_LOOKUPP, None) if name == b".." else (p.OP_LOOKUP, p.LOOKUP4args(name))
        _, _, handle, attributes = await self._run(putfh(directory), step, _GETFH, _GETATTR)
        return Found(handle.resok4.object, _stat(attributes))

    async def walk(self, directory: bytes, names: Sequence[bytes]) -> Found | None:
        """Several names at once; None when there is something else than a directory on the way."""
        while True:
            some, names = names[:_MOST_LOOKUPS], names[_MOST_LOOKUPS:]
            steps = [(p.OP_LOOKUP, p.LOOKUP4args(name)) for name in some]
            operations = [putfh(directory), *steps, _GETFH, _GETATTR]
            done = await self.session.run(lambda operations=operations: operations, allow=_NOT_A_DIRECTORY)  # type: ignore[misc]
            if done.status != p.NFS4_OK:
                return None
            found = Found(done.results[-2].resok4.object, _stat(done.results[-1]))
            if not names:
                return found
            directory = found.handle

    async def readlink(self, handle: bytes) -> bytes:
        """READLINK (section 18.24)."""
        done = await self._run(putfh(handle), (p.OP_READLINK, None), reply_max=OVERHEAD + _LONGEST_LINK)
        return bytes(done[1].resok4.link)

    async def readdir(self, directory: bytes) -> AsyncIterator[Name]:
        """READDIR (section 18.23) with attributes and handles."""
        cookie, verifier = 0, bytes(8)
        size = min(_DIRECTORY_REPLY, self.client.max_response - OVERHEAD)
        while True:
            wanted = p.READDIR4args(cookie, verifier, size // 4, size, fattr4.ENTRY)
            done = await self._run(putfh(directory), (p.OP_READDIR, wanted), reply_max=OVERHEAD + size)
            found = done[1].resok4
            verifier = found.cookieverf
            for entry in found.reply.entries:
                cookie = entry.cookie
                yield _name(entry)
            if found.reply.eof:
                return
            if not found.reply.entries:
                raise OSError(errno.EREMOTEIO, "the server neither continues nor ends the directory")

    async def mkdir(self, directory: bytes, name: bytes, mode: int) -> bytes | None:
        """CREATE of a directory (section 18.4)."""
        kind = p.createtype4(p.nfs_ftype4.NF4DIR)
        create = p.CREATE4args(kind, name, fattr4.fattr(Changes(mode=mode)))
        done = await self._run(putfh(directory), (p.OP_CREATE, create), _GETFH, cache=True)
        return bytes(done[2].resok4.object)

    async def symlink(self, directory: bytes, name: bytes, text: bytes) -> None:
        """CREATE of a symbolic link."""
        kind = p.createtype4(p.nfs_ftype4.NF4LNK, linkdata=memoryview(text))
        await self._run(putfh(directory), (p.OP_CREATE, p.CREATE4args(kind, name, fattr4.fattr(Changes()))), cache=True)

    async def link(self, handle: bytes, directory: bytes, name: bytes) -> None:
        """LINK (section 18.9)."""
        await self._run(
            putfh(handle), (p.OP_SAVEFH, None), putfh(directory), (p.OP_LINK, p.LINK4args(name)), cache=True
        )

    async def remove(self, directory: bytes, name: bytes) -> None:
        """REMOVE (section 18.25), which removes empty directories as well: these are looked out for."""
        if modes.S_ISDIR((await self.lookup(directory, name)).stat.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        await self._run(putfh(directory), (p.OP_REMOVE, p.REMOVE4args(name)), cache=True)

    async def rmdir(self, directory: bytes, name: bytes) -> None:
        """REMOVE of a directory."""
        if not modes.S_ISDIR((await self.lookup(directory, name)).stat.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        await self._run(putfh(directory), (p.OP_REMOVE, p.REMOVE4args(name)), cache=True)

    async def rename(self, source: bytes, old: bytes, target: bytes, new: bytes) -> None:
        """RENAME (section 18.26)."""
        await self._run(
            putfh(source), (p.OP_SAVEFH, None), putfh(target), (p.OP_RENAME, p.RENAME4args(old, new)), cache=True
        )

    # -- files -------------------------------------------------------------------------------------------------------
    async def create(self, directory: bytes, name: bytes, mode: int, *, exclusive: bool) -> tuple[Opened4, Stat | None]:
        """OPEN that creates (section 18.16). The slot's replay cache makes GUARDED4 safe to send twice, and after a
        restart EXCLUSIVE4_1 would be needed; the verifier says then that the file is ours."""
        attributes = fattr4.fattr(Changes(mode=mode))
        if exclusive:
            both = p.creatverfattr(os.urandom(8), attributes)
            how = p.createhow4(p.createmode4.EXCLUSIVE4_1, ch_createboth=both)
        else:
            how = p.createhow4(p.createmode4.UNCHECKED4, createattrs=attributes)
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=name)
        flag = p.openflag4(p.opentype4.OPEN4_CREATE, how)
        opened, stat = await self._open(directory, p.OPEN4_SHARE_ACCESS_BOTH, flag, claim)
        if exclusive:
            # The server may keep the verifier in the times, and need not set the mode (sections 5.8.1.14, 18.16.3).
            await self.setattr(opened.handle, Changes(mode=mode, atime_ns=NOW, mtime_ns=NOW), opened)
            return opened, None
        return opened, stat

    async def open(self, found: bytes, *, write: bool) -> Opened4:
        """OPEN of a file by its handle (section 18.16, CLAIM_FH)."""
        access = p.OPEN4_SHARE_ACCESS_BOTH if write else p.OPEN4_SHARE_ACCESS_READ
        claim = p.open_claim4(p.open_claim_type4.CLAIM_FH)
        flag = p.openflag4(p.opentype4.OPEN4_NOCREATE)
        try:
            return (await self._open(found, access, flag, claim))[0]
        except PermissionError:
            if not write:
                raise
            # A file that may be written and not read.
            return (await self._open(found, p.OPEN4_SHARE_ACCESS_WRITE, flag, claim))[0]

    async def _open(self, handle: bytes, access: int, flag: p.openflag4, claim: p.open_claim4) -> tuple[Opened4, Stat]:
        opened = Opened4(access)
        if self._delegations and access == p.OPEN4_SHARE_ACCESS_READ:
            want = p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG
        else:
            want = p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG

        def build() -> list[Op]:
            owner = p.state_owner4(self.client.clientid, opened.owner)
            arguments = p.OPEN4args(0, access | want, p.OPEN4_SHARE_DENY_NONE, owner, flag, claim)
            return [putfh(handle), (p.OP_OPEN, arguments), _GETFH, _GETATTR]

        done = await self.session.run(build, cache=True)
        _, made, found, attributes = done.results
        opened.stateid = made.resok4.stateid
        opened.handle = found.resok4.object
        delegation = made.resok4.delegation
        given = delegation.read or delegation.write
        if given is not None:
            opened.delegation = given.stateid
        self.session.opens.add(opened)
        return opened, _stat(attributes)

    async def read(self, opened: Opened4, offset: int, into: memoryview) -> tuple[int, bool]:
        """READ (section 18.22)."""
        count = len(into)

        def build() -> list[Op]:
            return [putfh(opened.handle), (p.OP_READ, p.READ4args(opened.current, offset, count))]

        # Over TCP the data stand in the reply.
        done = await self.session.run(build, into=into)
        found = done.results[1].resok4
        return self.caller.placed(found.data, into), found.eof

    async def write(self, opened: Opened4, offset: int, data: bytes | memoryview) -> tuple[int, bytes | None]:
        """WRITE, UNSTABLE4 (section 18.32)."""

        def build() -> list[Op]:
            payload = self.caller.payload(data)
            arguments = p.WRITE4args(opened.current, offset, p.stable_how4.UNSTABLE4, payload)
            return [putfh(opened.handle), (p.OP_WRITE, arguments)]

        written = (await self.session.run(build)).results[1].resok4
        if not 0 < written.count <= len(data):
            raise OSError(errno.EREMOTEIO, f"the server says that it wrote {written.count} octets of {len(data)}")
        return written.count, None if written.committed == p.stable_how4.FILE_SYNC4 else written.writeverf

    async def commit(self, opened: Opened4) -> bytes:
        """COMMIT of the whole file (section 18.3)."""
        done = await self._run(putfh(opened.handle), (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        return bytes(done[1].resok4.writeverf)

    async def release(self, opened: Opened4) -> None:
        """CLOSE (section 18.2), and DELEGRETURN of what came with the open."""
        self.session.opens.discard(opened)
        delegation, opened.delegation = opened.delegation, None
        if opened.lost is not None:
            return

        def build() -> list[Op]:
            return [putfh(opened.handle), (p.OP_CLOSE, p.CLOSE4args(0, opened.current))]

        # An open that the server has forgotten needs no CLOSE; it may have been forgotten just now.
        gone = frozenset((p.NFS4ERR_BAD_STATEID, p.NFS4ERR_STALE_STATEID, p.NFS4ERR_EXPIRED, p.NFS4ERR_ADMIN_REVOKED))
        await self.session.run(build, cache=True, allow=gone)
        if delegation is not None:
            await self._return(opened.handle, delegation)

    # -- delegations -------------------------------------------------------------------------------------------------
    def _recall(self, stateid: p.stateid4) -> bool:
        """CB_RECALL: the delegation goes back, after the callback has been answered (section 20.2.3)."""
        opened = self.session.opens.delegated(stateid)
        if opened is None or opened.delegation is None:
            return False
        delegation, opened.delegation = opened.delegation, None
        returning = asyncio.create_task(self._return(opened.handle, delegation))
        self._returns.add(returning)
        returning.add_done_callback(self._returns.discard)
        return True

    async def _return(self, handle: bytes, delegation: p.stateid4) -> None:
        gone = frozenset((p.NFS4ERR_BAD_STATEID, p.NFS4ERR_STALE_STATEID, p.NFS4ERR_EXPIRED, p.NFS4ERR_DELEG_REVOKED))
        try:
            await self.session.run(
                lambda: [putfh(handle), (p.OP_DELEGRETURN, p.DELEGRETURN4args(delegation))], cache=True, allow=gone
            )
        except OSError as error:
            _log.warning("a delegation could not be given back: %s", error)

    async def close(self) -> None:
        """Close what is open, give session and client back, close the connection."""
        for opened in self.session.opens:
            try:
                await self.release(opened)
            except OSError as error:
                _log.info("a file could not be closed: %s", error)
        if self._returns:
            await asyncio.wait(self._returns)
        await self.client.close()
        await self.caller.close()


def _stat(result: p.GETATTR4res) -> Stat:
    if result.resok4 is None:
        raise os_error(result.status, 4)
    return fattr4.stat(result.resok4.obj_attributes)


def _name(entry: p.entry4) -> Name:
    """A name with what the server tells of it: RDATTR_ERROR alone where it may not (RFC 8881 section 18.23.3)."""
    try:
        known = fattr4.values(entry.attrs)
    except OSError as error:
        raise OSError(errno.EREMOTEIO, f"{entry.name!r}: {error.strerror}") from error
    handle = known.get(p.FATTR4_FILEHANDLE)
    try:
        return Name(entry.name, handle, fattr4.stat_of(known))
    except Untold:
        return Name(entry.name, handle, None)
