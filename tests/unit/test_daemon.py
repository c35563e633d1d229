"""The whole daemon in this process: what starts, what is said about what does not, what clients get, how it stops."""

import asyncio
import logging
import os
import socket
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nfsd import planned
from nfsd.config_file import load
from nfsd.daemon import Daemon, StartError
from nfsd.logs import JournalFormatter
from nfsd.nlm.peers import Peers
from nfsd.planned import mount_hosts
from nfsd.protocol.nfs3 import nfsstat3, stable_how
from rpcrdma.memory import Pool
from rpcrdma.peer import wire
from rpcrdma.peer.requester import Peer
from rpcrdma.rpc.rpcbind import Rpcbind
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from tests.nfs3_client import Nfs3Client, Nfs3Failure, RpcFailure
from tests.rfc.plugin import covers
from tests.support.machine import needs_ipv6
from tests.unit.rpc_support import call
from tests.unit.test_rpcbind import fake

OWNER, GROUP = os.getuid(), os.getgid()
LISTEN = "[rdma://127.0.0.1:0, tcp://127.0.0.1:0]"


class Rig:
    """A directory with an export, and daemons serving it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.export = base / "export"
        self.export.mkdir()

    def make(self, listen: str = LISTEN, extra: str = "", export: str = "", rpcbind: Rpcbind | None = None) -> Daemon:
        file = self.base / "exports.yaml"
        file.write_text(
            f"server:\n  listen: {listen}\n  mountd_port: 0\n{extra}"
            f"exports:\n  - {{path: export, pseudo: /export, squash: none{export}}}\n"
        )
        return Daemon(load(str(file)), rpcbind or Rpcbind((), None))

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def port_of(daemon: Daemon, service: str = "nfs", scheme: str = "tcp") -> int:
    (port,) = (s.address.port for s in daemon.listeners.of(service) if s.address.scheme == scheme)
    return port


async def client_of(daemon: Daemon, service: str = "nfs", **identity: Any) -> Nfs3Client:
    return await Nfs3Client.connect("127.0.0.1", port_of(daemon, service), **({"uid": OWNER, "gid": GROUP} | identity))


async def root_of(daemon: Daemon) -> Any:
    async with await client_of(daemon, "mountd") as mountd:
        return await mountd.mount("/export")


def test_files_are_served_and_handles_survive_a_restart(rig: Rig) -> None:
    async def test() -> None:
        daemon = rig.make()
        await daemon.start()
        async with await client_of(daemon) as client:
            root = await root_of(daemon)
            file = await client.create(root, b"name")
            await client.write(file, 0, b"content", stable_how.FILE_SYNC)
            assert (rig.export / "name").read_bytes() == b"content"
        await daemon.stop()
        assert daemon.pool.in_use == 0

        daemon = rig.make()
        await daemon.start()
        async with await client_of(daemon) as client:
            found = await client.read(file, 0, 100)
            assert isinstance(found.data, memoryview)
            assert bytes(found.data) == b"content"
        await daemon.stop()

    rig.run(test)


@needs_ipv6
def test_the_ready_line_names_every_listener(rig: Rig) -> None:
    async def test() -> None:
        extra = "  metrics: {listen: '127.0.0.1:0'}\n"
        daemon = rig.make("[rdma://127.0.0.1:0, tcp://127.0.0.1:0, 'tcp://[::1]:0']", extra)
        await daemon.start()
        rdma, tcp, tcp6 = (s.address.port for s in daemon.listeners.of("nfs"))
        mountd, mountd6, nlm, nlm6 = (
            s.address.port for s in daemon.listeners.started if s.service in ("mountd", "nlm")
        )
        nsm, again, nsm6, again6 = (s.address.port for s in daemon.listeners.of("nsm"))
        assert (nsm, nsm6) == (again, again6)
        assert 0 not in (rdma, tcp, tcp6, mountd, mountd6, nlm, nlm6, nsm, nsm6, daemon.metrics_port)
        assert daemon.ready_line == (
            f"rdma-nfsd ready: rdma://127.0.0.1:{rdma} (softiwarp) tcp://127.0.0.1:{tcp} tcp://[::1]:{tcp6}"
            f" mountd tcp://127.0.0.1:{mountd} tcp://[::1]:{mountd6} nlm tcp://127.0.0.1:{nlm} tcp://[::1]:{nlm6}"
            f" nsm tcp://127.0.0.1:{nsm} udp://127.0.0.1:{nsm} tcp://[::1]:{nsm6} udp://[::1]:{nsm6}"
            f" metrics http://127.0.0.1:{daemon.metrics_port}"
        )
        await daemon.stop()

    rig.run(test)


@covers("RFC 8267 5 mount-over-tcp")
def test_nfs_over_rdma_on_the_embedded_provider(rig: Rig) -> None:
    async def test() -> None:
        daemon = rig.make()
        await daemon.start()
        pool = Pool(64 << 20)
        provider, peer = SoftIwarp(pool), Peer(pool.account(64 << 20), 4096)
        port = port_of(daemon, scheme="rdma")
        await peer.connect(provider, ListenAddress("127.0.0.1", port), b"")
        for version in (3, 4):
            message = bytes(call(0, program=100003, version=version, xid=version))
            reply = await peer.call(wire.header(version), message)
            assert reply.payload[:24] == version.to_bytes(4, "big") + b"\0\0\0\1" + bytes(16)
        # MOUNT is not served over RDMA (RFC 8267 section 5).
        reply = await peer.call(wire.header(9), bytes(call(0, program=100005, xid=9)))
        assert reply.payload[20:24] == b"\0\0\0\1"
        peer.endpoint.close()
        await provider.close()
        await daemon.stop()

    rig.run(test)


def test_programs_are_where_they_belong(rig: Rig) -> None:
    async def test() -> None:
        daemon = rig.make()
        await daemon.start()
        async with await client_of(daemon) as nfs, await client_of(daemon, "mountd") as mountd:
            await nfs.call(100003, 3, 0, b"", None)
            await nfs.call(100003, 4, 0, b"", None)
            await nfs.call(100227, 3, 0, b"", None)
            await mountd.call(100005, 3, 0, b"", None)
            for client, program, version in ((nfs, 100227, 2), (nfs, 100005, 3), (mountd, 100227, 3), (nfs, 100003, 2)):
                with pytest.raises(RpcFailure):
                    await client.call(program, version, 0, b"", None)
        await daemon.stop()

    rig.run(test)


def test_a_listener_that_cannot_start_stops_no_other(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            daemon = rig.make(
                f"['tcp://127.0.0.1:{port}', {{url: 'rdma://127.0.0.1:{port}', provider: softiwarp}},"
                " {url: 'rdma://192.0.2.1:1', provider: softiwarp}, 'tcp://127.0.0.1:0']"
            )
            await daemon.start()
            assert str(port) not in daemon.ready_line
            assert len(daemon.listeners.of("nfs")) == 1
            await (await client_of(daemon)).close()
            await daemon.stop()
        assert len(daemon.listeners.failures) == 3

    rig.run(test)
    for text in ("cannot listen on tcp://", "in use", "cannot listen on rdma://", "assign requested address"):
        assert text in caplog.text
    assert {record.levelno for record in caplog.records if "cannot" in record.getMessage()} == {logging.ERROR}


def test_with_no_listener_there_is_no_server(rig: Rig) -> None:
    async def test() -> None:
        daemon = rig.make("['tcp://192.0.2.1:1']")
        with pytest.raises(StartError, match="none of the listeners"):
            await daemon.start()
        # Nothing was left behind: the state directory is free for the next one.
        daemon = rig.make()
        await daemon.start()
        await daemon.stop()

    rig.run(test)


def test_one_state_directory_serves_one_server(rig: Rig) -> None:
    async def test() -> None:
        first, second = rig.make(), rig.make()
        await first.start()
        with pytest.raises(StartError, match="in use by another rdma-nfsd"):
            await second.start()
        await first.stop()
        await second.start()
        await second.stop()

    rig.run(test)


def test_the_state_directory_is_private_and_the_identity_stays(rig: Rig) -> None:
    async def test() -> None:
        owners = []
        for _ in range(2):
            daemon = rig.make()
            await daemon.start()
            owners.append(daemon._nfs4.owner)
            await daemon.stop()
        assert owners[0] == owners[1]
        assert len(owners[0]) == 32
        state = rig.base / "state"
        assert state.stat().st_mode & 0o777 == 0o700
        assert (state / "server-id").stat().st_mode & 0o777 == 0o600

    rig.run(test)


def test_a_state_directory_that_cannot_be_made(rig: Rig) -> None:
    async def test() -> None:
        (rig.base / "file").write_text("")
        daemon = rig.make(extra="  state_dir: ./file/state\n")
        with pytest.raises(StartError, match=r"state_dir: .*/file/state: "):
            await daemon.start()

    rig.run(test)


def test_clients_are_told_apart(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the machine's own name service knows is not the point.
    real = socket.getaddrinfo
    peer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **how: peer if host == "peer" else real(host, *more, **how)
    )

    async def test() -> None:
        daemon = rig.make(export=", clients: [192.0.2.1]")
        await daemon.start()
        with pytest.raises(Nfs3Failure) as caught:
            await root_of(daemon)
        assert int(caught.value.status) in (2, 13)
        await daemon.stop()
        daemon = rig.make(export=", clients: [{host: peer, access: ro}]")
        await daemon.start()
        root = await root_of(daemon)
        async with await client_of(daemon) as client:
            with pytest.raises(Nfs3Failure) as caught:
                await client.create(root, b"x")
            assert caught.value.status == nfsstat3.NFS3ERR_ROFS
        await daemon.stop()

    rig.run(test)


def test_metrics_count_what_happened(rig: Rig) -> None:
    async def test() -> None:
        daemon = rig.make(extra="  metrics: {listen: '127.0.0.1:0'}\n")
        await daemon.start()
        async with await client_of(daemon) as client:
            await client.getattr(await root_of(daemon))
            daemon._nfs4.callbacks.counters["CB_RECALL", "path_down"] += 2
            url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
        for line in (
            'rdma_nfsd_rpc_calls_total{procedure="GETATTR",program="nfs",version="3"} 1.0',
            'rdma_nfsd_rpc_calls_total{procedure="MNT",program="mount",version="3"} 1.0',
            f'rdma_nfsd_connections{{listener="tcp://127.0.0.1:{port_of(daemon)}"}} 1.0',
            'rdma_nfsd_memory_bytes{kind="limit"} 5.36870912e+08',
            'rdma_nfsd_rdma_events_total{event="calls",',
            "rdma_nfsd_copied_bytes_total ",
            'rdma_nfsd_callbacks_total{operation="CB_RECALL",result="path_down"} 2.0',
            "rdma_nfsd_delegations 0.0",
            'rdma_nfsd_delegation_events_total{event="recalled"} 0.0',
            "rdma_nfsd_write_back_failures_total 0.0",
        ):
            assert line in text, text
        await daemon.stop()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(urllib.request.urlopen, url, timeout=10)

    rig.run(test)


def test_what_is_served_is_registered_and_taken_back(rig: Rig) -> None:
    async def test() -> None:
        async with fake(rig.base) as (rpcbind, client):
            daemon = rig.make(rpcbind=client)
            await daemon.start()
            served = ((100003, 3), (100003, 4), (100227, 3))
            expected = {(program, version, netid) for program, version in served for netid in (b"tcp", b"rdma")}
            expected |= {(100005, 3, b"tcp"), (100021, 4, b"tcp"), (100024, 1, b"tcp"), (100024, 1, b"udp")}
            assert set(rpcbind.mappings) == expected
            port = port_of(daemon, "mountd")
            assert rpcbind.mappings[100005, 3, b"tcp"] == b"127.0.0.1.%d.%d" % (port >> 8, port & 255)
            await daemon.stop()
            assert rpcbind.mappings == {}
            daemon = rig.make(rpcbind=client, extra="  rpcbind: false\n")
            await daemon.start()
            assert rpcbind.mappings == {}
            await daemon.stop()

    rig.run(test)


def test_the_server_answers_in_rpcbinds_place(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "PORTMAPPER_PORT", 0)

    async def test() -> None:
        async with fake(rig.base) as (rpcbind, client):
            daemon = rig.make(rpcbind=client, extra="  portmapper: true\n  rquota: true\n")
            await daemon.start()
            assert rpcbind.mappings == {}, "nobody is told twice"
            for service, name in (("rquota", "rquota"), ("rpcbind", "portmapper")):
                told = " ".join(f"{kind}://127.0.0.1:{port_of(daemon, service, kind)}" for kind in ("tcp", "udp"))
                assert f" {name} {told}" in daemon.ready_line
            ports = Peers(rpcbind_port=port_of(daemon, "rpcbind"))
            for service, program, version in (("nlm", 100021, 4), ("nsm", 100024, 1), ("mountd", 100005, 3)):
                found = await ports.find_port("127.0.0.1", "127.0.0.1", program, version)
                assert found == port_of(daemon, service)
                await ports.call("127.0.0.1", "127.0.0.1", program, version, 0, (None, None), None)
            assert port_of(daemon, "nsm") == port_of(daemon, "nsm", "udp")
            await daemon.stop()

    rig.run(test)


def test_where_port_111_is_taken_rpcbind_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            monkeypatch.setattr(planned, "PORTMAPPER_PORT", port)
            async with fake(rig.base) as (rpcbind, client):
                daemon = rig.make(rpcbind=client, extra="  portmapper: true\n")
                await daemon.start()
                assert (100021, 4, b"tcp") in rpcbind.mappings
                told = f"cannot listen on tcp://127.0.0.1:{port} for the portmapper: Address already in use"
                said = [record.getMessage().partition("; ")[0] for record in caplog.records]
                assert said.count(told) == 1
                await daemon.stop()

    rig.run(test)


def test_locks_of_nfsv3_can_be_left_out(rig: Rig) -> None:
    async def test() -> None:
        daemon = rig.make(extra="  nlm: false\n")
        await daemon.start()
        assert {started.service for started in daemon.listeners.started} == {"nfs", "mountd"}
        await daemon.stop()

    rig.run(test)


def test_calls_in_flight_can_be_listed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        daemon = rig.make()
        await daemon.start()
        daemon.log_in_flight()
        await daemon.stop()

    with caplog.at_level(logging.INFO):
        rig.run(test)
    assert "0 calls in flight" in caplog.text


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["127.0.0.1", "::1", "127.0.0.1"], ["127.0.0.1", "::1"]),
        (["127.0.0.1", "::"], ["::"]),
        (["127.0.0.1", "0.0.0.0", "::1"], ["0.0.0.0", "::1"]),
    ],
)
def test_where_mount_listens(hosts: list[str], expected: list[str]) -> None:
    assert mount_hosts(hosts) == expected


def test_journal_lines_carry_their_priority() -> None:
    formatter = JournalFormatter("%(name)s: %(message)s")
    record = logging.LogRecord("nfsd", logging.ERROR, "", 0, "one\ntwo\x0bt\x85\u2028o", None, None)
    assert formatter.format(record) == "<3>nfsd: one\n<3>two\x0bt\x85\u2028o"
