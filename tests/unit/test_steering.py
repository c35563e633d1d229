"""Steering where something is many, or two things have one name, or another user has put something in the way."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nfsd import cli, steering
from nfsd.admin import asking
from nfsd.exports import ExportTable
from nfsd.protocol import nfs4 as p
from nfsd.steering import Steering
from nfsd.v4.attributes import words_of
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import mode
from tests.unit.test_admin import NO_GRACE, Admin
from tests.unit.test_v4_locks import locking


@pytest.fixture
def admin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Admin:
    return Admin(tmp_path, capsys)


def test_what_many_clients_lose_is_looked_for_once(
    tmp_path: Path, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    more = "  - {path: other, pseudo: /other, squash: none}\n"
    asked: set[str] = set()

    async def test(site: Site) -> None:
        hosts = [f"127.0.0.{number}" for number in range(1, 5)]
        for host in hosts:
            client = await (await site.client(host, name=host.encode())).connect()
            for number in range(2):
                await client.open("/other", b"%d" % number, create=mode(0o666), owner=b"o%d" % number)
        looks = Counter[str]()
        real_states, real_admit = Steering._states, ExportTable.admit
        together = asyncio.Event()

        def states(self: Steering, export_id: int) -> Any:
            looks["states"] += 1
            return real_states(self, export_id)

        def admit(self: ExportTable, peer: str) -> Any:
            """A name service that has answers when all have been asked for."""
            if self is site.daemon.exports:
                return real_admit(self, peer)
            asked.add(peer)
            if len(asked) == len(hosts):
                together.set()
            return asyncio.wait_for(together.wait(), 20)

        monkeypatch.setattr(Steering, "_states", states)
        monkeypatch.setattr(ExportTable, "admit", admit)
        file = tmp_path / "exports.yaml"
        file.write_text(file.read_text().replace(more, ""))
        lines = await admin.table("reload", "--dry-run")
        assert lines[1:] == [
            f"{host}  /other: may not use it any more (in use), and loses 2 opens and delegations" for host in hosts
        ]
        assert looks["states"] <= 1, "states times clients would hold everybody up"

    on_site(tmp_path, test, server=NO_GRACE, more=more)


def test_a_name_of_an_export_goes_before_the_directory_of_another(tmp_path: Path, admin: Admin) -> None:
    (tmp_path / "other").mkdir()
    name = str(tmp_path / "export")

    async def test(site: Site) -> None:
        await admin.table("drain", name, "--seconds", "0")
        assert [row["export"] for row in await admin.rows("exports")] == ["/export"]
        await admin.table("drain", name, "--seconds", "0")
        assert await admin.rows("exports") == [], "by its directory"

    on_site(tmp_path, test, more=f"  - {{path: other, pseudo: {name}, squash: none}}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
@pytest.mark.parametrize("linked", [False, True])
def test_a_server_that_another_user_put_there_is_not_found(
    tmp_path: Path, admin: Admin, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(asking, "PLACES", (str(places / "*"),))

    async def test(site: Site) -> None:
        state = site.daemon.config.server.state_dir
        (places / "state").symlink_to(state)
        assert await asyncio.to_thread(cli.main, ["clients"]) == 0
        os.chown(places / "state", 12345, 12345, follow_symlinks=not linked)
        admin.capsys.readouterr()
        assert await asyncio.to_thread(cli.main, ["clients"]) == 1
        assert "no server is found" in admin.capsys.readouterr().err
        assert await asyncio.to_thread(cli.main, ["clients", "--state-dir", str(places / "state")]) == 0, "it was named"

    on_site(tmp_path, test)


def test_a_client_that_does_not_speak_for_its_host_is_evicted_by_id_too(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client("127.0.0.2", name=b"user")).connect()
        (record,) = site.engine.clients.all()
        assert record.host.endswith("!"), "its port is one that any user may have"
        lines = await admin.table("evict", f"{client.clientid:016x}")
        assert lines[1:] == ["closed 1 connection"]

    on_site(tmp_path, test, clients="['*']\n    secure: true", server=NO_GRACE)


def test_who_is_evicted_by_id_takes_nobody_of_the_same_address_along(tmp_path: Path, admin: Admin) -> None:
    async def test(site: Site) -> None:
        one = await (await site.client("127.0.0.2", name=b"one")).connect()
        two = await (await site.client("127.0.0.2", name=b"two")).connect()
        lines = await admin.table("evict", f"{one.clientid:016x}")
        assert len(lines) == 1, "whose connection is whose is not known"
        await two.run(*two.path("/export"))

    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")
@pytest.mark.parametrize("how", [("-t", "tmpfs", "none"), ("--bind", "source")], ids=["memory", "disk"])
def test_what_is_drained_can_be_unmounted_at_once(tmp_path: Path, admin: Admin, how: tuple[str, ...]) -> None:
    """With an open, a lock, data that no COMMIT has asked for, and a listing that is half read."""
    export = tmp_path / "export"
    export.mkdir()
    (tmp_path / "source").mkdir()

    async def test(site: Site) -> None:
        client = await (await site.client("127.0.0.2")).connect()
        for number in range(30):
            (export / f"file with a long name {number}").touch()
        stateid, handle = await client.open("/export", b"f", create=mode(0o666))
        data = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, memoryview(b"data"))
        await client.on(handle, (p.OP_WRITE, data), locking(client, stateid))
        listing = p.READDIR4args(0, bytes(8), 400, 500, words_of(1 << p.FATTR4_FILEID))
        await client.run(*client.path("/export"), (p.OP_READDIR, listing))
        service = site.daemon.service
        assert len(service.listings.streams) == 1
        lines = await admin.table("drain", "/export", "--seconds", "0")
        unmount = functools.partial(subprocess.run, ["umount", export], check=False, capture_output=True)
        unmounting = await asyncio.to_thread(unmount)
        assert (unmounting.returncode, unmounting.stderr) == (0, b"")
        assert lines[-1] == "/export is not served until `rdma-nfsd reload`; clients lost 1 state"

    source = [str(tmp_path / word) if word == "source" else word for word in how]
    subprocess.run(["mount", *source, export], check=True)
    try:
        on_site(tmp_path, test, server=NO_GRACE)
    finally:
        subprocess.run(["umount", "--lazy", export], check=False, capture_output=True)


def test_what_is_not_closed_in_time_is_not_called_drained(
    tmp_path: Path, admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steering, "_CLOSING", 0.1)

    async def test(site: Site) -> None:
        client = await (await site.client("127.0.0.2")).connect()
        await client.open("/export", b"f", create=mode(0o666))
        opened = next(iter(site.daemon.service.open_files._all_opens))
        opened.retain()  # as a call in progress does
        lines = await admin.table("drain", "/export", "--seconds", "0")
        assert lines[-1].startswith("some of its files are open still")
        assert "drained" not in caplog.text.replace("being drained, and some of its files are open still", "")
        opened.release()

    on_site(tmp_path, test, server=NO_GRACE)
