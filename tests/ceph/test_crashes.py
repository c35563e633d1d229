"""CephFS when the server is killed right behind its replies: what it has promised is there, for the cluster's other
clients and for the server that comes back. CREATE, REMOVE and RENAME promise it at once, WRITE if asked to, COMMIT for
what came before (RFC 1813 sections 3.3.7, 3.3.21 and 4.7).

The cluster remembers names that the metadata server has not yet put into its journal as long as that lives. So it is
killed, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from nfsd.protocol.nfs3 import nfs_fh3, stable_how
from tests.ceph.gateways import HOST, PLACE, Gateway
from tests.nfs3_client import Nfs3Client

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]

WRITERS: Final = 6
PIECE: Final = 5000
DIRECTORIES: Final = (b"one", b"two")
_GONE: Final = (ConnectionError, OSError, EOFError)
"""What a client is told when the server is gone."""


class Account:
    """What the server has acknowledged, and when it is to be killed."""

    def __init__(self, after: int, kill: Any) -> None:
        """``kill()``: called behind so many replies."""
        self.kept: dict[tuple[int, bytes], bytes | None] = {}
        """Files by directory and name; None: with whatever content."""
        self.removed: set[tuple[int, bytes]] = set()
        self._left, self._kill = after, kill

    @contextlib.contextmanager
    def acknowledged(self) -> Iterator[None]:
        """Around the note of what a reply has said."""
        yield
        self._left -= 1
        if not self._left:
            self._kill()

    def forget(self, *names: tuple[int, bytes]) -> None:
        """Before a call that changes these: until it is answered there is no telling."""
        for name in names:
            self.kept.pop(name, None)
            self.removed.discard(name)


async def work(client: Nfs3Client, directories: list[nfs_fh3], number: int, account: Account) -> None:
    """Make, write, rename and remove files, until the server is gone."""
    for count in itertools.count():
        here, there = (0, 1) if count % 3 else (1, 0)
        name, new = b"%d-%d" % (number, count), b"%d-%d-new" % (number, count)
        handle = await client.create(directories[here], name, 0o644)
        with account.acknowledged():
            account.kept[here, name] = b""
        data = random.randbytes(2 * PIECE)
        account.kept[here, name] = None
        if count % 2:
            await client.write(handle, 0, data, stable_how.FILE_SYNC)
        else:
            for at in (PIECE, 0):
                await client.write(handle, at, data[at : at + PIECE])
            await client.commit(handle)
        with account.acknowledged():
            account.kept[here, name] = data
        account.forget((here, name), (there, new))
        if count % 3 == 0:
            await client.remove(directories[here], name)
            with account.acknowledged():
                account.removed.add((here, name))
        else:
            await client.rename(directories[here], name, directories[there], new)
            with account.acknowledged():
                account.kept[there, new] = data
                account.removed.add((here, name))


async def worked(server: Gateway, account: Account) -> None:
    """Have several work until the server has been killed."""
    await server.ready()
    async with await Nfs3Client.connect(HOST, server.mountd) as mounting:
        root = await mounting.mount(PLACE)
    clients = [await Nfs3Client.connect(HOST, server.port) for _ in range(WRITERS)]
    directories = [await clients[0].lookup(root, name) for name in DIRECTORIES]
    for ended in await asyncio.gather(
        *(work(client, directories, number, account) for number, client in enumerate(clients)), return_exceptions=True
    ):
        if not isinstance(ended, _GONE):
            raise ended
    for client in clients:
        await client.close()


def found_by(client: Any, root: bytes) -> dict[tuple[int, bytes], bytes]:
    """All files, as another client of the cluster sees them."""
    found = {}
    for number, directory in enumerate(DIRECTORIES):
        key, _ = client.lookup(None, root, directory)
        for name, _, file, _ in client.entries(client.open_directory(None, key), 1 << 20):
            opened, sink = client.open(None, file, 1), bytearray(3 * PIECE)
            octets, _ = client.read(opened, 0, memoryview(sink))
            found[number, name] = bytes(sink[:octets])
            opened.close()
    return found


async def served_by(server: Gateway) -> dict[tuple[int, bytes], bytes]:
    """All files, as clients of the server see them."""
    await server.ready()
    async with await Nfs3Client.connect(HOST, server.mountd) as mounting:
        root = await mounting.mount(PLACE)
    found = {}
    async with await Nfs3Client.connect(HOST, server.port) as client:
        for number, directory in enumerate(DIRECTORIES):
            for entry in await client.listing(await client.lookup(root, directory)):
                if entry.name not in (b".", b".."):
                    read = await client.read(entry.name_handle, 0, 3 * PIECE)
                    found[number, entry.name] = bytes(read.data)
    return found


def missing(account: Account, found: dict[tuple[int, bytes], bytes]) -> list[str]:
    """What was promised and is not so."""
    wrong = [f"{name} was removed" for name in account.removed if name in found]
    for name, data in account.kept.items():
        if name not in found:
            wrong.append(f"{name} is not there")
        elif data is not None and found[name] != data:
            wrong.append(f"{name} has {len(found[name])} octets and not the {len(data)} that were written")
    return wrong


def crash(place: Any, tmp_path: Any, name: str, after: int, *, mds: bool, **export: Any) -> list[str]:
    """What a crash behind so many replies has cost."""
    server = Gateway(tmp_path, place.options, name, {}, **export)

    def kill() -> None:
        if mds:
            place.cluster.kill("mds")
        server.kill()

    with place.client() as (client, root):
        for directory in DIRECTORIES:
            client.make(None, root, directory, 0o40777, None, (0, 0))
        client.sync(root, [])
    account = Account(after, kill)
    with server:
        asyncio.run(asyncio.wait_for(worked(server, account), 240))
    if mds:
        place.cluster.start_mds()
    with server:  # it ends its session of before, which others would wait for
        served = asyncio.run(asyncio.wait_for(served_by(server), 240))
        with place.client() as (client, root):
            wrong = missing(account, found_by(client, root))
        assert bool(missing(account, served)) == bool(wrong)
        assert asyncio.run(server.stop()) == 0  # others would wait for its session
    assert account.kept or account.removed
    return wrong


@pytest.fixture
def hurried(cluster):
    """A metadata server that does not wait long for clients that have died with the one before."""
    cluster.command("config", "set", "mds", "mds_reconnect_timeout", "5")
    yield
    cluster.command("config", "rm", "mds", "mds_reconnect_timeout")


@pytest.mark.parametrize("after", [3, 100, 250])
def test_what_was_acknowledged_outlasts_the_server(place, tmp_path, after):
    assert crash(place, tmp_path, f"killed-{os.getpid()}-{after}", after, mds=False) == []


@pytest.mark.parametrize("after", [15, 150])
@pytest.mark.usefixtures("hurried")
def test_what_was_acknowledged_outlasts_the_metadata_server_too(place, tmp_path, after):
    assert crash(place, tmp_path, f"both-{os.getpid()}-{after}", after, mds=True) == []


def test_without_syncs_it_does_not(place, tmp_path):
    """An export with ``async`` promises less: these tests would see it."""
    lost = crash(place, tmp_path, f"async-{os.getpid()}", 60, mds=False, **{"async": True})
    assert lost
    assert all("octets" in one for one in lost)


@pytest.mark.usefixtures("hurried")
def test_without_syncs_the_metadata_server_has_not_even_the_names(place, tmp_path):
    lost = crash(place, tmp_path, f"async-both-{os.getpid()}", 60, mds=True, **{"async": True})
    assert any("not there" in one for one in lost)
