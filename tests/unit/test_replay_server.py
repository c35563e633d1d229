"""The replay cache of a running server: what is a retransmission, and what only looks like one. Over TCP and softiwarp,
natively (in memory) and on the general path (on a disk)."""

import asyncio
import struct

import pytest

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.rpc.replay import ReplayCache
from rpcrdma.server.rdma import RdmaServer
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from tests.peer.rig import LINUX
from tests.unit import vfs_support
from tests.unit.raw_tcp_support import TcpServer, call, handle, name, some_host

WRITE, CREATE, REMOVE = 7, 8, 12
NFS3_OK, NFS3ERR_ACCES, NFS3ERR_EXIST = 0, 13, 17


def write(node, data, offset=0):
    return handle(node) + struct.pack(">QIII", offset, len(data), 0, len(data)) + data + bytes(-len(data) & 3)


def create(directory, octets):
    guarded, no_attributes = 1, bytes(24)
    return handle(directory) + name(octets) + struct.pack(">I", guarded) + no_attributes


def remove(directory, octets):
    return handle(directory) + name(octets)


def nfs_status(reply):
    """nfsstat3 of a successful reply."""
    assert reply[20:24] == bytes(4)
    return int.from_bytes(reply[24:28], "big")


class OverTcp:
    """Connections of one client or several."""

    def __init__(self, dispatcher):
        self.server = TcpServer(dispatcher)
        self.peers = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, *rest):
        for peer in self.peers:
            peer.writer.close()
        await self.server.__aexit__(kind, *rest)

    async def connect(self, host="127.0.0.1", port=0):
        self.peers.append(await self.server.peer(host, port))
        return self.peers[-1]


class SoftPeer:
    def __init__(self, peer):
        self.peer = peer

    async def call(self, message):
        """Large data goes in a Read chunk, as Linux sends it."""
        xid, lists = int.from_bytes(message[:4], "big"), {}
        if len(message) > 3000:
            # credential, verifier, handle, offset, count, stable, length of the data
            position = 40 + 20 + 4 + int.from_bytes(message[60:64], "big") + 20
            lists["reads"] = [(position, self.peer.readable(message[position:]).segment())]
            message = message[:position]
        self.peer.send(header(xid, credit=128, **lists), message)
        async with asyncio.timeout(30):
            return (await self.peer.reply()).payload


class OverSoftiwarp:
    def __init__(self, dispatcher):
        self.pool = TcpServer(dispatcher).pool
        self.dispatcher = dispatcher
        self.peers = []

    async def __aenter__(self):
        self.provider = SoftIwarp(self.pool)
        self.server = RdmaServer(self.provider, self.pool, self.dispatcher)
        self.listener = await self.server.listen(ListenAddress("127.0.0.1", 0))
        return self

    async def __aexit__(self, kind, *_):
        for peer in self.peers:
            peer.endpoint.close(abort=True)
        await self.server.close()
        await self.provider.close()

    async def connect(self):
        peer = Peer(self.pool.account(64 << 20))
        self.peers.append(await peer.connect(self.provider, self.listener.address, LINUX))
        return SoftPeer(peer)


CARRIERS = pytest.mark.parametrize("carrier", [OverTcp, OverSoftiwarp], ids=["tcp", "softiwarp"])
KINDS = pytest.mark.parametrize("kind", ["memory", "disk"])


def run(kind, tmp_path, carrier, scenario, cache=None):
    """``scenario(service, root, clients, dispatcher)``"""
    with vfs_support.directory_on(kind, tmp_path) as path:

        async def main(service, root):
            programs = [Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(service, service.exports)})]
            dispatcher = Dispatcher(programs, cache, natives={(NFS_PROGRAM, 3): Nfs3Procedures(service)})
            async with carrier(dispatcher) as clients:
                await scenario(service, root, clients, dispatcher)

        vfs_support.run(path, tmp_path, main, squash="none")


