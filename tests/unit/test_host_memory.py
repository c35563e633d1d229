"""One host that may have all memory and came first: another that comes then is served, whatever the keys say."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

import rpcrdma.hosts
from nfsd.protocol import nfs3
from nfsd.protocol.mount3 import MOUNT_PROGRAM, dirpath, mountres3
from rpcrdma.xdr import Decoder, pack
from tests.hostile.peer import accepted, nfs3_call, results3, rpc
from tests.nfs3_client import attributes
from tests.support.hosts import Site, on_site

MIB = 1 << 20
GREEDY, HONEST = "127.0.0.2", "127.0.0.100"
KEYS = {
    "host_memory is memory": "memory: 64MiB, host_memory: 64MiB",
    "connection_memory is memory": "memory: 64MiB, connection_memory: 64MiB",
    "as little as there may be": "memory: 16MiB, host_memory: 16MiB, connection_memory: 16MiB",
}


async def root_of(site: Site, host: str, name: str = "export") -> nfs3.nfs_fh3:
    wire = await site.wire(host, "mountd")
    export = str(site.base / name).encode()
    reply = await wire.call(None, rpc(MOUNT_PROGRAM, 3, 1, pack(dirpath, export), uid=0))
    found = Decoder(memoryview(accepted(reply))).decode(mountres3)
    return nfs3.nfs_fh3(found.mountinfo.fhandle)


async def begin_writes(site: Site, file: nfs3.nfs_fh3) -> None:
    """Records of a megabyte whose last octets do not come, until nobody gets memory for another."""
    write = nfs3.WRITE3args(file, 0, MIB, nfs3.stable_how.UNSTABLE, memoryview(bytes(MIB)))
    call = nfs3_call("WRITE", write, uid=0)
    pool = site.daemon.pool
    for _ in range(100):
        wire = await site.wire(GREEDY)
        wire.writer.write(struct.pack(">I", 1 << 31 | len(call)) + call[:-10])
        before = -1
        while pool.in_use != before:
            before = pool.in_use
            for _ in range(50):
                await asyncio.sleep(0)
        if pool.waiting > 2:
            return
    raise AssertionError("there is memory for all of them")


@pytest.mark.parametrize("keys", KEYS)
def test_a_host_that_came_first_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setattr(rpcrdma.hosts, "_WINDOW", 1e9)  # nobody is closed for holding it

    async def test(site: Site) -> None:
        root = await root_of(site, GREEDY)
        wire = await site.wire(GREEDY)
        how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o666))
        create = nfs3.CREATE3args(nfs3.diropargs3(root, b"f"), how)
        file = results3("CREATE", await wire.call(None, nfs3_call("CREATE", create, uid=0))).resok.obj
        await begin_writes(site, file)
        wires = [await site.wire(HONEST) for _ in range(8)]
        for wire in wires:
            got = results3("GETATTR", await wire.call(None, nfs3_call("GETATTR", nfs3.GETATTR3args(file), uid=0)))
            assert got.status == 0
        data = b"content " * (MIB // 8)
        write = nfs3.WRITE3args(file, 0, MIB, nfs3.stable_how.UNSTABLE, memoryview(data))
        for wire in wires:
            wrote = results3("WRITE", await wire.call(None, nfs3_call("WRITE", write, uid=0)))
            assert wrote.resok.count == MIB
        assert (tmp_path / "export" / "f").read_bytes() == data
        assert site.daemon.pool.waiting > 2, "nobody has given way"

    on_site(tmp_path, test, server=f"  limits: {{{KEYS[keys]}, transfer_time: 86400}}\n")
