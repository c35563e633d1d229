"""Calls to programs on clients' hosts: their ports found in either family, forgotten when they are wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nfsd.nlm.peers import UNANSWERED, Peers
from nfsd.v4.callback_messages import CallbackError
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.portmap import portmap_program
from rpcrdma.rpc.program import Call, Procedure, Program
from rpcrdma.rpc.rpcbind import Service, services
from rpcrdma.server.tcp import TcpListener
from rpcrdma.xdr import uint32
from tests.support.machine import needs_ipv6

PROGRAM = 0x20000001


class Neighbour:
    """A host with a program that doubles numbers, and a port mapper."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.callers: list[str] = []
        self.served: list[Service] = []
        self.listeners: list[TcpListener] = []
        self.rpcbind = self._listen(portmap_program(lambda: self.served))

    def _listen(self, program: Program) -> int:
        listener = TcpListener(Dispatcher([program]), Pool(1 << 24), asyncio.get_running_loop())
        listener.listen(self.address, 0)
        self.listeners.append(listener)
        return listener.address[1]

    def serve(self) -> TcpListener:
        """Begin to serve the program, at a new port."""
        port = self._listen(Program(PROGRAM, "double", {1: {1: Procedure("DOUBLE", self._double, uint32, uint32)}}))
        self.served = services(PROGRAM, (1,), "tcp", self.address, port)
        return self.listeners[-1]

    async def _double(self, call: Call, number: int) -> int:
        self.callers.append(call.transport.peer_address)
        return 2 * number

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


@pytest.mark.parametrize(
    ("address", "source"), [("127.0.0.1", "127.0.0.7"), pytest.param("::1", "::1", marks=needs_ipv6)]
)
def test_a_program_is_found_called_and_found_again(address: str, source: str) -> None:
    async def main() -> None:
        there = Neighbour(address)
        peers = Peers(rpcbind_port=there.rpcbind, patience=10)

        async def double(number: int, procedure: int = 1) -> Any:
            return await peers.call(address, source, PROGRAM, 1, procedure, (uint32, number), uint32)

        with pytest.raises(CallbackError, match="not registered"):
            await double(1)
        first = there.serve()
        assert [await double(1), await double(2)] == [2, 4]
        assert there.callers == [source, source]
        with pytest.raises(CallbackError, match="PROC_UNAVAIL"):
            await double(1, procedure=9)
        assert await double(3) == 6
        # It was started anew at another port: the first call notices, the next one finds it.
        first.close()
        there.serve()
        with pytest.raises(UNANSWERED):
            await double(4)
        assert await double(5) == 10
        there.close()
        with pytest.raises(UNANSWERED):
            await double(6)

    asyncio.run(main())
