"""Several processes that serve together: real ones, with clients of several loopback addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nfsd import capture
from nfsd.config_file import load
from nfsd.control import CaptureRequest
from nfsd.daemon import Daemon
from nfsd.protocol import nfs4 as p
from nfsd.supervising.supervisor import StartError, Supervisor
from rpcrdma.capture.events import Connection, Kind, Reader
from rpcrdma.rpc.rpcbind import Rpcbind, Service
from rpcrdma.server.spread import place_of
from tests.nfs3_client import Nfs3Client, auth_sys
from tests.support.callbacks import CallbackListener
from tests.support.delegations import NONE, READ_DELEGATION, Holder, ReturningEnd, until
from tests.support.nfs4 import Client4, LoopbackTransport, mode
from tests.support.over_tcp import OverTcp
from tests.support.together import Together, together
from tests.unit.test_v4_locks import locking, there
from tests.unit.test_v4_recovery import reclaiming

REPO = Path(__file__).parents[2]
LOCKTEST = 0, 100


async def identity(client: Client4) -> tuple[bytes, bytes]:
    """The server's owner and scope, as this client is told."""
    owner = p.client_owner4(b"verifier", client.name)
    asked = p.EXCHANGE_ID4args(owner, 0, p.state_protect4_a(p.state_protect_how4.SP4_NONE), [])
    _, [(_, found)] = await client.raw((p.OP_EXCHANGE_ID, asked))
    return bytes(found.eir_resok4.eir_server_owner.so_major_id), bytes(found.eir_resok4.eir_server_scope)


def test_a_client_has_one_process_and_its_files_have_one_handle(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        one, other = site.host_of(0, 3), site.host_of(2, 3)
        streams = [await site.connection(one) for _ in range(4)] + [await site.connection(one, "mountd")]
        mounted = await Nfs3Client(*streams[-1], auth_sys(0, 0)).mount("/export")
        for stream in streams[:4]:
            await Nfs3Client(*stream, auth_sys(0, 0)).getattr(mounted)
        second = Nfs3Client(*await site.connection(other), auth_sys(0, 0))
        assert (await second.getattr(mounted)) is not None, "a handle of one process, at another"
        rows = {row["client"]: row for row in (await site.asked("clients"))["rows"]}
        assert rows[one]["process"] == 0
        assert rows[one]["connections"] == {"tcp": 5}
        assert rows[other]["process"] == 2
        for _, writer in streams:
            writer.close()
        # Two servers to a client that comes from two addresses, of one scope (RFC 8881 sections 2.10.4 and 2.10.5).
        (owner, scope), (others, same) = [await identity(site.client(host)) for host in (one, other)]
        assert owner != others
        assert scope == same
        stats = await site.asked("stats")
        assert sum(row["count"] for row in stats["calls"] if row["call"] == "v3 GETATTR") == 5
        assert stats["exports"]["/export"]["calls"] >= 5
        (row,) = [row for row in (await site.asked("exports"))["rows"] if row["export"] == "/export"]
        assert row["clients"] == 2
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "nfsd.cli", "ls", f"rdma://127.0.0.1:{site.port(kind='rdma')}/"],
            capture_output=True, text=True, cwd=REPO, check=False, timeout=60,
        )  # fmt: skip
        assert "export" in done.stdout, done.stderr

    together(tmp_path, 3, test, listen="'tcp://127.0.0.1:0', 'rdma://127.0.0.1:0'")


