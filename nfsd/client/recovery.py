"""How a client introduces itself to an NFSv4.1 server, keeps its lease, and comes back after the server has forgotten
it.

Owns :class:`Client4`; imports the session and the protocol. The client sends EXCHANGE_ID with an owner that no other
process has, makes one session with a backchannel on the same connection, sends RECLAIM_COMPLETE, and then a SEQUENCE
now and then. When the session is lost, it does the same again. If the server has forgotten the client, it reclaims
every open file (CLAIM_PREVIOUS), or opens it like new if nothing can be reclaimed.

RFC 8881 sections 2.4, 2.10, 8.3, 8.4, 18.35, 18.36, 18.51.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from typing import Any, Final

from nfsd.client.callbacks import BACK_CHANNEL, PROGRAM
from nfsd.client.compound import Op
from nfsd.client.errors import os_error
from nfsd.client.opens import Opened4
from nfsd.client.session import OVERHEAD, Session, SessionLost
from nfsd.client.slots import SlotTable
from nfsd.protocol import nfs4 as p

_log = logging.getLogger(__name__)

_CACHED_REPLY: Final = 4096
_MOST_OPERATIONS: Final = 64
_NOT_RECLAIMABLE: Final = frozenset(
    (p.NFS4ERR_NO_GRACE, p.NFS4ERR_RECLAIM_BAD, p.NFS4ERR_RECLAIM_CONFLICT, p.NFS4ERR_BAD_STATEID)
)
_ATTEMPTS: Final = 5
_ANY: Final = frozenset(p.nfsstat4)


class Client4:
    """This process as the server knows it."""

    def __init__(self, session: Session, *, slots: int, size: int) -> None:
        """``slots``: requests at a time, at most. ``size``: octets of data of one READ or WRITE."""
        self._session = session
        self._wanted_slots = slots
        self._size = size
        self._owner = p.client_owner4(
            os.urandom(8), f"rdma-nfsd client {socket.gethostname()} {os.getpid()} ".encode() + os.urandom(8)
        )
        self._clientid = 0
        self._sequence = 0
        self._lock = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._binding: asyncio.Task[None] | None = None
        self.lease = 90.0
        """Seconds; as the server tells."""
        self.max_request = self.max_response = size + OVERHEAD
        session.recover = self.recover
        session.on_path_down = self._bind_soon

    @property
    def clientid(self) -> int:
        """As EXCHANGE_ID gave it."""
        return self._clientid

    async def start(self) -> None:
        """Introduce the client and make a session. Raises OSError."""
        await self.recover(self._session.epoch)  # the server may be restarted before it knows that nothing is reclaimed
        root = [(p.OP_PUTROOTFH, None), (p.OP_GETATTR, p.GETATTR4args([1 << p.FATTR4_LEASE_TIME]))]
        done = await self._session.run(lambda: root)
        self.lease = float(int.from_bytes(done.results[1].resok4.obj_attributes.attr_vals[:4], "big")) or 90.0
        self._renewal = asyncio.create_task(self._renew())

    # -- sessions ----------------------------------------------------------------------------------------------------
    async def _establish(self) -> bool:
        """EXCHANGE_ID and CREATE_SESSION; whether the server knew the client already."""
        for _ in range(_ATTEMPTS):
            introduction = p.EXCHANGE_ID4args(
                self._owner, p.EXCHGID4_FLAG_SUPP_MOVED_REFER, p.state_protect4_a(p.state_protect_how4.SP4_NONE), []
            )
            made = (await self._patiently((p.OP_EXCHANGE_ID, introduction)))[0].eir_resok4
            known = bool(made.eir_flags & p.EXCHGID4_FLAG_CONFIRMED_R) and made.eir_clientid == self._clientid
            if not known:
                # For a confirmed client the sequence id in the reply means nothing (RFC 8881 section 18.35.3).
                self._clientid, self._sequence = made.eir_clientid, made.eir_sequenceid
            if await self._create_session():
                return known
        raise OSError(errno.EREMOTEIO, "the server gives no session to a client that it has just accepted")

    async def _create_session(self) -> bool:
        size = self._size + OVERHEAD
        fore = p.channel_attrs4(0, size, size, _CACHED_REPLY, _MOST_OPERATIONS, self._wanted_slots, [])
        creation = p.CREATE_SESSION4args(
            self._clientid, self._sequence, p.CREATE_SESSION4_FLAG_CONN_BACK_CHAN, fore, BACK_CHANNEL, PROGRAM,
            [p.callback_sec_parms4(0)],
        )  # fmt: skip
        forgotten = frozenset((p.NFS4ERR_STALE_CLIENTID, p.NFS4ERR_SEQ_MISORDERED))
        (result,) = await self._patiently((p.OP_CREATE_SESSION, creation), allow=forgotten)
        if result.csr_resok4 is None:
            self._clientid = 0
            return False
        self._sequence += 1
        made: p.CREATE_SESSION4resok = result.csr_resok4
        session = self._session
        session.sessionid = made.csr_sessionid
        granted = made.csr_fore_chan_attrs
        session.slots = SlotTable(min(granted.ca_maxrequests, self._wanted_slots))
        self.max_request, self.max_response = granted.ca_maxrequestsize, granted.ca_maxresponsesize
        session.epoch += 1
        session.stale = False
        session.caller.backchannel.session_is(made.csr_sessionid, made.csr_back_chan_attrs)
        return True

    async def _patiently(self, operation: Op, allow: frozenset[int] = frozenset()) -> list[Any]:
        """One operation outside of a session; DELAY is waited out."""
        patience = self._session.patience.start()
        while True:
            done = await self._session.send([operation])
            if done.status == p.NFS4_OK or done.status in allow:
                return done.results
            if done.status != p.NFS4ERR_DELAY or not await patience.wait("the server is busy (DELAY)"):
                raise os_error(done.status, 4)

    async def _reclaim_complete(self) -> None:
        """Say that nothing more is to be reclaimed (RFC 8881 section 18.51): before that there are no new opens."""
        ended = frozenset((p.NFS4ERR_COMPLETE_ALREADY,))
        await self._session.run(
            lambda: [(p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))], cache=True, allow=ended, recovering=True
        )

    # -- recovery ----------------------------------------------------------------------------------------------------
    async def recover(self, epoch: int, *, session: bool = True) -> None:
        """Replace the session of ``epoch``, and get back what was open. One at a time; the others find it done. Without
        ``session`` it is only what was open that the server has revoked."""
        async with self._lock:
            if self._session.epoch != epoch:
                return
            for attempt in range(_ATTEMPTS):
                try:
                    if session or attempt:
                        known = await self._establish()
                    else:
                        known = True
                        self._session.epoch += 1
                    await self._get_back(reclaim=not known)
                except SessionLost:
                    _log.info("the server has lost the session while it was recovered (%d)", attempt + 1)
                    continue
                return
            raise OSError(errno.EREMOTEIO, "the server forgets the session again and again")

    async def _get_back(self, *, reclaim: bool) -> None:
        """Open everything again. A client that the server still knows may have lost opens one by one: those are opened
        like new, with RECLAIM_COMPLETE long said."""
        again = list(self._session.opens)
        if reclaim:
            if self._renewal is not None:  # there has been a session before
                _log.info(
                    "the server has been restarted or has forgotten this client; %d files are reclaimed", len(again)
                )
            again = [opened for opened in again if not await self._open_again(opened, reclaim=True)]
            await self._reclaim_complete()
        for opened in again:
            if not reclaim:
                # The server keeps a revoked stateid until it hears that the client knows (RFC 8881 section 18.38).
                gone = p.FREE_STATEID4args(opened.stateid)
                await self._session.run(
                    lambda gone=gone: [(p.OP_FREE_STATEID, gone)],  # type: ignore[misc]
                    allow=_ANY, recovering=True,
                )  # fmt: skip
            await self._open_again(opened, reclaim=False)

    async def _open_again(self, opened: Opened4, *, reclaim: bool) -> bool:
        def build() -> list[Op]:
            return opened.open_again(self._clientid, reclaim=reclaim)

        allow = _NOT_RECLAIMABLE if reclaim else frozenset[int]()
        try:
            done = await self._session.run(build, cache=True, allow=allow, recovering=True)
        except ConnectionError:
            raise
        except OSError as error:
            opened.lost = error
            return True
        if done.status != p.NFS4_OK:
            return False
        opened.stateid = done.results[1].resok4.stateid
        opened.delegation = None
        return True

    # -- lease and backchannel ---------------------------------------------------------------------------------------
    async def _renew(self) -> None:
        """Any SEQUENCE renews the lease (RFC 8881 section 8.3); one of its own goes out when there was none for
        long."""
        loop = asyncio.get_running_loop()
        while True:
            left = self.lease / 2 - (loop.time() - self._session.last_used)
            if left > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), left)
                self._look.clear()
                continue
            try:
                await self._session.run(list)
            except OSError as error:
                _log.warning("the lease could not be renewed: %s", error)
                await asyncio.sleep(self.lease / 10)

    def look(self) -> None:
        """Look now whether the lease is to be renewed."""
        self._look.set()

    def _bind_soon(self) -> None:
        if self._binding is None or self._binding.done():
            self._binding = asyncio.create_task(self._bind())

    async def _bind(self) -> None:
        try:
            await self._session.bind()
        except (OSError, SessionLost) as error:
            _log.info("no backchannel on this connection: %s", error)

    async def close(self) -> None:
        """Give session and client back (RFC 8881 sections 18.37, 18.50); a server that is gone forgets them by
        itself."""
        for task in (self._renewal, self._binding):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        with contextlib.suppress(OSError, ValueError):
            await self._session.send([(p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(self._session.sessionid))])
            await self._session.send([(p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(self._clientid))])
