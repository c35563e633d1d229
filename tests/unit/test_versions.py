"""``versions``: of NFS that the server speaks, and that an export is served by."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from nfsd import versions
from nfsd.admin.asking import ask
from nfsd.config_file import ConfigError, parse
from nfsd.protocol import nfs4 as p
from nfsd.protocol.mount3 import MOUNT_PROGRAM, MOUNT_V3, exports, mountstat3
from nfsd.protocol.nfs3 import LINK3args, READ3args, diropargs3, nfsstat3
from tests.nfs3_client import Nfs3Failure
from tests.support.served import HOST, Served, run

EXPORTS = """\
  - {path: old, squash: none, versions: [3]}
  - {path: new, squash: none, versions: [4.1, 4.2]}
  - {path: v4, squash: none, versions: [4]}
  - {path: all, squash: none}
  - {path: half, squash: none, versions: [3, 4.0], pseudo: /deep/half}
"""
SERVED = {"/old": {"3"}, "/new": {"4.1", "4.2"}, "/v4": {"4.0", "4.1", "4.2"}, "/all": {"3", "4.0", "4.1", "4.2"}}
SERVED["/deep/half"] = {"3", "4.0"}
READ = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 10))


def prepare(tmp_path: Path) -> None:
    for name in ("old", "new", "v4", "all", "half"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100)


async def header(server: Served, version: int, body: bytes = b"", program: int = 100003, procedure: int = 0) -> Any:
    """The words of the reply to a call without a credential."""
    reader, writer = await asyncio.open_connection(HOST, server.port("nfs"))
    message = struct.pack(">10I", 1, 0, 2, program, version, procedure, 0, 0, 0, 0) + body
    writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)
    (mark,) = struct.unpack(">I", await reader.readexactly(4))
    reply = await reader.readexactly(mark & 0x7FFFFFFF)
    writer.close()
    return struct.unpack(f">{len(reply) // 4}I", reply)


def test_exports_are_for_their_versions(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        client = await server.nfs3()
        handles = {}
        for path, served in SERVED.items():
            if "3" in served:
                root = await server.mount(path)
                handles[path] = await client.lookup(root, b"file")
                for _ in range(5):
                    result = await client.nfs("READ", READ3args(handles[path], 0, 10))
                    assert result.status == nfsstat3.NFS3_OK
            else:
                with pytest.raises(Nfs3Failure) as caught:
                    await server.mount(path)
                assert caught.value.status == mountstat3.MNT3ERR_ACCES
        listed = await (await server.nfs3(service="mountd")).call(MOUNT_PROGRAM, MOUNT_V3, 5, b"", exports)
        assert {one.ex_dir.decode() for one in listed} == {path for path in SERVED if "3" in SERVED[path]}
        for minor in range(3):
            client4 = await server.nfs4(minor)
            for path, served in SERVED.items():
                if f"4.{minor}" in served:
                    for _ in range(5):
                        assert await client4.status(*client4.path(f"{path}/file"), READ) == p.NFS4_OK
                else:
                    assert await client4.status(*client4.path(path), p.OP_GETFH) == p.NFS4ERR_NOENT
            names = await client4.run(p.OP_PUTROOTFH, (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, [])))
            shown = {entry.name.decode() for entry in names[-1].resok4.reply.entries}
            assert shown == {path.split("/")[1] for path in SERVED if f"4.{minor}" in SERVED[path]}

    run(tmp_path, EXPORTS, test)


def test_a_handle_does_not_help(tmp_path: Path) -> None:
    """Nor does a connection on which another version has just used the export; the native paths look, too."""
    prepare(tmp_path)

    async def test(server: Served) -> None:
        client4 = await server.nfs4(1)
        *_, got = await client4.run(*client4.path("/new/file"), p.OP_GETFH)
        handle = got.resok4.object
        for _ in range(5):
            await client4.on(handle, READ)
        client = await server.nfs3()
        all_root = await server.mount("/all")
        file = type(all_root)(handle)
        for _ in range(5):
            assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3ERR_ACCES
        link = LINK3args(file, diropargs3(all_root, b"link"))
        assert (await client.nfs("LINK", link)).status == nfsstat3.NFS3ERR_ACCES
        # 4.0's session-less COMPOUNDs and 4.1's over one connection, with one credential.
        old, new = await server.nfs4(0), await server.nfs4(1)
        connection = OneConnection(await asyncio.open_connection(HOST, server.port("nfs")))
        old.server = new.server = connection  # type: ignore[assignment]
        for _ in range(5):
            await new.on(handle, READ)
            assert await old.status((p.OP_PUTFH, p.PUTFH4args(handle)), READ) == p.NFS4ERR_ACCESS
        connection.close()
        # A reload makes it good.
        await server.reload("versions: [4.1, 4.2]", "versions: [3, 4.0]")
        assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3_OK
        again = await server.nfs4(1)
        assert await again.status((p.OP_PUTFH, p.PUTFH4args(handle)), READ) == p.NFS4ERR_ACCESS

    run(tmp_path, EXPORTS, test)


class OneConnection:
    """For clients that share a connection."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._reader, self._writer = streams

    async def call(self, transport: Any, message: bytes, chunks: Any = ()) -> bytes:
        self._writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)
        (mark,) = struct.unpack(">I", await self._reader.readexactly(4))
        return await self._reader.readexactly(mark & 0x7FFFFFFF)

    def close(self) -> None:
        self._writer.close()


