"""NFSv3 beside NFSv4's delegations: recalled before a change, JUKEBOX while they are out."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from nfsd.protocol import nfs3 as v3
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import Program
from rpcrdma.server.tcp import TcpListener
from rpcrdma.xdr import pack
from tests.nfs3_client import attributes as no_attributes
from tests.support.delegations import BOTH, READ, two_clients
from tests.unit.test_nfs3_native import Client
from tests.unit.vfs_support import directory_on


def diropargs(handle, name):
    return v3.diropargs3(v3.nfs_fh3(handle), name)


CHANGES = {
    "WRITE": lambda f, d: v3.WRITE3args(v3.nfs_fh3(f), 0, 1, v3.stable_how.FILE_SYNC, memoryview(b"x")),
    "SETATTR": lambda f, d: v3.SETATTR3args(v3.nfs_fh3(f), no_attributes(mode=0o600), None),
    "REMOVE": lambda f, d: v3.REMOVE3args(diropargs(d, b"f")),
    "RENAME": lambda f, d: v3.RENAME3args(diropargs(d, b"f"), diropargs(d, b"n")),
    "LINK": lambda f, d: v3.LINK3args(v3.nfs_fh3(f), diropargs(d, b"n")),
    "CREATE": lambda f, d: v3.CREATE3args(
        diropargs(d, b"f"), v3.createhow3(v3.createmode3.UNCHECKED, obj_attributes=no_attributes(size=0))
    ),
}

NUMBERS = {types.name: number for number, types in v3.PROCEDURES.items()}


@contextlib.asynccontextmanager
async def nfs3_client(server):
    """A client of NFSv3 beside NFSv4's, and the dispatcher that serves it."""
    procedures = nfs3_procedures(server.service, server.nfs4.exports, delegations=server.nfs4.recalls)
    programs = [Program(v3.NFS_PROGRAM, "nfs", {3: procedures})]
    native = Nfs3Procedures(server.service, delegations=server.nfs4.recalls)
    dispatcher = Dispatcher(programs, natives={(v3.NFS_PROGRAM, 3): native})
    listener = TcpListener(dispatcher, Pool(64 << 20), asyncio.get_running_loop())
    listener.listen("127.0.0.1", 0)
    client = Client(*await asyncio.open_connection("127.0.0.1", listener.address[1]))
    try:
        yield client, dispatcher
    finally:
        client.writer.close()
        listener.close()


def with_v3(tmp_path, access, test, patience=0.05):
    """Run ``test(call, holder, file's handle, directory's)``; ``f`` is delegated. ``call(name, args)``: the status that
    a client is told over TCP. ``patience``: seconds that a recall is waited for."""

    async def main():
        async with two_clients(tmp_path) as (server, export, one, _):
            server.nfs4.recalls.patience = patience
            (export / "f").write_bytes(b"content")
            await one.opening(b"f", access)
            assert server.engine.delegations.count == 1
            *_, found = await one.run(*one.path("/0"), 10)
            async with nfs3_client(server) as (client, _):

                async def call(name, args):
                    number = NUMBERS[name]
                    reply = await client.call(number, pack(v3.PROCEDURES[number].arguments, args))
                    return int.from_bytes(reply[20:24], "big")

                await test(call, one, one.handles[b"f"], found.resok4.object)

    asyncio.run(main())


@pytest.mark.parametrize("access", [READ, BOTH])
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_change_waits_for_the_delegation(tmp_path, change, access):
    async def test(call, holder, file, directory):
        holder.end.keep = True
        args = CHANGES[change](file, directory)
        assert await call(change, args) == v3.nfsstat3.NFS3ERR_JUKEBOX
        assert holder.end.recalls == 1
        recall = holder.end.executed[0][1]
        await holder.give_back(recall.stateid, recall.fh)
        assert await call(change, args) == v3.nfsstat3.NFS3_OK

    with_v3(tmp_path, access, test)


@pytest.mark.parametrize("change", list(CHANGES))
def test_nobody_notices_a_delegation_that_comes_back_at_once(tmp_path, change):
    async def test(call, holder, file, directory):
        assert await call(change, CHANGES[change](file, directory)) == v3.nfsstat3.NFS3_OK
        assert holder.give_back_statuses == [0]

    with_v3(tmp_path, READ, test, patience=20.0)


def test_reading_waits_for_a_write_delegation_only(tmp_path):
    async def test(call, holder, file, directory):
        holder.end.keep = True
        assert await call("READ", v3.READ3args(v3.nfs_fh3(file), 0, 10)) == v3.nfsstat3.NFS3ERR_JUKEBOX

    async def other(call, holder, file, directory):
        assert await call("READ", v3.READ3args(v3.nfs_fh3(file), 0, 10)) == v3.nfsstat3.NFS3_OK
        assert holder.end.recalls == 0

    with_v3(tmp_path, BOTH, test)
    with_v3(tmp_path, READ, other)


def test_native_answers_wait_for_delegations_too(tmp_path):
    async def main(place):
        (tmp_path / "state").mkdir()
        async with two_clients(tmp_path, place=place) as (server, export, one, _):
            (export / "f").write_bytes(b"content")
            async with nfs3_client(server) as (client, dispatcher):
                *_, found = await one.run(*one.path("/0/f"), 10)
                file = v3.nfs_fh3(found.resok4.object)
                writing = pack(v3.WRITE3args, v3.WRITE3args(file, 0, 1, v3.stable_how.UNSTABLE, memoryview(b"x")))
                reading = pack(v3.READ3args, v3.READ3args(file, 0, 10))

                async def status(number, args):
                    return int.from_bytes((await client.call(number, args))[20:24], "big")

                def natively(number):
                    return dispatcher.rows[v3.NFS_PROGRAM, 3, number].native_calls

                one.end.keep = True
                for number, args in ((6, reading), (7, writing)):
                    await status(number, args)
                    before = natively(number)
                    assert await status(number, args) == v3.nfsstat3.NFS3_OK
                    assert natively(number) == before + 1
                opened = await one.opening(b"f", READ)
                assert opened.delegation.delegation_type == READ
                assert await status(6, reading) == v3.nfsstat3.NFS3_OK
                assert await status(7, writing) == v3.nfsstat3.NFS3ERR_JUKEBOX
                assert one.end.recalls == 1

    with directory_on("memory", tmp_path) as path:
        asyncio.run(main(Path(path)))
