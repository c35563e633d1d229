"""Directories of every kind of entry, what the kernel says of them, and NFSv3's procedures over a real file service."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import tempfile

from hypothesis import strategies as st

from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import NFS_PROGRAM, PROCEDURES, nfs_fh3
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from nfsd.vfs.service import FileService
from nfsd.vfs.syscalls import SYS_GETDENTS64, parse_dirents
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import ENCODED, Call, Program
from rpcrdma.server.tcp import TcpListener
from rpcrdma.xdr import Decoder, Encoder, pack, unpack
from tests.nfs3_client import Nfs3Client
from tests.unit.fakes.nfs3 import ROOT, Answer, FakeTransport, flatten

KINDS = ("file", "hard link", "directory", "symbolic link", "fifo", "socket", "device")
NAMES = st.binary(min_size=1, max_size=60).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
ENTRIES = st.dictionaries(NAMES, st.sampled_from(KINDS), max_size=24)
_libc = ctypes.CDLL(None, use_errno=True)


def make_entry(directory, name, kind):
    """One entry of a kind, with attributes at the edges."""
    path = os.path.join(os.fsencode(directory), name)
    if kind == "directory":
        os.mkdir(path)
    elif kind == "symbolic link":
        os.symlink(b"nowhere", path)
    elif kind == "fifo":
        os.mkfifo(path, 0o1777)
    elif kind == "device":
        os.mknod(path, 0o20640, os.makedev(5, 260))
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path if len(path) < 100 else b"\0" + os.urandom(8))
        if not os.path.exists(path):
            os.mknod(path, 0o140600)
    else:
        with open(path, "wb") as file:
            file.write(bytes(len(name) * 500))
        os.chown(path, 4_000_000_000 + len(name), 1)
        os.chmod(path, 0o6000 + len(name))
        os.utime(path, ns=((1 << 33) * 10**9 + 7, -(10**9) - 1))
        if kind == "hard link":
            os.link(path, path[: -len(name)] + b"another " + name)


def make_directory(above, entries):
    path = tempfile.mkdtemp(dir=above)
    os.chmod(path, 0o755)
    for name, kind in entries.items():
        make_entry(path, name, kind)
    return path


def listed_by_kernel(path, cookie=0):
    """(name, inode number, cookie) of what a fresh reader finds behind a cookie."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if cookie:
            os.lseek(directory, cookie - 3, os.SEEK_SET)
        found = []
        while True:
            buffer = bytearray(4096)
            got = _libc.syscall(SYS_GETDENTS64, directory, (ctypes.c_char * 4096).from_buffer(buffer), 4096)
            assert got >= 0
            if not got:
                return found
            # The largest offset means the end, and stays what it is.
            found += [
                (name, ino, offset if offset == (1 << 63) - 1 else offset + 3)
                for name, ino, offset in parse_dirents(memoryview(buffer), got)
            ]
    finally:
        os.close(directory)


class RealRig:
    """NFSv3 over a directory in memory, called through its XDR but without RPC."""

    def __init__(self, limits=None, where="/dev/shm"):
        self._base = tempfile.mkdtemp(dir=where)
        self.path = os.path.join(self._base, "export")
        self._state = tempfile.mkdtemp()
        os.mkdir(self.path)
        os.chmod(self._base, 0o755)
        table = ExportTable((Export(7, self.path, "/x", squash="none"),))
        self._runner = asyncio.Runner()
        self.service = FileService(table, self._state)
        self.run(self.service.start())
        self.transport = FakeTransport()
        self.procedures = {each.name: each for each in nfs3_procedures(self.service, table, limits).values()}
        self.root_node = self.run(self.service.root(table.exports[0]))
        self.root = nfs_fh3(self.root_node.handle)

    def run(self, coroutine):
        return self._runner.run(coroutine)

    def call(self, name, arguments, credential=ROOT):
        """Encode, decode, run, encode, decode: as the dispatcher would."""
        procedure = self.procedures[name]

        async def natively():
            """Over TCP: what answers it takes octets only."""
            number = next(number for number, types in PROCEDURES.items() if types.name == name)
            program = Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(self.service, self.service.exports)})
            dispatcher = Dispatcher([program], natives={(NFS_PROGRAM, 3): Nfs3Procedures(self.service)})
            listener = TcpListener(dispatcher, Pool(64 << 20), asyncio.get_running_loop())
            listener.listen("127.0.0.1", 0)
            async with await Nfs3Client.connect(*listener.address) as client:
                value = await client.nfs(name, arguments)
            listener.close()
            return Answer(pack(PROCEDURES[number].results, value), value)

        async def run():
            encoder = Encoder()
            decoder = Decoder(pack(procedure.arguments, arguments))
            call = Call(self.transport, 1, 100003, 3, 0, credential, decoder, encoder)
            result = await procedure.handler(call, decoder.decode(procedure.arguments))
            if result is not ENCODED:
                encoder.encode(procedure.results, result)
            wire = flatten(encoder)
            return Answer(wire, unpack(procedure.results, wire))

        answer = self.run(natively() if procedure.handler is None else run())
        assert self.transport.account.in_use == 0
        return answer

    def close(self):
        self.run(self.service.close())
        self._runner.close()
        shutil.rmtree(self._base)
        shutil.rmtree(self._state)


@contextlib.contextmanager
def real_rig(names=(), **how):
    rig = RealRig(**how)
    try:
        for name in names:
            make_entry(rig.path, name, "file")
        yield rig
    finally:
        rig.close()
