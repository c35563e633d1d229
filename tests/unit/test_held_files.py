"""A host that holds files open by NFSv4 has a share of the descriptors; others open theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs import shares
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import Client4, Failed, mode

GREEDY, HONEST = "127.0.0.2", "127.0.0.3"
FILES, SHARE = 64, 32
LIMITS = f"  nfs4: {{grace_time: 0}}\n  limits: {{open_files: {FILES}, host_open_files: {SHARE}}}\n"
FINAL = {0: p.NFS4ERR_RESOURCE, 1: p.NFS4ERR_NOSPC}
NOT_DELEGATED = {0: p.OPEN4_SHARE_ACCESS_BOTH, 1: p.OPEN4_SHARE_ACCESS_BOTH | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "PATIENCE", 0.2)


async def new_file(client: Client4, number: int) -> tuple[Any, bytes]:
    access = NOT_DELEGATED[client.minor]
    name = b"%s%d" % (client.name, number)
    return await client.open("/export", name, access=access, create=mode(0o600), owner=b"%d" % number)


async def as_many_as_possible(client: Client4) -> tuple[list[tuple[Any, bytes]], int]:
    """What could be opened, and the status of what could not."""
    held: list[tuple[Any, bytes]] = []
    try:
        while True:
            held.append(await new_file(client, len(held)))
    except Failed as failed:
        return held, failed.status


@pytest.mark.parametrize("minor", [0, 1])
def test_what_one_host_holds_open_keeps_nobody_out(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        greedy = await (await site.client(GREEDY, minor, name=b"greedy")).connect()
        held, status = await as_many_as_possible(greedy)
        assert status == FINAL[minor]
        assert SHARE // 2 < len(held) <= SHARE
        # By another client it has no more.
        more = await (await site.client(GREEDY, minor, name=b"more")).connect()
        assert (await as_many_as_possible(more))[0] == []
        # What it has, it can use.
        state, handle = held[0]
        writing = p.WRITE4args(state, 0, p.stable_how4.UNSTABLE4, memoryview(b"data"))
        await greedy.on(handle, (p.OP_WRITE, writing), (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        honest = await (await site.client(HONEST, minor, name=b"honest")).connect()
        for number in range(8):
            state, handle = await new_file(honest, number)
            writing = p.WRITE4args(state, 0, p.stable_how4.UNSTABLE4, memoryview(b"data"))
            await honest.on(handle, (p.OP_WRITE, writing), (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        # What it closes, it can open again.
        for number, (state, handle) in enumerate(held[:4]):
            await greedy.close(state, handle, b"%d" % number)
        for number in range(4):
            await new_file(greedy, 1000 + number)
        assert site.daemon.service.shares.in_use <= FILES

    on_site(tmp_path, test, server=LIMITS)


def test_many_hosts_hold_no_more_than_all_but_the_reserve(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        for number in range(4, 7):
            client = await (await site.client(f"127.0.0.{number}", 1, name=b"host%d" % number)).connect()
            held, status = await as_many_as_possible(client)
            assert status in (p.NFS4ERR_NOSPC, p.NFS4ERR_DELAY)
            assert len(held) <= SHARE
        honest = await (await site.client(HONEST, 1, name=b"honest")).connect()
        await new_file(honest, 0)
        assert site.daemon.service.shares.in_use <= FILES

    on_site(tmp_path, test, server=LIMITS)


def test_what_is_closed_gives_all_places_back(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(GREEDY, 1, name=b"tidy")).connect()
        held, _ = await as_many_as_possible(client)
        for state, handle in held:
            await client.close(state, handle)
        service = site.daemon.service
        for _ in range(400):
            service.sweep()
            if not service.shares.in_use:
                break
            await asyncio.sleep(0.02)
        assert service.shares.in_use == service.shares.leaving == 0

    on_site(tmp_path, test, server=LIMITS)
