"""Calls to programs on clients' hosts: their lock manager (NLM) and status monitor (NSM), over TCP, at the ports that
their rpcbind tells.

Owns the ports found lately. Imports messages and the client library. Only hosts that have called this server are
called, and from the address they know it by.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any, Final
from weakref import WeakValueDictionary

from nfsd.v4.callback_messages import CallbackError, accepted
from rpcrdma.addresses import host_of
from rpcrdma.client.messages import auth_sys, encode_call
from rpcrdma.client.whole import WholeClient
from rpcrdma.memory import Pool
from rpcrdma.rpc.portmap import (
    IPPROTO_TCP,
    PMAPPROC_GETPORT,
    PMAPVERS,
    mapping,
    port_of_universal_address,
    universal,
)
from rpcrdma.rpc.rpcbind import PORT, RPCBPROC_GETADDR, RPCBPROG, RPCBVERS4, rpcb
from rpcrdma.xdr import Encoder, XdrError, uint32

UNANSWERED: Final = (OSError, CallbackError)
"""What :meth:`Peers.call` raises when there is no answer."""
_KNOWN_PORTS: Final = 4096
_CALLS: Final = 128
"""Calls under way at a time."""
_CALLS_TO_ONE: Final = 8
"""Of these, to one host: one that is silent does not keep the others from being called."""
_MEMORY: Final = 64 << 20


class Peers:
    """The hosts that are called."""

    def __init__(self, *, rpcbind_port: int = PORT, patience: float = 5.0) -> None:
        """``patience``: seconds for one call, finding the port included."""
        self._rpcbind_port = rpcbind_port
        self._patience = patience
        self._ports: dict[tuple[str, int], int] = {}
        self._room = asyncio.Semaphore(_CALLS)
        self._own_rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._pool = Pool(_MEMORY)
        self._xids = itertools.count(random.getrandbits(31))
        self._credential = auth_sys(0, 0)

    async def call(
        self, host: str, source: str, program: int, version: int, procedure: int, arguments: Any, results: Any
    ) -> Any:
        """Call a program over TCP from our address ``source``; ``arguments`` and ``results`` are (XDR type, value) and
        an XDR type. Raises one of UNANSWERED."""
        client = host_of(host)
        own = self._own_rooms.get(client)
        if own is None:
            own = self._own_rooms[client] = asyncio.Semaphore(_CALLS_TO_ONE)
        async with own, self._room:
            key = host, program
            try:
                async with asyncio.timeout(self._patience):
                    port = self._ports.get(key)
                    if port is None:
                        port = await self.find_port(host, source, program, version)
                        if len(self._ports) >= _KNOWN_PORTS:
                            self._ports.clear()
                        self._ports[key] = port
                    return await self._call(host, port, source, program, version, procedure, arguments, results)
            except BaseException:
                self._ports.pop(key, None)  # it may have been started anew elsewhere
                raise

    def forget(self, host: str, program: int) -> None:
        """Ask the host's rpcbind anew before the program is called again."""
        self._ports.pop((host, program), None)

    async def find_port(self, host: str, source: str, program: int, version: int) -> int:
        """A program's TCP port, as the host's rpcbind tells it. Raises one of UNANSWERED."""
        to = host, self._rpcbind_port, source, RPCBPROG
        if ":" in host:  # version 2 knows IPv4 only (RFC 1833 section 3)
            asked = rpcb(program, version, b"tcp6", b"", b"")
            found = await self._call(*to, RPCBVERS4, RPCBPROC_GETADDR, (rpcb, asked), universal)
            port = port_of_universal_address(found)
        else:
            wanted = mapping(program, version, IPPROTO_TCP, 0)
            port = await self._call(*to, PMAPVERS, PMAPPROC_GETPORT, (mapping, wanted), uint32)
        if not 0 < port < 1 << 16:
            raise CallbackError("unregistered", f"program {program} is not registered at {host}")
        return int(port)

    async def _call(
        self,
        host: str,
        port: int,
        source: str,
        program: int,
        version: int,
        procedure: int,
        arguments: Any,
        results: Any,
    ) -> Any:
        body = Encoder()
        body.encode(*arguments)
        xid = next(self._xids) & 0xFFFFFFFF
        message = encode_call(xid, program, version, procedure, self._credential, body)
        client = await WholeClient.connect(host, port, seconds=self._patience, pool=self._pool, source=source)
        try:
            decoder = accepted(await client.call(bytes(message.head)))
            return decoder.decode(results)
        except XdrError as error:
            raise CallbackError("garbage", str(error)) from None
        finally:
            client.close()