@CARRIERS
@KINDS
def test_writes_of_clients_that_count_from_one_are_all_carried_out(kind, carrier, tmp_path):
    async def scenario(service, root, clients, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", mode=0o666)
        for version in (b"one", b"two", b"three"):
            client = await clients.connect()
            data = bytes(1000) + version.ljust(5000, b".")
            assert nfs_status(await client.call(call(1, WRITE, write(node, data)))) == NFS3_OK
            found, _ = await vfs_support.read_file(service, node)
            assert found == data
        assert dispatcher.replay.hits == 0

    run(kind, tmp_path, carrier, scenario)


@KINDS
def test_they_are_from_the_same_port_as_well(kind, tmp_path):
    async def scenario(service, root, clients, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", mode=0o666)
        host, port = some_host(), 0
        for version in (b"one", b"two", b"three"):
            client = await clients.connect(host, port)
            port = client.port
            data = bytes(100_000) + version.ljust(5000, b".")
            assert nfs_status(await client.call(call(1, WRITE, write(node, data)))) == NFS3_OK
            found, _ = await vfs_support.read_file(service, node, count=1 << 17)
            assert found == data
            await client.reset()

    run(kind, tmp_path, OverTcp, scenario)


@CARRIERS
@KINDS
def test_what_one_user_has_done_is_no_answer_to_another(kind, carrier, tmp_path):
    async def scenario(service, root, clients, dispatcher):
        await vfs_support.write_file(service, root, b"f")
        first, second = await clients.connect(), await clients.connect()
        # A directory of root's, in which others may not remove anything.
        assert nfs_status(await first.call(call(1, 2, handle(root) + sattr_mode(0o755)))) == NFS3_OK
        assert nfs_status(await first.call(call(2, REMOVE, remove(root, b"f")))) == NFS3_OK
        await vfs_support.write_file(service, root, b"f")
        for client in (second, first):
            status = nfs_status(await client.call(call(2, REMOVE, remove(root, b"f"), uid=4242)))
            assert status == NFS3ERR_ACCES
        assert (await service.lookup(vfs_support.ROOT, root, b"f")) is not None

    run(kind, tmp_path, carrier, scenario)


def sattr_mode(mode):
    """sattr3 with nothing but a mode, and no guard."""
    return struct.pack(">II", 1, mode) + bytes(20) + bytes(4)


@KINDS
def test_what_another_host_does_pushes_out_nothing(kind, tmp_path):
    async def scenario(service, root, clients, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", mode=0o666)
        host = some_host()
        quiet, busy = await clients.connect(host), await clients.connect(some_host())
        first = await quiet.call(call(7, CREATE, create(root, b"new")))
        assert nfs_status(first) == NFS3_OK
        for xid in range(1, 2001):
            assert nfs_status(await busy.call(call(xid, WRITE, write(node, b"data", 4 * xid)))) == NFS3_OK
        assert dispatcher.replay.size <= dispatcher.replay.max_bytes
        assert len(dispatcher.replay) < 1000  # much was pushed out
        # The connection is lost, and made anew from the same port.
        port = quiet.port
        await quiet.reset()
        again = await clients.connect(host, port)
        assert await again.call(call(7, CREATE, create(root, b"new"))) == first
        assert dispatcher.replay.hits == 1

    run(kind, tmp_path, OverTcp, scenario, ReplayCache(256 << 10))


@KINDS
def test_a_retransmission_after_a_reconnect_from_the_same_port_is_answered_from_the_cache(kind, tmp_path):
    async def scenario(service, root, clients, dispatcher):
        host = some_host()
        client = await clients.connect(host)
        message = call(7, CREATE, create(root, b"new"))
        first = await client.call(message)
        assert nfs_status(first) == NFS3_OK
        port = client.port
        await client.reset()
        client = await clients.connect(host, port)
        assert await client.call(message) == first
        # From another port it is another client's: one that shares the address and makes the same call.
        other = await clients.connect(host)
        assert nfs_status(await other.call(message)) == NFS3ERR_EXIST
        assert dispatcher.replay.hits == 1

    run(kind, tmp_path, OverTcp, scenario)


@KINDS
def test_a_retransmission_over_softiwarp_comes_from_another_port(kind, tmp_path):
    async def scenario(service, root, clients, dispatcher):
        node = await vfs_support.write_file(service, root, b"f", mode=0o666)
        client = await clients.connect()
        calls = [call(7, CREATE, create(root, b"new")), call(8, WRITE, write(node, b"data" * 2000))]
        first = [await client.call(message) for message in calls]
        assert [nfs_status(reply) for reply in first] == [NFS3_OK, NFS3_OK]
        client.peer.endpoint.close(abort=True)
        client = await clients.connect()
        assert [await client.call(message) for message in calls] == first
        assert dispatcher.replay.hits == 2

    run(kind, tmp_path, OverSoftiwarp, scenario)
