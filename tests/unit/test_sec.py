"""``sec``: callers are known as an export demands, or are not let to its files, by every version and on every way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from nfsd.config_file import ConfigError, parse
from nfsd.exports import ClientOverride, Export, ExportTable, Observer
from nfsd.protocol import nfs4 as p
from nfsd.protocol.mount3 import MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_MNT, dirpath, mountres3
from nfsd.protocol.nfs3 import FSINFOargs, GETATTR3args, nfs_fh3, nfsstat3
from nfsd.vfs.types import Credential
from rpcrdma.log_limits import LIMIT
from rpcrdma.rpc.messages import NULL_AUTH
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, RPCSEC_GSS, RpcCredential
from rpcrdma.xdr import Encoder
from tests.nfs3_client import Nfs3Client, Nfs3Failure, auth_sys
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import Client4, LoopbackTransport

HOST = "127.0.0.1"
WRONG = int(p.NFS4ERR_WRONGSEC)
GSS = [RpcCredential(RPCSEC_GSS, 7, 7, (), "", "ann@EXAMPLE.ORG", service) for service in (1, 2, 3)]
KRB5, KRB5I, KRB5P = GSS
SYS, NONE = RpcCredential(AUTH_SYS, 7, 7), RpcCredential(AUTH_NONE)


def site(tmp_path: Path, test: Any, *, sec: str = "[none]", clients: str = "['*']") -> None:
    """Serve ``/export`` to all, and ``/strict`` to callers who are known as ``sec`` says."""
    strict = tmp_path / "strict"
    strict.mkdir()
    (strict / "below").mkdir()
    (strict / "file").write_bytes(b"secret")
    (strict / "file").chmod(0o666)
    strict.chmod(0o777)
    entry = f"  - {{path: strict, pseudo: /strict, sec: {sec}, clients: {clients}}}\n"
    on_site(tmp_path, test, server="  nfs4: {grace_time: 0}\n", more=entry)


async def handles(site: Site) -> tuple[bytes, bytes]:
    """Of the strict export's root, and of its file."""
    service = site.daemon.service
    export = next(one for one in site.daemon.exports.exports if one.pseudo == "/strict")
    root = await service.root(export)
    found, _ = await service.lookup(Credential(0, 0), root, b"file")
    return root.handle, found.handle


def put(handle: bytes) -> tuple[int, Any]:
    return p.OP_PUTFH, p.PUTFH4args(handle)


GETATTR = (p.OP_GETATTR, p.GETATTR4args([1 << 3]))
LOOK = (p.OP_LOOKUP, p.LOOKUP4args(b"file"))
CURRENT, PARENT = (int(style) for style in p.secinfo_style4)


def told(result: Any) -> list[int]:
    return [one.flavor for one in result.resok4]


# -- who is known how --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("demanded", [("krb5",), ("krb5i", "krb5p"), ("sys",), ("none",), ("krb5p", "sys")])
def test_no_way_of_being_known_stands_for_another(demanded: tuple[str, ...]) -> None:
    export = Export(1, "/data", "/data", sec=demanded)
    table, peer = ExportTable([export]), LoopbackTransport("192.0.2.1")
    for caller in (KRB5, KRB5I, KRB5P, SYS, NONE):
        believed = caller.security in demanded
        assert table.believes(export, caller, peer) == believed
        assert (table.standing(export, caller, peer) is not None) == believed


def test_a_client_has_ways_of_its_own() -> None:
    trusted = ClientOverride("192.0.2.1", sec=("sys", "krb5p"))
    export = Export(1, "/data", "/data", clients=("*", "192.0.2.1"), overrides=(trusted,), sec=("krb5p",))
    table = ExportTable([export])
    assert table.ways(export, "192.0.2.1") == ("krb5p", "sys")
    assert table.ways(export, "192.0.2.2") == ("krb5p",)
    assert table.believes(export, SYS, LoopbackTransport("192.0.2.1"))
    assert not table.believes(export, SYS, LoopbackTransport("192.0.2.2"))


