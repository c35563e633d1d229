"""The commands that ask a running server, with clients of NFSv3, 4.0 and 4.1 over TCP and software iWARP."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nfsd import cli
from nfsd.admin import asking, shapes
from nfsd.command_line import build_parser
from nfsd.daemon import Daemon
from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4
from nfsd.protocol.nfs3 import nfs_fh3, stable_how
from nfsd.without_file import configuration
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header as rdma_header
from rpcrdma.rpc.rpcbind import Rpcbind
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.xdr import Encoder, XdrError
from tests.nfs3_client import Nfs3Client
from tests.support.delegations import until
from tests.support.hosts import Site, on_site, rpc_call, verdict
from tests.support.nfs4 import Client4, Failed, mode
from tests.unit import vfs_support
from tests.unit.nfs_client_support import Rig
from tests.unit.test_waiting_calls import stalled

HOST, OTHER = "127.0.0.1", "127.0.0.2"
NO_GRACE = "  nfs4: {grace_time: 0, delegations: nfs}\n"
WRITE_LT, READ_LT = p.nfs_lock_type4.WRITE_LT, p.nfs_lock_type4.READ_LT


class Admin:
    """Runs the commands against a daemon in this process."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self.capsys = base, capsys

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, and what was printed."""
        config = ("--config", str(self.base / "exports.yaml"))
        status = await asyncio.to_thread(cli.main, [arguments[0], *config, *arguments[1:]])
        out, err = self.capsys.readouterr()
        return status, out, err

    async def table(self, *arguments: str) -> list[str]:
        status, out, err = await self.run(*arguments)
        assert (status, err) == (0, "")
        return out.splitlines()

    async def rows(self, command: str) -> Any:
        return json.loads("\n".join(await self.table(command, "--json")))


@pytest.fixture
def admin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Admin:
    return Admin(tmp_path, capsys)


async def locked(client: Any, stateid: p.stateid4, handle: bytes, kind: Any, start: int, length: int) -> None:
    owner = p.open_to_lock_owner4(client.seqid(b"owner"), stateid, 0, p.lock_owner4(client.clientid, b"locker"))
    args = p.LOCK4args(kind, False, start, length, p.locker4(True, open_owner=owner))
    await client.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_LOCK, args))


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_clients_with_what_they_hold(tmp_path: Path, admin: Admin, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(OTHER, minor)).connect()
        stateid, handle = await client.open("/export", b"file", create=mode(0o666))
        await locked(client, stateid, handle, WRITE_LT, 10, 20)
        (row,) = await admin.rows("clients")
        assert row["client"] == OTHER
        assert row["name"] == "client"
        assert row["state"] == "active"
        assert 0 < row["lease"] <= 90
        assert row["version"].startswith("NFSv4.1" if minor == 1 else f"NFSv4.{minor}")
        assert (row["sessions"], row["opens"], row["locks"]) == (min(minor, 1), 1, 1)
        assert row["connections"] == {"tcp": 1}
        assert row["calls"] >= 2
        (opened,) = await admin.rows("opens")
        assert (opened["export"], opened["file"]) == ("/export", str(tmp_path / "export" / "file"))
        assert (opened["access"], opened["deny"], opened["client"]) == ("rw", "-", OTHER)
        (lock,) = await admin.rows("locks")
        assert (lock["start"], lock["length"], lock["exclusive"], lock["held"]) == (10, 20, True, True)
        assert (lock["file"], lock["id"]) == (opened["file"], row["id"])
        sessions = await admin.rows("sessions")
        assert len(sessions) == min(minor, 1)
        for session in sessions:
            assert session["session"] == client.session.hex()
            assert session["connections"][0].startswith(f"tcp {OTHER} port ")
            assert session["slots"] >= 1
        for command in ("clients", "opens", "locks", *(["sessions"] if minor else [])):
            head, line = await admin.table(command)
            assert head.split()[0] in ("CLIENT", "SESSION")
            assert OTHER in line
        (export,) = await admin.rows("exports")
        assert (export["export"], export["opens"], export["clients"], export["waiting"]) == ("/export", 1, 1, 0)

    on_site(tmp_path, test, server=NO_GRACE)


class OverRdma:
    """A raw peer on software iWARP that carries the calls of a :class:`Client4`."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def call(self, transport: Any, message: bytes, chunks: Any = ()) -> bytes:
        return (await self.peer.call(rdma_header(int.from_bytes(message[:4], "big")), message)).payload


