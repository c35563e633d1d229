"""Backward calls of an RDMA connection, with the memory that Long Calls and Long Replies need (RFC 8167).

Owns :func:`call_back` and :class:`ExposedMemory`; imports the engine, the provider interface and the vocabulary of
programs. Nowhere else does the server register memory for its peer's use: it is the requester here, and only here
(RFC 8166 section 2.3.2). What is exposed is leased for one call, holds nothing else, and is withdrawn when the peer
answers, or by the end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from rpcrdma.engine.backward import BackwardCall
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.rpc.program import BackwardError
from rpcrdma.verbs.interface import Endpoint
from rpcrdma.wire.chunks import WriteChunk
from rpcrdma.wire.errors import RDMA2_ERR_CANT_REPLY


class Connection(Protocol):
    """What is asked of the connection."""

    can_be_invalidated: bool
    """Whether a peer may invalidate what is registered."""

    @property
    def max_backchannel_size(self) -> int:
        """Octets of the largest message without chunks."""

    async def lease(self, size: int) -> Lease:
        """A buffer of the connection's share."""

    def submit(self, call: BackwardCall) -> None:
        """Queue the call and post what can be posted."""


class ExposedMemory:
    """The chunks of one backward call; implements :class:`rpcrdma.engine.backward.Exposure`."""

    def __init__(self, endpoint: Endpoint, can_be_invalidated: bool) -> None:
        self._may_be_named = can_be_invalidated
        self.call: WriteChunk | None = None
        self.reply: WriteChunk | None = None
        self._endpoint = endpoint
        self._handles: list[int] = []
        self._leases: list[Lease] = []
        self._sink = memoryview(b"")

    def expose_call(self, lease: Lease, message: bytes | memoryview) -> None:
        """Put the call into ``lease``, whose count passes to this object, and let the peer read it."""
        view = lease.view[: len(message)]
        view[:] = message
        self.call = self._expose(lease, view, write=False)

    def expose_reply(self, lease: Lease, length: int) -> None:
        """Let the peer write a reply of up to ``length`` octets into ``lease``, whose count passes to this object."""
        self._sink = lease.view[:length]
        self.reply = self._expose(lease, self._sink, write=True)

    def _expose(self, lease: Lease, view: memoryview, *, write: bool) -> WriteChunk:
        self._leases.append(lease)
        handle, offset = self._endpoint.register(view, remote_read=not write, remote_write=write)
        self._handles.append(handle)
        return [(handle, len(view), offset)]

    @property
    def invalidate(self) -> int:
        """A handle to name in version Two's rdma_inv_handle (draft-cel, "Backward-Direction Remote Invalidation").

        All handles here live for one call, so that any would do: the first is that of the call, if it has one.
        """
        return self._handles[0] if self._may_be_named else 0

    def withdraw(self, length: int) -> bytes:
        """End the peer's access, then return the reply's first octets, and release the memory."""
        handles, self._handles = self._handles, []
        for handle in handles:
            # One of them the peer has invalidated itself, if it speaks version Two and its device can do that; none of
            # them is left when the connection is gone.
            with contextlib.suppress(KeyError):
                self._endpoint.invalidate(handle)
        reply = bytes(self._sink[:length])
        self._sink = memoryview(b"")
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
        return reply


async def call_back(
    connection: Connection,
    endpoint: Endpoint,
    message: bytes | memoryview,
    timeout: float | None,  # noqa: ASYNC109 (the credit stays in use: no mere cancellation)
    longest: int,
    reply_size: int,
) -> memoryview:
    """:meth:`rpcrdma.rpc.program.Transport.call_back` of an RDMA connection; ``longest`` is 0 where the peer takes no
    Long messages."""
    short = connection.max_backchannel_size
    if len(message) > max(short, longest):
        raise ValueError(f"a backward call of {len(message)} octets")
    reply_size = min(reply_size, longest)
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        exposure = None
        if len(message) > short or reply_size > short:
            exposure = await _expose(connection, endpoint, message, short, reply_size)
        answer: asyncio.Future[bytes | None] = loop.create_future()
        call = BackwardCall(int.from_bytes(message[:4], "big"), bytes(message), _setter(answer), exposure)
        timer = None
        try:
            connection.submit(call)
            if deadline is not None:
                timer = loop.call_at(deadline, _time_out, answer, call)
            reply = await answer
        except asyncio.CancelledError:
            call.abandon()
            raise
        except (ConnectionError, ValueError):
            call.collect()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if reply is not None:
            return memoryview(reply)
        error = call.error
        if error is None:
            raise ConnectionError("no reply to the backward call")
        needed = (error.shortage.needed + 3) & ~3
        if error.code == RDMA2_ERR_CANT_REPLY and max(reply_size, short) < needed <= longest:
            # "Transport Errors": the request may be sent again with the same XID and larger reply resources.
            reply_size = needed
            continue
        raise BackwardError(str(error))


def _setter(answer: asyncio.Future[bytes | None]) -> Callable[[bytes | None], None]:
    def finish(reply: bytes | None) -> None:
        if not answer.done():
            answer.set_result(reply)

    return finish


def _time_out(answer: asyncio.Future[bytes | None], call: BackwardCall) -> None:
    call.abandon()
    if not answer.done():
        answer.set_exception(TimeoutError("no reply to the backward call in time"))


async def _expose(
    connection: Connection, endpoint: Endpoint, message: bytes | memoryview, short: int, reply_size: int
) -> ExposedMemory:
    exposure = ExposedMemory(endpoint, connection.can_be_invalidated)
    try:
        if len(message) > short:
            exposure.expose_call(await connection.lease(len(message)), message)
        if reply_size > short:
            exposure.expose_reply(await connection.lease(reply_size), reply_size)
    except (OutOfMemory, OSError) as error:
        exposure.withdraw(0)
        raise BackwardError(f"no memory for a Long message: {error}") from error
    except BaseException:
        exposure.withdraw(0)
        raise
    return exposure
