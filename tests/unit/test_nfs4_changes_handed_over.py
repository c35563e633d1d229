"""COMPOUNDs that others go on with when something has changed: that happens once, whatever becomes of connections."""

import asyncio
import contextlib
import os
import socket
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import compound
from rpcrdma.peer import wire
from rpcrdma.server.tcp_connection import TcpConnection
from tests.support.nfs4 import Client4, mode
from tests.support.nfs4_native import RARE, BothRdma, Wire, handle_of, run
from tests.unit import vfs_support
from tests.unit.raw_tcp_support import some_host
from tests.unit.test_nfs4_native import OF_CONTENT, getattr_, on, putfh, write
from tests.unit.test_nfs4_native_changes import remove
from tests.unit.test_nfs4_native_locks import WRITE, lock_more, lock_new
from tests.unit.test_waiting_calls import stalled, until

COMMIT = (p.OP_COMMIT, p.COMMIT4args(0, 0))
OK = 0


def results_of(reply):
    return Client4.parse(reply)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_change_is_not_made_again(kind, tmp_path, minor, done_in_python):
    async def scenario(both):
        stateid, handle = await both.client.open("/0", b"a", create=mode(0o644))
        root = await handle_of(both)
        (both.path / "sub").mkdir()
        await handle_of(both, b"sub")
        for number, operations in enumerate(
            (
                [putfh(handle), write(stateid, 0, b"once"), RARE, putfh(handle), getattr_(OF_CONTENT)],
                [putfh(handle), write(stateid, 4, b"more", stable=2), putfh(root), RARE],
                [putfh(root), remove(b"sub"), RARE, getattr_(OF_CONTENT)],
            )
        ):
            done_in_python.clear()
            reply = await both.native.call(None, both.message(0, *operations, cache=True))
            assert results_of(reply)[0] == OK
            assert done_in_python
            assert not {p.OP_WRITE, p.OP_REMOVE} & set(done_in_python), number
        assert (both.path / "a").read_bytes() == b"oncemore"
        assert not (both.path / "sub").exists()

    on(kind, tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_state_that_was_given_goes_along(tmp_path, minor, done_in_python):
    """The current stateid is the one of the native LOCK, for a rare operation behind it."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        opened, handle = await both.client.open("/0", b"a")
        current = p.stateid4(1, bytes(12))
        await both.native.call(None, both.message(0, putfh(handle), lock_new(WRITE, opened, b"before", 50, 10)))
        done_in_python.clear()
        operations = [
            putfh(handle),
            lock_new(WRITE, opened, b"owner", 0, 10),
            p.OP_SAVEFH,
            RARE,
            p.OP_RESTOREFH,
        ]
        operations += [write(current, 0, b"C"), lock_more(WRITE, current, 20, 10), getattr_(OF_CONTENT)]
        status, *_ = results_of(await both.native.call(None, both.message(0, *operations)))
        assert status == OK
        assert done_in_python == [p.OP_NVERIFY]  # what is behind it is carried out natively, too
        assert (both.path / "a").read_bytes() == b"Content"
        file = both.server.engine.opens.file(both.server.service.nodes.find(handle).key)
        assert [list(ranges) for ranges in file.locks.owners.values()]

    on("memory", tmp_path, minor, scenario)


def test_what_waits_behind_a_change_and_cannot_be_kept_goes_on_as_a_general_call(tmp_path, monkeypatch):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        opened, handle = await both.client.open("/0", b"a")
        service = both.server.service
        asked = both.message(0, putfh(handle), lock_new(WRITE, opened, b"first", 0, 10))
        assert results_of(await both.native.call(None, asked))[0] == OK
        refused = []
        monkeypatch.setattr(TcpConnection, "begin_held", lambda connection: bool(refused.append(connection)))
        made = []
        original = type(both.server.engine.locks).lock_new

        def lock_new_(table, *args, **how):
            made.append(args)
            return original(table, *args, **how)

        monkeypatch.setattr(type(both.server.engine.locks), "lock_new", lock_new_)
        operations = [putfh(handle), lock_new(WRITE, opened, b"second", 20, 10), write(opened, 0, b"C"), COMMIT]
        status, *_ = results_of(await both.native.call(None, both.message(0, *operations)))
        assert (status, len(made)) == (OK, 1)
        assert refused
        assert not both.session.slots[1].in_use
        assert (both.path / "a").read_bytes() == b"Content"
        assert not service.nodes.find(handle).inode.serial.busy

    on("disk", tmp_path, 1, scenario)


def slowly(monkeypatch, number, gate):
    """Let an operation wait in Python until there is ``gate``; returns where it is told that it does."""
    begun = []

    async def carried_out(c, row, *arguments, original=compound.carry_out):
        if row.number == number:
            begun.append(c)
            await gate.wait()
        return await original(c, row, *arguments)

    monkeypatch.setattr(compound, "carry_out", carried_out)
    return begun


def test_a_retransmission_joins_what_has_been_handed_over(tmp_path, monkeypatch):
    """NFSv4.0: the replay cache knows the COMPOUND from its native part on."""

    async def scenario(both):
        for name in ("a", "b"):
            (both.path / name).write_bytes(b"content")
        root = await handle_of(both)
        await both.native.call(None, both.message(0, putfh(root), RARE))
        gate = asyncio.Event()
        begun = slowly(monkeypatch, p.OP_NVERIFY, gate)
        message = both.message(0, putfh(root), remove(b"a"), RARE)
        both.native.send(message)
        await until(lambda: begun)
        assert not (both.path / "a").exists()
        (both.path / "a").write_bytes(b"another one")
        both.native.send(message)  # its reply is on the way
        assert len(begun) == 1
        gate.set()
        reply = await both.native.reply()
        assert results_of(reply)[0] == OK
        assert await both.native.call(None, message) == reply
        assert (both.path / "a").exists()

    on("memory", tmp_path, 0, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_what_is_handed_over_without_its_connection_is_carried_through(tmp_path, minor):
    """The connection goes while a worker removes the file: what stands behind that is done all the same, and the slot
    keeps the reply for the retransmission."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root = await handle_of(both)
        await handle_of(both, b"a")
        listener, _ = both.listeners
        (connection,) = listener.connections
        other = Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1]))
        at = await both.server.service.root(both.server.service.exports.exports[0])
        async with stalled(both.server.service, at, tmp_path):
            message = both.message(0, putfh(root), remove(b"a"), RARE, getattr_(), cache=True)
            both.native.send(message)
            await until(lambda: len(both.dispatcher.held) == 1)
            connection.close()
        await until(lambda: not both.session.slots[1].in_use)
        assert not (both.path / "a").exists()
        status, *_ = results_of(await other.call(None, message))
        assert status == OK  # and not that there is none
        other.writer.close()

    on("disk", tmp_path, minor, scenario)