@pytest.mark.parametrize("minor", [0, 1])
def test_a_client_of_each_minor_version_over_software_iwarp_is_seen_and_evicted(
    tmp_path: Path, admin: Admin, minor: int
) -> None:
    rig = Rig(tmp_path)
    rig.extra = NO_GRACE

    async def test() -> None:
        pool = Pool(64 << 20)
        provider, peer = SoftIwarp(pool), Peer(pool.account(64 << 20), 4096)
        await peer.connect(provider, ListenAddress(HOST, rig.ports["rdma"]), b"")
        client = await Client4(OverRdma(peer), minor, name=b"iwarp").connect()  # type: ignore[arg-type]
        await client.open("/export", b"file", create=mode(0o666))
        (row,) = await admin.rows("clients")
        assert (row["name"], row["opens"], row["connections"]) == ("iwarp", 1, {"rdma": 1})
        (opened,) = await admin.rows("opens")
        assert opened["file"] == str(tmp_path / "export" / "file")
        assert len(await admin.rows("sessions")) == minor
        stats = await admin.rows("stats")
        assert stats["credits"]["limit"] >= 1
        assert stats["rdma"]["calls"] >= 4
        assert (await admin.table("evict", HOST))[-1] == "closed 1 connection"
        assert await peer.over()
        assert await admin.rows("opens") == []
        await provider.close()

    rig.run(test)


@pytest.mark.parametrize(("transport", "version"), [("tcp", "3"), ("rdma", "3"), ("rdma", "4.1"), ("tcp", "4.1")])
def test_a_client_at_work_is_seen_with_its_transport_and_octets(
    tmp_path: Path, admin: Admin, transport: str, version: str
) -> None:
    rig = Rig(tmp_path, transport, version)

    async def test() -> None:
        async with rig.connect() as files:
            await files.write_bytes("file", bytes(100_000))
            rows = await admin.rows("clients")
            row = next(row for row in rows if row["calls"])
            assert row["client"] == HOST
            assert row["written"] == 100_000
            assert row["connections"].get(transport) == 1, row
            assert row["version"] == (f"NFSv{version}")
            assert version != "3" or row["name"] == "/export"
        assert version == "3" or [(gone["version"], gone["id"]) for gone in await admin.rows("clients")] == [("", "")]
        stats = await admin.rows("stats")
        assert stats["exports"]["/export"]["written"] == 100_000
        assert stats["clients"][HOST]["written"] == 100_000
        assert any(row["call"] == f"v{version[0]} WRITE" for row in stats["calls"])
        assert (stats["rdma"]["calls"] > 0) == (transport == "rdma")
        text = await admin.table("stats")
        assert any(line.split()[:2] == [f"v{version[0]}", "WRITE"] for line in text)
        (export,) = (await admin.table("exports"))[1:]
        assert "97.7K" in export

    rig.run(test)


def test_a_call_that_waits_is_in_flight_with_its_operation_and_export(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(OTHER)).connect()
        _, handle = await client.open("/export", b"file", create=mode(0o666))
        service = site.daemon.service
        gate, opening = asyncio.Event(), service.open

        async def slow(*arguments: Any, **how: Any) -> Any:
            await gate.wait()
            return await opening(*arguments, **how)

        service.open = slow  # type: ignore[method-assign]
        client.credential = (1001, 1001, ())  # for whom it is not open yet
        operation = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 10))
        # Asked to keep its reply, a READ is not for the native path.
        reading = asyncio.ensure_future(client.run((p.OP_PUTFH, p.PUTFH4args(handle)), operation, cache=True))
        await until(lambda: site.daemon.dispatchers["nfs"].running)
        (row,) = await admin.rows("inflight")
        assert (row["client"], row["over"], row["call"], row["export"]) == (OTHER, "tcp", "nfsv4 READ", "/export")
        assert row["seconds"] >= 0
        (line,) = (await admin.table("inflight"))[1:]
        assert "nfsv4 READ" in line
        stats = await admin.rows("stats")
        assert (stats["waiting"], stats["inflight"][0]["call"]) == (1, "nfsv4 READ")
        gate.set()
        await reading
        assert await admin.rows("inflight") == []

    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.parametrize("version", [3, 4])
