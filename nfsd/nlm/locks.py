"""TEST, LOCK, CANCEL and UNLOCK of NFSv3's lock manager, SHARE and UNSHARE, FREE_ALL (XNFS; RFC 1813 section 6).

Owns :class:`LockManager`. The locks are in the state engine's tables, so that NFSv3's clients, NFSv4's and local
processes keep each other out. Imports the NFSv4 server's parts and what NFSv3 knows of handles and callers.

A caller must be able to do to the file what the lock is for: read it (shared) or write it (exclusive), as fcntl(2) asks
of a descriptor; its owner always is. A delegation in the way is recalled and waited for; who has to wait for longer
gets no answer, and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nfsd.nlm.errors import EXPECTED, status_of
from nfsd.nlm.granted import Granter
from nfsd.nlm.peers import Peers
from nfsd.protocol import nfs4 as codes
from nfsd.protocol.nfs3 import ACCESS3_EXTEND, ACCESS3_MODIFY, ACCESS3_READ
from nfsd.protocol.nlm4 import (
    nlm4_cancargs,
    nlm4_holder,
    nlm4_lock,
    nlm4_lockargs,
    nlm4_notify,
    nlm4_res,
    nlm4_shareargs,
    nlm4_shareres,
    nlm4_stats,
    nlm4_testargs,
    nlm4_testres,
    nlm4_testrply,
    nlm4_unlockargs,
)
from nfsd.state import LockDenied, Nfs4Error
from nfsd.state.errors import DelegationConflict
from nfsd.state.files import FileState
from nfsd.state.locks import LOCAL_END
from nfsd.state.nlm import NlmClient, NlmTable, lock_owner, owner_parts
from nfsd.state.ranges import END
from nfsd.state.types import UINT64_MAX
from nfsd.v3.request import Demands, Limits, Request
from nfsd.v4.local_locks import local_denial, take
from nfsd.v4.server import Nfs4Server, gate
from nfsd.vfs.service import Node
from nfsd.vfs.types import FileType
from rpcrdma.rpc.program import Call, DropCall

_PATIENCE: Final = 3.0
"""Seconds a request waits for delegations to come back: longer than NFSv3's others, whose clients are told to come
again (there is no JUKEBOX here)."""
_LIMITS: Final = Limits()
_OH_MAX: Final = 1020
"""Octets of a caller's handle of an owner: with svid it is an owner's name in the state engine."""


class Through:
    """Which export a file was locked through; what an open of the lock manager has in place of descriptors."""

    __slots__ = ("export_id",)

    def __init__(self, export_id: int) -> None:
        self.export_id = export_id

    def release(self) -> None:
        """There is nothing to give up."""


def span_of(lock: nlm4_lock, exclusive: bool) -> tuple[int, int, bool]:
    """[start, end) and kind; a length of 0 reaches to the end of the file (RFC 1813 section 6.1.4). Raises INVAL."""
    length = lock.l_len or UINT64_MAX
    end = END if length == UINT64_MAX else lock.l_offset + length
    if end > END or len(lock.oh) > _OH_MAX:
        raise Nfs4Error(codes.NFS4ERR_INVAL, "no such range, or no such owner")
    return lock.l_offset, end, exclusive


class LockManager:
    """The procedures."""

    def __init__(self, nfs4: Nfs4Server, peers: Peers, *, pauses: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)) -> None:
        """``pauses``: seconds between attempts to call a client with the lock it has waited for."""
        self.nfs4 = nfs4
        self.engine = nfs4.engine
        self.table: NlmTable = nfs4.engine.nlm
        self.granter = Granter(nfs4, peers, self.release, pauses)
        nfs4.blocked.granter = self.granter.turn_of

    async def close(self) -> None:
        """Give up calls under way."""
        await self.granter.close()

    # -- the procedures ------------------------------------------------------------------------------------------
    async def null(self, call: Call, arguments: None) -> None:
        """Answer, and do no work at all."""

    async def test(self, call: Call, args: nlm4_testargs) -> nlm4_testres:
        """Whether a lock could be had; if not, who has it."""
        try:
            await self._test(call, args)
        except LockDenied as denied:
            return nlm4_testres(args.cookie, nlm4_testrply(nlm4_stats.NLM4_DENIED, self._holder(denied)))
        except EXPECTED as error:
            status = status_of(error)
            if status == nlm4_stats.NLM4_DENIED:
                status = nlm4_stats.NLM4_FAILED  # that has a holder to it
            return nlm4_testres(args.cookie, nlm4_testrply(status))
        return nlm4_testres(args.cookie, nlm4_testrply(nlm4_stats.NLM4_GRANTED))

    async def lock(self, call: Call, args: nlm4_lockargs) -> nlm4_res:
        """Lock a range, or take a place in the queue for it."""
        return await self._answered(args.cookie, self._lock(call, args, monitored=True))

    async def nm_lock(self, call: Call, args: nlm4_lockargs) -> nlm4_res:
        """LOCK for who does not want to be told of this server's restart, and whose own is not told."""
        return await self._answered(args.cookie, self._lock(call, args, monitored=False))

    async def cancel(self, call: Call, args: nlm4_cancargs) -> nlm4_res:
        """Give up waiting. DENIED when there is nothing to give up: it was granted before, or never asked for."""
        return await self._answered(args.cookie, self._cancel(call, args))

    async def unlock(self, call: Call, args: nlm4_unlockargs) -> nlm4_res:
        """Unlock a range; what was not locked is no error."""
        return await self._answered(args.cookie, self._unlock(call, args))

    async def granted(self, call: Call, args: nlm4_testargs) -> nlm4_res:
        """A lock that this server had waited for: it is nobody's client."""
        return nlm4_res(args.cookie, nlm4_stats.NLM4_DENIED)

    async def share(self, call: Call, args: nlm4_shareargs) -> nlm4_shareres:
        """Reserve a file as DOS has it."""
        result = await self._answered(args.cookie, self._share(call, args))
        return nlm4_shareres(args.cookie, result.stat, 0)

    async def unshare(self, call: Call, args: nlm4_shareargs) -> nlm4_shareres:
        """Give a reservation up."""
        result = await self._answered(args.cookie, self._unshare(call, args))
        return nlm4_shareres(args.cookie, result.stat, 0)

    async def free_all(self, call: Call, args: nlm4_notify) -> None:
        """The caller gives up everything: it was restarted, and monitors nobody."""
        if not self.nfs4.exports.speaks_for_host(call.transport):
            return
        client = self.table.free_all(args.name, call.transport.peer_address)
        if client is not None:
            await self.nfs4.clear_all()
            self.nfs4.blocked.tell()

    @staticmethod
    async def _answered(cookie: bytes, work: Awaitable[nlm4_stats]) -> nlm4_res:
        try:
            status = await work
        except EXPECTED as error:
            status = status_of(error)
        return nlm4_res(cookie, status)

    # -- TEST ----------------------------------------------------------------------------------------------------
    async def _test(self, call: Call, args: nlm4_testargs) -> None:
        lock = args.alock
        node = await self._file(call, lock.fh, exclusive=args.exclusive)
        start, end, exclusive = span_of(lock, args.exclusive)
        length = UINT64_MAX if end == END else end - start
        client = self.table.find(lock.caller_name, call.transport.peer_address)
        # A client that holds a delegation keeps its locks to itself.
        await self._patiently(node, lambda: self._undelegated(node, client, exclusive))
        owner = client.lock_owners.get(lock_owner(lock.svid, lock.oh)) if client is not None else None
        self.engine.locks.test_as(owner, node.key, exclusive, start, length)
        local = await local_denial(self.nfs4.service, node, start, length, exclusive=exclusive)
        if local is not None:
            raise local

    async def _undelegated(self, node: Node, client: NlmClient | None, exclusive: bool) -> None:
        if not self.engine.delegations.clear(node.key, client, write=exclusive):
            raise DelegationConflict

    def _holder(self, denied: LockDenied) -> nlm4_holder:
        svid, oh = 0, denied.owner
        if self.table.by_id(denied.clientid) is not None:
            svid, oh = owner_parts(denied.owner)
        length = 0 if denied.length == UINT64_MAX or denied.offset + denied.length >= LOCAL_END else denied.length
        return nlm4_holder(denied.exclusive, svid, oh, denied.offset, length)

    # -- LOCK ----------------------------------------------------------------------------------------------------
    async def _lock(self, call: Call, args: nlm4_lockargs, *, monitored: bool) -> nlm4_stats:
        lock, transport = args.alock, call.transport
        span = span_of(lock, args.exclusive)
        node = await self._file(call, lock.fh, exclusive=args.exclusive)
        client = self.table.client(lock.caller_name, transport.peer_address, transport.local_address)
        self.table.begin(client)
        try:
            client.state = args.state
            status: nlm4_stats = await self._patiently(node, lambda: self._lock_once(client, node, args, span))
            if status in (nlm4_stats.NLM4_GRANTED, nlm4_stats.NLM4_BLOCKED):
                if monitored:
                    self.engine.record_client(client)
                await self._promise(client, node, args, span)
            return status
        finally:
            self.table.end(client)
            self.nfs4.blocked.tell()  # a lock may have become shared, or it may be another one's turn

    async def _promise(self, client: NlmClient, node: Node, args: nlm4_lockargs, span: tuple[int, int, bool]) -> None:
        """Have on stable storage what a restart must know of. Raises RESOURCE, with nothing locked."""
        if self.engine.stable:
            return
        try:
            await self.nfs4.store.flush(self.engine)
        except OSError:
            owner = lock_owner(args.alock.svid, args.alock.oh)
            await self.release(client, node.key, owner, span, waiting=True)
            raise Nfs4Error(codes.NFS4ERR_RESOURCE, "stable storage") from None

    async def _lock_once(
        self, client: NlmClient, node: Node, args: nlm4_lockargs, span: tuple[int, int, bool]
    ) -> nlm4_stats:
        owner = lock_owner(args.alock.svid, args.alock.oh)
        start, end, exclusive = span
        length = UINT64_MAX if end == END else end - start

        async def locked(file: FileState) -> nlm4_stats:
            try:
                opened = self.table.open(client, node.key, exclusive=exclusive, reclaim=args.reclaim)
                opened.opened = opened.opened or Through(node.export.id)
                file.node = node
                plan = self.engine.locks.lock_new(
                    opened, owner, exclusive, start, length,
                    reclaim=args.reclaim, wait=args.block, handle=args.alock.fh,
                )  # fmt: skip
                await take(self.nfs4.service, node, plan, reclaim=args.reclaim)
            except LockDenied:
                if not args.block:
                    return nlm4_stats.NLM4_DENIED
                waits = self.engine.locks.waits.find(file, client, owner, span) is not None
                return nlm4_stats.NLM4_BLOCKED if waits else nlm4_stats.NLM4_DENIED_NOLOCKS
            finally:
                self.table.settle(client, file)
            # It may have been granted already, in a call that is still on its way.
            self.granter.heard_of(client, node.key, owner, span)
            return nlm4_stats.NLM4_GRANTED

        status: nlm4_stats = await self._at_gate(node.key, locked)
        return status

    # -- CANCEL, UNLOCK ------------------------------------------------------------------------------------------
    async def _cancel(self, call: Call, args: nlm4_cancargs) -> nlm4_stats:
        lock = args.alock
        span = span_of(lock, args.exclusive)
        node, _ = await self._request(call).resolve(lock.fh)
        client = self.table.find(lock.caller_name, call.transport.peer_address)
        if client is not None:
            owner = lock_owner(lock.svid, lock.oh)
            called = self.granter.heard_of(client, node.key, owner, span)
            if called:
                # Its turn had come, and the client does not know yet: it has nothing that it could unlock.
                await self.release(client, node.key, owner, span)
            if await self._stop_waiting(client, node.key, owner, span) or called:
                return nlm4_stats.NLM4_GRANTED
        return nlm4_stats.NLM4_DENIED

    async def _stop_waiting(self, client: NlmClient, key: bytes, owner: bytes, span: tuple[int, int, bool]) -> bool:
        """Whether it did wait."""

        async def stopped(file: FileState) -> bool:
            waited = self.engine.locks.waits.leave(file, client, owner, span)
            self.table.settle(client, file)
            return waited

        if self.engine.opens.file(key) is None:
            return False
        waited: bool = await self._at_gate(key, stopped)
        self.nfs4.blocked.tell()
        return waited

    async def _unlock(self, call: Call, args: nlm4_unlockargs) -> nlm4_stats:
        lock = args.alock
        span = span_of(lock, False)
        node, _ = await self._request(call).resolve(lock.fh)
        client = self.table.find(lock.caller_name, call.transport.peer_address)
        if client is not None:
            owner = lock_owner(lock.svid, lock.oh)
            self.granter.heard_of_any(client, node.key, owner)
            await self.release(client, node.key, owner, span)
        return nlm4_stats.NLM4_GRANTED

    async def release(
        self, client: NlmClient, key: bytes, owner: bytes, span: tuple[int, int, bool], *, waiting: bool = False
    ) -> None:
        """Unlock a range of an owner's, if it has locked anything of it; with ``waiting`` it does not wait for it any
        more either. Raises SERVERFAULT at limits."""
        start, end, _ = span

        async def released(file: FileState) -> None:
            if waiting:
                self.engine.locks.waits.leave(file, client, owner, span)
            state = self.table.lock_of(client, key, owner)
            if state is not None:
                self.engine.locks.unlock(state, start, UINT64_MAX if end == END else end - start)
            self.table.settle(client, file)
            await self.nfs4.clear_local(file)

        if self.engine.opens.file(key) is not None:
            await self._at_gate(key, released)

    # -- SHARE, UNSHARE ------------------------------------------------------------------------------------------
    async def _share(self, call: Call, args: nlm4_shareargs) -> nlm4_stats:
        share, transport = args.share, call.transport
        if len(share.oh) > _OH_MAX - 2 or not 1 <= share.access <= 3 or share.mode > 3:  # fsh4_access, fsh4_mode
            return nlm4_stats.NLM4_FAILED
        writes = bool(share.access & codes.OPEN4_SHARE_ACCESS_WRITE)
        node = await self._file(call, share.fh, exclusive=writes)
        client = self.table.client(share.caller_name, transport.peer_address, transport.local_address)
        self.table.begin(client)
        try:

            async def reserve() -> None:
                made = self.table.share(client, share.oh, node.key, share.access, share.mode, reclaim=args.reclaim)
                made.opened = Through(node.export.id)

            await self._patiently(node, reserve)
            self.engine.record_client(client)
            await self.nfs4.store.flush(self.engine)
        finally:
            self.table.end(client)
        return nlm4_stats.NLM4_GRANTED

    async def _unshare(self, call: Call, args: nlm4_shareargs) -> nlm4_stats:
        node, _ = await self._request(call).resolve(args.share.fh)
        client = self.table.find(args.share.caller_name, call.transport.peer_address)
        if client is not None:
            self.table.unshare(client, args.share.oh, node.key)
        return nlm4_stats.NLM4_GRANTED

    # -- what they share -----------------------------------------------------------------------------------------
    def _request(self, call: Call) -> Request:
        return Request(self.nfs4.service, self.nfs4.exports, _LIMITS, call, demands=Demands.NOWHERE)

    async def _file(self, call: Call, handle: bytes, *, exclusive: bool) -> Node:
        """The regular file of a handle, if the caller may lock it. Raises as ``Request.resolve``; EACCES, EINVAL."""
        request = self._request(call)
        node, credential = await (request.writable(handle) if exclusive else request.resolve(handle))
        if node.type is not FileType.REG:
            raise Nfs4Error(codes.NFS4ERR_WRONG_TYPE)
        wanted = ACCESS3_MODIFY | ACCESS3_EXTEND if exclusive else ACCESS3_READ
        if not await self.nfs4.service.access(credential, node) & wanted:
            attributes = await self.nfs4.service.attributes(node)
            if attributes.uid != credential.uid:
                raise Nfs4Error(codes.NFS4ERR_ACCESS)
        return node

    async def _patiently(self, node: Node, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Try again as long as a delegation is in the way and on its way back."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            try:
                return await attempt()
            except DelegationConflict:
                if not await self.nfs4.recalls.progress(node.key, deadline):
                    raise DropCall(silently=True) from None

    async def _at_gate(self, key: bytes, work: Callable[[FileState], Awaitable[Any]]) -> Any:
        """Do something with what is known of a file, with nobody else at its locks."""
        opens = self.engine.opens
        while True:
            file = opens.make_file(key)
            try:
                async with gate(file):
                    if opens.file(key) is file:  # it may have been forgotten before this one's turn came
                        return await work(file)
            finally:
                opens.drop_if_idle(file)
