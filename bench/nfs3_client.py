"""An NFSv3 and MOUNT client for load generators and tests: calls on one TCP connection, any number of them at a time.

    async with await Nfs3Client.connect("127.0.0.1", 2049, uid=1000, gid=1000) as client:
        root = await client.mount("/export")            # over the same connection, or a client of the MOUNT port
        found = await client.lookup(root, b"name")
        result = await client.nfs("READ", READ3args(found, 0, 4096))

:meth:`nfs` takes any procedure by its RFC name and returns its result union, whatever the status; the methods named for
procedures return the ``resok`` part and raise :class:`Nfs3Failure` otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from types import TracebackType
from typing import Any

from nfsd.protocol.mount3 import MOUNT_PROGRAM, MOUNT_V3, dirpath, exports, mountlist, mountres3, mountstat3
from nfsd.protocol.nfs3 import (
    NFS_PROGRAM,
    NFS_V3,
    PROCEDURES,
    COMMIT3args,
    COMMIT3resok,
    CREATE3args,
    GETATTR3args,
    LOOKUP3args,
    MKDIR3args,
    READ3args,
    READ3resok,
    READDIRPLUS3args,
    REMOVE3args,
    RENAME3args,
    RMDIR3args,
    WRITE3args,
    WRITE3resok,
    createhow3,
    createmode3,
    diropargs3,
    entryplus3,
    fattr3,
    nfs_fh3,
    nfsstat3,
    sattr3,
    set_atime,
    set_mtime,
    stable_how,
    time_how,
)
from rpcrdma.rpc.messages import (
    NULL_AUTH,
    auth_flavor,
    authsys_parms,
    call_body,
    msg_type,
    opaque_auth,
    rpc_body,
    rpc_msg,
)
from rpcrdma.xdr import Decoder, pack

_NUMBERS = {types.name: number for number, types in PROCEDURES.items()}
_LAST_FRAGMENT = 0x80000000


class RpcFailure(Exception):
    """The reply was no success of RPC."""


class Nfs3Failure(Exception):
    """The procedure answered another status than NFS3_OK or MNT3_OK."""

    def __init__(self, procedure: str, status: Any) -> None:
        super().__init__(f"{procedure}: {status!r}")
        self.status = status


def auth_sys(uid: int, gid: int, gids: tuple[int, ...] = ()) -> opaque_auth:
    return opaque_auth(auth_flavor.AUTH_SYS, pack(authsys_parms, authsys_parms(0, b"test", uid, gid, list(gids))))


def attributes(**changes: Any) -> sattr3:
    """A sattr3 that sets only what is named."""
    values: dict[str, Any] = {"mode": None, "uid": None, "gid": None, "size": None}
    values["atime"] = set_atime(time_how.DONT_CHANGE)
    values["mtime"] = set_mtime(time_how.DONT_CHANGE)
    return sattr3(**(values | changes))


class Nfs3Client:
    """One connection with one credential; ``credential`` may be changed between calls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, credential: opaque_auth) -> None:
        self._reader = reader
        self._writer = writer
        self.credential = credential
        self.acts_as_callers = True
        """For tests to note whether the server may act as other users."""
        self._xids = itertools.count(int.from_bytes(os.urandom(3), "big") + 1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._receiver = asyncio.ensure_future(self._receive())

    @classmethod
    async def connect(
        cls, host: str, port: int, *, uid: int = 0, gid: int = 0, gids: tuple[int, ...] = ()
    ) -> Nfs3Client:
        reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer, auth_sys(uid, gid, gids))

    async def __aenter__(self) -> Nfs3Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._receiver.cancel()
        self._writer.close()
        await asyncio.gather(self._receiver, self._writer.wait_closed(), return_exceptions=True)

    async def _receive(self) -> None:
        error: BaseException = ConnectionResetError("the server closed the connection")
        try:
            while True:
                message = bytearray()
                last = False
                while not last:
                    (mark,) = struct.unpack(">I", await self._reader.readexactly(4))
                    last = bool(mark & _LAST_FRAGMENT)
                    message += await self._reader.readexactly(mark & ~_LAST_FRAGMENT)
                waiting = self._waiting.pop(int.from_bytes(message[:4], "big"), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(bytes(message))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except BaseException as other:
            error = other
            raise
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            self._waiting.clear()

    def encode(self, program: int, version: int, procedure: int, arguments: bytes, xid: int | None = None) -> bytes:
        """A call without its record mark."""
        body = call_body(2, program, version, procedure, self.credential, NULL_AUTH)
        header = rpc_msg(next(self._xids) if xid is None else xid, rpc_body(msg_type.CALL, cbody=body))
        return pack(rpc_msg, header) + arguments

    async def exchange(self, message: bytes) -> bytes:
        """Send a whole RPC message in one record; its reply. Raises ConnectionError when the server hangs up."""
        if self._receiver.done():
            raise ConnectionResetError("the connection is closed")
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[int.from_bytes(message[:4], "big")] = reply
        self._writer.write(struct.pack(">I", _LAST_FRAGMENT | len(message)) + message)
        await self._writer.drain()
        return await reply

    async def call(self, program: int, version: int, procedure: int, arguments: bytes, results: Any) -> Any:
        """Any procedure of any program. Raises RpcFailure for what RPC itself refuses."""
        decoder = Decoder(await self.exchange(self.encode(program, version, procedure, arguments)))
        body = decoder.decode(rpc_msg).body.rbody
        if body is None or body.areply is None or body.areply.reply_data.stat != 0:
            raise RpcFailure(body)
        value = decoder.decode(results)
        decoder.finish(strict=True)
        return value

    async def nfs(self, name: str, arguments: Any = None) -> Any:
        """An NFSv3 procedure: its result union."""
        types = PROCEDURES[_NUMBERS[name]]
        return await self.call(NFS_PROGRAM, NFS_V3, _NUMBERS[name], pack(types.arguments, arguments), types.results)

    async def _ok(self, name: str, arguments: Any) -> Any:
        result = await self.nfs(name, arguments)
        if result.status != nfsstat3.NFS3_OK:
            raise Nfs3Failure(name, result.status)
        return result.resok

    # -- MOUNT ---------------------------------------------------------------------------------------------------
    async def mount(self, path: str | bytes) -> nfs_fh3:
        octets = path.encode() if isinstance(path, str) else path
        result = await self.call(MOUNT_PROGRAM, MOUNT_V3, 1, pack(dirpath, octets), mountres3)
        if result.fhs_status != mountstat3.MNT3_OK:
            raise Nfs3Failure("MNT", result.fhs_status)
        return nfs_fh3(result.mountinfo.fhandle)

    async def unmount(self, path: str | bytes) -> None:
        octets = path.encode() if isinstance(path, str) else path
        await self.call(MOUNT_PROGRAM, MOUNT_V3, 3, pack(dirpath, octets), None)

    async def unmount_all(self) -> None:
        await self.call(MOUNT_PROGRAM, MOUNT_V3, 4, b"", None)

    async def mounts(self) -> list[tuple[bytes, bytes]]:
        entries = await self.call(MOUNT_PROGRAM, MOUNT_V3, 2, b"", mountlist)
        return [(entry.ml_hostname, entry.ml_directory) for entry in entries]

    async def exports(self) -> list[tuple[bytes, list[bytes]]]:
        nodes = await self.call(MOUNT_PROGRAM, MOUNT_V3, 5, b"", exports)
        return [(node.ex_dir, [group.gr_name for group in node.ex_groups]) for node in nodes]

    # -- NFS -----------------------------------------------------------------------------------------------------
    async def getattr(self, handle: nfs_fh3) -> fattr3:
        found: fattr3 = (await self._ok("GETATTR", GETATTR3args(handle))).obj_attributes
        return found

    async def lookup(self, directory: nfs_fh3, name: bytes) -> nfs_fh3:
        found: nfs_fh3 = (await self._ok("LOOKUP", LOOKUP3args(diropargs3(directory, name)))).object
        return found

    async def create(self, directory: nfs_fh3, name: bytes, mode: int = 0o644) -> nfs_fh3:
        how = createhow3(createmode3.GUARDED, obj_attributes=attributes(mode=mode))
        made: nfs_fh3 = (await self._ok("CREATE", CREATE3args(diropargs3(directory, name), how))).obj
        return made

    async def mkdir(self, directory: nfs_fh3, name: bytes, mode: int = 0o755) -> nfs_fh3:
        arguments = MKDIR3args(diropargs3(directory, name), attributes(mode=mode))
        made: nfs_fh3 = (await self._ok("MKDIR", arguments)).obj
        return made

    async def read(self, handle: nfs_fh3, offset: int, count: int) -> READ3resok:
        done: READ3resok = await self._ok("READ", READ3args(handle, offset, count))
        return done

    async def write(
        self, handle: nfs_fh3, offset: int, data: bytes, stable: stable_how = stable_how.UNSTABLE
    ) -> WRITE3resok:
        done: WRITE3resok = await self._ok("WRITE", WRITE3args(handle, offset, len(data), stable, memoryview(data)))
        return done

    async def commit(self, handle: nfs_fh3, offset: int = 0, count: int = 0) -> COMMIT3resok:
        done: COMMIT3resok = await self._ok("COMMIT", COMMIT3args(handle, offset, count))
        return done

    async def rename(self, source: nfs_fh3, name: bytes, target: nfs_fh3, new_name: bytes) -> None:
        await self._ok("RENAME", RENAME3args(diropargs3(source, name), diropargs3(target, new_name)))

    async def remove(self, directory: nfs_fh3, name: bytes) -> None:
        await self._ok("REMOVE", REMOVE3args(diropargs3(directory, name)))

    async def rmdir(self, directory: nfs_fh3, name: bytes) -> None:
        await self._ok("RMDIR", RMDIR3args(diropargs3(directory, name)))

    async def listing(self, directory: nfs_fh3, size: int = 65536) -> list[entryplus3]:
        """The whole directory by READDIRPLUS, in pieces of at most ``size`` octets."""
        entries: list[entryplus3] = []
        cookie, verifier = 0, bytes(8)
        while True:
            resok = await self._ok("READDIRPLUS", READDIRPLUS3args(directory, cookie, verifier, size, size))
            entries += resok.reply.entries
            if resok.reply.eof:
                return entries
            if not resok.reply.entries:
                raise AssertionError("neither an entry nor the end")
            cookie, verifier = resok.reply.entries[-1].cookie, resok.cookieverf
