"""RPC records over TCP against a listener in this process, and raw NFSv3 calls."""

import asyncio
import random
import socket
import struct

from nfsd.protocol.nfs3 import NFS_PROGRAM
from rpcrdma.memory import Pool
from rpcrdma.server.tcp import TcpListener


def call(xid, procedure, arguments, program=NFS_PROGRAM, version=3, uid=0):
    """A call of ``uid``, its group the same number."""
    credential = struct.pack(">5I", 7, 0, uid, uid, 0)
    head = struct.pack(">8I", xid, 0, 2, program, version, procedure, 1, len(credential))
    return head + credential + bytes(8) + arguments


def record(message):
    return struct.pack(">I", 1 << 31 | len(message)) + message


def handle(node):
    return struct.pack(">I", len(node.handle)) + node.handle + bytes(-len(node.handle) & 3)


def name(octets):
    return struct.pack(">I", len(octets)) + octets + bytes(-len(octets) & 3)


def some_host():
    """A loopback address that nobody else uses: a port of it that was used once is still free."""
    return f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"


async def connect_from(address, host, port):
    """Connect from an address and port of this host's. Returns (reader, writer)."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    sock.bind((host, port))
    await asyncio.get_running_loop().sock_connect(sock, address)
    return await asyncio.open_connection(sock=sock)


async def reset(writer):
    """Break a connection; its port may be used again at once."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await writer.wait_closed()


def status_of(reply):
    """XID and accept_stat."""
    xid, kind, accepted, _, _, status = struct.unpack_from(">6I", reply)
    assert (kind, accepted) == (1, 0)
    return xid, status


class TcpPeer:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def reply(self):
        async with asyncio.timeout(30):
            (mark,) = struct.unpack(">I", await self.reader.readexactly(4))
            return await self.reader.readexactly(mark & 0x7FFFFFFF)

    async def statuses(self, count):
        return [status_of(await self.reply()) for _ in range(count)]

    async def call(self, message):
        self.writer.write(record(message))
        return await self.reply()

    @property
    def port(self):
        return self.writer.get_extra_info("sockname")[1]

    async def reset(self):
        """Break the connection."""
        await reset(self.writer)

    async def over(self):
        async with asyncio.timeout(30):
            return await self.reader.read() == b""


class TcpServer:
    """A listener, checked to give back every buffer."""

    def __init__(self, dispatcher, captures=None):
        self.pool = Pool(64 << 20)
        self.listener = TcpListener(dispatcher, self.pool, asyncio.get_running_loop(), captures=captures)
        self.listener.listen("127.0.0.1", 0)

    async def peer(self, host="127.0.0.1", port=0):
        """A connection from an address of this host's, and from a port if one is given."""
        return TcpPeer(*await connect_from(self.listener.address, host, port))

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, *_):
        self.listener.close()
        if kind is None:
            assert self.pool.in_use == 0
            assert self.pool.leaked == 0
