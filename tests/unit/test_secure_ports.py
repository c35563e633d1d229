"""``secure``: an export that takes clients with a port below 1024 only, where root on their host vouches for ids."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nfsd.client import Options, connect
from nfsd.client.url import parse
from nfsd.config_file import ConfigError
from nfsd.config_file import parse as parse_file
from nfsd.matching import Access
from nfsd.protocol import nfs4 as p
from nfsd.protocol.mount3 import mountstat3
from nfsd.protocol.nfs3 import GETATTR3args, READ3args, nfsstat3
from rpcrdma.client import ClientOptions
from tests.nfs3_client import Nfs3Failure
from tests.support import served
from tests.support.nfs4 import Failed
from tests.support.served import Served

RESERVED = range(1023, 899, -1)


def can_bind_reserved() -> bool:
    with socket.socket() as sock:
        for port in RESERVED:
            try:
                sock.bind(("127.0.0.1", port))
            except PermissionError:
                return False
            except OSError:
                continue
            return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > max(RESERVED)
    return False


def hosts() -> list[str]:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]


reserved = pytest.mark.skipif(not can_bind_reserved(), reason="ports below 1024 are not this user's to bind")
EXPORTS = """\
  - path: open
    pseudo: /open
    squash: none
  - path: guarded
    pseudo: /guarded
    squash: none
    secure: %s
