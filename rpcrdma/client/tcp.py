"""Calls over TCP (RFC 5531 section 11): one connection, any number of outstanding calls, every size bounded.

Owns :class:`TcpDialer` and :class:`TcpCarrier`; imports the record stream and asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from rpcrdma.client.calls import Owner
from rpcrdma.client.messages import Message
from rpcrdma.client.options import ClientOptions
from rpcrdma.client.tls import secure
from rpcrdma.engine.requester import Request
from rpcrdma.firewall import contain
from rpcrdma.memory import OutOfMemory, Pool
from rpcrdma.rpc.program import RpcReply
from rpcrdma.tcp.stream import RecordError, RecordStream
from rpcrdma.tls.records import Opening, Sealing

_CALL = 0
_REPLY = 1
_PATIENCE = (0.01, 0.05, 0.25)
"""Seconds between attempts to get the old connection's port again."""


async def connect(
    host: str,
    port: int,
    owner: Owner,
    options: ClientOptions,
    pool: Pool,
    *,
    source: str | None = None,
    source_port: int = 0,
    name: str = "",
) -> TcpCarrier:
    """A connection to a literal address, from the address ``source`` and from ``source_port`` if they matter;
    ``name`` is the server's, for TLS. Raises OSError, TimeoutError among them."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if source_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound in any case: connect(2) would choose a port that connections to elsewhere have as well, and none of
        # those would let a later connection of ours have it.
        sock.bind((source or "", source_port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        async with asyncio.timeout(options.connect_timeout):
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            ends = sock.getsockname()[:2], sock.getpeername()[0]
            secured = None
            if options.tls is not None:
                secured = await secure(sock, name or host, options.tls)
        return TcpCarrier(sock, *ends, owner, options, pool, secured)
    except BaseException:
        sock.close()
        raise


class TcpDialer:
    """Connects, again and again from the same port where it can be had: servers know retransmissions by it."""

    def __init__(self, options: ClientOptions, pool: Pool, name: str = "") -> None:
        """``name`` is the server's, as the user has it."""
        self._options, self._pool, self._name = options, pool, name
        self._port = 0

    async def dial(self, host: str, port: int, owner: Owner) -> TcpCarrier:
        """Connect to a literal address. Raises OSError, TimeoutError among them."""
        carrier = None
        if self._port:
            carrier = await self._from_the_same_port(host, port, owner)
        if carrier is None:
            carrier = await connect(host, port, owner, self._options, self._pool, name=self._name)
        self._port = carrier.local_port
        return carrier

    async def _from_the_same_port(self, host: str, port: int, owner: Owner) -> TcpCarrier | None:
        """None: somebody has the port. For a moment that may be the old connection, until its end is acknowledged."""
        for patience in (*_PATIENCE, None):
            try:
                return await connect(
                    host, port, owner, self._options, self._pool, source_port=self._port, name=self._name
                )
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    raise
            if patience is not None:
                await asyncio.sleep(patience)
        return None


