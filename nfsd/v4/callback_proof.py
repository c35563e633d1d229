"""Callbacks by Kerberos.

Owns :class:`Proof` and :class:`Turned`, security contexts of one client each; imports messages, and the client's side
of RPCSEC_GSS.

In NFSv4.0 the server proves itself to the principal that made the client's record (RFC 7530 section 3.3.3). A client
that has no acceptor of contexts (Linux's has one where ``rpc.svcgssd`` or ``gssproxy`` runs) cannot be called so.
The caller decides how else to call it. In NFSv4.1 and later the client offers a context that it has made with the
server, and says what the server is to call it (RFC 8881 section 18.36.3).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from nfsd.protocol import nfs4 as p
from nfsd.state.types import Callback40
from nfsd.v4.callback_messages import CallbackError
from rpcrdma.client.errors import BadReply, CallError, Denied, Refused
from rpcrdma.client.gss import Gss, Protection, Read, is_stale
from rpcrdma.client.messages import Message, Reply
from rpcrdma.gss.contexts import MAX_SEQUENCE, Context
from rpcrdma.gss.initiator import Initiator
from rpcrdma.gss.mechanism import Initiation, Sealer
from rpcrdma.xdr import Decoder

MAKING_TIME: Final = 5.0
"""Seconds for which a context is waited for: one without an acceptor may drop the call."""
_NAMES: Final[tuple[Literal["krb5", "krb5i", "krb5p"], ...]] = ("krb5", "krb5i", "krb5p")
Results = Callable[[memoryview], Decoder]
"""Reads a whole reply. Raises CallbackError."""
Send = Callable[[bytes], Awaitable[memoryview]]
"""Sends a whole call, and returns the whole reply. Raises CallbackError."""


class Unproved(Exception):
    """The client cannot be shown who calls; nothing has been done there."""


def proof_for(initiator: Initiator | None, callback: Callback40, host: str) -> Proof | None:
    """What a client is called with, if it is to be by Kerberos: its record is a service's of its host, as machines are.
    A user's key is nowhere that a context could be accepted."""
    service, _, _ = callback.principal.partition("@")
    if initiator is None or not callback.security or "/" not in service:
        return None
    return Proof(initiator, callback, host)


class Proof(Protection):
    """The server's context with one client, and how its calls are protected: as that client's SETCLIENTID was."""

    def __init__(self, initiator: Initiator, callback: Callback40, host: str) -> None:
        super().__init__(Gss(callback.security, callback.principal), host)  # type: ignore[arg-type]
        self._initiator, self._host = initiator, host
        self._program = callback.program

    async def ask(self, send: Send, next_xid: Callable[[], int], procedure: int, arguments: bytes) -> memoryview:
        """The results of a callback. Raises Unproved, CallbackError."""
        for last in (False, True):
            sealer = await self._have(send, next_xid)
            make, read = self.call(sealer, self._program, p.NFS_CB, procedure, arguments)
            reply = await send(bytes(make(next_xid()).head))
            try:
                return read(bytes(reply), ()).results
            except Denied as error:
                if last or not is_stale(error):
                    raise Unproved(str(error)) from None
                self.forget(sealer)  # the client has restarted
            except Refused as error:
                raise CallbackError("refused", f"the client refuses callbacks: {error}") from None
            except BadReply as error:
                raise CallbackError("garbage", str(error)) from None
        raise AssertionError

    async def _have(self, send: Send, next_xid: Callable[[], int]) -> Sealer:
        """Have a context. Raises Unproved."""

        async def exchange(make: Callable[[int], Message], read: Read) -> Reply:
            return read(bytes(await send(bytes(make(next_xid()).head))), ())

        try:
            async with asyncio.timeout(MAKING_TIME):
                return await self.ready(exchange, self._program, p.NFS_CB)
        except (PermissionError, CallError, CallbackError, TimeoutError) as error:
            raise Unproved(str(error) or "no security context within seconds") from None

    async def begin(self) -> Initiation:
        """By the server's own key."""
        return await self._initiator.begin(self._host, self.target)

    async def step(self, making: Initiation, token: bytes) -> bytes:
        """In a thread of those."""
        return await self._initiator.work(self._host, making.step, token)


class Turned(Protection):
    """A context that the client has made with the server, turned round: in it, the server calls the client."""

    def __init__(self, context: Context, handle: bytes, service: int) -> None:
        """``handle``: what the client calls it there, ``service`` how calls are protected (rpc_gss_service_t)."""
        super().__init__(Gss(_NAMES[service - 1]), "")
        self._context, self._handle = context, handle

    @property
    def lapsed(self) -> bool:
        """Whether no more calls can be made in it."""
        return self._context.gone or self._context.expires <= time.monotonic() or self._sequence + 1 >= MAX_SEQUENCE

    def message(self, xid: int, program: int, procedure: int, arguments: bytes) -> tuple[bytes, Results]:
        """A whole call, and what reads the reply to it."""
        make, read = self.call(self._context.sealer, program, p.NFS_CB, procedure, arguments)

        def results(reply: memoryview) -> Decoder:
            try:
                return Decoder(read(bytes(reply), ()).results)
            except Denied as error:
                raise CallbackError("denied", f"the client denies callbacks: {error}") from None
            except Refused as error:
                raise CallbackError("refused", f"the client refuses callbacks: {error}") from None
            except BadReply as error:
                raise CallbackError("garbage", str(error)) from None

        return bytes(make(xid).head), results