def test_whom_kerberos_knows_is_in_all_groups_it_is_mapped_to_and_is_squashed() -> None:
    """More than AUTH_SYS carries, and nobody is asked about them again."""
    export = Export(1, "/data", "/data", sec=("krb5",), manage_gids=True)
    table, peer = ExportTable([export]), LoopbackTransport("192.0.2.1")
    many = tuple(range(1000, 1040))
    found = table.standing(export, RpcCredential(RPCSEC_GSS, 7, 8, many, "", "ann@EXAMPLE.ORG", 1), peer)
    assert found is not None
    assert (found[0].uid, found[0].gid, found[0].gids) == (7, 8, many)
    found = table.standing(export, RpcCredential(RPCSEC_GSS, 0, 0, (0,), "", "root@EXAMPLE.ORG", 1), peer)
    assert found is not None
    assert (found[0].uid, found[0].gid) == (65534, 65534)
    found = table.standing(export, RpcCredential(RPCSEC_GSS, None, None, (), "", "nfs/h@EXAMPLE.ORG", 1), peer)
    assert found is not None
    assert (found[0].uid, found[0].gid) == (65534, 65534)


# -- NFSv4: where WRONGSEC is said (RFC 8881 section 2.6.3.1.1) --------------------------------------------------------
@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_put_filehandle_operation_says_it_before_operations_that_may_not(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        root, file = await handles(site)
        opening = (p.OP_OPEN, client.open_args(b"file", access=1))
        read = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 10))
        create = (p.OP_REMOVE, p.REMOVE4args(b"file"))
        for _ in range(2):  # what is remembered of the caller changes nothing
            for operation in (GETATTR, read, p.OP_GETFH, (p.OP_ACCESS, p.ACCESS4args(63)), create):
                assert await last(client, put(file), operation) == (p.OP_PUTFH, WRONG)
                assert await last(client, put(file), p.OP_SAVEFH, operation) == (p.OP_PUTFH, WRONG)
            assert await last(client, put(root), LOOK) == (p.OP_LOOKUP, WRONG)
            assert await last(client, put(root), p.OP_LOOKUPP) == (p.OP_LOOKUPP, 0)
            assert await last(client, put(root)) == (p.OP_PUTFH, 0)
            assert await last(client, put(root), p.OP_SAVEFH) == (p.OP_SAVEFH, 0)
            assert await last(client, put(root), p.OP_PUTROOTFH, GETATTR) == (p.OP_GETATTR, 0)
            assert await last(client, put(root), p.OP_SAVEFH, p.OP_PUTROOTFH, p.OP_RESTOREFH, GETATTR) == (
                p.OP_RESTOREFH, WRONG,
            )  # fmt: skip
        assert await last(client, put(root), opening) == (p.OP_OPEN, WRONG)
        assert await last(client, *client.path("strict")) == (p.OP_LOOKUP, WRONG)
        assert await last(client, *client.path("strict"), GETATTR) == (p.OP_LOOKUP, WRONG)

    site(tmp_path, test)


