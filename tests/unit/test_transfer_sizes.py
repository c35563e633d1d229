"""``max_read`` and ``max_write`` of an export: what clients are told, and what longer calls are answered with."""

from pathlib import Path
from typing import Any

import pytest

from nfsd.config_file import ConfigError, parse
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import FSINFOargs, READ3args, WRITE3args, stable_how
from nfsd.v4.attributes import words_of
from rpcrdma.xdr import Decoder
from tests.support.served import Served, run

EXPORTS = "  - {path: small, squash: none, max_read: 64K, max_write: 16384}\n  - {path: large, squash: none}\n"
SIZES = {"small": (65536, 16384), "large": (1 << 20, 1 << 20)}
DATA = bytes(range(256)) * 400


def prepare(tmp_path: Path) -> None:
    for name in SIZES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(DATA)


def test_nfs3(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        client = await server.nfs3()
        for name, (read, write) in SIZES.items():
            root = await server.mount(f"/{name}")
            told = (await client.nfs("FSINFO", FSINFOargs(root))).resok
            assert (told.rtmax, told.rtpref, told.wtmax, told.wtpref) == (read, read, write, write)
            file = await client.lookup(root, b"file")
            for _ in range(3):
                done = (await client.nfs("READ", READ3args(file, 100, 80000))).resok
                assert bytes(done.data) == DATA[100 : 100 + min(read, 80000)]
                assert not done.eof
                for stable in (stable_how.UNSTABLE, stable_how.FILE_SYNC):
                    data = memoryview(DATA)[:20000]
                    written = (await client.nfs("WRITE", WRITE3args(file, 0, len(data), stable, data))).resok
                    assert written.count == min(write, 20000)

    run(tmp_path, EXPORTS, test)


def number_in(attributes: p.fattr4) -> list[int]:
    decoder = Decoder(memoryview(attributes.attr_vals))
    return [decoder.uint64(), decoder.uint64()]


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_nfs4(tmp_path: Path, minor: int) -> None:
    prepare(tmp_path)
    wanted = words_of(1 << p.FATTR4_MAXREAD | 1 << p.FATTR4_MAXWRITE)

    async def test(server: Served) -> None:
        client = await server.nfs4(minor)
        for name, (read, write) in SIZES.items():
            for path in (f"/{name}", f"/{name}/file"):
                *_, got = await client.run(*client.path(path), (p.OP_GETATTR, p.GETATTR4args(wanted)))
                assert number_in(got.resok4.obj_attributes) == [read, write]
            listing = (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, wanted))
            *_, listed = await client.run(*client.path(f"/{name}"), listing)
            assert [number_in(entry.attrs) for entry in listed.resok4.reply.entries] == [[read, write]]
            stateid, handle = await client.open(f"/{name}", b"file")
            for _ in range(3):
                (got,) = await client.on(handle, (p.OP_READ, p.READ4args(stateid, 100, 80000)))
                assert bytes(octets(got.resok4.data)) == DATA[100 : 100 + min(read, 80000)]
                for stable in (p.stable_how4.UNSTABLE4, p.stable_how4.FILE_SYNC4):
                    arguments = p.WRITE4args(stateid, 0, stable, memoryview(DATA)[:20000])
                    (done,) = await client.on(handle, (p.OP_WRITE, arguments))
                    assert done.resok4.count == min(write, 20000)

    run(tmp_path, EXPORTS, test)


def octets(data: Any) -> Any:
    return getattr(data, "view", data)


def test_a_reload_changes_them(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        client = await server.nfs3()
        root = await server.mount("/small")
        file = await client.lookup(root, b"file")
        assert len((await client.nfs("READ", READ3args(file, 0, 80000))).resok.data) == 65536
        await server.reload("max_read: 64K", "max_read: 8K")
        assert len((await client.nfs("READ", READ3args(file, 0, 80000))).resok.data) == 8192
        assert (await client.nfs("FSINFO", FSINFOargs(root))).resok.rtmax == 8192

    run(tmp_path, EXPORTS, test)


@pytest.mark.parametrize("written", ["0", "4095", "5000", "2M", "-4096", "lots"])
def test_what_is_no_size(tmp_path: Path, written: str) -> None:
    text = f'server: {{listen: ["tcp://127.0.0.1:0"]}}\nexports:\n  - {{path: data, max_write: {written}}}\n'
    with pytest.raises(ConfigError, match=r"exports\[0\]\.max_write"):
        parse(text, str(tmp_path / "exports.yaml"))