@pytest.mark.parametrize("minor", [1, 2])
def test_what_is_handed_over_and_not_begun_is_carried_through(tmp_path, monkeypatch, minor):
    """The connection goes while the call waits for its turn, as when its host has many calls in progress."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root = await handle_of(both)
        listener, _ = both.listeners
        (connection,) = listener.connections
        other = Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1]))
        message = both.message(0, putfh(root), remove(b"a"), RARE, getattr_(), cache=True)
        with monkeypatch.context() as patched:
            patched.setattr(type(connection._seat), "begin_call", lambda seat: False)
            both.native.send(message)
            await until(lambda: not (both.path / "a").exists())
            assert both.session.slots[1].in_use
            connection.close()
        await until(lambda: not both.session.slots[1].in_use)
        assert results_of(await other.call(None, message))[0] == OK  # and not that there is none
        other.writer.close()

    on("memory", tmp_path, minor, scenario)


def test_what_is_handed_over_and_not_begun_is_done_once_in_40(tmp_path, monkeypatch):
    """Likewise; the client comes back from its port, and the replay cache knows the COMPOUND. It has an address that no
    other process uses: on 127.0.0.1 another connection may take the port meanwhile, for as long as it likes."""
    address = some_host()

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        root = await handle_of(both)
        listener, _ = both.listeners
        others = set(listener.connections)
        mine = Wire(*await asyncio.open_connection(*listener.address[:2], local_addr=(address, 0)))
        message = both.message(0, putfh(root), remove(b"a"), RARE)
        await mine.call(None, both.message(0, putfh(root), RARE))
        (connection,) = listener.connections - others
        port = mine.writer.get_extra_info("sockname")[1]
        with monkeypatch.context() as patched:
            patched.setattr(type(connection._seat), "begin_call", lambda seat: False)
            mine.send(message)
            await until(lambda: not (both.path / "a").exists())
            (both.path / "a").write_bytes(b"another one")
            connection.close()
            mine.writer.transport.abort()
        await until(lambda: not both.dispatcher.running)
        again = socket.socket()
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def bound():
            with contextlib.suppress(OSError):  # the end of the connection takes a moment
                again.bind((address, port))
            return again.getsockname()[1] == port

        await until(bound)
        again.connect(listener.address[:2])
        other = Wire(*await asyncio.open_connection(sock=again))
        assert results_of(await other.call(None, message))[0] == OK
        assert (both.path / "a").read_bytes() == b"another one"
        other.writer.close()

    on("memory", tmp_path, 0, scenario)


def test_the_reply_waits_for_stable_storage(tmp_path, monkeypatch, minor):
    """What a native operation has promised may have to be put on stable storage first."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        stateid, handle = await both.client.open("/0", b"a")
        await both.native.call(None, both.message(0, putfh(handle), write(stateid, 0, b"C")))
        flushed = []
        server = both.server.nfs4
        before = both.answered

        class Store:
            async def flush(self, engine):
                await asyncio.sleep(0)
                flushed.append(engine)
                engine.stable = True

        monkeypatch.setattr(server, "store", Store())
        with monkeypatch.context() as patched:
            patched.setattr(server.engine, "stable", False)
            message = both.message(0, putfh(handle), write(stateid, 0, b"D"), getattr_(OF_CONTENT), cache=True)
            status, *_ = results_of(await both.native.call(None, message))
        assert (status, len(flushed), both.answered) == (OK, 1, before + 1)
        assert (both.path / "a").read_bytes() == b"Dontent"
        if minor:
            assert both.session.slots[1].reply is not None

    on("memory", tmp_path, minor, scenario)