def test_a_call_that_waits_natively_is_in_flight_too_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    with vfs_support.directory_on("disk", tmp_path) as disk:
        admin = Admin(Path(disk), capsys)

        async def test(site: Site) -> None:
            service = site.daemon.service
            client = await (await site.client(OTHER)).connect()
            stateid, handle = await client.open("/export", b"file", create=mode(0o666))
            there = (p.OP_PUTFH, p.PUTFH4args(handle))
            writing: Any
            if version == 4:
                operation = (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"data"))
                await client.run(there, operation)
                begin = lambda: client.run(there, operation)  # noqa: E731
            else:
                nfs3 = await Nfs3Client.connect("127.0.0.1", site.port(), uid=0, gid=0)
                file = nfs_fh3(handle)
                await nfs3.write(file, 0, b"data", stable_how.FILE_SYNC)
                begin = lambda: nfs3.write(file, 0, b"data", stable_how.FILE_SYNC)  # type: ignore[assignment]  # noqa: E731
            root = await service.root(site.daemon.exports.exports[0])
            async with stalled(service, root, tmp_path):
                writing = asyncio.ensure_future(begin())
                await until(lambda: site.daemon.dispatchers["nfs"].held)
                (row,) = await admin.rows("inflight")
                assert (row["call"], row["export"]) == (f"nfsv{version} WRITE", "/export")
                assert row["client"] == (OTHER if version == 4 else HOST)
                assert row["why"].startswith("waits for ")
                assert row["why"] in (await admin.table("inflight"))[1]
                (export,) = await admin.rows("exports")
                assert export["waiting"] == 1
                assert (await admin.rows("stats"))["waiting"] == 1
            await writing
            assert await admin.rows("inflight") == []

        on_site(Path(disk), test, server=NO_GRACE)


@pytest.mark.parametrize("minor", [0, 1])
@pytest.mark.parametrize("by", ["address", "id"])
def test_who_is_evicted_loses_everything_and_others_get_it(tmp_path: Path, admin: Admin, minor: int, by: str) -> None:
    async def test(site: Site) -> None:
        victim = await (await site.client(OTHER, minor, name=b"victim")).connect()
        other = await (await site.client(HOST, minor, name=b"other")).connect()
        stateid, handle = await victim.open("/export", b"file", create=mode(0o666), deny=p.OPEN4_SHARE_DENY_WRITE)
        with pytest.raises(Failed):
            await other.open("/export", b"file", access=2)
        name = OTHER if by == "address" else f"{victim.clientid:016x}"
        text = await admin.table("evict", name)
        assert text[0].startswith(f'gave up {OTHER} "victim" (NFSv4.')
        assert "1 open" in text[0]
        assert text[-1] == "closed 1 connection"
        await other.open("/export", b"file", access=2, owner=b"another")
        assert {row["name"] for row in await admin.rows("clients") if row["name"]} == {"other"}
        with pytest.raises((Failed, OSError, EOFError)):
            await victim.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_READ, p.READ4args(stateid, 0, 1)))
        again = await (await site.client(OTHER, minor, name=b"victim")).connect(b"again   ")
        await again.run(*again.path("/export"))
        status, out, err = await admin.run("evict", "192.0.2.1")
        assert (status, out) == (1, "")
        assert "no client 192.0.2.1" in err

    on_site(tmp_path, test, server=NO_GRACE)


