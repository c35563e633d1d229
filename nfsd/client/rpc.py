"""Calls of one client over one connection: encoding, decoding, waiting out a busy server.

Owns :class:`Caller` and :class:`Patience`; imports :mod:`rpcrdma.client` and the codec.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from nfsd.client.callbacks import Backchannel
from nfsd.client.errors import NfsClientError
from rpcrdma.client import CallError, Connection, Denied, Refused, Reply
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.xdr import Decoder, Encoder, Payload, XdrError

_log = logging.getLogger(__name__)

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
SAY_AFTER: Final = 1.0
"""Seconds of waiting after which it is said."""
PARTING: Final = 2.0
"""Seconds that a call is given to end when nobody wants its reply any more."""
RPC_HEADER: Final = 512
"""Octets of a reply's RPC header: more than any verifier makes it."""
_ARGUMENTS_LIMIT: Final = 5 << 20


class VersionRefused(Exception):
    """The server has the program, in other versions."""

    def __init__(self, versions: tuple[int, int]) -> None:
        low, high = versions
        super().__init__(f"it has version {low}" if low == high else f"it has versions {low} to {high}")
        self.versions = versions


class Caller:
    """Calls over one connection."""

    limit = _ARGUMENTS_LIMIT

    def __init__(self, connection: Connection, backchannel: Backchannel | None = None) -> None:
        self.connection = connection
        self.backchannel = backchannel or Backchannel()

    async def exchange(
        self, program: int, version: int, procedure: int, arguments: Encoder, *, into: memoryview | None, reply_max: int
    ) -> Decoder:
        """A call; a decoder at the results. Raises VersionRefused, NfsClientError, OSError."""
        reply_max += RPC_HEADER
        try:
            places = () if into is None else into
            call = self.connection.call(program, version, procedure, arguments, into=places, reply_max=reply_max)
            reply = await (_to_its_end(call) if places or arguments.payloads else call)
        except Refused as error:
            if error.stat == accept_stat.PROG_MISMATCH and error.versions is not None:
                raise VersionRefused(error.versions) from error
            if error.stat == accept_stat.PROG_UNAVAIL:
                raise NfsClientError(
                    f"{self.connection}: program {program} is not served there; servers have NFS (100003) on port"
                    " 2049 for TCP and 20049 for RDMA, and mountd (100005) on a port of its own"
                ) from error
            raise OSError(errno.EPROTONOSUPPORT, f"the server refuses program {program}: {error}") from error
        except Denied as error:
            raise OSError(errno.EACCES, f"the server refuses calls with AUTH_SYS: {error}") from error
        except CallError as error:
            raise OSError(errno.EREMOTEIO, f"the server's answer is none: {error}") from error
        return reply.decoder()

    async def call(
        self, program: int, version: int, procedure: int, arguments: tuple[Any, Any], results: Any, *,
        into: memoryview | None = None, reply_max: int,
    ) -> Any:  # fmt: skip
        """A call with arguments of a declared type, (type, value); the results, of another. Raises as ``exchange``."""
        encoder = Encoder(_ARGUMENTS_LIMIT)
        kind, value = arguments
        if kind is not None:
            encoder.encode(kind, value)
        decoder = await self.exchange(program, version, procedure, encoder, into=into, reply_max=reply_max)
        try:
            found = decoder.decode(results)
            decoder.finish(strict=True)
        except XdrError as error:
            raise OSError(errno.EREMOTEIO, f"the server's results do not decode: {error}") from error
        return found

    @staticmethod
    def payload(data: bytes | memoryview) -> Any:
        """Data to be written, as a DDP-eligible item that is not copied."""
        return Payload(memoryview(data))

    @staticmethod
    def placed(data: Any, into: memoryview) -> int:
        """How much data a READ has put into memory."""
        if len(data) > len(into):
            raise OSError(errno.EREMOTEIO, f"the server has sent {len(data)} octets, {len(into)} were asked for")
        return len(data)

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()


async def _to_its_end(call: Coroutine[Any, Any, Reply]) -> Reply:
    """A call that is lent memory. A caller that stops waiting for it waits a little longer: over RDMA, a server that
    writes to memory which has been taken back from it loses the connection, and everybody's calls with it."""
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=PARTING)
            raise
        finally:
            if not task.cancel() and not task.cancelled():
                task.exception()  # looked at


class Patience:
    """How long a client waits for a server that says it is busy; one per operation, made by ``start``."""

    def __init__(self, seconds: float, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        self._left = self._seconds = seconds
        self._sleep = sleep
        self._delay = FIRST_DELAY
        self._said = False

    def start(self) -> Patience:
        """A fresh one."""
        return Patience(self._seconds, self._sleep)

    async def wait(self, why: str) -> bool:
        """Wait a little, longer each time; False, at once, when patience has run out."""
        if self._left <= 0:
            return False
        if not self._said and self._seconds - self._left >= SAY_AFTER:
            self._said = True
            _log.warning("waiting: %s", why)
        delay = min(self._delay, self._left)
        self._left -= delay
        self._delay = min(self._delay * 2, LONGEST_DELAY)
        await self._sleep(delay)
        return True
