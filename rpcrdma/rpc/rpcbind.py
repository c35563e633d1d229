"""Telling rpcbind which programs are served where (RFC 1833 section 2.2: versions 3 and 4 of program 100000).

Owns :class:`Rpcbind`; imports the codec, the messages and asyncio. NFSv3's clients ask rpcbind for MOUNT's port, and
showmount and rpcinfo look there. A host without rpcbind is as good as any: nothing here is ever an error.

The Unix socket is tried first, where rpcbind sees who we are; then TCP over loopback, from a reserved port if we may,
since rpcbind believes only those.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import os
import random
import socket
import struct as binary
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from rpcrdma.rpc.messages import (
    NULL_AUTH,
    RPC_VERSION,
    accept_stat,
    call_body,
    msg_type,
    rpc_body,
    rpc_msg,
)
from rpcrdma.xdr import Decoder, XdrError, opaque, pack, struct, uint32

_log = logging.getLogger(__name__)

RPCBPROG: Final = 100000
RPCBVERS4: Final = 4
RPCBPROC_SET, RPCBPROC_UNSET, RPCBPROC_GETADDR = 1, 2, 3
SOCKETS: Final = ("/run/rpcbind.sock", "/var/run/rpcbind.sock")
PORT: Final = 111
_MAX_TEXT: Final = 1024
_MAX_REPLY: Final = 4096
_LAST_FRAGMENT: Final = 0x80000000
_RESERVED: Final = range(1023, 599, -1)


@struct
class rpcb:
    """One mapping (RFC 1833 section 2.1)."""

    r_prog: uint32
    r_vers: uint32
    r_netid: Annotated[bytes, opaque(_MAX_TEXT)]
    r_addr: Annotated[bytes, opaque(_MAX_TEXT)]
    r_owner: Annotated[bytes, opaque(_MAX_TEXT)]


@dataclass(frozen=True, slots=True)
class Service:
    """A program's version, and where it is served."""

    program: int
    version: int
    netid: str
    """``tcp``, ``tcp6``, ``rdma`` or ``rdma6`` (RFC 5665)."""
    uaddr: str


def services(program: int, versions: Iterable[int], transport: str, host: str, port: int) -> list[Service]:
    """What to register for a listener: ``transport`` is ``tcp`` or ``rdma``, ``host`` a literal address. The address
    ``::`` takes IPv4 as well, so it counts for both families."""
    netids = [(f"{transport}6", host)] if ":" in host else [(transport, host)]
    if host == "::":
        netids.append((transport, "0.0.0.0"))
    return [Service(program, v, netid, universal_address(h, port)) for v in versions for netid, h in netids]


def universal_address(host: str, port: int) -> str:
    """RFC 5665 section 5.2.3: the address with the port's two octets behind it."""
    return f"{ipaddress.ip_address(host)}.{port >> 8}.{port & 255}"