def test_clients_of_two_processes_see_each_others_locks_and_delegations(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        one, two = [await site.client(site.host_of(index, 2)).connect() for index in (0, 1)]
        stateid, handle = await one.open("/export", b"f", create=mode(0o666))
        same, found = await two.open("/export", b"f")
        assert found == handle
        await one.on(handle, locking(one, stateid, 0, 100))
        assert await two.status(there(handle), locking(two, same, 50, 10)) == p.NFS4ERR_DENIED
        assert await two.status(there(handle), locking(two, same, 100, 10, owner=b"beside")) == p.NFS4_OK
        async with CallbackListener(ReturningEnd()) as listener:
            server: Any = OverTcp("127.0.0.1", site.port(), own=site.host_of(0, 2, 1))
            holder = Holder(server, 0, name=b"holder", transport=LoopbackTransport())
            holder.handles, holder.end, holder.callback_address = {}, listener.end, listener.address
            holder.give_back_statuses, listener.end.client = [], holder
            await holder.connect()
            (tmp_path / "other" / "g").write_bytes(b"text")
            os.chmod(tmp_path / "other" / "g", 0o666)

            async def delegated() -> bool:
                args = holder.open_args(b"g", access=1)
                *_, opened, found = await holder.run(*holder.path("/other"), (p.OP_OPEN, args), p.OP_GETFH)
                result, found = opened.resok4, found.resok4.object
                if result.rflags & p.OPEN4_RESULT_CONFIRM:
                    confirm = p.OPEN_CONFIRM4args(result.stateid, holder.seqid(b"owner"))
                    await holder.run(there(found), (p.OP_OPEN_CONFIRM, confirm))
                if result.delegation.delegation_type == NONE:
                    return False
                assert result.delegation.delegation_type == READ_DELEGATION
                return True

            await until(delegated)
            assert listener.end.recalls == 0

            async def writes() -> bool:
                opening = (p.OP_OPEN, two.open_args(b"g", access=3))
                status = await two.status(*two.path("/other"), opening)
                assert status in (p.NFS4_OK, p.NFS4ERR_DELAY)
                return status == p.NFS4_OK

            await until(writes)
            assert listener.end.recalls == 1, "the other process' client has been asked for it"

    together(tmp_path, 2, test, server="  nfs4: {grace_time: 0, callbacks_to: any}\n")


def test_a_killed_process_is_started_again_and_its_clients_reclaim(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        hosts = [site.host_of(index, 2) for index in (0, 1)]
        victim = await site.client(hosts[0], name=b"victim").connect()
        other = await site.client(hosts[1]).connect()
        stateid, handle = await victim.open("/export", b"f", create=mode(0o666))
        await victim.on(handle, locking(victim, stateid, *LOCKTEST))
        _, others = await other.open("/export", b"g", create=mode(0o666))
        port = site.supervisor.metrics_port

        def metric(name: str) -> float:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
            return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")))

        opened = 'rdma_nfsd_nfs4_operations_total{operation="OPEN"}'
        before = await asyncio.to_thread(metric, opened)
        assert before == 2
        process = site.supervisor.processes[0]
        os.kill(process.pid, signal.SIGKILL)
        while process.pid:
            await other.on(others, (p.OP_GETATTR, p.GETATTR4args([])))
            await asyncio.sleep(0.01)
        # Its connections wait meanwhile, and the other's go on.
        waiting = asyncio.create_task(victim.status(there(handle)))
        await other.on(others, (p.OP_GETATTR, p.GETATTR4args([])))
        assert await waiting == p.NFS4ERR_BADSESSION
        await site.serving(0, 2)
        back = await site.client(hosts[0], name=b"victim").connect(b"returned", reclaim_complete=False)
        *_, again = await back.run(there(handle), reclaiming(back))
        lock = locking(back, again.resok4.stateid, *LOCKTEST)
        lock[1].reclaim = True
        assert await back.status(there(handle), lock) == p.NFS4_OK
        await other.on(others, (p.OP_GETATTR, p.GETATTR4args([])))
        assert await asyncio.to_thread(metric, opened) >= before + 1, "what was counted stays counted"
        assert await asyncio.to_thread(metric, 'rdma_nfsd_process_restarts_total{process="0"}') == 1
        assert await asyncio.to_thread(metric, 'rdma_nfsd_process_up{process="0"}') == 1
        rows = (await site.asked("processes"))["rows"]
        assert [row["restarts"] for row in rows] == [1, 0]

    together(tmp_path, 2, test, server="  nfs4: {grace_time: 20, lease_time: 20}\n  metrics: {listen: 0}\n")


def test_orders_reach_every_process_and_those_that_are_started_later(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        hosts = [site.host_of(index, 2) for index in (0, 1)]
        clients = [await site.client(host, name=host.encode()).connect() for host in hosts]

        async def creates(client: Client4, name: bytes) -> int:
            asked = (p.OP_OPEN, client.open_args(name, create=mode(0o666)))
            return await client.status(*client.path("/export"), asked)

        assert [await creates(client, b"a") for client in clients] == [0, 0]
        # A reload, first without effect, then of a file with a mistake, then in earnest.
        site.write("{path: other, squash: none, pseudo: /named}", "{path: other, squash: none}")
        assert "/named" in (await site.asked("reload", dry_run=True))["exports"]
        assert await clients[0].status(*clients[0].path("/named")) == p.NFS4ERR_NOENT
        site.write("squash: nobody, pseudo", "squash: none, pseudo")
        with pytest.raises(ValueError, match="squash"):
            await site.asked("reload")
        site.write("squash: none, pseudo", "squash: nobody, pseudo")
        assert await clients[0].status(*clients[0].path("/named")) == p.NFS4ERR_NOENT
        await site.asked("reload")
        assert [await client.status(*client.path("/named")) for client in clients] == [0, 0]
        # Read-only, for one that is started again as well.
        await site.asked("read-only", on=True)
        assert [await creates(client, b"b") for client in clients] == [p.NFS4ERR_ROFS] * 2
        assert await site.asked("drain", export="/named", seconds=0)
        assert await site.asked("restart", process=1) == {"restarted": 1}
        # The grace period is over as soon as all that are on record have come back.
        clients[1] = await site.client(hosts[1], name=hosts[1].encode()).connect(b"returned")
        assert [await creates(client, b"b") for client in clients] == [p.NFS4ERR_ROFS] * 2
        assert [await client.status(*client.path("/named")) for client in clients] == [p.NFS4ERR_NOENT] * 2
        await site.asked("read-only", on=False)
        await site.asked("reload")
        assert [await creates(client, b"b") for client in clients] == [0, 0]
        assert [await client.status(*client.path("/named")) for client in clients] == [0, 0]
        # One client, wherever it is; and nobody.
        evicted = await site.asked("evict", client=hosts[1])
        assert len(evicted["records"]) == 1
        assert await creates(clients[0], b"c") == 0
        with pytest.raises(ValueError, match="no client"):
            await site.asked("evict", client="192.0.2.1")
        assert (await site.asked("log-level", level="warning"))["level"] == "warning"

    together(tmp_path, 2, test)


def test_a_process_that_was_being_started_knows_what_has_been_ordered_meanwhile(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        process = site.supervisor.processes[1]
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: process.starts == 2)
        assert not process.ready.is_set()
        await site.asked("read-only", on=True)
        await site.serving(1, 3)
        client = await site.client(site.host_of(1, 2)).connect()
        asked = (p.OP_OPEN, client.open_args(b"b", create=mode(0o666)))
        assert await client.status(*client.path("/export"), asked) == p.NFS4ERR_ROFS
        await site.asked("read-only", on=False)
        assert await client.status(*client.path("/export"), asked) == 0

    together(tmp_path, 2, test)


def test_a_capture_shows_all_processes(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        hosts = [site.host_of(index, 2) for index in (0, 1)]
        streams = [await site.connection(host) for host in hosts]
        clients = [Nfs3Client(*stream, auth_sys(0, 0)) for stream in streams]
        root = await Nfs3Client(*await site.connection(hosts[0], "mountd"), auth_sys(0, 0)).mount("/export")
        state = str(tmp_path / "state")
        with contextlib.closing(await asyncio.to_thread(capture.connect, state, CaptureRequest())) as connection:
            seen: dict[int, Connection] = {}
            records: Counter[int] = Counter()
            reader = Reader()
            while len(records) < 2:
                for client in clients:
                    await client.getattr(root)
                for event in reader.feed(await asyncio.to_thread(connection.recv, 1 << 16)):
                    if event.kind is Kind.OPENED:
                        seen[event.connection] = Connection.decode(event.data)
                    elif event.kind is Kind.RECORD_IN:
                        records[event.connection] += 1
            ours = {one.peer_address: number % 2 for number, one in seen.items() if number in records}
            assert ours == {hosts[0]: 0, hosts[1]: 1}
        for _, writer in streams:
            writer.close()

    together(tmp_path, 2, test)


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        hosts = [site.host_of(index, 3) for index in range(3)]
        done, errors = [0, 0, 0], list[BaseException]()
        ending = asyncio.Event()
        handle = await Nfs3Client(*await site.connection(hosts[0], "mountd"), auth_sys(0, 0)).mount("/export")

        async def work(index: int) -> None:
            """A client that connects again and asks again, as clients do."""
            while not ending.is_set():
                reader, writer = await site.connection(hosts[index])
                try:
                    client = Nfs3Client(reader, writer, auth_sys(0, 0))
                    while not ending.is_set():
                        await client.getattr(handle)
                        done[index] += 1
                        await asyncio.sleep(0.001)
                except (OSError, EOFError):
                    continue
                except BaseException as error:
                    errors.append(error)
                    raise
                finally:
                    writer.close()

        workers = [asyncio.create_task(work(index)) for index in range(3)]
        await until(lambda: all(done))
        assert await site.asked("restart") == {"restarted": 3}
        before = list(done)
        await until(lambda: all(now > then for now, then in zip(done, before, strict=True)))
        ending.set()
        await asyncio.gather(*workers)
        assert errors == []
        assert [row["restarts"] for row in (await site.asked("processes"))["rows"]] == [1, 1, 1]

    together(tmp_path, 3, test)


def test_records_go_along_when_the_number_of_processes_changes(tmp_path: Path) -> None:
    hosts = [Together.host_of(index, 2) for index in (0, 1)]
    settings = "  nfs4: {grace_time: 20, lease_time: 20}\n  rpcbind: false\n"
    handles: list[bytes] = []

    async def back(port: int, host: str, number: int) -> int:
        server: Any = OverTcp("127.0.0.1", port, own=host)
        client = Client4(server, 1, name=b"client %d" % number, transport=LoopbackTransport(host))
        await client.connect(b"again %d " % len(handles), reclaim_complete=False)
        status = await client.status(there(handles[number]), reclaiming(client))
        complete = (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))
        assert await client.status(complete) == 0
        return status

    async def first(site: Together) -> None:
        for number, host in enumerate(hosts):
            client = await site.client(host, name=b"client %d" % number).connect()
            handles.append((await client.open("/export", b"f%d" % number, create=mode(0o666)))[1])

    async def then(site: Together) -> None:
        assert [await back(site.port(), host, number) for number, host in enumerate(hosts)] == [0, 0]

    async def alone() -> None:
        config = load(str(tmp_path / "exports.yaml"))
        daemon = Daemon(config, Rpcbind((), None))
        await daemon.start()
        try:
            port = daemon.listeners.of("nfs")[0].address.port
            assert [await back(port, host, number) for number, host in enumerate(hosts)] == [0, 0]
        finally:
            await daemon.stop()

    together(tmp_path, 3, first, server=settings)
    together(tmp_path, 2, then, server=settings)
    file = tmp_path / "exports.yaml"
    file.write_text(file.read_text().replace("processes: 2", "processes: 1"))
    asyncio.run(alone())
    together(tmp_path, 2, then, server=settings)


def test_nobody_outlives_the_supervisor_and_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        "server: {listen: ['tcp://127.0.0.1:0'], mountd_port: 0, rpcbind: false, processes: 2, metrics: {listen: 0}}\n"
        "exports: [{path: export}]\n"
    )
    command = [sys.executable, "-m", "nfsd.cli", "serve", "--config", str(file)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        line = supervisor.stdout.readline()
        assert line.startswith("rdma-nfsd ready: tcp://127.0.0.1:")
        names = ("mountd tcp", "nlm tcp", "nsm tcp", "udp")
        ports = "".join(rf" {name}://127\.0\.0\.1:\d+" for name in names)  # the same with both processes
        assert re.search(rf"^rdma-nfsd ready: \S+{ports} metrics http://127\.0\.0\.1:\d+ \(2 processes\)\n$", line)
        children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
        assert len(children) == 2
        second = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1
        assert "in use by another rdma-nfsd" in second.stderr
        supervisor.kill()
        supervisor.wait()
        # Their output is the supervisor's, which ends with the last of them.
        assert supervisor.stdout.read() == ""
    assert not [child for child in children if Path(f"/proc/{child}/exe").exists()]


def test_a_process_that_cannot_serve_keeps_all_from_starting(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        "server: {listen: ['tcp://192.0.2.1:2049'], mountd_port: 0, rpcbind: false, processes: 2}\n"
        "exports: [{path: export}]\n"
    )

    async def main() -> None:
        with pytest.raises(StartError, match="does not serve"):
            await Supervisor(load(str(file)), Rpcbind((), None)).start()

    asyncio.run(main())


def test_a_process_that_ends_before_the_server_is_registered_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        "server: {listen: ['tcp://127.0.0.1:0'], mountd_port: 0, processes: 2}\nexports: [{path: export}]\n"
    )

    class Slow(Rpcbind):
        """Meanwhile a process ends."""

        async def register(self, wanted: Iterable[Service]) -> list[Service]:
            process = supervisor.processes[0]
            os.kill(process.pid, signal.SIGKILL)
            await process.ended.wait()
            return []

    supervisor: Supervisor

    async def main() -> None:
        nonlocal supervisor
        supervisor = Supervisor(load(str(file)), Slow((), None))
        await supervisor.start()
        try:
            await Together(supervisor, tmp_path).serving(0, 2)
        finally:
            await supervisor.stop()

    asyncio.run(main())


def test_a_process_that_ends_before_the_others_serve_keeps_all_from_starting(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        "server: {listen: ['tcp://127.0.0.1:0'], mountd_port: 0, rpcbind: false, processes: 2}\n"
        "exports: [{path: export}]\n"
    )

    async def main() -> None:
        supervisor = Supervisor(load(str(file)), Rpcbind((), None))
        starting = asyncio.create_task(supervisor.start())
        first, second = supervisor.processes
        while not second.pid:  # noqa: ASYNC110 (a start takes no time)
            await asyncio.sleep(0.001)
        os.kill(second.pid, signal.SIGSTOP)
        await first.ready.wait()
        os.kill(first.pid, signal.SIGKILL)
        await first.ended.wait()
        os.kill(second.pid, signal.SIGCONT)
        with pytest.raises(StartError, match="process 0 does not serve"):
            await starting

    asyncio.run(main())


def test_a_process_that_is_being_started_is_sent_no_signal_that_would_end_it(tmp_path: Path) -> None:
    async def test(site: Together) -> None:
        process = site.supervisor.processes[1]
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: process.starts == 2)
        site.supervisor.forward(signal.SIGUSR1)
        await site.serving(1, 2)
        assert process.starts == 2
        site.supervisor.forward(signal.SIGUSR1)
        assert (await site.asked("processes"))["rows"][1]["restarts"] == 1

    together(tmp_path, 2, test)


def test_a_process_that_hangs_while_it_starts_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(site: Together) -> None:
        process = site.supervisor.processes[1]
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: process.starts == 2)
        os.kill(process.pid, signal.SIGSTOP)
        site.supervisor.check_signs_of_life(1000.0)
        assert not [record for record in caplog.records if "has been starting" in record.message]
        monkeypatch.setattr("nfsd.supervising.supervisor.TO_START", 0.0)
        site.supervisor.check_signs_of_life(1000.0)
        await site.serving(1, 3)
        assert [record for record in caplog.records if "process 1 has been starting" in record.message]

    together(tmp_path, 2, test)


def test_a_process_that_keeps_ending_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(site: Together) -> None:
        process = site.supervisor.processes[1]
        for starts in (2, 3):
            os.kill(process.pid, signal.SIGKILL)
            await site.serving(1, starts)
        told = [record.getMessage() for record in caplog.records if "process 1 was ended by SIGKILL" in record.message]
        assert ["in 0.1 s" in told[0], "in 0.2 s" in told[1]] == [True, True]
        assert site.supervisor.processes[0].starts == 1

    together(tmp_path, 2, test)


def test_neighbours_are_at_different_processes() -> None:
    assert {place_of(Together.host_of(index, 3), 3) for index in range(3)} == {0, 1, 2}
