"""READ, WRITE and COMMIT of a file service's files, as NFSv3's native procedures carry them out, without a network."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

from nfsd.protocol import nfs3 as p
from nfsd.v3.errors import DATA_EXCEPTIONS, status_of
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Credential
from rpcrdma.rpc.offers import Offer
from rpcrdma.rpc.program import AUTH_SYS, Call, RpcCredential, RpcReply
from rpcrdma.xdr import Decoder, Encoder, pack
from tests.support.nfs4 import LoopbackTransport

UNSTABLE, DATA_SYNC, FILE_SYNC = p.stable_how

_TOLD = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ESTALE, errno.EINVAL)
_ERRNO = {int(status_of(OSError(code, os.strerror(code)), DATA_EXCEPTIONS)): code for code in reversed(_TOLD)}
_REPLY_HEADER = 24


class Offered:
    """One call; ``over`` is its reply."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.replied: asyncio.Future[RpcReply] = asyncio.get_running_loop().create_future()

    def waits(self) -> None:
        """The call goes on later."""

    def over(self, reply: RpcReply | None, error: BaseException | None) -> None:
        """It has been answered, or has failed."""
        if error is not None:
            self.replied.set_exception(error)
        elif reply is not None and not self.replied.done():
            self.replied.set_result(reply)

    def declined(self) -> None:
        """It is for others, of whom there are none."""
        self.replied.set_exception(AssertionError("the native procedure has declined"))


class NativeFiles:
    """Of one service, whose exports squash nobody."""

    def __init__(self, service: FileService) -> None:
        self._native = Nfs3Procedures(service)
        self._transport = LoopbackTransport()

    async def _call(self, number: int, credential: Credential, arguments: Any) -> Any:
        """The OK arm of the results. Raises OSError."""
        caller = RpcCredential(AUTH_SYS, credential.uid, credential.gid, tuple(credential.gids))
        types = p.PROCEDURES[number]
        message = memoryview(pack(types.arguments, arguments))
        call = Call(
            self._transport, 1, p.NFS_PROGRAM, 3, number, caller, Decoder(message), Encoder(1 << 16), message=message
        )
        offered = Offered(call)
        if not Offer(self._native, offered, 0).begin():
            offered.declined()
        reply = await offered.replied
        whole, done = b"", _REPLY_HEADER
        for offset, payload in reply.payloads:
            whole += bytes(reply.head[done:offset]) + bytes(payload.view) + bytes(-len(payload) & 3)
            done = offset
        whole += bytes(reply.head[done:])
        reply.release()
        result = Decoder(memoryview(whole)).decode(types.results)
        if result.status:
            code = _ERRNO[int(result.status)]
            raise OSError(code, os.strerror(code))
        return result.resok

    async def read(self, credential: Credential, node: Node, offset: int, count: int) -> tuple[bytes, bool]:
        """Octets, and whether they end where the file does."""
        read = await self._call(
            p.NFSPROC3_READ, credential, p.READ3args(p.nfs_fh3(node.handle), min(offset, 2**64 - 1), count)
        )
        return bytes(read.data), read.eof

    async def read_all(self, credential: Credential, node: Node, offset: int, count: int) -> tuple[bytes, bool]:
        """Likewise, more than goes into one reply."""
        whole, eof = await self.read(credential, node, offset, count)
        while not eof and len(whole) < count:
            more, eof = await self.read(credential, node, offset + len(whole), count - len(whole))
            whole += more
        return whole, eof

    async def write(
        self, credential: Credential, node: Node, offset: int, data: bytes | memoryview, stable: p.stable_how
    ) -> p.WRITE3resok:
        """WRITE: the whole result, with the attributes around it."""
        arguments = p.WRITE3args(p.nfs_fh3(node.handle), offset, len(data), stable, data)
        written: p.WRITE3resok = await self._call(p.NFSPROC3_WRITE, credential, arguments)
        assert written.committed >= stable
        return written

    async def write_all(self, credential: Credential, node: Node, offset: int, data: bytes | memoryview) -> None:
        """All of it, unstable."""
        whole = memoryview(data)
        while len(whole):
            done = (await self.write(credential, node, offset, whole[: 1 << 20], UNSTABLE)).count
            offset, whole = offset + done, whole[done:]

    async def commit(self, credential: Credential, node: Node) -> p.COMMIT3resok:
        """COMMIT of the whole file."""
        committed: p.COMMIT3resok = await self._call(
            p.NFSPROC3_COMMIT, credential, p.COMMIT3args(p.nfs_fh3(node.handle), 0, 0)
        )
        return committed