"""


def run(
    tmp_path: Path, test: Callable[[Served], Awaitable[None]], secure: str = "true", host: str = "127.0.0.1"
) -> None:
    """A test with a daemon that serves /open to all, and /guarded as ``secure`` says."""
    for name in ("open", "guarded"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 4096)
    served.run(tmp_path, EXPORTS % secure, test, "  nlm: false\n", host, ("tcp", "rdma"))


@reserved
@pytest.mark.parametrize("host", hosts())
def test_nfs3_and_mount(tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: Served) -> None:
        async with await server.nfs3(service="mountd", ports=RESERVED) as client:
            root = await client.mount("/guarded")
        async with await server.nfs3(service="mountd") as client:
            await client.mount("/open")
            with pytest.raises(Nfs3Failure) as caught:
                await client.mount("/guarded")
            assert caught.value.status == mountstat3.MNT3ERR_ACCES
        async with await server.nfs3(ports=RESERVED) as client:
            file = await client.lookup(root, b"file")
            for _ in range(20):
                assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3_OK
        async with await server.nfs3() as client:
            # A handle that has got out is of no use; nor is the path that answers natively once it knows a file.
            for _ in range(20):
                for name, arguments in (("GETATTR", GETATTR3args(file)), ("READ", READ3args(file, 0, 10))):
                    assert (await client.nfs(name, arguments)).status == nfsstat3.NFS3ERR_PERM

    run(tmp_path, test, host=host)
    (line,) = [record.getMessage() for record in caplog.records if "is not below" in record.getMessage()]
    assert f"{host} is refused /guarded: port " in line
    # The export's own setting stands in line 13 of the file.
    assert line.endswith(f"is not below 1024 (secure: {tmp_path}/exports.yaml:13)")


@reserved
@pytest.mark.parametrize("minor", [0, 1, 2])
@pytest.mark.parametrize("host", hosts())
def test_nfs4(tmp_path: Path, minor: int, host: str) -> None:
    async def test(server: Served) -> None:
        good, bad = await server.nfs4(minor, ports=RESERVED), await server.nfs4(minor)
        *_, got = await good.run(*good.path("/guarded/file"), p.OP_GETFH)
        handle = got.resok4.object
        read = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 10))
        for _ in range(20):
            await good.on(handle, read)
            assert await bad.status((p.OP_PUTFH, p.PUTFH4args(handle)), read) == p.NFS4ERR_PERM
        with pytest.raises(Failed) as caught:
            await bad.run(*bad.path("/guarded"), p.OP_GETFH)
        assert caught.value.status == p.NFS4ERR_PERM
        await bad.run(*bad.path("/open/file"), p.OP_GETFH)
        # What there is may be listed, as with Linux's server.
        names = await bad.run(p.OP_PUTROOTFH, (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, [])))
        assert sorted(entry.name for entry in names[-1].resok4.reply.entries) == [b"guarded", b"open"]

    run(tmp_path, test, host=host)


@pytest.mark.parametrize(("secure", "taken"), [("true", False), ("tcp", True), ("false", True)])
@pytest.mark.parametrize("version", ["3", "4.1"])
def test_over_rdma(tmp_path: Path, secure: str, taken: bool, version: str) -> None:
    """The program's own client, which has no reserved port, as Linux's has none over RDMA."""

    async def test(server: Served) -> None:
        rpc = ClientOptions(reconnect=30, first_delay=0.02, longest_delay=0.2)
        options = Options(nfs_version=version, patience=30, rpc=rpc)  # type: ignore[arg-type]

        async def read(scheme: str, name: str) -> bytes:
            url = parse(f"{scheme}://{server.host}:{server.port('nfs', scheme)}/{name}")
            # MOUNT is TCP: for NFSv3 the handle comes from an export's own setting, too.
            async with connect(url, replace(options, mount_port=server.port("mountd"))) as tree:
                return await tree.read_bytes("file")

        assert await read("rdma", "open") == b"x" * 4096
        if taken and not (secure == "tcp" and version == "3"):
            assert await read("rdma", "guarded") == b"x" * 4096
        else:
            with pytest.raises(PermissionError):
                await read("rdma", "guarded")
        if secure == "tcp":
            with pytest.raises(PermissionError):
                await read("tcp", "guarded")

    run(tmp_path, test, secure)


def test_a_reload_changes_it_for_connections_that_are_there(tmp_path: Path) -> None:
    async def test(server: Served) -> None:
        async with await server.nfs3(service="mountd") as client:
            root = await client.mount("/guarded")
        async with await server.nfs3() as client:
            file = await client.lookup(root, b"file")
            assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3_OK
            await server.reload("secure: false", "secure: true")
            assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3ERR_PERM

    run(tmp_path, test, "false")


class From:
    def __init__(self, netid: str, port: int) -> None:
        self.netid, self.peer_address, self.peer_port = netid, "10.0.0.1", port


@pytest.mark.parametrize(
    ("secure", "netid", "port", "taken"),
    [
        (False, "tcp", 40000, True),
        (True, "tcp", 1023, True),
        (True, "tcp6", 1024, False),
        (True, "rdma", 40000, False),
        (True, "rdma", 700, True),
        (True, "rdma", 0, False),  # a device that does not tell
        ("tcp", "tcp", 1024, False),
        ("tcp", "udp", 1024, False),
        ("tcp", "rdma6", 40000, True),
    ],
)
def test_which_ports_will_do(secure: Any, netid: str, port: int, taken: bool) -> None:
    assert Access(False, "root", 65534, 65534, secure).takes(From(netid, port)) is taken


def test_the_setting_of_a_client_goes_before_the_export_s(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = (
        'server: {listen: ["tcp://127.0.0.1:0"]}\nexports:\n'
        "  - {path: data, secure: true,\n"
        "     clients: ['*', {host: 10.0.0.1, secure: false}, {host: 10.0.0.2, secure: tcp}]}\n"
    )
    found = parse_file(text, str(tmp_path / "exports.yaml")).exports[0]
    assert found.secure is True
    assert [(o.host, o.secure) for o in found.overrides] == [("10.0.0.1", False), ("10.0.0.2", "tcp")]
    with pytest.raises(ConfigError, match=r"exports\[0\]\.secure: 'udp' must be true, false or tcp"):
        parse_file(text.replace("secure: true", "secure: udp"), str(tmp_path / "exports.yaml"))