async def last(client: Client4, *operations: Any) -> tuple[int, int]:
    """The last operation that was carried out, and its status."""
    _, results = await client.raw(*client.in_session(*operations))
    number, result = results[-1]
    return int(number) if isinstance(number, int) else int(getattr(p, f"OP_{number}")), int(
        getattr(result, "status", result)
    )


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_file_is_not_moved_or_linked_out_of_where_the_caller_is_barred(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        root, file = await handles(site)
        moved = (put(root), p.OP_SAVEFH, *client.path("export"), (p.OP_RENAME, p.RENAME4args(b"file", b"mine")))
        linked = (put(file), p.OP_SAVEFH, *client.path("export"), (p.OP_LINK, p.LINK4args(b"mine")))
        assert await client.status(*moved) == await client.status(*linked) == p.NFS4ERR_XDEV
        assert (tmp_path / "strict/file").exists()
        assert not (tmp_path / "export/mine").exists()

    site(tmp_path, test)


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_secinfo_tells_whom_the_export_is_closed_to_how_to_come(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        root, _ = await handles(site)

        async def asked(*operations: Any) -> list[int]:
            return told((await client.run(*operations))[-1])

        assert await asked(p.OP_PUTROOTFH, (p.OP_SECINFO, p.SECINFO4args(b"strict"))) == [AUTH_NONE]
        assert await asked(p.OP_PUTROOTFH, (p.OP_SECINFO, p.SECINFO4args(b"export"))) == [AUTH_SYS, AUTH_NONE]
        assert await asked(put(root), (p.OP_SECINFO, p.SECINFO4args(b"file"))) == [AUTH_NONE]
        # Whether there is a name is no business of who may not look.
        assert await asked(put(root), (p.OP_SECINFO, p.SECINFO4args(b"none"))) == [AUTH_NONE]
        if minor:
            assert await asked(put(root), (p.OP_SECINFO_NO_NAME, CURRENT)) == [AUTH_NONE]
            assert await asked(put(root), (p.OP_SECINFO_NO_NAME, PARENT)) == [AUTH_SYS, AUTH_NONE]
            assert await asked(p.OP_PUTROOTFH, (p.OP_SECINFO_NO_NAME, CURRENT)) == [AUTH_SYS, AUTH_NONE]
            assert await client.status(put(root), (p.OP_SECINFO_NO_NAME, CURRENT), GETATTR) == p.NFS4ERR_NOFILEHANDLE

    site(tmp_path, test)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_listing_shows_the_place_of_what_may_not_be_entered(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        listing = (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, [1 << 8 | 1 << 1]))
        (*_, result) = await client.run(p.OP_PUTROOTFH, listing)
        assert {entry.name for entry in result.resok4.reply.entries} == {b"export", b"strict"}

    site(tmp_path, test)


# -- the log -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    LIMIT.reset()
    caplog.set_level(logging.INFO)
    return caplog


def refusals(log: pytest.LogCaptureFixture, tmp_path: Path, *, ways: str = "none") -> list[str]:
    """What the log says of refusals, from the version on, without what it says each time."""
    config = (tmp_path / "exports.yaml").read_text().splitlines()
    entry = next(number for number, line in enumerate(config, 1) if "pseudo: /strict" in line)
    end = (
        f"): it calls with sec=sys, and the export takes {ways}; to admit it, mount with sec={ways.split()[0]}, or "
        f"write for /strict ({tmp_path}/exports.yaml:{entry}): sec: [none, sys]"
    )
    lines = [record.getMessage() for record in log.records if record.name == "nfsd.events"]
    found = [line for line in lines if " is refused " in line]
    assert all(line.endswith(end) and line.startswith(f"{HOST} is refused /strict (") for line in found), found
    return [line.removesuffix(end).partition("(")[2] for line in found]


@pytest.mark.parametrize("way", ["name", "handle", "open", "restored", "again"])
@pytest.mark.parametrize("minor", [0, 1])
def test_a_caller_who_is_refused_for_its_flavor_is_in_the_log_once_with_the_remedy(
    tmp_path: Path, log: pytest.LogCaptureFixture, minor: int, way: str
) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        root, file = await handles(site)
        attempt = {
            "name": client.path("strict"),
            "handle": (put(file), GETATTR),
            "open": (put(root), (p.OP_OPEN, client.open_args(b"file", access=1))),
            "restored": (put(root), p.OP_SAVEFH, p.OP_PUTROOTFH, p.OP_RESTOREFH, GETATTR),
            "again": (put(root), LOOK),
        }[way]
        for _ in range(3):
            assert await client.status(*attempt) == WRONG
        assert refusals(log, tmp_path) == [f"NFSv4.{minor} over tcp"]

    site(tmp_path, test)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_caller_who_asks_for_the_flavors_is_not_refused(
    tmp_path: Path, log: pytest.LogCaptureFixture, minor: int
) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        root, _ = await handles(site)
        await client.run(p.OP_PUTROOTFH, (p.OP_SECINFO, p.SECINFO4args(b"strict")))
        await client.run(put(root), (p.OP_SECINFO, p.SECINFO4args(b"file")))
        await client.run(p.OP_PUTROOTFH, (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, [])))
        assert refusals(log, tmp_path) == []

    site(tmp_path, test)


def test_nfsv3_s_callers_are_in_the_log_likewise_and_the_mount_names_the_flavor(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async def test(site: Site) -> None:
        async with await connected(site, "mountd") as mountd:
            await mountd.mount("/strict")
        _, file = (nfs_fh3(handle) for handle in await handles(site))
        async with await connected(site) as client:
            for _ in range(3):
                assert (await client.nfs("GETATTR", GETATTR3args(file))).status == nfsstat3.NFS3ERR_ACCES
        assert refusals(log, tmp_path) == ["NFSv3 over tcp"]
        (mount,) = [record.getMessage() for record in log.records if " mounts " in record.getMessage()]
        assert mount.endswith("root squashed, to be used with sec=none")

    site(tmp_path, test)


def test_the_remedy_for_a_client_with_an_entry_of_its_own_is_in_that_entry() -> None:
    strict = ClientOverride("192.0.2.1", sec=("krb5p",))
    export = Export(1, "/data", "/data", clients=("*", "192.0.2.1"), overrides=(strict,), origin="exports.yaml:3")
    table, told = ExportTable([export]), Told()
    table.observer = told
    for address in ("192.0.2.1", "192.0.2.2"):
        table.disbelieve(export, SYS, LoopbackTransport(address), "NFSv3")
    assert told.refusals == [
        (
            "it calls with sec=sys, and the export takes krb5p",
            "mount with sec=krb5p, or add sys to sec: of its entry in clients: of /data (exports.yaml:3)",
        )
    ]


class Told(Observer):
    """Why clients were refused, and what would admit them."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []

    def refused(self, *args: Any) -> None:
        self.refusals.append(args[4:])


# -- a reload, while a caller is known ---------------------------------------------------------------------------------
@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_reload_that_demands_more_holds_for_callers_that_are_known(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        _, file = await handles(site)
        for _ in range(3):
            assert await last(client, put(file), GETATTR) == (p.OP_GETATTR, 0)
        text = (tmp_path / "exports.yaml").read_text()
        (tmp_path / "exports.yaml").write_text(text.replace("sec: [sys, none]", "sec: [none]"))
        assert await site.daemon.reload()
        assert await last(client, put(file), GETATTR) == (p.OP_PUTFH, WRONG)

    site(tmp_path, test, sec="[sys, none]")


# -- NFSv3 -------------------------------------------------------------------------------------------------------------
async def connected(site: Site, service: str = "nfs") -> Nfs3Client:
    return await Nfs3Client.connect(HOST, site.port(service), uid=7, gid=7)


def test_nfsv3_answers_acces_but_of_the_root_s_attributes(tmp_path: Path) -> None:
    """mount(8) asks for these as the host, before any user is there to be known (RFC 2623 section 2.3.2)."""

    async def test(site: Site) -> None:
        client = await connected(site)
        root, file = (nfs_fh3(handle) for handle in await handles(site))
        for _ in range(2):
            assert (await client.nfs("GETATTR", GETATTR3args(root))).status == nfsstat3.NFS3_OK
            assert (await client.nfs("FSINFO", FSINFOargs(root))).status == nfsstat3.NFS3_OK
            assert (await client.nfs("GETATTR", GETATTR3args(file))).status == nfsstat3.NFS3ERR_ACCES
            assert (await client.nfs("FSINFO", FSINFOargs(file))).status == nfsstat3.NFS3ERR_ACCES
            for attempt in (
                client.lookup(root, b"file"), client.read(file, 0, 10), client.write(file, 0, b"x"),
                client.create(root, b"new"), client.remove(root, b"file"), client.listing(root),
                client.rename(root, b"file", root, b"other"),
            ):  # fmt: skip
                with pytest.raises(Nfs3Failure) as failure:
                    await attempt
                assert failure.value.status == nfsstat3.NFS3ERR_ACCES
        client.credential = NULL_AUTH
        assert (await client.read(file, 0, 10)).data == b"secret"
        client.credential = auth_sys(7, 7)
        with pytest.raises(Nfs3Failure):
            await client.read(file, 0, 10)
        await client.close()

    site(tmp_path, test)


def test_mnt_tells_the_flavors_of_the_export(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client = await connected(site, "mountd")
        told = {}
        for path in (b"/strict", b"/export", b"/strict/below"):
            e = Encoder()
            e.encode(dirpath, path)
            found = await client.call(MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_MNT, e.getvalue(), mountres3)
            told[path] = list(found.mountinfo.auth_flavors)
        assert told == {b"/strict": [AUTH_NONE], b"/export": [AUTH_SYS], b"/strict/below": [AUTH_NONE]}
        await client.close()

    site(tmp_path, test)


# -- the configuration -------------------------------------------------------------------------------------------------
def problems(entry: str) -> str:
    text = f"server: {{listen: ['tcp://127.0.0.1:0']}}\nexports:\n  - {{path: /srv, {entry}}}\n"
    with pytest.raises(ConfigError) as error:
        parse(text, "/nowhere/exports.yaml")
    return str(error.value)


def test_what_cannot_be_demanded_is_said_with_its_line() -> None:
    assert "exports.yaml:3: exports[0].sec: names krb5i, which takes a keytab; set server.kerberos" in problems(
        "sec: [krb5i, sys]"
    )
    assert "exports[0].clients[0].sec: names krb5, " in problems("clients: [{host: '*', sec: [krb5]}]")
    assert "exports[0].sec: must have at least one entry" in problems("sec: []")
    assert "did you mean 'sys'?" in problems("sec: [syss]")
