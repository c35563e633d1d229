"""One file service behind two RDMA servers: one answers calls where they arrive, the other one as general calls."""

import asyncio
import itertools
import struct

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.memory import Pool
from rpcrdma.peer import wire
from rpcrdma.peer.requester import Peer
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.rdma import RdmaServer, RdmaServerOptions
from rpcrdma.verbs.device import make_provider
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from tests.peer.rig import DEVICE_ADDRESS, LINUX
from tests.support.general_calls import GeneralCalls
from tests.support.nfs4_native import TRIES
from tests.unit import vfs_support

HOST = DEVICE_ADDRESS or "127.0.0.1"
GETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, COMMIT = 1, 3, 4, 5, 6, 7, 21
CREDENTIAL = struct.pack(">5I", 0, 0, 0, 0, 0)


def handle(node):
    return struct.pack(">I", len(node.handle)) + node.handle + bytes(-len(node.handle) & 3)


def rpc(xid, procedure, arguments):
    return (
        struct.pack(">8I", xid, 0, 2, NFS_PROGRAM, 3, procedure, 1, len(CREDENTIAL)) + CREDENTIAL + bytes(8) + arguments
    )


class Both:
    """One file service behind two RDMA servers: one answers calls where they arrive, the other one as general calls."""

    def __init__(self, service, root, path, options=None):
        self.service, self.root, self.path = service, root, path
        # All credits from the start, or what is granted would depend on how much was asked before.
        self.options = options or RdmaServerOptions(ResponderOptions(first_credits=128))

    async def __aenter__(self):
        self.pool, self.peer_pool = Pool(256 << 20), Pool(256 << 20)
        if DEVICE_ADDRESS:
            self.peer_pool = self.pool  # a device takes Receives only from the pool that is registered with it
        self.provider = make_provider(self.pool) if DEVICE_ADDRESS else SoftIwarp(self.pool)
        programs = [Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(self.service, self.service.exports)})]
        natives = [{(NFS_PROGRAM, 3): Nfs3Procedures(self.service)} for _ in range(2)]
        self.dispatcher, general = Dispatcher(programs, natives=natives[0]), GeneralCalls(programs, natives=natives[1])
        self.servers = [
            RdmaServer(self.provider, self.pool, dispatcher, self.options) for dispatcher in (self.dispatcher, general)
        ]
        self.listeners = [await server.listen(ListenAddress(HOST, 0)) for server in self.servers]
        self.peers = [await self.connect(listener) for listener in self.listeners]
        self.xid = 0
        return self

    async def connect(self, listener, private_data=LINUX):
        peer = Peer(self.peer_pool.account(64 << 20))
        return await peer.connect(self.provider, listener.address, private_data)

    async def __aexit__(self, kind, *_):
        for peer in self.peers:
            peer.endpoint.close(abort=True)
        for server in self.servers:
            await server.close()
        await self.provider.close()
        if kind is None:
            async with asyncio.timeout(20):
                while self.pool.in_use:  # noqa: ASYNC110 (a device gives back what it holds in its own time)
                    await asyncio.sleep(0)
            assert self.pool.leaked == 0

    def answered(self, procedure):
        return self.dispatcher.rows[NFS_PROGRAM, 3, procedure].native_calls

    async def call(self, which, procedure, arguments, *, room=None, cuts=(), data=None, reply=None, xid=None):
        """One call to one of the servers: everything about its outcome that must not depend on the server.

        ``room`` octets of a Write chunk cut in segments at ``cuts``; ``data`` in a Read chunk at the end, cut too."""
        peer = self.peers[which]
        self.xid += 1
        xid = self.xid if xid is None else xid
        message = rpc(xid, procedure, arguments)
        lists, memory, handles = {}, None, []
        if room is not None:
            memory = peer.writable(max(room, 1))
            edges = [0, *sorted(cut for cut in cuts if cut < room), room]
            chunk = [memory.segment(start, end - start) for start, end in itertools.pairwise(edges)]
            lists["writes"] = [chunk]
            handles.append(memory.handle)
        if data is not None:
            source = peer.readable(data)
            edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
            chunk = [source.segment(start, end - start) for start, end in itertools.pairwise(edges)]
            lists["reads"] = [(len(message), segment) for segment in chunk]
            handles.append(source.handle)
        if reply is not None:
            lists["reply"] = [peer.writable(reply).segment()]
            handles.append(lists["reply"][0].handle)
        peer.send(wire.header(xid, **lists), message)
        answer = await peer.message()
        header = answer.header
        assert header.xid == xid
        return (
            header.procedure,
            header.error,
            header.credit,
            [[segment.length for segment in each] for each in header.writes],
            header.payload[4:],
            None if memory is None else bytes(memory.memory),
            None if answer.invalidated is None else handles.index(answer.invalidated),
        )

    async def same(self, procedure, arguments, **shape):
        return await self.agreed(self.call, procedure, arguments, **shape)

    async def agreed(self, call, procedure, arguments, **shape):
        """The outcome of ``call`` of both servers, which must be the same."""
        await call(0, procedure, arguments, **shape)
        for _ in range(TRIES):
            general = await call(1, procedure, arguments, **shape)
            native = await call(0, procedure, arguments, **shape)
            if native == general:
                break
        for mine, theirs in zip(native, general, strict=True):
            assert mine == theirs, f"{procedure} {shape}"
        return general

    async def shaped(
        self,
        which,
        procedure,
        arguments,
        *,
        version=1,
        writes=(),
        reply=None,
        data=None,
        cuts=(),
        long=False,
        named=None,
        xid=None,
    ):
        """As :meth:`call`, in any shape: Write chunks and a Reply chunk of segments of these lengths, each in memory of
        its own; ``data`` in a Read chunk behind the message; a ``long`` call in a Position Zero Read chunk, cut like
        ``data``. Version Two names the handle of that number, in the order Read, Write list, Reply; 0xBAD where
        there is none of that number."""
        peer = self.peers[which]
        self.xid += 1
        xid = self.xid if xid is None else xid
        message = rpc(xid, procedure, arguments)
        source = message if long else data
        sources, memories = [], []
        if source is not None:
            edges = [0, *sorted(cut for cut in cuts if cut < len(source)), len(source)]
            sources = [peer.readable(source[start:end]) for start, end in itertools.pairwise(edges)]
        memories = [[peer.writable(max(length, 1)) for length in lengths] for lengths in (*writes, reply or ())]
        lengths = [*writes, reply or ()]
        chunks = [
            [memory.segment(0, length) for memory, length in zip(*pair, strict=True)]
            for pair in zip(memories, lengths, strict=True)
        ]
        position = 0 if long else len(message)
        lists = {
            "procedure": wire.NOMSG if long else wire.MSG,
            "credit": 128,
            "reads": [(position, each.segment()) for each in sources],
            "writes": chunks[:-1],
            "reply": None if reply is None else chunks[-1],
        }
        handles = [each.handle for each in (*sources, *itertools.chain(*memories))]
        names = {**dict(enumerate(handles)), None: 0}
        if version == 1:
            head = wire.header(xid, **lists)
        else:
            head = wire.header_two(xid, inv_handle=names.get(named, 0xBAD), **lists)
        peer.send(head, b"" if long else message)
        answer = await peer.message()
        header = answer.header
        assert header.xid == xid
        # XIDs differ, so no message shows its first word. A handle is known by its number; what is left of a segment
        # but its length must come back as it was.
        returned = [list(each) for each in (*header.writes, header.reply or ())]
        assert [[part[::2] for part in each] for each in returned[: len(header.writes)]] == [
            [part[::2] for part in each] for each in chunks[:-1][: len(header.writes)]
        ]
        return (
            (header.version, header.procedure, header.error, header.shortage, header.credit),
            [[part.length for part in each] for each in header.writes],
            None if header.reply is None else [part.length for part in header.reply],
            header.payload[4:],
            header.inv_handle and handles.index(header.inv_handle) if header.inv_handle != 0xBAD else -1,
            [b"".join(bytes(each.memory) for each in chunk) for chunk in memories[:-1]],
            b"".join(bytes(each.memory) for each in memories[-1])[4:],
            None if answer.invalidated is None else handles.index(answer.invalidated),
        )


def run(kind, tmp_path, scenario, server_options=None, **options):
    """``scenario(both)`` on a directory of this kind."""
    with vfs_support.directory_on(kind, tmp_path) as path:

        async def main(service, root):
            async with Both(service, root, path, server_options) as both:
                return await scenario(both)

        options.setdefault("squash", "none")
        return vfs_support.run(path, tmp_path, main, **options)
