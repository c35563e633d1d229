"""NFSv4.1 as a client: slots, recovery after a restart of the server, leases, delegations; and NFSv3's resent
writes."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from nfsd.client import FileSystem, files, recovery
from nfsd.client.opens import ANONYMOUS
from nfsd.client.rpc import Patience
from nfsd.client.session import Session
from nfsd.client.slots import SlotTable
from nfsd.client.v41 import Nfs41
from nfsd.protocol import nfs4 as p
from tests.unit.nfs_client_support import Rig


def session_of(fs: FileSystem) -> Session:
    assert isinstance(fs.backend, Nfs41)
    return fs.backend.session


def test_slots_are_given_out_lowest_first_and_in_turn() -> None:
    async def test() -> None:
        table = SlotTable(2)
        first, second = await table.acquire(), await table.acquire()
        assert (first.number, second.number, table.highest) == (0, 1, 1)
        third = asyncio.create_task(table.acquire())
        fourth = asyncio.create_task(table.acquire())
        await asyncio.sleep(0)
        assert not third.done()
        third.cancel()
        table.release(first)
        assert (await fourth).number == 0
        table.release(second)
        assert table.in_use == 1
        # A turn that was given to somebody who has just gone away is the next one's.
        again = await table.acquire()
        fifth, sixth = asyncio.create_task(table.acquire()), asyncio.create_task(table.acquire())
        await asyncio.sleep(0)
        table.release(again)
        fifth.cancel()
        assert (await sixth).number == 1
        assert table.in_use == 2

    asyncio.run(test())


def test_the_server_may_take_slots_back_and_give_them_again() -> None:
    async def test() -> None:
        table = SlotTable(8)
        slots = [await table.acquire() for _ in range(8)]
        table.adjust(7, 1)
        for slot in slots:
            table.release(slot)
        kept = [await table.acquire(), await table.acquire()]
        assert [slot.number for slot in kept] == [0, 1]
        waiting = asyncio.create_task(table.acquire())
        await asyncio.sleep(0)
        assert not waiting.done()
        table.adjust(7, 7)
        assert (await waiting).number == 2
        table.adjust(0, 0)
        assert table.usable == 1

    asyncio.run(test())


def test_several_slots_are_in_use_at_a_time_and_no_more_than_there_are(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    seen: list[int] = []

    async def test() -> None:
        (rig.export / "file").write_bytes(bytes(1_000_000))
        async with rig.connect(size=4096, slots=5, depth=64) as fs:
            session = session_of(fs)
            send = session.send

            async def watched(*arguments: Any, **more: Any) -> Any:
                seen.append(session.slots.in_use)
                return await send(*arguments, **more)

            session.send = watched  # type: ignore[method-assign]
            assert await fs.read_bytes("file") == bytes(1_000_000)
        assert max(seen) == 5

    rig.run(test)


def test_a_read_that_is_given_up_leaves_its_slot_usable(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    data = os.urandom(500_000)

    async def test() -> None:
        (rig.export / "file").write_bytes(data)
        async with rig.connect(slots=2, size=65536) as fs, fs.open("file") as file:
            epoch = session_of(fs).epoch
            for turn in range(60):
                reading = asyncio.create_task(file.pread(400_000, 0))
                for _ in range(turn % 30):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait([reading])
            assert await file.read() == data
            await session_of(fs).settled()
            assert session_of(fs).slots.in_use == 0
            assert session_of(fs).epoch == epoch, "the session was given up instead of its slots being settled"

    rig.run(test)


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_a_restart_of_the_server_in_the_middle_of_reading_and_writing(tmp_path: Path, transport: str) -> None:
    """The client is away for a moment; its opens are reclaimed in the grace period, and what was not committed is
    written again (RFC 8881 sections 8.4.2 and 18.32.4)."""
    rig = Rig(tmp_path, transport)
    rig.extra = "  nfs4: {lease_time: 10, grace_time: 5}\n"
    old, new = os.urandom(300_000), os.urandom(300_000)

    async def test() -> None:
        (rig.export / "old").write_bytes(old)
        async with rig.connect(size=65536) as fs, fs.open("old") as reading, fs.open("new", "w") as writing:
            assert await reading.read(100_000) == old[:100_000]
            await writing.write(new[:150_000])
            stateids = [opened.stateid for opened in session_of(fs).opens]
            assert ANONYMOUS not in stateids
            await rig.daemon.stop()
            await rig.start()
            # The file has gone from its name: only the reclaimed open, or its handle, leads to it.
            (rig.export / "old").rename(rig.export / "other")
            assert await reading.read() == old[100_000:]
            await writing.write(new[150_000:])
            await writing.flush()
            assert writing.resent == 150_000
            assert session_of(fs).epoch == 2
            assert [opened.stateid for opened in session_of(fs).opens] != stateids
            assert all(opened.lost is None for opened in session_of(fs).opens)
            # A file that was not open is opened after the grace period, which the client waits out.
            assert await fs.read_bytes("new") == new

    rig.run(test)


def test_version_three_writes_again_what_a_restart_has_lost(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "tcp", "3")
    data = os.urandom(300_000)

    async def test() -> None:
        async with rig.connect(size=65536) as fs, fs.open("file", "w") as file:
            await file.write(data[:150_000])
            await rig.daemon.stop()
            (rig.export / "file").write_bytes(bytes(150_000))  # a server that has lost it
            await rig.start()
            await file.write(data[150_000:])
            await file.flush()
            assert file.resent == 150_000
            assert (rig.export / "file").read_bytes() == data

    rig.run(test)


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_commits_in_the_middle_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """What is kept for COMMIT is bounded; writers go on meanwhile, and what they write is the next COMMIT's."""
    monkeypatch.setattr(files, "UNCOMMITTED_LIMIT", 50_000)
    rig = Rig(tmp_path, "rdma", version)
    data = os.urandom(4_000_000)
    kept = []

    async def test() -> None:
        async with rig.connect(size=4096) as fs, fs.open("file", "w") as file:

            async def write(first: int) -> None:
                for offset in range(first * 4096, len(data), 8 * 4096):
                    await file.pwrite(data[offset : offset + 4096], offset)
                    kept.append(file._kept)

            await asyncio.gather(*map(write, range(8)))
            await file.flush()
            assert file._kept == file.resent == 0
        assert (rig.export / "file").read_bytes() == data
        assert max(kept) < 100_000

    rig.run(test)


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_a_write_that_is_given_up_costs_no_connection(tmp_path: Path, version: str) -> None:
    rig = Rig(tmp_path, "rdma", version)

    async def test() -> None:
        async with rig.connect() as fs, fs.open("file", "w") as file:
            for turn in range(30):
                writing = asyncio.create_task(file.pwrite(bytes(300_000), 0))
                for _ in range(turn):
                    await asyncio.sleep(0)
                writing.cancel()
                await asyncio.wait([writing])
            await file.write(b"content")
            assert fs.backend.caller.connection.reconnections == 0  # type: ignore[attr-defined]
        assert (rig.export / "file").read_bytes().startswith(b"content")

    rig.run(test)