class TcpCarrier:
    """A connected socket; implements :class:`rpcrdma.client.calls.Carrier`."""

    version = 0

    def __init__(
        self,
        sock: socket.socket,
        local: tuple[str, int],
        peer_address: str,
        owner: Owner,
        options: ClientOptions,
        pool: Pool,
        secured: tuple[Opening, Sealing] | None = None,
    ) -> None:
        """``local`` and ``peer_address`` are the connection's; ``secured``: what it is enciphered with."""
        (self.local_address, self.local_port), self.peer_address = local, peer_address
        self._socket, self._owner = sock, owner
        self._loop = asyncio.get_running_loop()
        self._fd = sock.fileno()
        self._account = pool.account(options.memory)
        self._stream = RecordStream(self._fd, self._account, options.max_reply)
        self._calls: dict[int, Request] = {}
        self._writing = self._flush_due = self._memory_awaited = self._gone = False
        self.max_backchannel_size = options.max_reply
        self._loop.add_reader(self._fd, contain, self._crashed, self._readable)
        if secured is not None:
            self._stream.secure(secured)
            self._loop.call_soon(contain, self._crashed, self._go_on)  # something may have come with the handshake

    def send(self, call: Request) -> None:
        """Send a call."""
        self._calls[call.message.xid] = call
        call.sent()
        self._queue(Message(call.message.xid, call.message.head, call.message.payloads))

    def forget(self, call: Request) -> None:
        """Nobody waits for the call any more. Octets of the caller that have not left cannot be taken back."""
        if self._calls.pop(call.message.xid, None) is not None and call.message.payloads and self._stream.queued:
            self._end("a call was cancelled while it was being sent")

    def reply_backward(self, token: object, reply: RpcReply | None) -> None:
        """Answer a backward call."""
        if reply is not None:
            if self._gone:
                reply.release()
            else:
                self._queue(reply)

    def close(self, *, abort: bool = False) -> None:
        """End the connection; what the socket takes at once still leaves."""
        self._end("closed by this end")

    async def wait_closed(self) -> None:
        """It takes no time."""

    def _queue(self, message: RpcReply) -> None:
        self._stream.queue(message)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(contain, self._crashed, self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._gone:
            return
        try:
            sent = self._stream.flush()
        except OSError as error:
            self._end(str(error))
            return
        if sent == self._writing:
            if sent:
                self._loop.remove_writer(self._fd)
            else:
                self._loop.add_writer(self._fd, contain, self._crashed, self._flush)
            self._writing = not sent

    def _readable(self) -> None:
        self._receive(True)

    def _go_on(self) -> None:
        if not self._gone:
            self._receive(False)

    def _receive(self, readable: bool) -> None:
        try:
            records = self._stream.receive(readable)
        except (RecordError, OSError) as error:
            self._end(str(error))
            return
        for record, hold in records:
            try:
                if not self._gone:
                    self._take(record)
            finally:
                record.release()
                hold.release()
        if self._gone:
            return
        if self._stream.eof:
            self._end("the server has closed the connection")
        elif self._stream.starved and not self._memory_awaited:
            self._await_memory(self._stream.starved)
        elif self._stream.unfinished:
            self._loop.call_soon(contain, self._crashed, self._go_on)

    def _take(self, record: memoryview) -> None:
        if len(record) < 8:
            self._end("the server has sent a record that is too short")
            return
        kind = int.from_bytes(record[4:8], "big")
        if kind == _CALL:
            if self._owner.takes_calls:
                self._owner.called_back(self, memoryview(bytes(record)), None)
            return
        # A reply that nobody waits for (any more) is dropped.
        call = self._calls.pop(int.from_bytes(record[:4], "big"), None) if kind == _REPLY else None
        if call is not None:
            call.answered(bytes(record), [(memory, 0) for memory in call.into])
            self._owner.finished(call)

    def _await_memory(self, size: int) -> None:
        """Stop reading until there is a buffer for the rest of a record."""
        self._memory_awaited = True
        self._loop.remove_reader(self._fd)
        try:
            self._account.when_available(size, self._memory_soon)
        except OutOfMemory:
            self._end(f"a record needs {size} octets, more than the bound on memory")

    def _memory_soon(self) -> None:
        self._loop.call_soon(contain, self._crashed, self._memory_there)  # not now: we are inside somebody's release

    def _memory_there(self) -> None:
        self._memory_awaited = False
        if not self._gone:
            self._loop.add_reader(self._fd, contain, self._crashed, self._readable)
            self._receive(False)

    def _crashed(self) -> None:
        self._end("a mistake of this end")

    def _end(self, reason: str) -> None:
        if self._gone:
            return
        self._gone = True
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        with contextlib.suppress(OSError):
            self._stream.flush(everything=True)
        self._stream.close()
        self._account.close()
        self._socket.close()
        self._calls.clear()
        self._owner.lost(self, reason)