def test_over_rdma(tmp_path, minor, done_in_python):
    """With its data in a Read chunk, which has been used when others go on."""

    async def scenario(both):
        stateid, handle = await both.client.open("/0", b"a", create=mode(0o644))
        data = os.urandom(5000)
        for behind in ([RARE], [RARE, getattr_(OF_CONTENT)], [9999]):
            done_in_python.clear()
            operations = [putfh(handle), write(stateid, 0, data), *behind]
            *_, payload, _, _ = await both.call(0, 0, *operations, data=data)
            (status,) = struct.unpack(">I", payload[20:24])
            assert status == (p.NFS4ERR_OP_ILLEGAL if behind == [9999] else OK)
            assert p.OP_WRITE not in done_in_python
            assert (both.path / "a").read_bytes() == data

    with vfs_support.directory_on("disk", tmp_path) as path:
        run(path, tmp_path, minor, scenario, BothRdma)


@pytest.mark.parametrize("minor", [1, 2])
def test_what_is_handed_over_and_not_begun_is_carried_through_over_rdma(tmp_path, monkeypatch, minor):
    async def scenario(both):
        stateid, handle = await both.client.open("/0", b"a", create=mode(0o644))
        (connection,) = both.servers[0].connections
        with monkeypatch.context() as patched:
            patched.setattr(type(connection._seat), "begin_call", lambda seat: False)
            operations = [putfh(handle), write(stateid, 0, b"once"), RARE]
            asked = asyncio.ensure_future(both.call(0, 0, *operations, cache=True))
            await until(lambda: (both.path / "a").read_bytes() == b"once")
            await until(lambda: connection.held_back)
            assert both.session.slots[1].in_use
            connection.abort()
            await until(lambda: connection.closed)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: not both.session.slots[1].in_use)
        assert both.session.slots[1].reply is not None

    with vfs_support.directory_on("memory", tmp_path) as path:
        run(path, tmp_path, minor, scenario, BothRdma)


def test_a_retransmission_does_not_take_up_what_another_call_has_begun(tmp_path, monkeypatch):
    """It came while the first was carried out natively, and is dispatched before that one, which was handed over."""

    async def scenario(both):
        stateid, handle = await both.client.open("/0", b"a", create=mode(0o644))
        (connection,) = both.servers[0].connections
        peer, message = both.peers[0], both.message(0, putfh(handle), write(stateid, 0, b"once"), RARE)
        with monkeypatch.context() as patched:
            patched.setattr(type(connection._seat), "begin_call", lambda seat: False)
            for waiting in (1, 2):
                peer.send(wire.header(int.from_bytes(message[:4], "big")), message)
                await until(lambda waiting=waiting: len(connection.held_back) == waiting)
            assert (both.path / "a").read_bytes() == b"once"
            (both.path / "a").write_bytes(b"since")
            connection.held_back.reverse()
        connection.proceed()
        results = Client4.parse((await peer.message()).header.payload)
        assert results[0] == OK
        assert (both.path / "a").read_bytes() == b"since"
        assert both.dispatcher.replay.hits

    with vfs_support.directory_on("memory", tmp_path) as path:
        run(path, tmp_path, 0, scenario, BothRdma)


def test_a_call_that_would_wait_does_not_overtake_those_that_are_held_back(tmp_path):
    async def scenario(both):
        (connection,) = both.servers[0].connections
        connection.held_back.append(object())
        assert not connection.begin_held()
        connection.held_back.clear()
        assert connection.begin_held()
        assert connection.held == 1
        connection.end_held()
        assert connection.held == 0

    with vfs_support.directory_on("memory", tmp_path) as path:
        run(path, tmp_path, 1, scenario, BothRdma)
