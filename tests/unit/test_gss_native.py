"""Calls of NFSv3 that are signed (krb5), answered natively: verified, executed and signed where they arrive."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nfsd.client
from nfsd.client import Options, server
from nfsd.protocol import nfs3 as p
from nfsd.protocol.nfs3 import NFS_PROGRAM, diropargs3, nfs_fh3, nfsstat3
from rpcrdma.client import ClientOptions, Connection, Gss, connect
from rpcrdma.gss import contexts
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.gss.identities import Answer
from rpcrdma.gss.identity import Identity
from rpcrdma.memory import Pool
from rpcrdma.rpc.messages import auth_flavor, auth_stat, opaque_auth
from rpcrdma.server.rdma import RdmaServer
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.xdr import pack
from tests.support import kdc
from tests.support.nfs3_server import Server, running
from tests.unit.client_support import pattern, until
from tests.unit.gss_support import SERVICE, realm
from tests.unit.test_nfs3_native_names import creation

GETATTR, ACCESS, READ, WRITE, CREATE = 1, 4, 6, 7, 8
ALICE = Identity(os.getuid(), os.getgid(), (os.getgid(),))
SIZE = 300_000


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


class Signing:
    """A server of a directory, and a client of it that signs."""

    def __init__(self, server: Server, acceptor: Acceptor, connection: Connection) -> None:
        self.server, self.acceptor, self.connection = server, acceptor, connection

    async def file(self, name: str) -> nfs_fh3:
        found = await self.call(3, pack(p.LOOKUP3args, p.LOOKUP3args(diropargs3(self.server.root, name.encode()))))
        return found.decode(p.LOOKUP3res).resok.object

    async def call(self, procedure: int, arguments: bytes, **options: Any) -> Any:
        return await self.connection.call(NFS_PROGRAM, 3, procedure, arguments, reply_max=600, **options)

    async def read(self, handle: nfs_fh3, offset: int, count: int) -> bytes:
        into = bytearray(count)
        arguments = pack(p.READ3args, p.READ3args(handle, offset, count))
        reply = await self.call(READ, arguments, into=memoryview(into))
        self.placed = reply.placed
        return bytes(reply.decode(p.READ3res).resok.data)

    def row(self, procedure: int) -> Any:
        return self.server.dispatcher.rows[NFS_PROGRAM, 3, procedure]


@asynccontextmanager
async def signing(
    base: Path, example: kdc.Realm, carrier: str, security: Any = "krb5", **settings: Any
) -> AsyncIterator[Signing]:
    directory, state = base / "export", base / "state"
    directory.mkdir()
    state.mkdir(mode=0o700)
    (directory / "file").write_bytes(pattern(SIZE))
    acceptor = Acceptor({"alice@EXAMPLE.ORG": ALICE}.get, keytab=str(example.directory / "keytab"))
    options = ClientOptions(gss=Gss(security, SERVICE))
    try:
        async with running(directory, state, sec=("krb5", "krb5i", "krb5p", "sys"), gss=acceptor, **settings) as server:
            if carrier == "tcp":
                async with connect(*server.address, transport="tcp", options=options) as connection:
                    yield Signing(server, acceptor, connection)
                return
            pool = Pool(256 << 20)
            provider = SoftIwarp(pool)
            rdma = RdmaServer(provider, pool, server.dispatcher)
            address = (await rdma.listen(ListenAddress("127.0.0.1", 0))).address
            version: Any = int(carrier[-1])
            async with connect(address.host, address.port, version=version, options=options) as connection:
                yield Signing(server, acceptor, connection)
            await rdma.close()
            await provider.close()
    finally:
        acceptor.close()


def run(
    test: Callable[[Signing], Awaitable[None]],
    base: Path,
    example: kdc.Realm,
    carrier: str = "tcp",
    security: Any = "krb5",
) -> None:
    async def main() -> None:
        async with signing(base, example, carrier, security) as it:
            await test(it)

    asyncio.run(main())


@pytest.mark.parametrize("carrier", ["tcp", "rdma1", "rdma2"])
def test_signed_calls_are_answered_natively(tmp_path: Path, example: kdc.Realm, carrier: str) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        await it.read(handle, 0, 1)
        before = it.row(READ).native_calls
        for offset, count in ((0, 4096), (5, 3), (SIZE - 10, 10), (100, 65_536), (0, SIZE)):
            assert await it.read(handle, offset, count) == pattern(SIZE)[offset : offset + count]
            if count >= 65_536:  # what is short comes inline
                assert it.placed == [0 if carrier == "tcp" else count]
        assert it.row(READ).native_calls == before + 5
        data = pattern(9000, 3)
        arguments = p.WRITE3args(handle, 4, len(data), p.stable_how.FILE_SYNC, memoryview(data))
        done = (await it.call(WRITE, pack(p.WRITE3args, arguments))).decode(p.WRITE3res)
        assert done.status == nfsstat3.NFS3_OK
        assert (it.server.directory / "file").read_bytes()[4:9004] == data
        assert it.row(WRITE).native_calls == it.row(WRITE).calls == 1
        assert it.acceptor.counts["established"] == 1

    run(test, tmp_path, example, carrier)


def test_a_retransmission_of_a_native_call_is_answered_from_the_replay_cache(
    tmp_path: Path, example: kdc.Realm
) -> None:
    async def test(it: Signing) -> None:
        await it.file("file")
        connection, security = it.connection, it.connection.security
        assert security is not None
        sealer = await security.ready(connection._exchange, NFS_PROGRAM, 3)
        root = SimpleNamespace(handle=it.server.root.data)
        arguments = creation(root, b"new", how=p.createmode3.GUARDED)
        for _ in range(3):
            make, read = security.call(sealer, NFS_PROGRAM, 3, CREATE, arguments)
            reply = await connection._exchange(lambda _, make=make: make(0x77), read)
            assert reply.decode(p.CREATE3res).status == nfsstat3.NFS3_OK  # EXIST, if it were executed again
        assert it.server.dispatcher.replay.hits == 2
        assert it.row(CREATE).native_calls == 1

    run(test, tmp_path, example)


def test_replays_and_bad_signatures_are_no_native_calls(tmp_path: Path, example: kdc.Realm) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        connection, security = it.connection, it.connection.security
        assert security is not None
        sealer = await security.ready(connection._exchange, NFS_PROGRAM, 3)
        make, read = security.call(sealer, NFS_PROGRAM, 3, GETATTR, pack(p.GETATTR3args, p.GETATTR3args(handle)))
        one = make(0x99)
        reply = await connection._exchange(lambda _: one, read)
        assert reply.decode(p.GETATTR3res).status == nfsstat3.NFS3_OK
        calls = it.row(GETATTR).calls
        replayed = asyncio.ensure_future(connection._exchange(lambda _: one, read))
        await until(lambda: it.acceptor.counts["discarded"])
        assert not replayed.done()
        replayed.cancel()
        for at in (43, 80):
            octets = bytearray(make(0x9B).head)
            octets[at] ^= 1
            denied = type(one)(0x9B, bytes(octets), [])
            with pytest.raises(Exception, match=auth_stat.RPCSEC_GSS_CREDPROBLEM.name):
                await connection._exchange(lambda _, denied=denied: denied, read)
        assert it.row(GETATTR).calls == calls

    run(test, tmp_path, example)


def test_a_call_that_is_declined_after_it_was_verified_is_not_taken_for_a_replay(
    tmp_path: Path, example: kdc.Realm
) -> None:
    async def test(it: Signing) -> None:
        await it.file("file")
        # Arguments that no native function takes: the general path has to say so.
        with pytest.raises(Exception, match="GARBAGE_ARGS"):
            await it.call(GETATTR, struct.pack(">I", 64))
        assert it.acceptor.counts["discarded"] == 0

    run(test, tmp_path, example)


def test_nobody_becomes_a_principal_by_octets_that_are_its_handle(
    tmp_path: Path, example: kdc.Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers are remembered by octets of AUTH_SYS: these are those of a context's handle."""
    octets = struct.pack(">4I", 0, 4242, 4242, 0)

    async def test(it: Signing) -> None:
        file = it.server.directory / "file"
        file.chmod(0o600)
        handle = await it.file("file")
        (context,) = it.acceptor.table
        assert context.handle == octets
        assert await it.read(handle, 0, 10) == pattern(SIZE)[:10]
        other = opaque_auth(auth_flavor.AUTH_SYS, bytes(4) + octets)
        arguments = pack(p.READ3args, p.READ3args(handle, 0, 10))
        reply = await it.call(READ, arguments, into=memoryview(bytearray(10)), credential=other)
        assert reply.decode(p.READ3res).status == nfsstat3.NFS3ERR_ACCES

    monkeypatch.setattr(contexts, "new_handle", lambda: octets)
    run(test, tmp_path, example)


