"""``manage_gids``: users are in the groups that the server's system has them in, whatever their calls say."""

import asyncio
import os
import pwd
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.names import GroupLists
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import READ3args, nfsstat3
from nfsd.vfs.types import Credential
from tests.support.served import Served, run

UID, GID = 4711, 4712
FORTY = tuple(range(60000, 60040))
SECRET = FORTY[33]
EXPORTS = "  - {path: data, manage_gids: true}\n"

as_others = pytest.mark.skipif(os.geteuid() != 0, reason="the server must act as other users")


class System:
    """What the name service knows, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: dict[int, tuple[int, ...]] = {UID: FORTY}
        self.asked: list[int] = []
        real = pwd.getpwuid

        def getpwuid(uid: int) -> Any:
            self.asked.append(uid)
            if uid not in self.groups:
                raise KeyError(uid)
            return pwd.struct_passwd((f"u{uid}", "x", uid, 100, "", "/", "/bin/sh"))

        def getgrouplist(name: str, gid: int) -> list[int]:
            assert threading.current_thread() is not threading.main_thread()
            return [gid, *self.groups[int(name[1:])]]

        assert real is not getpwuid
        monkeypatch.setattr(pwd, "getpwuid", getpwuid)
        monkeypatch.setattr(os, "getgrouplist", getgrouplist)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def prepare(tmp_path: Path, group: int = SECRET) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(b"x" * 100)
    os.chmod(tmp_path / "data" / "file", 0o640)
    os.chown(tmp_path / "data" / "file", 0, group)


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it does not happen")


@as_others
@pytest.mark.parametrize("claimed", [(), FORTY[:3], tuple(range(100, 116)), (SECRET,)])
def test_nfs3(tmp_path: Path, system: System, claimed: tuple[int, ...]) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        file = await (await server.nfs3()).lookup(await server.mount("/data"), b"file")

        async def status(uid: int) -> Any:
            client = await server.nfs3(uid, GID, claimed)
            # Many times: natively, too, once everything is known.
            got = {(await client.nfs("READ", READ3args(file, 0, 10))).status for _ in range(20)}
            assert len(got) == 1
            return got.pop()

        assert await status(UID) == nfsstat3.NFS3_OK, "it is in the group, whatever it says"
        # Somebody the server does not know, or knows to be in no such group, is not in it, whatever it says.
        assert await status(UID + 1) == nfsstat3.NFS3ERR_ACCES
        system.groups[UID + 2] = (7,)
        assert await status(UID + 2) == nfsstat3.NFS3ERR_ACCES
        assert system.asked.count(UID) == system.asked.count(UID + 2) == 1, "answers are kept"
        if not claimed:
            rows = server.daemon.dispatchers["nfs"].rows
            assert rows[100003, 3, 6].native is not None
            declined = {
                reason for label, reason, _ in server.daemon.dispatchers["nfs"].declined() if label[2] == "READ"
            }
            assert not declined, declined

    run(tmp_path, EXPORTS, test)


@as_others
@pytest.mark.parametrize("minor", [0, 1, 2])
def test_nfs4(tmp_path: Path, system: System, minor: int) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        read = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 10))
        for uid, expected in ((UID, p.NFS4_OK), (UID + 1, p.NFS4ERR_ACCESS)):
            client = await server.nfs4(minor, uid, GID, (SECRET,) if uid != UID else ())
            for _ in range(10):
                assert await client.status(*client.path("/data/file"), read) == expected

    run(tmp_path, EXPORTS, test)


@as_others
def test_a_reload_asks_again_and_a_change_holds_for_connections_that_are_there(tmp_path: Path, system: System) -> None:
    prepare(tmp_path)

    async def test(server: Served) -> None:
        file = await (await server.nfs3()).lookup(await server.mount("/data"), b"file")
        client = await server.nfs3(UID, GID)
        for _ in range(3):
            assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3_OK
        system.groups[UID] = (7,)
        assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3_OK
        assert await server.daemon.reload()
        for _ in range(3):
            assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3ERR_ACCES
        # Without the key, its own word counts again.
        await server.reload("manage_gids: true", "manage_gids: false")
        client = await server.nfs3(UID, GID, (SECRET,))
        assert (await client.nfs("READ", READ3args(file, 0, 10))).status == nfsstat3.NFS3_OK

    run(tmp_path, EXPORTS, test)


class Caller:
    flavor, gid, security = 1, GID, "sys"

    def __init__(self, uid: int, gids: tuple[int, ...] = ()) -> None:
        self.uid, self.gids = uid, gids


class Peer:
    netid, peer_port, certified = "tcp", 900, ""

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.peer_address = address


def table_of(**settings: Any) -> tuple[Export, ExportTable, GroupLists]:
    export = Export(7, "/srv", "/srv", manage_gids=True)
    groups = GroupLists(**settings)
    return export, ExportTable((export,), groups=groups), groups


def test_what_is_said_at_once_and_what_is_waited_for_agree() -> None:
    clock, answers = [0.0], {1000: (5, 6), 0: (0, 9)}

    async def main() -> None:
        export, table, _ = table_of(look_up=lambda uid, gid: answers.get(uid, ()), clock=lambda: clock[0], ttl=100)
        assert table.edition.ages
        for uid, expected in ((1000, Credential(1000, GID, (5, 6))), (0, Credential(65534, GID, (65534, 9)))):
            assert table.standing(export, Caller(uid, (3,)), Peer()) is None
            waited = await table.credential(export, 1, uid, GID, (3,), "192.0.2.1")
            assert (waited, False) == table.standing(export, Caller(uid, (3,)), Peer()) == (expected, False)
        # When the answer is old, it is given while a new one is on its way; then a new standing is asked for.
        answers[1000], clock[0], before = (5,), 101, table.edition.number
        assert (await table.credential(export, 1, 1000, GID, (), "192.0.2.1")).gids == (5, 6)
        await until(lambda: table.edition.number > before)
        found = table.standing(export, Caller(1000), Peer())
        assert found is not None
        assert found[0].gids == (5,)
        await table.close()

    asyncio.run(main())


def test_users_who_are_made_up_have_nobody_forgotten_and_are_not_all_remembered() -> None:
    async def main() -> None:
        export, table, groups = table_of(look_up=lambda uid, gid: (5,) if uid == 1000 else ())
        await table.credential(export, 1, 1000, GID, (), "192.0.2.1")
        for uid in range(2000, 7000):
            await table.credential(export, 1, uid, uid, (), "198.51.100.1")
        assert groups.known(1000, None) == (5,)
        assert len(groups._unknown) <= 4096
        await table.close()

    asyncio.run(main())


def test_a_network_whose_users_take_long_to_find_holds_up_no_other() -> None:
    release = threading.Event()

    def look_up(uid: int, gid: int | None) -> tuple[int, ...]:
        if uid >= 2000:
            release.wait(60)
        return (5,)

    async def main() -> None:
        export, table, groups = table_of(look_up=look_up)
        asked = [
            asyncio.ensure_future(table.credential(export, 1, uid, GID, (9,), "198.51.100.1"))
            for uid in range(2000, 2400)
        ]
        await asyncio.sleep(0)
        assert (await table.credential(export, 1, 1000, GID, (), "192.0.2.1")).gids == (5,)
        assert len(groups._running) <= 258, "so many wait, the others are in no group"
        release.set()
        found = await asyncio.gather(*asked)
        assert {one.gids for one in found} == {(5,), ()}
        await table.close()

    try:
        asyncio.run(main())
    finally:
        release.set()
