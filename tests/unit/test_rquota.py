"""RQUOTA: what clients' ``quota`` asks; who may ask for whom; 64-bit quotas in 32 bits. The kernel is played here."""

import asyncio
import contextlib
import errno
import os
import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nfsd.backends.local import quotas
from nfsd.mount.rquota import QuotaService
from nfsd.protocol import rquota as r
from nfsd.vfs.file_systems import FileSystems
from nfsd.vfs.types import OwnerQuota
from rpcrdma.xdr import pack, unpack
from tests.nfs3_client import RpcFailure
from tests.support.served import HOST, Served, run

EXPORTS = """\
  - {path: data, squash: none}
  - {path: squashed}
  - {path: closed, clients: [192.0.2.1]}
"""
SERVER = "  rquota: true\n"
UID, GID = 1000, 100
DQBLK = struct.Struct("<8QI4x")
NOW = 1_000_000


class Kernel:
    """Quotas by kind and owner: what is asked, and as whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quotas: dict[tuple[int, int], Any] = {
            (0, UID): (2000, 1000, 1_500_000, 20, 10, 15, 0, 0, 0),
            (1, GID): (0, 0, 4096, 0, 0, 1, 0, 0, 0),
            (0, 1001): (1 << 40, 1 << 33, 1 << 45, 1 << 40, 5, 6, 0, 0, 0),
            (0, 0): (7, 7, 7, 7, 7, 7, 0, 0, 0),
        }
        self.asked: list[tuple[int, int, int]] = []
        self.kinds: tuple[int, ...] = (0, 1)
        monkeypatch.setattr(quotas, "ask", self.ask)
        kernel = self

        asked = FileSystems.features

        async def features(self: FileSystems, node: Any) -> Any:
            return replace(await asked(self, node), quotas=kernel.kinds)

        monkeypatch.setattr(FileSystems, "features", features)

    def ask(self, fd: int, uid: int, gid: int, kinds: tuple[int, ...]) -> list[tuple[int, bytes]]:
        assert threading.current_thread() is not threading.main_thread()
        os.fstat(fd)
        found = []
        for kind in kinds:
            self.asked.append((kind, uid, gid))
            quota = self.quotas.get((kind, gid if kind else uid), errno.ESRCH)
            found.append((quota, bytes(72)) if isinstance(quota, int) else (0, DQBLK.pack(*quota)))
        return found


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    for name in ("data/sub", "squashed", "closed"):
        (tmp_path / name).mkdir(parents=True)
    return Kernel(monkeypatch)


async def asked(
    server: Served, path: str, owner: int, kind: int = 0, *, uid: int = UID, gid: int = GID, version: int = 2,
    active: bool = False, gids: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    """The status, or the quota."""
    client = await server.nfs3(uid, gid, gids, service="rquota")
    if version == 1:
        arguments = pack(r.getquota_args, r.getquota_args(path.encode(), owner))
    else:
        arguments = pack(r.ext_getquota_args, r.ext_getquota_args(path.encode(), kind, owner))
    result = await client.call(r.RQUOTA_PROGRAM, version, 1 + active, arguments, r.getquota_rslt)
    return result.gqr_rquota if result.status == r.gqr_status.Q_OK else result.status


def test_a_user_asks_for_himself_and_root_for_all(tmp_path: Path, kernel: Kernel) -> None:
    own = r.rquota(1024, True, 2000, 1000, 1465, 20, 10, 15, 0, 0)
    no, denied = r.gqr_status.Q_NOQUOTA, r.gqr_status.Q_EPERM

    async def test(server: Served) -> None:
        for version in (1, 2):
            for active in (False, True):
                for path in ("/data", "/data/sub", str(tmp_path / "data"), "data"):
                    assert await asked(server, path, UID, version=version, active=active) == own
        assert set(kernel.asked) == {(0, UID, GID)}, "as whom it is about"
        assert await asked(server, "/data", UID + 1) == denied
        assert await asked(server, "/data", 0) == denied
        assert await asked(server, "/data", UID, uid=0) == own
        # Of groups, those he is in.
        group = r.rquota(1024, True, 0, 0, 4, 0, 0, 1, 0, 0)
        assert await asked(server, "/data", GID, 1) == group
        assert await asked(server, "/data", GID, 1, gid=7, gids=(5, GID)) == group
        assert await asked(server, "/data", GID, 1, gid=7) == denied
        assert await asked(server, "/data", 5, 1, uid=0) == no, "this one has none"
        # Squashed root is nobody.
        assert await asked(server, "/squashed", UID, uid=0) == denied
        assert await asked(server, "/squashed", 0, uid=0) == denied
        assert await asked(server, "/squashed", UID) == own
        # What is not there, and what is not for the client.
        assert await asked(server, "/data/none", UID) == no
        for path in ("/closed", "/nowhere", "/data/..", "", "/"):
            assert await asked(server, path, UID) in (denied, no)
        assert await asked(server, "/closed", UID, uid=0) == denied
        for kind, owner in ((2, UID), (-1, UID), (0, 0xFFFFFFFF), (1, 0xFFFFFFFF)):
            assert await asked(server, "/data", owner, kind, uid=0) == no
        # Large ones come in larger blocks.
        large = await asked(server, "/data", 1001, uid=1001)
        assert large.rq_bsize > 1024
        assert large.rq_bhardlimit * large.rq_bsize == 1 << 50
        assert large.rq_bsoftlimit * large.rq_bsize == 1 << 43
        assert large.rq_curblocks * large.rq_bsize == 1 << 45
        assert large.rq_fhardlimit == 0xFFFFFFFF
        kernel.kinds = (1,)
        assert await asked(server, "/data", UID) == no
        kernel.kinds = (0, 1)
        kernel.quotas[0, UID] = errno.EPERM  # a server that cannot act as others
        assert await asked(server, "/data", UID) == denied

    run(tmp_path, EXPORTS, test, SERVER)


def test_nobody_sets_quotas(tmp_path: Path, kernel: Kernel) -> None:
    async def test(server: Served) -> None:
        client = await server.nfs3(0, 0, service="rquota")
        block = r.sq_dqblk(1, 2, 3, 4, 5, 6, 7, 8)
        for version, types, args in (
            (1, r.setquota_args, r.setquota_args(0, b"/data", UID, block)),
            (2, r.ext_setquota_args, r.ext_setquota_args(0, b"/data", UID, 0, block)),
        ):
            for procedure in (3, 4):
                result = await client.call(r.RQUOTA_PROGRAM, version, procedure, pack(types, args), r.getquota_rslt)
                assert result.status == r.gqr_status.Q_EPERM
        with pytest.raises(RpcFailure):  # longer than any path
            await client.call(r.RQUOTA_PROGRAM, 1, 1, struct.pack(">I", 1025) + bytes(1032), r.getquota_rslt)
        assert not kernel.asked

    run(tmp_path, EXPORTS, test, SERVER)


def test_by_datagrams_as_linux_s_quota_asks(tmp_path: Path, kernel: Kernel) -> None:
    async def test(server: Served) -> None:
        client = await server.nfs3(UID, GID)
        arguments = pack(r.ext_getquota_args, r.ext_getquota_args(b"/data", 0, UID))
        message = client.encode(r.RQUOTA_PROGRAM, 2, 1, arguments, 77)
        udp = next(one for one in server.daemon.listeners.of("rquota") if one.address.scheme == "udp")

        def ask() -> bytes:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(60)
                sock.sendto(message, (HOST, udp.address.port))
                return sock.recv(4096)

        reply = await asyncio.to_thread(ask)
        assert unpack(r.getquota_rslt, reply[24:]).gqr_rquota.rq_bhardlimit == 2000
        # rpcbind is told of both ways.
        told = {(one.version, one.netid) for one in server.daemon._served() if one.program == r.RQUOTA_PROGRAM}
        assert told == {(1, "tcp"), (2, "tcp"), (1, "udp"), (2, "udp")}

    run(tmp_path, EXPORTS, test, SERVER)


def test_who_is_late_is_told_so() -> None:
    service = QuotaService(None, None, clock=lambda: NOW)  # type: ignore[arg-type]
    told = service._told(OwnerQuota(10, 5, 7, 10, 5, 7, NOW + 60, NOW - 60))
    assert (told.rq_btimeleft, told.rq_ftimeleft) == (60, (1 << 32) - 60)


def test_it_is_not_served_unless_wanted(tmp_path: Path, kernel: Kernel) -> None:
    async def test(server: Served) -> None:
        assert not server.daemon.listeners.of("rquota")
        assert r.RQUOTA_PROGRAM not in {one.program for one in server.daemon._served()}

    run(tmp_path, EXPORTS, test)


def test_a_client_whose_quotas_take_long_keeps_no_other_from_being_answered(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By datagrams, of which few of one host are under way at a time."""
    go_on = threading.Event()

    def ask(*what: Any) -> list[tuple[int, bytes]]:
        assert go_on.wait(60)
        return kernel.ask(*what)

    monkeypatch.setattr(quotas, "ask", ask)

    async def test(server: Served) -> None:
        client = await server.nfs3(UID, GID)
        udp = next(one for one in server.daemon.listeners.of("rquota") if one.address.scheme == "udp")
        hosts = server.daemon.listeners.hosts
        before = hosts.calls

        def message(owner: int, xid: int) -> bytes:
            return client.encode(
                r.RQUOTA_PROGRAM, 2, 1, pack(r.ext_getquota_args, r.ext_getquota_args(b"/data", 0, owner)), xid
            )

        def ask_both() -> bytes:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as many:
                many.bind(("127.0.0.7", 0))
                for xid in range(200):
                    many.sendto(message(UID, xid), (HOST, udp.address.port))
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                    other.bind(("127.0.0.8", 0))
                    other.settimeout(5)
                    for _ in range(12):
                        other.sendto(message(0xFFFFFFFF, 7), (HOST, udp.address.port))  # nobody's: it takes no time
                        with contextlib.suppress(TimeoutError):
                            return other.recv(4096)
            return b""

        try:
            reply = await asyncio.to_thread(ask_both)
            assert unpack(r.getquota_rslt, reply[24:]).status == r.gqr_status.Q_NOQUOTA
            assert hosts.events["dropped_datagrams"] > 0
        finally:
            go_on.set()
        assert hosts.calls == before, "hosts without a connection are counted by themselves"

    run(tmp_path, EXPORTS, test, SERVER)


def test_callers_are_known_as_the_export_says_or_learn_nothing(tmp_path: Path, kernel: Kernel) -> None:
    exports = "  - {path: data, squash: none, sec: [none]}\n  - {path: squashed, sec: [sys]}\n"

    async def test(server: Served) -> None:
        assert await asked(server, "/data", UID) == r.gqr_status.Q_EPERM
        assert not kernel.asked
        assert (await asked(server, "/squashed", UID)).rq_bhardlimit == 2000

    run(tmp_path, exports, test, SERVER)
