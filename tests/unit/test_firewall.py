"""An exception in answering a call costs that call its answer, and nobody else anything: over TCP and RDMA, natively
and on the general path. And the firewall's parts by themselves."""

import asyncio
import logging
import socket
import struct

import pytest

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.capture.recorder import Captures
from rpcrdma.firewall import Ticker, contain, last_resort, spawn
from rpcrdma.hosts import Hosts
from rpcrdma.memory import Pool
from rpcrdma.peer import wire
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Call, Procedure, Program
from rpcrdma.server.udp import UdpListener
from rpcrdma.server.visits import Visits
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.xdr import uint32
from tests.peer import header, header_two
from tests.peer import run as run_rig
from tests.unit import rdma_native_support as rdma
from tests.unit import vfs_support
from tests.unit.raw_tcp_support import TcpServer, call, handle, record, status_of

GETATTR, READ, WRITE = 1, 6, 7
SYSTEM_ERR = 5
FAULTS = pytest.mark.parametrize("fault", [OSError(5, "no disk"), RuntimeError("no idea"), MemoryError()], ids=repr)


class FaultyExports:
    """A file service's export table, asked anew for each call of a native program; some askers get an exception."""

    def __init__(self, exports, fault):
        self._exports, self.fault = exports, fault
        self.fail_at = set()
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self._exports, name)

    def standing(self, export, caller, transport):
        self.asked += 1
        self._exports.edition.number += 1  # what is learnt now is good for this call only
        if self.asked in self.fail_at:
            raise self.fault
        return self._exports.standing(export, caller, transport)


def inject(service, fault):
    service.exports = FaultyExports(service.exports, fault)
    return service.exports


def run_native(tmp_path, fault, scenario, **options):
    """``scenario(service, root, exports, dispatcher)`` with NFSv3, natively answered."""
    with vfs_support.directory_on("memory", tmp_path) as path:

        async def main(service, root):
            exports = inject(service, fault)
            programs = [Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(service, service.exports)})]
            dispatcher = Dispatcher(programs, natives={(NFS_PROGRAM, 3): Nfs3Procedures(service)})
            await scenario(service, root, exports, dispatcher)

        vfs_support.run(path, tmp_path, main, squash="none", **options)


# -- TCP, natively -----------------------------------------------------------------------------------------------------