def test_a_client_of_nfsv3_is_evicted_with_its_locks_and_mounts(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        async with await Nfs3Client.connect(HOST, site.port("mountd"), uid=0, gid=0) as mountd:
            root = await mountd.mount("/export")
            async with await Nfs3Client.connect(HOST, site.port(), uid=0, gid=0) as client:
                file = await client.create(root, b"file")
                wanted = nlm4.nlm4_lock(b"host", file.data, b"oh", 1, 5, 10)
                args = Encoder()
                args.encode(nlm4.nlm4_lockargs, nlm4.nlm4_lockargs(b"", False, True, wanted, False, 7))
                wire = await site.wire(HOST, "nlm")
                call = rpc_call(nlm4.NLM_PROGRAM, 4, nlm4.NLMPROC4_LOCK, args.getvalue())
                assert verdict(await wire.call(None, call)) == (0, 0)
                mounted, locking = sorted(await admin.rows("clients"), key=lambda row: row["version"])
                assert (mounted["client"], mounted["version"], mounted["name"]) == (HOST, "NFSv3", "/export")
                assert mounted["connections"] == {"tcp": 3}
                assert (locking["version"], locking["name"], locking["locks"]) == ("NFSv3 locks", "host", 1)
                (lock,) = await admin.rows("locks")
                assert (lock["start"], lock["length"], lock["version"]) == (5, 10, "NFSv3 locks")
                assert lock["file"] == str(tmp_path / "export" / "file")
                text = await admin.table("evict", HOST)
                assert text == [f'gave up {HOST} "host" (NFSv3 locks): 1 open, 1 lock', "closed 3 connections"]
        assert await admin.rows("locks") == []
        assert not [row for row in await admin.rows("clients") if row["name"]]

    on_site(tmp_path, test)


def test_clients_that_are_away_are_forgotten_and_no_others(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        away = await (await site.client(OTHER, name=b"away")).connect()
        here = await (await site.client(HOST, name=b"here")).connect()
        await away.open("/export", b"f", create=mode(0o666))
        assert await admin.table("forget") == ["nobody was away"]
        (record,) = [one for one in site.engine.clients.all() if one.owner == b"away"]
        record.lease_end = 0.0
        site.engine._sweep(site.engine.now())
        (row,) = [row for row in await admin.rows("clients") if row["name"] == "away"]
        assert row["state"] == "courtesy"
        assert row["lease"] < 0
        status, _, err = await admin.run("forget", HOST)
        assert status == 1
        assert "whose lease is over" in err
        assert (await admin.table("forget"))[0].startswith(f'gave up {OTHER} "away"')
        assert {row["name"] for row in await admin.rows("clients") if row["id"]} == {"here"}
        await here.run(*here.path("/export"))

    on_site(tmp_path, test, server=NO_GRACE)


def test_an_export_is_drained_until_reloaded(tmp_path: Path, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "other").mkdir()
    more = "  - {path: other, pseudo: /other, squash: none}\n"

    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        stateid, handle = await client.open("/export", b"file", create=mode(0o666))
        kept, there = await client.open("/other", b"file", create=mode(0o666))
        (line,) = await admin.table("drain", "/export", "--dry-run")
        assert line == f'{HOST} "client" (NFSv4.1+): 1 open, 0 delegations'
        await client.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_READ, p.READ4args(stateid, 0, 1)))
        lines = await admin.table("drain", "/export", "--seconds", "0.1")
        assert lines[-1] == "/export is not served until `rdma-nfsd reload`; clients lost 1 state"
        assert [row["export"] for row in await admin.rows("exports")] == ["/other"]
        with pytest.raises(Failed) as failed:
            await client.run((p.OP_PUTFH, p.PUTFH4args(handle)), p.OP_GETFH)
        assert failed.value.status == p.NFS4ERR_STALE
        await client.run((p.OP_PUTFH, p.PUTFH4args(there)), (p.OP_READ, p.READ4args(kept, 0, 1)))
        status, _, err = await admin.run("drain", "/nothing")
        assert status == 1
        assert "no export /nothing" in err
        with pytest.raises(Failed):
            await client.run(*client.path("/export"))
        assert "and drained; `rdma-nfsd reload` serves it again" in caplog.text
        changes = await admin.table("reload")
        assert changes[0].endswith("taken up: now exported: /export")
        assert f"{HOST}  /export: may use it, read-write" in changes
        await client.run((p.OP_PUTFH, p.PUTFH4args(handle)), p.OP_GETFH)

    on_site(tmp_path, test, server=NO_GRACE, more=more)


