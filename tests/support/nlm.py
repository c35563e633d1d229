"""A server of NFSv3's locking in this process, over TCP, and hosts of clients with lock managers of their own.

Every host has an address of its own on the loopback network (127.0.0.2…), from which it calls and where it is called
back: a lock manager (GRANTED), a status monitor (SM_NOTIFY), and a port mapper that knows both.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nfsd.nlm.locks import LockManager
from nfsd.nlm.messages import Messages
from nfsd.nlm.nsm import Notifier, nsm_program
from nfsd.nlm.peers import Peers
from nfsd.nlm.program import nlm4_program
from nfsd.protocol import nlm4 as n
from nfsd.protocol.nsm import SM_NOTIFY, SM_PROGRAM, SM_STAT, SM_VERS, STAT_SUCC, sm_name, sm_stat_res, stat_chge
from nfsd.state import ClientRecord, Limits, Recovered
from nfsd.v4.callback_messages import accepted
from rpcrdma.client.messages import auth_sys, encode_call
from rpcrdma.client.whole import WholeClient
from rpcrdma.hosts import Hosts
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.portmap import portmap_program
from rpcrdma.rpc.program import Call, Procedure, Program
from rpcrdma.rpc.rpcbind import Service, services
from rpcrdma.server.tcp import TcpListener
from rpcrdma.server.udp import UdpListener
from rpcrdma.server.visits import Visits
from rpcrdma.xdr import Encoder
from tests.support.nfs4 import Server4, StoreInMemory, serving
from tests.support.ports import free_port

GRANTED, DENIED, BLOCKED = n.nlm4_stats.NLM4_GRANTED, n.nlm4_stats.NLM4_DENIED, n.nlm4_stats.NLM4_BLOCKED
GRACE = n.nlm4_stats.NLM4_DENIED_GRACE_PERIOD
_SERVER = "127.0.0.1"
_xids = itertools.count(1)


class NlmServer:
    """What serves the locks."""

    def __init__(self, parts: Server4, pauses: Sequence[float]) -> None:
        self.parts = parts
        self.pool = Pool(64 << 20)
        self.rpcbind_port = free_port("")
        self.peers = Peers(rpcbind_port=self.rpcbind_port, patience=2)
        self.manager = LockManager(parts.nfs4, self.peers, pauses=tuple(pauses))
        self.notifier = Notifier(self.peers, parts.engine, pause=0.02)
        self.ports = {}
        self.listeners: list[TcpListener] = []
        self.messages = Messages(self.manager, self.peers)
        self.udp = UdpListener(Dispatcher([nsm_program(parts.nfs4, self.peers)]), Visits(Hosts(self.pool)))
        for program in (nlm4_program(self.manager, self.messages), nsm_program(parts.nfs4, self.peers)):
            self.ports[program.number] = self.listen(_SERVER, 0, program)
        self.hosts: list[Host] = []

    def listen(self, host: str, port: int, *programs: Program) -> int:
        listener = TcpListener(Dispatcher(programs), self.pool, asyncio.get_running_loop())
        listener.listen(host, port)
        self.listeners.append(listener)
        return listener.address[1]

    def host(self, number: int, name: bytes = b"") -> Host:
        """The host at 127.0.0.number."""
        made = Host(self, f"127.0.0.{number}", name or b"host-%d" % number)
        self.hosts.append(made)
        return made

    async def close(self) -> None:
        for host in self.hosts:
            host.hang_up()
        await self.manager.close()
        await self.messages.close()
        await self.notifier.close()
        for listener in self.listeners:
            listener.close()
        self.udp.close()


@asynccontextmanager
async def locking_server(
    tmp_path: Path, *, records: Sequence[ClientRecord] = (), limits: Limits | None = None,
    pauses: Sequence[float] = (0.05, 0.05), store: Any = None, squash: str = "none", clients: tuple[str, ...] = ("*",),
    read_only: bool = False,
) -> AsyncIterator[NlmServer]:  # fmt: skip
    """A server of the directory ``export``, as /0, with the file ``f`` in it; ``records`` are what stable storage
    had."""
    export, state = tmp_path / "export", tmp_path / "state"
    for directory in (export, state):
        directory.mkdir(exist_ok=True)
    (export / "f").touch(0o666)
    (export / "f").chmod(0o666)
    recovered = Recovered(int(time.time()), tuple(records))
    async with serving(
        export, state_dir=state, limits=limits, recovered=recovered, store=store or StoreInMemory(), squash=squash,
        clients=clients, read_only=read_only,
    ) as parts:  # fmt: skip
        server = NlmServer(parts, pauses)
        try:
            yield server
        finally:
            await server.close()


class Host:
    """A client's host."""

    def __init__(self, server: NlmServer, address: str, name: bytes) -> None:
        self.server = server
        self.address = address
        self.name = name
        self.grants: asyncio.Queue[n.nlm4_testargs] = asyncio.Queue()
        """GRANTED calls that have come."""
        self.answers: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        """Answers to messages: the procedure, and its arguments."""
        self.restarts: asyncio.Queue[stat_chge] = asyncio.Queue()
        """SM_NOTIFY calls that have come."""
        self.verdict: n.nlm4_stats | None = GRANTED
        """What GRANTED is answered; None: nothing."""
        self.state = 7
        """Its state number, as it tells with LOCK."""
        self.told: int | None = 7
        """What its status monitor tells; None: nothing, the server waits."""
        self.credential = auth_sys(0, 0, machine="tests")
        self._connections: dict[int, WholeClient] = {}
        self.handle = b""

    def take_calls(self) -> Host:
        """Begin to take the server's calls."""
        nlm = {n.NLMPROC4_GRANTED: Procedure("GRANTED", self._granted, n.nlm4_testargs, n.nlm4_res)}
        for number in (n.NLMPROC4_LOCK_RES, n.NLMPROC4_CANCEL_RES, n.NLMPROC4_UNLOCK_RES):
            nlm[number] = Procedure("RES", self._answered, n.nlm4_res)
        nlm[n.NLMPROC4_TEST_RES] = Procedure("RES", self._answered, n.nlm4_testres)
        nsm = {
            SM_NOTIFY: Procedure("NOTIFY", self._notified, stat_chge),
            SM_STAT: Procedure("STAT", self._stat, sm_name, sm_stat_res),
        }
        programs = Program(n.NLM_PROGRAM, "nlm", {4: nlm}), Program(SM_PROGRAM, "nsm", {SM_VERS: nsm})
        served: list[Service] = []
        for program in programs:
            port = self.server.listen(self.address, 0, program)
            served += services(program.number, program.versions, "tcp", self.address, port)
        self.server.listen(self.address, self.server.rpcbind_port, portmap_program(lambda: served))
        return self

    async def _granted(self, call: Call, args: n.nlm4_testargs) -> n.nlm4_res:
        self.grants.put_nowait(args)
        if self.verdict is None:
            await asyncio.get_running_loop().create_future()
        return n.nlm4_res(args.cookie, self.verdict or GRANTED)

    async def _answered(self, call: Call, args: Any) -> None:
        self.answers.put_nowait((call.procedure, args))

    async def _stat(self, call: Call, args: sm_name) -> sm_stat_res:
        if self.told is None:
            await asyncio.get_running_loop().create_future()
        return sm_stat_res(STAT_SUCC, self.told if self.told is not None else 0)

    async def _notified(self, call: Call, args: stat_chge) -> None:
        self.restarts.put_nowait(args)

    # -- calls ---------------------------------------------------------------------------------------------------
    async def call(self, procedure: int, arguments: Any, results: Any, *, program: int = n.NLM_PROGRAM) -> Any:
        """Call the server; ``arguments`` are (type, value)."""
        body = Encoder()
        body.encode(*arguments)
        return accepted(await self.raw(procedure, body.getvalue(), program=program)).decode(results)

    async def raw(self, procedure: int, arguments: bytes, *, program: int = n.NLM_PROGRAM) -> memoryview:
        """Call the server with any octets for arguments; the whole reply."""
        connection = self._connections.get(program)
        if connection is None or connection.closed:
            port = self.server.ports[program]
            connection = await WholeClient.connect(_SERVER, port, seconds=5, pool=self.server.pool, source=self.address)
            self._connections[program] = connection
        version = 4 if program == n.NLM_PROGRAM else SM_VERS
        message = encode_call(next(_xids), program, version, procedure, self.credential, arguments)
        async with asyncio.timeout(20):
            return await connection.call(bytes(message.head))

    def hang_up(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def what(self, start: int, length: int, svid: int = 1, handle: bytes | None = None) -> n.nlm4_lock:
        oh = b"%d@" % svid + self.name
        return n.nlm4_lock(self.name, self.handle if handle is None else handle, oh, svid, start, length)

    async def lock(
        self, start: int = 0, length: int = 0, *, svid: int = 1, shared: bool = False, block: bool = False,
        reclaim: bool = False, procedure: int = n.NLMPROC4_LOCK, handle: bytes | None = None,
    ) -> n.nlm4_stats:  # fmt: skip
        alock = self.what(start, length, svid, handle)
        args = n.nlm4_lockargs(b"cookie", block, not shared, alock, reclaim, self.state)
        result = await self.call(procedure, (n.nlm4_lockargs, args), n.nlm4_res)
        assert result.cookie == b"cookie"
        return n.nlm4_stats(result.stat)

    async def unlock(self, start: int = 0, length: int = 0, *, svid: int = 1) -> n.nlm4_stats:
        args = n.nlm4_unlockargs(b"", self.what(start, length, svid))
        result = await self.call(n.NLMPROC4_UNLOCK, (n.nlm4_unlockargs, args), n.nlm4_res)
        return n.nlm4_stats(result.stat)

    async def cancel(self, start: int = 0, length: int = 0, *, svid: int = 1, shared: bool = False) -> n.nlm4_stats:
        args = n.nlm4_cancargs(b"", True, not shared, self.what(start, length, svid))
        result = await self.call(n.NLMPROC4_CANCEL, (n.nlm4_cancargs, args), n.nlm4_res)
        return n.nlm4_stats(result.stat)

    async def test(
        self, start: int = 0, length: int = 0, *, svid: int = 1, shared: bool = False
    ) -> n.nlm4_holder | None:
        """The lock in the way; None: there is none."""
        args = n.nlm4_testargs(b"", not shared, self.what(start, length, svid))
        result = await self.call(n.NLMPROC4_TEST, (n.nlm4_testargs, args), n.nlm4_testres)
        assert result.stat.stat in (GRANTED, DENIED), result.stat
        holder: n.nlm4_holder | None = result.stat.holder
        return holder

    async def share(self, access: int, mode: int, *, oh: bytes = b"dos", undo: bool = False) -> n.nlm4_stats:
        args = n.nlm4_shareargs(b"", n.nlm4_share(self.name, self.handle, oh, mode, access), False)
        procedure = n.NLMPROC4_UNSHARE if undo else n.NLMPROC4_SHARE
        result = await self.call(procedure, (n.nlm4_shareargs, args), n.nlm4_shareres)
        return n.nlm4_stats(result.stat)

    async def granted(self) -> n.nlm4_lock:
        """The next lock the server calls with."""
        async with asyncio.timeout(20):
            return (await self.grants.get()).alock

    async def notify_of_restart(self, state: int, name: bytes | None = None) -> None:
        """SM_NOTIFY, as after a restart of the host."""
        args = stat_chge(self.name if name is None else name, state)
        await self.call(SM_NOTIFY, (stat_chge, args), None, program=SM_PROGRAM)

    async def datagram_of_restart(self, state: int, *, seconds: float = 20) -> bool:
        """SM_NOTIFY in a datagram, as Linux's sm-notify sends it, or anybody in the host's name; whether it is answered
        in time."""
        loop = asyncio.get_running_loop()
        if not self.server.udp.address[1]:
            await self.server.udp.listen(_SERVER, 0)
        body = Encoder()
        body.encode(stat_chge, stat_chge(self.name, state))
        message = encode_call(next(_xids), SM_PROGRAM, SM_VERS, SM_NOTIFY, self.credential, body)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.bind((self.address, 0))
            sender.sendto(bytes(message.head), self.server.udp.address)
            try:
                async with asyncio.timeout(seconds):
                    accepted(await loop.sock_recv(sender, 4096))
            except TimeoutError:
                return False
        return True

    async def free_all(self) -> None:
        await self.call(n.NLMPROC4_FREE_ALL, (n.nlm4_notify, n.nlm4_notify(self.name, self.state)), None)