def test_a_connection_keeps_no_context_that_is_gone(tmp_path: Path, example: kdc.Realm) -> None:
    """It is on no account any more."""

    async def test(it: Signing) -> None:
        handle = await it.file("file")
        for _ in range(6):
            for context in it.acceptor.table:
                it.acceptor.table.remove(context)
            del context
            assert await it.read(handle, 0, 10) == pattern(SIZE)[:10]
        assert it.acceptor.counts["established"] == 7
        gc.collect()
        assert sum(type(one) is contexts.Context for one in gc.get_objects()) <= 2

    run(test, tmp_path, example)


def test_a_caller_who_is_somebody_else_by_now_is_one_at_once(tmp_path: Path, example: kdc.Realm) -> None:
    """What has been noted about the caller on a native path goes with the identity."""

    async def test(it: Signing) -> None:
        (it.server.directory / "file").chmod(0o600)
        handle = await it.file("file")
        for _ in range(2):
            assert await it.read(handle, 0, 10) == pattern(SIZE)[:10]
        assert it.row(READ).native_calls
        (context,) = it.acceptor.table
        Answer(Identity(4242, 4242), float("inf")).tell(context)
        arguments = pack(p.READ3args, p.READ3args(handle, 0, 10))
        reply = await it.call(READ, arguments, into=memoryview(bytearray(10)))
        assert reply.decode(p.READ3res).status == nfsstat3.NFS3ERR_ACCES
        Answer(ALICE, float("inf")).tell(context)
        assert await it.read(handle, 0, 10) == pattern(SIZE)[:10]

    run(test, tmp_path, example)


@pytest.mark.parametrize("security", ["krb5", "krb5i", "krb5p"])
def test_the_nfs_client_secures_its_calls(
    tmp_path: Path, example: kdc.Realm, monkeypatch: pytest.MonkeyPatch, security: Any
) -> None:
    async def test(it: Signing) -> None:
        host, port = it.server.address
        monkeypatch.setattr(server, "Gss", lambda wanted: Gss(wanted, SERVICE))
        options = Options(nfs_version="3", mount_port=port, security=security)
        before = it.row(READ).calls
        async with nfsd.client.connect(f"tcp://{host}:{port}/export", options) as files:
            assert await files.read_bytes("file") == pattern(SIZE)
        assert it.row(READ).calls > before
        assert it.acceptor.counts["established"] == 1
        assert it.row(READ).native_calls > before
        assert it.row(GETATTR).native_calls

    run(test, tmp_path, example)