def test_a_server_without_a_file_is_steered_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "export").mkdir()
    state = str(tmp_path / "state")
    arguments = ["serve", str(tmp_path / "export"), "--listen", "tcp://127.0.0.1:0", "--client", HOST]
    config = configuration(build_parser().parse_args([*arguments, "--state-dir", state]))

    async def main() -> None:
        daemon = Daemon(replace(config, server=replace(config.server, mountd_port=0)), Rpcbind((), None))
        await daemon.start()
        site = Site(tmp_path, daemon)
        client = await (await site.client(HOST)).connect()
        await client.run(*client.path("/export"))
        with pytest.raises(XdrError):  # a denied call has no results
            await (await site.client(OTHER)).connect()
        assert f"{OTHER} is refused: no export is for it; to admit it, serve with --client {OTHER}" in caplog.text
        for command, said in (
            (["reload", "--dry-run"], "command line: a dry run: the exports are the same"),
            (["drain", "/export", "--seconds", "0"], "/export is not served until `rdma-nfsd reload`"),
            (["reload"], "command line: taken up: now exported: /export"),
        ):
            assert await asyncio.to_thread(cli.main, [*command, "--state-dir", state]) == 0
            assert said in capsys.readouterr().out
        await client.run(*client.path("/export"))
        await site.close()
        await daemon.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_dry_run_says_what_would_change_for_whom_and_changes_nothing(tmp_path: Path, admin: Admin) -> None:
    (tmp_path / "other").mkdir()
    file = tmp_path / "exports.yaml"

    async def test(site: Site) -> None:
        one = await (await site.client(HOST, name=b"one")).connect()
        two = await (await site.client(OTHER, name=b"two")).connect()
        await one.open("/export", b"file", create=mode(0o666))
        await two.run(*two.path("/export"))
        assert (await admin.table("reload", "--dry-run"))[0] == f"{file}: a dry run: the exports are the same"
        text = file.read_text().replace("clients: ['*']", f"clients: ['{OTHER}']\n    access: ro")
        text += f"  - {{path: other, pseudo: /other, clients: [{HOST}]}}\n"
        file.write_text(text.replace("server:\n", "server:\n  nlm: false\n  log: {level: error}\n"))
        lines = await admin.table("reload", "--dry-run")
        assert lines == [
            f"{file}: a dry run: now exported: /other; changed: /export",
            "log level: info -> error",
            "server.nlm: at the next start",
            f"{HOST}  /export: may not use it any more (in use)",
            f"{HOST}  /other: may use it, read-write",
            f"{OTHER}  /export: read_only False -> True (in use)",
        ]
        assert [row["export"] for row in await admin.rows("exports")] == ["/export"]
        await one.run(*one.path("/export"))
        answer = json.loads("\n".join(await admin.table("reload", "--dry-run", "--json")))
        assert answer["dry_run"] is True
        file.write_text(text.replace("pseudo: /export", "pseudo: nonsense"))
        status, out, err = await admin.run("reload", "--dry-run")
        assert (status, out) == (2, ""), "the command reads the configuration itself, and says what is wrong"
        assert f"{file}:" in err
        answered = await asyncio.to_thread(_refusal, site.daemon.config.server.state_dir)
        assert f"{file}:" in answered
        file.write_text(text)
        assert "changed: /export" in (await admin.table("reload"))[0]
        assert len(await admin.rows("exports")) == 2

    on_site(tmp_path, test, server=NO_GRACE)


def _refusal(state_dir: str) -> str:
    with pytest.raises(asking.NotAnswered) as refused:
        asking.ask(state_dir, "reload", dry_run=True)
    return str(refused.value)


def test_the_logs_level_is_shown_and_set(tmp_path: Path, admin: Admin) -> None:
    before = logging.getLogger().level

    async def test(site: Site) -> None:
        assert await admin.table("log-level", "debug") == ["debug"]
        assert logging.getLogger().level == logging.DEBUG
        assert await admin.table("log-level") == ["debug"]
        status, _, err = await admin.run("log-level", "loud")
        assert status == 1
        assert "no level loud" in err

    try:
        on_site(tmp_path, test)
    finally:
        logging.getLogger().setLevel(before)