def test_a_session_that_the_server_does_not_know_is_replaced(tmp_path: Path) -> None:
    """BADSESSION for all slots at once: one new session, no open lost."""
    rig = Rig(tmp_path)

    async def test() -> None:
        async with rig.connect(slots=8) as fs, fs.open("file", "w") as file:
            session = session_of(fs)
            await file.write(b"before")
            clientid, sessionid = fs.backend.client.clientid, session.sessionid  # type: ignore[attr-defined]
            done = await session.send([(p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(sessionid))])
            assert done.status == p.NFS4_OK
            await asyncio.gather(*(file.pwrite(bytes([48 + number]), number) for number in range(8)))
            assert session.epoch == 2
            assert session.sessionid != sessionid
            assert fs.backend.client.clientid == clientid  # type: ignore[attr-defined]
        assert (rig.export / "file").read_bytes() == b"01234567"

    rig.run(test)


def test_a_server_that_forgets_the_client_at_once_gets_to_know_it_again(tmp_path: Path, monkeypatch: Any) -> None:
    """As one does that is killed between CREATE_SESSION and RECLAIM_COMPLETE of a new client."""
    rig = Rig(tmp_path)
    complete = recovery.Client4._reclaim_complete
    forgotten = 0

    async def forget_first(client: recovery.Client4) -> None:
        nonlocal forgotten
        engine = rig.daemon._nfs4.engine
        if forgotten < 3:
            forgotten += 1
            for known in engine.clients.all():
                engine.expire_client(known)
        await complete(client)

    monkeypatch.setattr(recovery.Client4, "_reclaim_complete", forget_first)

    async def test() -> None:
        async with rig.connect() as fs, fs.open("file", "w") as file:
            await file.write(b"content")
        assert forgotten == 3
        assert (rig.export / "file").read_bytes() == b"content"

    rig.run(test)


