"""The server-wide read-only switch: every version, files that are open, delegations, reloads and starts."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nfsd.config import Config, Server
from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.exported import ClientOverride
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import (
    NFS_PROGRAM,
    COMMIT3args,
    LINK3args,
    SETATTR3args,
    WRITE3args,
    diropargs3,
    nfsstat3,
    stable_how,
)
from nfsd.read_only import ReadOnlySwitch
from nfsd.reloader import Reloader
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.nfs3_client import Nfs3Failure
from tests.support.delegations import BOTH, WRITE_DELEGATION, delegated, prepared, stateid_of, until, with_two
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import Failed, mode
from tests.unit.test_admin import Admin
from tests.unit.test_callers import attributes
from tests.unit.test_daemon import client_of
from tests.unit.test_v42_offload import PIECE, Pieces, offload
from tests.unit.test_v42_offload import place as place

HOST = "127.0.0.2"
NO_GRACE = "  nfs4: {grace_time: 0, delegations: nfs}\n"
RW = "[{host: '*', access: rw, squash: none}]"


@pytest.fixture
def admin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Admin:
    return Admin(tmp_path, capsys)


async def status4(what: Any) -> int:
    """NFS4_OK, or what the operation failed with."""
    try:
        await what
    except Failed as failed:
        return int(failed.status)
    return p.NFS4_OK


async def status3(what: Any) -> int:
    try:
        await what
    except Nfs3Failure as failed:
        return int(failed.status)
    return 0


@pytest.mark.parametrize("clients", ["['*']", RW])
@pytest.mark.parametrize("minor", [0, 1, 2])
def test_every_change_is_refused_until_it_is_off(tmp_path: Path, admin: Admin, minor: int, clients: str) -> None:
    async def test(site: Site) -> None:
        async with await client_of(site.daemon, "mountd") as mountd:
            root = await mountd.mount("/export")
        v3 = await client_of(site.daemon, uid=0, gid=0)
        v4 = await (await site.client(HOST, minor)).connect()
        stateid, handle = await v4.open("/export", b"open", create=mode(0o666), owner=b"before")
        file = await v3.create(root, b"file", mode=0o666)

        def write4() -> Any:
            args = p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"data")
            return status4(v4.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_WRITE, args)))

        def open4(access: int, owner: bytes) -> Any:
            return status4(v4.open("/export", b"file", access=access, owner=owner))

        assert await write4() == p.NFS4_OK
        assert await admin.table("read-only") == ["each export is as it is configured"]
        assert await admin.table("read-only", "on") == ["the whole server is read-only"]
        assert await write4() == p.NFS4ERR_ROFS, "through a file that was open already"
        assert await open4(p.OPEN4_SHARE_ACCESS_WRITE, b"w") == p.NFS4ERR_ROFS
        assert await open4(p.OPEN4_SHARE_ACCESS_BOTH, b"b") == p.NFS4ERR_ROFS
        assert await open4(p.OPEN4_SHARE_ACCESS_READ, b"r") == p.NFS4_OK
        make = (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d", mode(0o777)))
        remove = (p.OP_REMOVE, p.REMOVE4args(b"file"))
        for operation in (make, remove):
            assert await status4(v4.run(*v4.path("/export"), operation)) == p.NFS4ERR_ROFS
        refused = [
            v3.write(file, 0, b"data", stable=stable_how.FILE_SYNC),
            v3.write(file, 0, b"data"),
            v3.create(root, b"new", mode=0o666),
            v3.mkdir(root, b"dir"),
            v3.remove(root, b"file"),
            v3.rename(root, b"file", root, b"other"),
            v3._ok("LINK", LINK3args(file, diropargs3(root, b"other"))),
            v3._ok("SETATTR", SETATTR3args(file, attributes(mode=0o600), None)),
        ]
        assert [await status3(one) for one in refused] == [nfsstat3.NFS3ERR_ROFS] * len(refused)
        assert await status3(v3.getattr(file)) == 0
        assert await status3(v3.read(file, 0, 100)) == 0
        assert (tmp_path / "export" / "open").read_bytes() == b"data"
        (row,) = await admin.rows("exports")
        assert row["access"] == "ro"
        assert await admin.table("read-only", "off") == ["each export is as it is configured"]
        assert await write4() == p.NFS4_OK
        assert await status3(v3.create(root, b"new", mode=0o666)) == 0

    on_site(tmp_path, test, clients, server=NO_GRACE)


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_what_is_not_committed_yet_can_be_when_it_is_off(tmp_path: Path, admin: Admin, minor: int) -> None:
    """COMMIT needs what WRITE needs, as with Linux's server. Who is refused keeps the data, and the server keeps what
    it has: the same verifier says so afterwards."""

    async def test(site: Site) -> None:
        async with await client_of(site.daemon, "mountd") as mountd:
            root = await mountd.mount("/export")
        v3 = await client_of(site.daemon, uid=0, gid=0)
        v4 = await (await site.client(HOST, minor)).connect()
        stateid, handle = await v4.open("/export", b"four", create=mode(0o666))
        file = await v3.create(root, b"three", mode=0o666)
        commit = ((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        rows = site.daemon.dispatchers["nfs"].rows

        async def commit3() -> Any:
            return await v3._ok("COMMIT", COMMIT3args(file, 0, 0))

        def native() -> int:
            return rows[NFS_PROGRAM, 3, 21].native_calls + rows[NFS_PROGRAM, 4, 1].native_calls

        args = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, b"data")
        written3 = await v3._ok("WRITE", WRITE3args(file, 0, 4, stable_how.UNSTABLE, memoryview(b"data")))
        _, written4 = await v4.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_WRITE, args))
        assert written3.committed == written4.resok4.committed == stable_how.UNSTABLE
        await admin.table("read-only", "on")
        before = native()
        assert await status3(commit3()) == nfsstat3.NFS3ERR_ROFS
        assert await status4(v4.run(*commit)) == p.NFS4ERR_ROFS
        assert native() == before + 2
        await admin.table("read-only", "off")
        assert (await commit3()).verf == written3.verf
        _, committed4 = await v4.run(*commit)
        assert committed4.resok4.writeverf == written4.resok4.writeverf
        assert [(tmp_path / "export" / name).read_bytes() for name in ("three", "four")] == [b"data"] * 2

    on_site(tmp_path, test, RW, server=NO_GRACE)


def test_a_file_that_is_read_again_leaves_the_switch_but_for_its_own_word(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        file = tmp_path / "exports.yaml"
        text = file.read_text()

        async def is_read_only() -> bool:
            return await admin.table("read-only") == ["the whole server is read-only"]

        await admin.table("read-only", "on")
        assert "the exports are the same" in (await admin.table("reload", "--dry-run"))[0]
        await admin.table("reload")
        assert await is_read_only(), "a reload for another reason"
        file.write_text(text.replace("  rpcbind: false\n", "  rpcbind: false\n  read_only: true\n"))
        await admin.table("reload")
        assert await is_read_only()
        await admin.table("read-only", "off")
        await admin.table("reload")
        assert not await is_read_only(), "the file says what it said"
        file.write_text(text)
        await admin.table("reload")
        file.write_text(text.replace("  rpcbind: false\n", "  rpcbind: false\n  read_only: true\n"))
        lines = await admin.table("reload")
        assert not any("read_only: at the next start" in line for line in lines)
        assert await is_read_only()

    on_site(tmp_path, test, server=NO_GRACE)


def test_a_drained_export_stays_so_when_the_switch_is_turned(tmp_path: Path, admin: Admin) -> None:
    (tmp_path / "other").mkdir()

    async def test(site: Site) -> None:
        await admin.table("drain", "/other", "--seconds", "0")
        for word in ("on", "off"):
            await admin.table("read-only", word)
            assert [row["export"] for row in await admin.rows("exports")] == ["/export"]

    on_site(tmp_path, test, more="  - {path: other, pseudo: /other, squash: none}\n")


def test_from_the_start_it_is_in_the_ready_line_the_metrics_and_the_page(tmp_path: Path, admin: Admin) -> None:
    (tmp_path / "export").mkdir()

    async def test(site: Site) -> None:
        daemon = site.daemon
        assert daemon.ready_line.endswith("(read-only)")
        stats = json.loads("\n".join(await admin.table("stats", "--json")))
        assert stats["read_only"] is True
        assert any("read-only" in note for note in stats["notes"])
        v4 = await (await site.client(HOST)).connect()
        assert await status4(v4.open("/export", b"new", create=mode(0o666))) == p.NFS4ERR_ROFS

        def page(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{daemon.metrics_port}{path}", timeout=20) as reply:
                return str(reply.read().decode())

        assert "\nrdma_nfsd_read_only 1.0\n" in await asyncio.to_thread(page, "/metrics")
        assert json.loads(await asyncio.to_thread(page, "/readyz"))["read_only"] is True
        await admin.table("read-only", "off")
        assert "\nrdma_nfsd_read_only 0.0\n" in await asyncio.to_thread(page, "/metrics")
        assert not daemon.ready_line.endswith("(read-only)")

    on_site(tmp_path, test, server=NO_GRACE + "  read_only: true\n  metrics: {listen: '127.0.0.1:0'}\n")


def test_the_switch_outlives_no_process(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        await admin.table("read-only", "on")
        await site.daemon.stop()
        again = Daemon(load(str(tmp_path / "exports.yaml")), Rpcbind((), None))
        await again.start()
        try:
            assert not again.ready_line.endswith("(read-only)")
        finally:
            await again.stop()

    on_site(tmp_path, test)


def test_an_export_that_comes_back_while_it_is_on_is_read_only(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        assert [row["absent"] != "" for row in await admin.rows("exports")] == [False, True]
        await admin.table("read-only", "on")
        (tmp_path / "later").mkdir()
        await site.daemon._reloader.find_absent()
        rows = await admin.rows("exports")
        assert [(row["export"], row["access"], row["absent"]) for row in rows] == [
            ("/export", "ro", ""),
            ("/later", "ro", ""),
        ]
        await admin.table("read-only", "off")
        assert [row["access"] for row in await admin.rows("exports")] == ["rw", "rw"]

    on_site(tmp_path, test, more="  - {path: later, pseudo: /later, squash: none}\n")


def switch_of(server: Any) -> ReadOnlySwitch:
    config = Config("", Server(listen=()), server.service.exports.exports)
    return ReadOnlySwitch(Reloader(config, server.service, server.nfs4), server.nfs4)


@pytest.mark.parametrize("minor", [0, 1])
def test_what_is_written_while_delegations_come_back_is_taken(tmp_path: Path, minor: int) -> None:
    @prepared
    async def test(server: Any, export: Path, one: Any, two: Any) -> None:
        (export / "g").write_bytes(b"")
        opened = await delegated(one, b"g", BOTH)
        assert opened.delegation.delegation_type == WRITE_DELEGATION
        one.end.keep = True  # it writes first
        switch = switch_of(server)
        turning = asyncio.ensure_future(switch.turn(True, 60.0))
        await until(lambda: one.end.recalls == 1)
        args = p.WRITE4args(stateid_of(opened), 0, p.stable_how4.FILE_SYNC4, b"late")
        assert await status4(one.on(one.handles[b"g"], (p.OP_WRITE, args))) == p.NFS4_OK
        assert not turning.done()
        await one.give_back(stateid_of(opened), one.handles[b"g"])
        assert await turning == {"read_only": True, "changed": True, "delegations": 0}
        assert (export / "g").read_bytes() == b"late"
        assert await two.open_status(b"g", p.OPEN4_SHARE_ACCESS_WRITE) == p.NFS4ERR_ROFS
        await switch.turn(False, 0.0)
        assert await two.open_status(b"g", p.OPEN4_SHARE_ACCESS_WRITE) == p.NFS4_OK

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("how", ["switch", "export", "client"])
@pytest.mark.parametrize("minor", [0, 1])
def test_a_file_that_is_read_again_waits_for_delegations_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: int, how: str
) -> None:
    """Whether it has the switch on, an export ``access: ro``, or an entry of ``clients``."""
    monkeypatch.setattr("nfsd.read_only._PATIENCE", 60.0, raising=False)

    @prepared
    async def test(server: Any, export: Path, one: Any, two: Any) -> None:
        (export / "g").write_bytes(b"")
        opened = await delegated(one, b"g", BOTH)
        assert opened.delegation.delegation_type == WRITE_DELEGATION
        one.end.keep = True  # it writes first
        exports = server.service.exports.exports
        reloader = Reloader(Config("", Server(listen=()), exports), server.service, server.nfs4)
        ReadOnlySwitch(reloader, server.nfs4)
        changed = {
            "switch": exports,
            "export": tuple(replace(each, read_only=True) for each in exports),
            "client": tuple(
                replace(each, clients=("127.0.0.0/8", "*"), overrides=(ClientOverride("127.0.0.0/8", read_only=True),))
                for each in exports
            ),
        }[how]

        async def read() -> Config:
            return Config("", Server(listen=(), read_only=how == "switch"), changed)

        reloader.read = read  # type: ignore[method-assign]
        reloading = asyncio.ensure_future(reloader.reload())
        await until(lambda: one.end.recalls == 1 or reloading.done())
        args = p.WRITE4args(stateid_of(opened), 0, p.stable_how4.FILE_SYNC4, b"late")
        assert await status4(one.on(one.handles[b"g"], (p.OP_WRITE, args))) == p.NFS4_OK
        assert not reloading.done()
        await one.give_back(stateid_of(opened), one.handles[b"g"])
        assert await reloading
        assert (export / "g").read_bytes() == b"late"
        assert await two.open_status(b"g", p.OPEN4_SHARE_ACCESS_WRITE) == p.NFS4ERR_ROFS
        through = p.WRITE4args(opened.stateid, 0, p.stable_how4.FILE_SYNC4, b"never")
        assert await status4(one.on(one.handles[b"g"], (p.OP_WRITE, through))) == p.NFS4ERR_ROFS
        assert await status4(one.on(one.handles[b"g"], (p.OP_COMMIT, p.COMMIT4args(0, 0)))) == p.NFS4ERR_ROFS
        assert (export / "g").read_bytes() == b"late"

    with_two(tmp_path, minor, test)


def test_who_keeps_a_delegation_does_not_keep_the_switch_off(tmp_path: Path) -> None:
    @prepared
    async def test(server: Any, export: Path, one: Any, two: Any) -> None:
        (export / "g").write_bytes(b"")
        opened = await delegated(one, b"g", BOTH)
        one.end.keep = True
        assert await switch_of(server).turn(True, 0.0) == {"read_only": True, "changed": True, "delegations": 1}
        await until(lambda: one.end.recalls == 1)
        args = p.WRITE4args(stateid_of(opened), 0, p.stable_how4.FILE_SYNC4, b"late")
        assert await status4(one.on(one.handles[b"g"], (p.OP_WRITE, args))) == p.NFS4ERR_ROFS

    with_two(tmp_path, 1, test)


def test_an_asynchronous_copy_ends_where_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Any, export: Path, client: Any, other: Any) -> None:
        pieces = Pieces(monkeypatch, go=2)
        stateid, _ = await offload(client)
        assert stateid is not None
        await until(lambda: pieces.begun == 2)
        await until(lambda: (export / "target").stat().st_size == 2 * PIECE)
        await switch_of(server).turn(True, 0.0)
        pieces.go(100)
        await until(lambda: server.nfs4.copies.counters.started == server.nfs4.copies.counters.completed)
        assert pieces.begun <= 3, "one may have been under way"
        assert (export / "target").stat().st_size == pieces.begun * PIECE

    with_two(place.parent, 2, test)
