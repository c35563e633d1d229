"""What READ and WRITE must not do, on every way that a call takes to them (``tests/support/ways.py``).

Each rule makes one thing stand in the way, sees the call refused with the file as it was, takes it out of the way, and
sees the call carried out on the way that was meant. It does so with a file that is open for the caller from an earlier
call, and with one that is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nfsd.config import Config, Server
from nfsd.exported import ClientOverride
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.reloader import Reloader
from tests.support.delegations import BOTH, READ, READ_DELEGATION, WRITE_DELEGATION, two_clients
from tests.support.ways import DATA, HANDED_OVER, WAYS, Asking, Way, asking, uncached
from tests.unit import vfs_support

CONTENT = b"content that is longer than what the rules' calls read or write"
ANONYMOUS = p.stateid4(0, bytes(12))


@dataclass
class Scene:
    """A file of a server, who asks for it, and another client."""

    asks: Asking
    other: Any
    path: Path
    handle: bytes

    @property
    def name(self) -> bytes:
        return os.fsencode(self.path.name)


Obstacle = Callable[[Scene], contextlib.AbstractAsyncContextManager[None]]


def delegation(access: int) -> Obstacle:
    """Another client has a delegation, and does not return it before the obstacle is to go."""

    @contextlib.asynccontextmanager
    async def obstacle(scene: Scene) -> AsyncIterator[None]:
        other = scene.other
        other.end.keep, recalls = True, other.end.recalls
        opened = await other.opening(scene.name, access)
        kind = opened.delegation.delegation_type
        assert kind == (READ_DELEGATION if access == READ else WRITE_DELEGATION)
        yield
        assert other.end.recalls == recalls + 1
        recall = other.end.executed[-1][1]
        await other.give_back(recall.stateid, recall.fh)

    return obstacle


def denied(deny: int) -> Obstacle:
    """Another client has the file open with a share reservation against it."""

    @contextlib.asynccontextmanager
    async def obstacle(scene: Scene) -> AsyncIterator[None]:
        access = BOTH | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
        opened = await scene.other.opening(scene.name, access, deny=deny)
        yield
        await scene.other.close(opened.stateid, scene.handle)

    return obstacle


def exported(**how: Any) -> Obstacle:
    """The export has other settings for a while."""

    @contextlib.asynccontextmanager
    async def obstacle(scene: Scene) -> AsyncIterator[None]:
        server = scene.asks.server
        before = server.service.exports.exports
        for exports in (tuple(replace(each, **how) for each in before), before):
            reloader = Reloader(
                Config("", Server(listen=()), server.service.exports.exports), server.service, server.nfs4
            )

            async def read(wanted: Any = exports) -> Config:
                return Config("", Server(listen=()), wanted)

            reloader.read = read  # type: ignore[method-assign]
            assert await reloader.reload()
            if exports is not before:
                yield

    return obstacle


@contextlib.asynccontextmanager
async def no_permission(scene: Scene) -> AsyncIterator[None]:
    """A local process takes the permission."""
    scene.path.chmod(0o600)
    yield
    scene.path.chmod(0o666)


READ_ONLY_CLIENT = exported(overrides=(ClientOverride("*", read_only=True),))
READ_ONLY_EXPORT = exported(read_only=True, overrides=(ClientOverride("*", read_only=False),))
"""Only the file service has it that the export is read-only, whatever the client may."""

THREE = {
    "READ behind a delegation": ("read3", delegation(BOTH), nfsstat3.NFS3ERR_JUKEBOX),
    "WRITE behind a delegation": ("write3", delegation(READ), nfsstat3.NFS3ERR_JUKEBOX),
    "READ without permission": ("read3", no_permission, nfsstat3.NFS3ERR_ACCES),
    "WRITE without permission": ("write3", no_permission, nfsstat3.NFS3ERR_ACCES),
    "WRITE by a read-only client": ("write3", READ_ONLY_CLIENT, nfsstat3.NFS3ERR_ROFS),
    "WRITE to a read-only export": ("write3", READ_ONLY_EXPORT, nfsstat3.NFS3ERR_ROFS),
}
FOUR = {
    "READ behind a delegation": ("read4", delegation(BOTH), p.NFS4ERR_DELAY),
    "WRITE behind a delegation": ("write4", delegation(READ), p.NFS4ERR_DELAY),
    "READ without permission": ("read4", no_permission, p.NFS4ERR_ACCESS),
    "WRITE without permission": ("write4", no_permission, p.NFS4ERR_ACCESS),
    "WRITE by a read-only client": ("write4", READ_ONLY_CLIENT, p.NFS4ERR_ROFS),
    "WRITE to a read-only export": ("write4", READ_ONLY_EXPORT, p.NFS4ERR_ROFS),
    "READ against a share reservation": ("read4", denied(p.OPEN4_SHARE_DENY_READ), p.NFS4ERR_LOCKED),
    "WRITE against a share reservation": ("write4", denied(p.OPEN4_SHARE_DENY_WRITE), p.NFS4ERR_LOCKED),
}


async def file_of(server: Any, export: Path, name: str) -> tuple[Path, bytes]:
    """A new file, and its handle."""
    path = export / name
    path.write_bytes(CONTENT)
    path.chmod(0o666)
    root = await server.service.root(server.service.exports.exports[0])
    node, _ = await server.service.lookup(vfs_support.ROOT, root, os.fsencode(name))
    return path, node.handle


async def holds(scene: Scene, ask: Callable[[], Any], obstacle: Obstacle, refusal: int, reads: bool) -> None:
    """See the rule hold while the obstacle is there, and not longer."""
    asks, path = scene.asks, scene.path
    written = path.stat().st_mtime_ns
    async with obstacle(scene):
        uncached(path)
        assert await ask() == refusal
        assert path.stat().st_mtime_ns == written
    uncached(path)
    assert await ask() == 0
    natively, waited = asks.natively(), asks.waited()
    uncached(path)
    assert await ask() == 0
    on_own_path = not (asks.way.general or asks.way.handed_over)
    assert asks.natively() - natively == on_own_path, "not the way that was meant"
    if asks.way.kind == "disk":
        assert asks.waited() > waited, "the disk was not waited for"
    assert path.read_bytes() == (CONTENT if reads else DATA + CONTENT[len(DATA) :])


def on(way: Way, tmp_path: Path, minor: int, test: Callable[[Any, Path, Asking, Any], Any]) -> None:
    """Run ``test(server, export, asking, other client)``."""
    (tmp_path / "state").mkdir()

    async def main(place: Path) -> None:
        async with two_clients(tmp_path, place=place) as (server, export, other, _), asking(server, way, minor) as asks:
            await test(server, export, asks, other)

    with vfs_support.directory_on(way.kind, tmp_path) as path:
        asyncio.run(main(Path(path)))


async def ruled(asks: Asking, other: Any, export: Path, rule: tuple[str, Obstacle, int], *more: Any) -> None:
    """See a rule hold for a file that is open for the caller from an earlier call, and for one that is not."""
    what, obstacle, refusal = rule
    for warm in (True, False):
        path, handle = await file_of(asks.server, export, "warm" if warm else "cold")

        async def ask(handle: bytes = handle) -> int:
            status: int = await getattr(asks, what)(handle, *more)
            return status

        if warm:
            # By NFSv3, which leaves the file to be delegated at once.
            for _ in range(2):
                assert await getattr(asks, what.replace("4", "3"))(handle) == 0
        await holds(Scene(asks, other, path, handle), ask, obstacle, refusal, what.startswith("read"))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("rule", THREE)
def test_nfs3(tmp_path: Path, way: Way, rule: str) -> None:
    async def test(server: Any, export: Path, asks: Asking, other: Any) -> None:
        await ruled(asks, other, export, THREE[rule])

    on(way, tmp_path, 1, test)


@pytest.mark.parametrize("way", [*WAYS, *HANDED_OVER], ids=str)
@pytest.mark.parametrize("rule", FOUR)
@pytest.mark.parametrize("minor", [0, 1])
def test_nfs4(tmp_path: Path, way: Way, rule: str, minor: int) -> None:
    async def test(server: Any, export: Path, asks: Asking, other: Any) -> None:
        await ruled(asks, other, export, FOUR[rule], ANONYMOUS)

    on(way, tmp_path, minor, test)
