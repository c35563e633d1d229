"""Whose memory a listing's entries are in."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from rpcrdma.memory import Pool
from rpcrdma.rpc import program
from rpcrdma.server.tcp import TcpListener
from rpcrdma.server.tcp_connection import TcpLimits
from tests.support.nfs4 import Client4, LoopbackTransport, serving
from tests.support.nfs4_native import Wire

_IN_A_CYCLE = """
import gc
import mmap
from nfsd.v3.listing import Listing3
from nfsd.v4.listing import Listing4
from nfsd.vfs.listing import Entries

class Holder:
    pass

def leave(listing, memory):
    listing.move(memory)
    holder = Holder()
    holder.itself, holder.listing = holder, listing

gc.disable()
memory = mmap.mmap(-1, 1 << 17)
leave({listing}, memoryview(memory))
assert gc.collect() > 0
memory[:] = bytes(1 << 17)
print("alive")
"""


@pytest.mark.parametrize(
    "listing", ["Listing3(1 << 16, plus=True)", "Listing4(2, 1 << 16, 0, 90)", "Entries(10, plus=False)"]
)
def test_garbage_collection_leaves_memory_of_others_alone(listing: str) -> None:
    """A traceback may hold a frame that holds the listing: then the collector clears it before it is deallocated."""
    ended = subprocess.run(
        [sys.executable, "-c", _IN_A_CYCLE.replace("{listing}", listing)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


def test_calls_that_want_memory_twice_do_not_wait_for_each_other_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMPOUNDs with two long listings each, more of them than the connection has memory for even one."""
    monkeypatch.setattr(program, "PATIENCE", 0.2)
    for directory in ("export/many", "state"):
        (tmp_path / directory).mkdir(parents=True)
    for number in range(300):
        (tmp_path / "export" / "many" / f"{number:0200}").touch()
    listing = (p.OP_READDIR, p.READDIR4args(0, bytes(8), 0, 1 << 20, [1 << p.FATTR4_FILEID]))
    lookups = [(p.OP_LOOKUP, p.LOOKUP4args(name)) for name in (b"0", b"many")]

    async def scenario() -> None:
        async with serving(tmp_path / "export", state_dir=tmp_path / "state") as server:
            pool = Pool(256 << 20)
            limits = TcpLimits(connection_memory=8 << 20)
            listener = TcpListener(server.dispatcher, pool, asyncio.get_running_loop(), limits)
            listener.listen("127.0.0.1", 0)
            made: Any = server
            client = await Client4(made, 0, transport=LoopbackTransport()).connect()
            wire = Wire(*await asyncio.open_connection("127.0.0.1", listener.address[1]))
            for _ in range(40):
                wire.send(client.message(p.OP_PUTROOTFH, *lookups, listing, listing))
            whole = 0
            async with asyncio.timeout(60):
                for _ in range(40):
                    status, results = client.parse(await wire.reply())
                    assert len(results[3][1].resok4.reply.entries) == 300, "what it had is not lost"
                    assert status in (p.NFS4_OK, p.NFS4ERR_DELAY)
                    whole += status == p.NFS4_OK
            assert whole, "memory that was given back serves others"
            wire.writer.close()
            listener.close()
        assert (pool.in_use, pool.leaked) == (0, 0)

    asyncio.run(scenario())