@FAULTS
def test_a_fault_in_a_native_call_over_tcp_costs_that_call(fault, tmp_path):
    async def scenario(service, root, exports, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", b"data", mode=0o666)
        async with TcpServer(dispatcher) as server:
            peer = await server.peer()
            exports.fail_at = {3}
            batch = b"".join(record(call(xid, GETATTR, handle(node))) for xid in range(1, 8))
            peer.writer.write(batch)
            expected = [(xid, SYSTEM_ERR if xid == 3 else 0) for xid in range(1, 8)]
            assert await peer.statuses(7) == expected
            # The record was consumed; nothing is parsed again, and the connection serves on.
            peer.writer.write(record(call(100, GETATTR, handle(node))))
            assert await peer.statuses(1) == [(100, 0)]
            assert exports.asked == 8
            row = dispatcher.rows[NFS_PROGRAM, 3, GETATTR]
            assert (row.calls, row.errors, row.native_calls) == (8, 1, 8)
            peer.writer.close()

    run_native(tmp_path, fault, scenario)


@FAULTS
def test_a_fault_in_a_record_with_a_buffer_of_its_own(fault, tmp_path):
    async def scenario(service, root, exports, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", b"data", mode=0o666)
        async with TcpServer(dispatcher) as server:
            peer = await server.peer()
            exports.fail_at = {2}
            arguments = handle(node) + struct.pack(">QIII", 0, 200_000, 0, 200_000) + bytes(200_000)
            for xid in range(1, 4):
                peer.writer.write(record(call(xid, WRITE, arguments)))
            assert await peer.statuses(3) == [(1, 0), (2, SYSTEM_ERR), (3, 0)]
            # What was not executed is not in the replay cache as if it had been.
            assert len(dispatcher.replay) == 2
            peer.writer.close()

    run_native(tmp_path, fault, scenario)


def test_the_log_of_one_cause_is_bounded(tmp_path, caplog):
    async def scenario(service, root, exports, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", b"data", mode=0o666)
        async with TcpServer(dispatcher) as server:
            peer = await server.peer()
            exports.fail_at = set(range(1, 2001))
            for xid in range(1, 2001):
                peer.writer.write(record(call(xid, GETATTR, handle(node))))
            assert await peer.statuses(2000) == [(xid, SYSTEM_ERR) for xid in range(1, 2001)]
            peer.writer.close()

    with caplog.at_level(logging.INFO):
        run_native(tmp_path, RuntimeError("again and again"), scenario)
    assert 1 <= len(caplog.records) <= 10
    assert any("GETATTR failed" in line.getMessage() for line in caplog.records)


# -- RDMA, natively ----------------------------------------------------------------------------------------------------


@FAULTS
def test_a_fault_in_a_native_call_over_rdma_costs_that_call(fault, tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"f", b"data" * 1000, mode=0o666)
        await both.call(0, GETATTR, handle(node))  # settles the version
        exports, peer = both.service.exports, both.peers[0]
        exports.asked, exports.fail_at = 0, {3, 6}
        for xid in range(1, 10):
            peer.send(header(xid, credit=128), call(xid, GETATTR, handle(node)))
        replies = [await peer.reply() for _ in range(9)]
        assert [status_of(reply.payload) for reply in replies] == [
            (xid, SYSTEM_ERR if xid in (3, 6) else 0) for xid in range(1, 10)
        ]
        (connection,) = both.servers[0].connections
        assert both.servers[0].counters.native_calls >= 9
        # The Write chunk comes back unused, and so does a Read chunk that was fetched for nothing.
        exports.asked, exports.fail_at = 0, {1}
        answer = await both.call(0, READ, handle(node) + struct.pack(">QI", 0, 4000), room=4000)
        assert answer[0] == wire.MSG
        assert answer[3] == [[0]]
        assert answer[4][16:20] == struct.pack(">I", SYSTEM_ERR)
        exports.asked, exports.fail_at = 0, {1}
        write = handle(node) + struct.pack(">QIII", 0, 4000, 0, 4000)
        answer = await both.call(0, WRITE, write, data=bytes(4000))
        assert answer[4][16:20] == struct.pack(">I", SYSTEM_ERR)
        answer = await both.call(0, WRITE, write, data=bytes(4000))
        assert answer[4][16:20] == bytes(4)
        assert not connection.closed
        for _ in range(100):
            await asyncio.sleep(0)
        ledger = connection.responder.credits
        assert (ledger.posted, ledger.outstanding, ledger.unsent) == (ledger.target, 0, 0)

    async def main(service, root):
        inject(service, fault)
        async with rdma.Both(service, root, path) as both:
            await scenario(both)

    with vfs_support.directory_on("memory", tmp_path) as path:
        vfs_support.run(path, tmp_path, main, squash="none")


# -- the general path --------------------------------------------------------------------------------------------------

FAULTY = 400_077
ASK, RAISE, BAD_RESULT = 1, 2, 3


class FaultyProgram:
    """A program whose calls go wrong at every place between header and reply, if their argument says so."""

    def __init__(self, fault):
        self.fault = fault
        self.program = Program(
            FAULTY,
            "faulty",
            {
                1: {
                    ASK: Procedure("ASK", self.fine, uint32, uint32, replay=self.is_guarded),
                    RAISE: Procedure("RAISE", self.raising, uint32, uint32),
                    BAD_RESULT: Procedure("BAD_RESULT", self.bad, uint32, uint32),
                }
            },
        )

    def is_guarded(self, arguments):
        if arguments[:4] == struct.pack(">I", 1):
            raise self.fault
        return False

    async def fine(self, _: Call, value: int) -> int:
        return value

    async def raising(self, _: Call, value: int) -> int:
        if value == 1:
            raise self.fault
        return value

    async def bad(self, _: Call, value: int) -> object:
        return Bad(self.fault) if value == 1 else value


class Bad:
    """Something that cannot even be looked at."""

    def __init__(self, fault):
        self._fault = fault

    def __index__(self):
        raise self._fault


PLACES = pytest.mark.parametrize("procedure", [ASK, RAISE, BAD_RESULT], ids=["ask", "raise", "bad_result"])


def calls(procedure):
    """Nine calls of which the fourth goes wrong, and what they are answered."""
    for xid in range(1, 10):
        yield xid, call(xid, procedure, struct.pack(">I", xid == 4), FAULTY, 1)


EXPECTED = [(xid, SYSTEM_ERR if xid == 4 else 0) for xid in range(1, 10)]


@FAULTS
@PLACES
def test_a_fault_on_the_general_path_over_tcp_costs_that_call(fault, procedure):
    async def main():
        dispatcher = Dispatcher([FaultyProgram(fault).program])
        async with TcpServer(dispatcher) as server:
            peer = await server.peer()
            peer.writer.write(b"".join(record(message) for _, message in calls(procedure)))
            assert await peer.statuses(9) == EXPECTED
            peer.writer.write(record(call(77, RAISE, bytes(4), FAULTY, 1)))
            assert await peer.statuses(1) == [(77, 0)]
            (connection,) = server.listener.connections
            assert connection.calls == 0
            peer.writer.close()

    asyncio.run(main())


@FAULTS
@PLACES
@pytest.mark.parametrize("version", [1, 2])
def test_a_fault_on_the_general_path_over_rdma_costs_that_call(fault, procedure, version):
    head = header if version == 1 else header_two

    async def test(rig, peer):
        peer.send(head(1000), call(1000, RAISE, bytes(4), FAULTY, 1))
        assert (await peer.reply()).version == version
        for xid, message in calls(procedure):
            peer.send(head(xid), message)
        replies = [await peer.reply() for _ in range(9)]
        assert [status_of(reply.payload) for reply in replies] == EXPECTED
        assert peer.reason is None
        assert not rig.connection.closed

    run_rig(test, provider=SoftIwarp, programs=[FaultyProgram(fault).program])


# -- what is no call's -------------------------------------------------------------------------------------------------


class FaultyTap:
    def record_in(self, parts):
        raise RuntimeError("a tap")

    def record_out(self, parts):
        raise RuntimeError("a tap")


def test_a_fault_in_the_transport_costs_one_connection(caplog):
    async def main():
        dispatcher = Dispatcher([FaultyProgram(RuntimeError()).program])
        async with TcpServer(dispatcher) as server:
            broken, other = await server.peer(), await server.peer()
            message = record(call(5, RAISE, bytes(4), FAULTY, 1))
            other.writer.write(message)
            broken.writer.write(message)
            await asyncio.gather(broken.statuses(1), other.statuses(1))
            (connection,) = (one for one in server.listener.connections if one.peer_port == broken.port)
            connection.set_tap(FaultyTap())
            broken.writer.write(message)
            assert await broken.over()
            other.writer.write(message)
            assert await other.statuses(1) == [(5, 0)]
            late = await server.peer()
            late.writer.write(message)
            assert await late.statuses(1) == [(5, 0)]
            for peer in (other, late):
                peer.writer.close()

    asyncio.run(main())
    assert len(caplog.records) == 1


def test_a_fault_as_a_connection_begins_costs_that_connection():
    class FaultyCaptures(Captures):
        def add(self, connection, now=None):
            raise RuntimeError("no captures")

        def discard(self, connection, reason):
            raise RuntimeError("no captures")

    async def main():
        dispatcher = Dispatcher([FaultyProgram(RuntimeError()).program])
        async with TcpServer(dispatcher, FaultyCaptures()) as server:
            for _ in range(3):
                peer = await server.peer()
                peer.writer.write(record(call(5, RAISE, bytes(4), FAULTY, 1)))
                assert await peer.statuses(1) == [(5, 0)]
                peer.writer.close()
            async with asyncio.timeout(30):
                while server.listener.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0)

    asyncio.run(main())


def test_the_clock_of_a_listener_goes_on_after_a_fault():
    async def main():
        dispatcher = Dispatcher([FaultyProgram(RuntimeError()).program])
        async with TcpServer(dispatcher) as server:
            peers = [await server.peer() for _ in range(3)]
            for peer in peers:
                peer.writer.write(record(call(5, RAISE, bytes(4), FAULTY, 1)))
                await peer.statuses(1)
            seen = []
            first, *others = server.listener.connections

            def broken(now):
                raise RuntimeError("no time")

            first.check_time = broken
            for other in others:
                other.check_time = seen.append
            async with asyncio.timeout(30):
                while len(seen) < 4:  # noqa: ASYNC110 (two turns of the clock)
                    await asyncio.sleep(0.05)
            assert first.closed
            assert not any(other.closed for other in others)

    asyncio.run(main())


def test_datagrams_that_go_wrong_do_not_use_up_the_calls():
    async def main():
        listener = UdpListener(
            Dispatcher([FaultyProgram(RuntimeError("a datagram")).program]), Visits(Hosts(Pool(1 << 20)))
        )
        await listener.listen("127.0.0.1", 0)
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.setblocking(False)
        client.connect(listener.address)
        loop = asyncio.get_running_loop()
        for xid in range(1, 101):
            client.send(call(xid, ASK, struct.pack(">I", 1), FAULTY, 1))
            async with asyncio.timeout(30):
                assert status_of(await loop.sock_recv(client, 4096)) == (xid, SYSTEM_ERR)
        client.send(call(500, ASK, bytes(4), FAULTY, 1))
        async with asyncio.timeout(30):
            assert status_of(await loop.sock_recv(client, 4096)) == (500, 0)
        client.close()
        listener.close()

    asyncio.run(main())


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_contain_logs_and_tells_once(caplog):
    ended = []

    def broken(number):
        raise ValueError(number)

    def cannot_end():
        ended.append(True)
        raise OSError("twice")

    assert contain(None, ended.append, 1)
    assert not contain(lambda: ended.append(2), broken, 7)
    assert ended == [1, 2]
    assert not contain(cannot_end, broken, 8)
    assert ended == [1, 2, True]
    assert [str(line.exc_info[1]) for line in caplog.records] == ["7", "8", "twice"]
    with pytest.raises(KeyboardInterrupt):
        contain(None, _interrupt)


def _interrupt():
    raise KeyboardInterrupt


def test_a_ticker_ticks_on_until_it_is_cancelled(caplog):
    async def main():
        turns = 0

        def tick():
            nonlocal turns
            turns += 1
            if turns == 3:
                ticker.cancel()
            raise RuntimeError("a tick")

        ticker = Ticker(asyncio.get_running_loop(), 0.001, tick)
        async with asyncio.timeout(30):
            while turns < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert turns == 3

    asyncio.run(main())
    assert len(caplog.records) == 3


def test_the_exception_of_a_task_that_nobody_awaits_is_logged(caplog):
    async def broken():
        raise RuntimeError("in a task")

    async def waiting():
        await asyncio.sleep(3600)

    async def main():
        tasks = set()
        spawn(broken(), tasks)
        task = spawn(waiting(), tasks)
        assert len(tasks) == 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert tasks == {task}
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert not tasks

    asyncio.run(main())
    (line,) = caplog.records
    assert str(line.exc_info[1]) == "in a task"


def test_what_no_wall_was_built_around_is_logged_within_bounds(caplog):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(last_resort)
        for _ in range(100):
            loop.call_soon(_raise)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert len(caplog.records) == 5


def _raise():
    raise RuntimeError("unforeseen")