SIMPLE = "  - {path: all, squash: none}\n"
ACCEPTED, MISMATCH = 0, 2


@pytest.mark.parametrize(
    ("spoken", "v3", "minors", "low", "high"),
    [
        ("[3]", True, (), 3, 3),
        ("[4]", False, (0, 1, 2), 4, 4),
        ("[4.1, 4.2]", False, (1, 2), 4, 4),
        ("[3, 4.0]", True, (0,), 3, 4),
    ],
)
def test_the_server_speaks_its_versions(
    tmp_path: Path, spoken: str, v3: bool, minors: tuple[int, ...], low: int, high: int
) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        assert (await header(server, 3))[5] == (ACCEPTED if v3 else MISMATCH)
        assert (await header(server, 4))[5] == (ACCEPTED if minors else MISMATCH)
        assert (await header(server, 2))[5:] == (MISMATCH, low, high)
        assert ((await header(server, 3, program=100227))[5] == ACCEPTED) is v3  # NFS_ACL
        of = server.daemon.listeners.of
        assert [bool(of(service)) for service in ("mountd", "nlm", "nsm")] == [v3] * 3
        told = {(one.program, one.version) for one in server.daemon._served()}
        assert ((100003, 3) in told, (100003, 4) in told) == (v3, bool(minors))
        assert ((100005, 3) in told, (100227, 3) in told, (100021, 4) in told) == (v3,) * 3
        for minor in range(4) if minors else ():
            empty = await header(server, 4, struct.pack(">3I", 0, minor, 0), procedure=1)
            expected = p.NFS4_OK if minor in minors else p.NFS4ERR_MINOR_VERS_MISMATCH
            # A COMPOUND without operations: 4.1 demands none.
            assert empty[6] == expected, minor
            if minor in minors:
                client = await server.nfs4(minor)
                assert await client.status(*client.path("/all/file"), READ) == p.NFS4_OK
        if v3:
            await server.mount("/all")

    run(tmp_path, SIMPLE, test, f"  versions: {spoken}\n")


@pytest.mark.parametrize("written", ["3", "[]", "[2]", "[4.3]", "[three]"])
@pytest.mark.parametrize("where", ["server", "export"])
def test_what_are_no_versions(tmp_path: Path, written: str, where: str) -> None:
    of = {"server": "", "export": ""} | {where: f", versions: {written}"}
    text = f'server: {{listen: ["tcp://127.0.0.1:0"]{of["server"]}}}\nexports:\n  - {{path: data{of["export"]}}}\n'
    with pytest.raises(ConfigError, match="versions"):
        parse(text, str(tmp_path / "exports.yaml"))


def test_an_export_for_versions_that_are_not_spoken(tmp_path: Path) -> None:
    text = 'server: {listen: ["tcp://127.0.0.1:0"], versions: [4]}\nexports:\n  - {path: data, versions: [3]}\n'
    with pytest.raises(ConfigError, match=r"exports\[0\]\.versions: names none of server\.versions"):
        parse(text, str(tmp_path / "exports.yaml"))


def test_names_and_bits() -> None:
    assert versions.of_names(None) == versions.ALL == versions.of_names(("3", "4.0", "4.1", "4.2"))
    assert versions.of_names(("4",)) == versions.V4
    assert [versions.of_minor(minor) & versions.of_names(("4.1",)) != 0 for minor in range(4)] == [0, 1, 0, 0]
    assert versions.of_minor(3) == versions.of_minor(1 << 31) == 0
    assert versions.shown(versions.of_names(("3", "4.2"))) == "3, 4.2"


def test_a_reload_tells_what_would_change_for_whom(tmp_path: Path) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        client = await server.nfs3()
        await client.lookup(await server.mount("/all"), b"file")
        file = tmp_path / "exports.yaml"
        text = file.read_text().replace("path: all,", "path: all, versions: [4.2], manage_gids: true,")
        await asyncio.to_thread(file.write_text, text)
        reply = await asyncio.to_thread(ask, str(tmp_path / "state"), "reload", dry_run=True)
        lines = [line for row in reply["clients"] for line in row["changes"]]
        assert any("versions 3, 4.0, 4.1, 4.2 -> 4.2" in line for line in lines), reply
        assert any("manage_gids False -> True" in line for line in lines), reply

    run(tmp_path, SIMPLE, test)
