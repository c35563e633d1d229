"""Listings of many hosts: what is kept for the next call of one is not pushed out by another; who has gone is not
listed for."""

import asyncio
import contextlib
import socket
import struct

import pytest

from nfsd.protocol.nfs3 import READDIR3args, nfsstat3
from nfsd.vfs.chains import Chains
from nfsd.vfs.streams import Stream, Streams
from nfsd.vfs.types import Credential
from tests.nfs3_client import Nfs3Client, auth_sys
from tests.support.delegations import until
from tests.support.hosts import on_site

HONEST, CROWD = "127.0.0.3", "127.0.0.2"


@contextlib.asynccontextmanager
async def client(site, host, service="nfs"):
    streams = await asyncio.open_connection("127.0.0.1", site.port(service), local_addr=(host, 0))
    async with Nfs3Client(*streams, auth_sys(0, 0)) as made:
        yield made


async def root_of(site, host):
    async with client(site, host, "mountd") as mounting:
        return await mounting.mount(b"/export")


def kept(streams):
    return {stream.fd for stream in streams._all}


@pytest.mark.parametrize(
    "crowd",
    [
        ["192.0.2.1"],
        [f"192.0.2.{number}" for number in range(1, 250)],
        [f"2001:db8:0:{number:x}::/64" for number in range(256)],
    ],
    ids=["a host", "a /24", "a /56"],
)
def test_the_streams_of_other_networks_stay(crowd):
    closed = []
    streams = Streams(lambda fd, lane: closed.append(fd))
    honest = Credential(1, 1, host="198.51.100.1")
    for number in range(4):
        streams.keep(Stream((b"mine %d" % number, honest), number, 0, 1, 3))
    for number in range(2000):
        caller = Credential(2, 2, host=crowd[number % len(crowd)])
        streams.keep(Stream((b"%d" % number, caller), 100 + number, 0, 1, 3))
    assert len(streams) == 256
    assert kept(streams) >= set(range(4))
    for stream in list(streams._all):
        streams._drop(stream)
    assert not streams._hosts
    assert streams._networks.everybody.most == 0


def test_one_host_does_not_push_out_another_of_the_same_user_in_one_directory():
    streams = Streams(lambda fd, lane: None)
    for host, fds in ((HONEST, range(4)), (CROWD, range(100, 200))):
        for fd in fds:
            streams.keep(Stream((b"directory", Credential(0, 0, host=host)), fd, 0, 1, fd))
    assert kept(streams) >= set(range(4))


def test_the_half_read_listing_of_a_client_is_there_still_when_another_has_listed_much(tmp_path):
    async def test(site):
        root = await root_of(site, HONEST)
        streams = site.daemon.service.listings.streams
        site.daemon.service._sweeper.cancel()  # which closes all of them every few seconds
        async with client(site, HONEST) as honest, client(site, CROWD) as crowd:
            listed = await honest.nfs("READDIR", READDIR3args(root, 0, bytes(8), 512))
            assert listed.status == nfsstat3.NFS3_OK
            (mine,) = streams._all
            for number in range(300):
                handle = await crowd.lookup(root, b"d%d" % number)
                await crowd.nfs("READDIR", READDIR3args(handle, 0, bytes(8), 512))
            assert len(streams) == 256
            assert mine in streams._all

    for number in range(300):
        for name in range(12):
            directory = tmp_path / "export" / f"d{number}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"a rather long name of a file {name:040}").touch()
    on_site(tmp_path, test, server="  nlm: false\n")


def test_nothing_is_listed_for_who_has_gone(tmp_path, monkeypatch):
    """Fifty listings wait for their turns when their connection closes."""
    turns = 0
    real = Chains.run_in_lane

    async def counted(self, lane, chain, *opened):
        nonlocal turns
        turns += 1
        return await real(self, lane, chain, *opened)

    async def test(site):
        root = await root_of(site, CROWD)
        service = site.daemon.service
        lane = next(iter(service.roots._by_export.values())).mount.lane
        at_once = max(1, site.daemon.exports.exports[0].workers // 2)
        async with contextlib.AsyncExitStack() as held:
            for number in range(at_once):
                await held.enter_async_context(service.listings.turns.turn(lane, f"holder {number}", at_once))
            waiting = service.listings.turns._lanes[lane].waiting
            async with client(site, CROWD) as gone:
                calls = [
                    asyncio.ensure_future(gone.nfs("READDIR", READDIR3args(root, 0, bytes(8), 4096))) for _ in range(50)
                ]
                await until(lambda: sum(map(len, waiting.values())) == 50)
                ended = struct.pack("ii", 1, 0)  # with a reset: there is nobody any more
                gone._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ended)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: not site.daemon.listeners.hosts.connections)
            monkeypatch.setattr(Chains, "run_in_lane", counted)
        await until(lambda: lane not in service.listings.turns._lanes)
        assert turns == 0

    (tmp_path / "export").mkdir()
    for number in range(100):
        (tmp_path / "export" / f"{number}").touch()
    on_site(tmp_path, test, server="  nlm: false\n")