def test_long_tables_are_bounded(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        for number in range(12):
            await client.open("/export", b"f%d" % number, create=mode(0o666), owner=b"o%d" % number)
        status, out, err = await admin.run("opens", "--limit", "5")
        assert (status, len(out.splitlines())) == (0, 6)
        assert err == "… and 7 more; --limit shows them\n"
        for wrong in ("0", "1000000"):
            assert (await admin.run("opens", "--limit", wrong))[0] == 1

    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"command": "clients", "limit": "all"}\n', "limit must be"),
        (b'{"command": "clients", "limit": true}\n', "limit must be"),
        (b'{"command": "clients", "more": 1}\n', "not a request: more"),
        (b'{"command": "evict", "client": ["x"]}\n', "client must be a text"),
        (b'{"command": "drain", "export": "/export", "seconds": "soon"}\n', "seconds must be"),
        (b'{"command": "drain", "export": "/export", "seconds": NaN}\n', "seconds must be"),
        (b'{"command": {"a": 1}}\n', "unknown command"),
        (b'{"command": "__init__"}\n', "unknown command"),
    ],
)
def test_requests_that_are_none(tmp_path: Path, line: bytes, why: str) -> None:
    async def test(site: Site) -> None:
        with asking.address_in(site.daemon.config.server.state_dir) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(line)
        answer = json.loads(await asyncio.wait_for(reader.readline(), 20))
        assert why in answer["error"]
        writer.close()

    on_site(tmp_path, test)


def test_a_request_that_fails_costs_the_server_nothing(
    tmp_path: Path, admin: Admin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nfsd.inspector import Inspector

    async def broken(self: Inspector) -> list[Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(Inspector, "sessions", broken)

    async def test(site: Site) -> None:
        status, _, err = await admin.run("sessions")
        assert status == 1
        assert "the server failed; its log says how" in err
        assert "ZeroDivisionError" in caplog.text
        assert await admin.rows("clients") == []

    on_site(tmp_path, test)


def test_without_a_server_the_commands_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["clients", "--state-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"rdma-nfsd clients: no server is running with the state directory {tmp_path}\n"
    monkeypatch.setattr(asking, "PLACES", (str(tmp_path / "*"),))
    assert cli.main(["clients"]) == 1
    assert "no server is found" in capsys.readouterr().err


def test_a_server_is_found_by_itself(tmp_path: Path, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PLACES", (str(tmp_path / "*"),))

    async def test(site: Site) -> None:
        assert await asyncio.to_thread(cli.main, ["clients"]) == 0
        assert admin.capsys.readouterr().out == "no clients\n"

    on_site(tmp_path, test)


def test_rates_are_what_has_grown() -> None:
    before = {
        "uptime": 10.0, "cpu": 1.0, "operations": {"READ": 5}, "rdma": {}, "iwarp": {},
        "exports": {"/a": {"calls": 3, "seconds": 1.0}}, "clients": {},
        "calls": [{"call": "v3 READ", "count": 2, "seconds": 0.5, "buckets": [1, 1, 0]}],
    }  # fmt: skip
    after = {
        "uptime": 12.0, "cpu": 1.5, "operations": {"READ": 9, "OPEN": 1}, "rdma": {"calls": 4}, "iwarp": {},
        "exports": {"/a": {"calls": 10, "seconds": 1.5}, "/b": {"calls": 1, "seconds": 0.0}}, "clients": {},
        "calls": [
            {"call": "v3 READ", "count": 6, "seconds": 1.5, "buckets": [1, 3, 2]},
            {"call": "v3 WRITE", "count": 1, "seconds": 0.1, "buckets": [1, 0, 0]},
        ],
    }  # fmt: skip
    found = shapes.between(before, after)
    assert (found["elapsed"], found["cpu"]) == (2.0, 0.5)
    assert found["operations"] == {"READ": 4, "OPEN": 1}
    assert found["exports"] == {"/a": {"calls": 7, "seconds": 0.5}, "/b": {"calls": 1, "seconds": 0.0}}
    assert found["calls"][0] | {"call": ""} == {"call": "", "count": 4, "seconds": 1.0, "buckets": [0, 2, 2]}
    assert found["calls"][1]["count"] == 1
    bounds = (0.001, 0.002)
    assert shapes.quantile(bounds, [0, 2, 2], 0.5) == 0.002
    assert shapes.quantile(bounds, [0, 2, 2], 0.99) == 0.004
    assert shapes.quantile(bounds, [0, 0, 0], 0.5) == 0.0
    assert [shapes.duration(seconds) for seconds in (1.2e-6, 0.0123, 2.0)] == ["1µs", "12.3ms", "2.0s"]
    assert [shapes.octets(count) for count in (0, 999, 1536, 10 << 30)] == ["0", "999", "1.5K", "10.0G"]