class Rpcbind:
    """The local rpcbind, and what we have registered with it."""

    def __init__(
        self,
        sockets: Sequence[str] = SOCKETS,
        address: tuple[str, int] | None = ("127.0.0.1", PORT),
        *,
        patience: float = 5.0,
    ) -> None:
        """``patience``: seconds one visit to rpcbind may take."""
        self._sockets, self._address, self._patience = sockets, address, patience
        self._registered: list[Service] = []
        self._xids = itertools.count(random.getrandbits(31))

    async def register(self, wanted: Iterable[Service]) -> list[Service]:
        """Register services; returns those that now are. What another server has registered is left alone."""
        added: list[Service] = []
        try:
            # A task, so that it can be given up in the middle of anything.
            await asyncio.wait_for(self._register(list(wanted), added), self._patience)
        except (TimeoutError, OSError, XdrError, EOFError) as error:
            reason = "it does not answer" if isinstance(error, TimeoutError) else error
            _log.info("not registered with rpcbind: %s", reason)
        self._registered += added
        return added

    async def unregister(self) -> None:
        """Take back what :meth:`register` registered."""
        gone, self._registered = self._registered, []
        if not gone:
            return
        try:
            await asyncio.wait_for(self._unregister(gone), self._patience)
        except (TimeoutError, OSError, XdrError, EOFError) as error:
            _log.info("not taken back from rpcbind: %s", error)

    async def _register(self, wanted: list[Service], added: list[Service]) -> None:
        connection = await self._connect()
        try:
            for service in wanted:
                if await self._set(connection, service):
                    added.append(service)  # noqa: PERF401 (what was added counts even if the next one fails)
        finally:
            connection.close()

    async def _set(self, connection: _Connection, service: Service) -> bool:
        if await connection.call(RPCBPROC_SET, service):
            return True
        found = await connection.call(RPCBPROC_GETADDR, service, text=True)
        if found == service.uaddr.encode():
            # Nobody else can be behind a port that we listen on: this is left over from a server that was killed.
            await connection.call(RPCBPROC_UNSET, service)
            if await connection.call(RPCBPROC_SET, service):
                return True
        what = f"program {service.program} version {service.version} on {service.netid}"
        if found:
            _log.info("rpcbind keeps another registration of %s (%s)", what, found.decode(errors="replace"))
        else:
            _log.info("rpcbind refuses to register %s: another server is registered, or we may not", what)
        return False

    async def _unregister(self, gone: list[Service]) -> None:
        connection = await self._connect()
        try:
            for service in gone:
                await connection.call(RPCBPROC_UNSET, service)
        finally:
            connection.close()

    async def _connect(self) -> _Connection:
        reason: OSError = FileNotFoundError("rpcbind does not run on this host")
        for path in self._sockets:
            try:
                return _Connection(*await asyncio.open_unix_connection(path), self._xids)
            except OSError as error:
                reason = error
        if self._address is not None:
            try:
                return _Connection(*await self._connect_tcp(self._address), self._xids)
            except ConnectionRefusedError:
                reason = FileNotFoundError("rpcbind does not run on this host")
            except OSError as error:
                reason = error
        raise reason

    async def _connect_tcp(self, address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            for port in _RESERVED:
                try:
                    sock.bind(("127.0.0.1", port))
                    break
                except PermissionError:
                    break
                except OSError:
                    continue  # taken
            await asyncio.get_running_loop().sock_connect(sock, address)
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise


class _Connection:
    """A stream to rpcbind, one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, xids: itertools.count[int]) -> None:
        self._reader, self._writer, self._xids = reader, writer, xids

    async def call(self, procedure: int, service: Service, *, text: bool = False) -> Any:
        """SET and UNSET return a truth value, GETADDR (``text``) octets. A call that rpcbind refuses counts as false.
        Raises OSError, EOFError, XdrError."""
        xid = next(self._xids) & 0xFFFFFFFF
        body = call_body(RPC_VERSION, RPCBPROG, RPCBVERS4, procedure, NULL_AUTH, NULL_AUTH)
        mapping = rpcb(
            service.program,
            service.version,
            service.netid.encode(),
            b"" if text else service.uaddr.encode(),
            str(os.geteuid()).encode(),
        )
        message = pack(rpc_msg, rpc_msg(xid, rpc_body(msg_type.CALL, cbody=body))) + pack(rpcb, mapping)
        self._writer.write(binary.pack(">I", len(message) | _LAST_FRAGMENT) + message)
        await self._writer.drain()
        decoder = Decoder(await self._receive())
        reply = decoder.decode(rpc_msg)
        if reply.xid != xid or reply.body.rbody is None:
            raise XdrError("an answer to another call")
        answer = reply.body.rbody.areply
        if answer is None or answer.reply_data.stat != accept_stat.SUCCESS:
            return b"" if text else False
        return decoder.opaque(_MAX_TEXT) if text else decoder.boolean()

    async def _receive(self) -> bytes:
        record = b""
        while True:
            (mark,) = binary.unpack(">I", await self._reader.readexactly(4))
            length = mark & ~_LAST_FRAGMENT
            if len(record) + length > _MAX_REPLY:
                raise XdrError("an answer too long to be one")
            record += await self._reader.readexactly(length)
            if mark & _LAST_FRAGMENT:
                return record

    def close(self) -> None:
        self._writer.close()