@pytest.mark.parametrize("lost", ["client", "opens"])
def test_what_the_server_has_expired_or_revoked_is_opened_again(tmp_path: Path, lost: str) -> None:
    """There is nothing to be reclaimed from: files are opened as if for the first time (RFC 8881 section 8.4.2.1)."""
    rig = Rig(tmp_path)

    async def test() -> None:
        async with rig.connect() as fs, fs.open("file", "w") as file:
            await file.write(b"before")
            await file.flush()
            engine = rig.daemon._nfs4.engine
            sessionid = session_of(fs).sessionid
            for client in engine.clients.all():
                if lost == "client":
                    engine.expire_client(client)
                else:
                    for entry in list(client.states.values()):
                        engine.revoke(entry)
            await file.pwrite(b"after!", 0)
            assert (session_of(fs).sessionid == sessionid) == (lost == "opens")
            if lost == "opens":
                assert all(engine.revoked_flags(client) == 0 for client in engine.clients.all())
        assert (rig.export / "file").read_bytes() == b"after!"

    rig.run(test)


def test_the_lease_is_kept_without_any_other_call(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def test() -> None:
        async with rig.connect() as fs:
            session = session_of(fs)
            client = fs.backend.client  # type: ignore[attr-defined]
            assert client.lease == 90.0
            alone: list[bool] = []
            before, sent, send = session.requests, asyncio.Event(), session.send

            async def watched(operations: Any, *arguments: Any) -> Any:
                sent.set()
                alone.append([number for number, _ in operations] == [p.OP_SEQUENCE])
                return await send(operations, *arguments)

            session.send = watched  # type: ignore[method-assign]
            session.last_used -= 50.0  # as if nothing had been sent for so long
            client.look()
            await sent.wait()
            await session.settled()
            assert session.requests == before + 1
            assert alone == [True]

    rig.run(test)


def test_a_delegation_is_given_back_when_it_is_recalled(tmp_path: Path) -> None:
    """CB_SEQUENCE and CB_RECALL on the connection of the calls; DELEGRETURN; another client then has the file."""
    rig = Rig(tmp_path)

    async def test() -> None:
        (rig.export / "file").write_bytes(b"content")
        async with rig.connect(delegations=True) as one, rig.connect() as other, one.open("file") as reading:
            (opened,) = session_of(one).opens
            while opened.delegation is None:
                # The server gives none before it has tried the callback path.
                await reading.close()
                reading = await one.open("file")  # noqa: PLW2901
                (opened,) = session_of(one).opens
            await other.write_bytes("file", b"changed")
            assert session_of(one).caller.backchannel.received["CB_RECALL"] >= 1
            assert opened.delegation is None
            assert await reading.pread(100, 0) == b"changed"
            await reading.close()
        assert (rig.export / "file").read_bytes() == b"changed"

    rig.run(test)


def test_a_server_in_its_grace_period_is_waited_for_and_not_for_ever() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def test() -> None:
        patience = Patience(20.0, sleep).start()
        while await patience.wait("test"):
            pass
        assert sum(waited) == pytest.approx(20.0)
        assert waited[:4] == [0.1, 0.2, 0.4, 0.8]
        assert max(waited) == 5.0
        assert not await Patience(0, sleep).wait("test")

    asyncio.run(test())
