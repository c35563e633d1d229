"""Restarts, of the server and of clients of NFSv3's lock manager: records, SM_NOTIFY, reclaims."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nfsd.nlm import nsm
from nfsd.nlm.nsm import own_state
from nfsd.protocol import nlm4 as n
from nfsd.protocol.nsm import SM_NOTIFY, SM_PROGRAM
from nfsd.stable.sqlite import SqliteStorage
from nfsd.state import ClientRecord, Limits, Recovered, StateEngine
from nfsd.state.types import NLM
from nfsd.vfs.types import Credential
from tests.support.delegations import until
from tests.support.nfs4 import StoreInMemory
from tests.support.nlm import BLOCKED, DENIED, GRACE, GRANTED, NlmServer, locking_server
from tests.unit.state_support import World

RECORD = ClientRecord(NLM, b"host-2\x00127.0.0.2", "127.0.0.2 127.0.0.1", 1)
LIMITS = Limits(grace=60, delegations=0)


async def handle_of(server: NlmServer) -> bytes:
    """The handle of ``f``, which a client has from before."""
    service = server.parts.service
    root = await service.root(server.parts.nfs4.exports.exports[0])
    node, _ = await service.lookup(Credential(0, 0), root, b"f")
    return node.handle


def kept(store: StoreInMemory) -> list[tuple[str, bytes]]:
    return [(write.action, write.owner) for write in store.writes if write.minor == NLM]


def test_a_client_is_on_record_before_its_lock_is_answered_and_not_written_again(tmp_path: Path) -> None:
    async def main() -> None:
        store = StoreInMemory()
        async with asyncio.timeout(60), locking_server(tmp_path, store=store) as server:
            one, two, three = server.host(2), server.host(3), server.host(4)
            one.handle = two.handle = three.handle = await handle_of(server)
            assert await one.lock(procedure=n.NLMPROC4_NM_LOCK, length=1) == GRANTED
            assert kept(store) == [], "who is not monitored is not told"
            for _ in range(3):
                assert await one.lock(0, 10) == GRANTED
                assert await one.unlock() == GRANTED
            assert kept(store) == [("record", b"host-2\x00127.0.0.2")]
            assert await one.lock(0, 10) == GRANTED
            assert await two.lock(0, 10) == DENIED
            assert await three.lock(0, 10, block=True) == BLOCKED
            assert kept(store)[1:] == [("record", b"host-4\x00127.0.0.4")], "who has and waits for nothing is not"

    asyncio.run(main())


def test_a_lock_that_cannot_be_put_on_record_is_not_given(tmp_path: Path) -> None:
    class Broken(StoreInMemory):
        broken = True

        async def flush(self, engine: StateEngine) -> None:
            if self.broken:
                raise OSError(5, "the disk")
            await super().flush(engine)

    async def main() -> None:
        store = Broken()
        async with asyncio.timeout(60), locking_server(tmp_path, store=store) as server:
            one, two = server.host(2), server.host(3)
            one.handle = two.handle = await handle_of(server)
            assert await one.lock(0, 10) == n.nlm4_stats.NLM4_DENIED_NOLOCKS
            store.broken = False
            assert await two.lock(0, 10) == GRANTED

    asyncio.run(main())


def test_the_grace_period_is_for_reclaims_of_those_on_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path, records=[RECORD], limits=LIMITS) as server:
            one, two = server.host(2), server.host(3)
            one.handle = two.handle = await handle_of(server)
            assert await one.lock(0, 10) == GRACE
            assert await two.lock(0, 10, block=True) == GRACE
            assert await one.share(1, 0) == GRACE
            assert await two.lock(0, 10, reclaim=True) == GRACE, "it is not on record"
            two.name = one.name
            assert await two.lock(0, 10, reclaim=True) == GRACE, "nor is the name at another address"
            assert await one.lock(0, 10, reclaim=True) == GRANTED
            assert await one.unlock(5, 5) == GRANTED
            server.parts.engine.end_grace()
            assert await one.lock(20, 10, reclaim=True) == GRACE, "the time for that is over"
            assert await two.lock(0, 5) == DENIED
            assert await two.lock(5, 5) == GRANTED

    asyncio.run(main())


def test_clients_on_record_are_told_of_the_restart_until_they_have_heard(tmp_path: Path) -> None:
    records = [RECORD, ClientRecord(0, b"nfs4 client", "127.0.0.3 127.0.0.1", 1)]

    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path, records=records, limits=LIMITS) as server:
            server.notifier.start(records)
            await asyncio.sleep(0.1)  # nobody is there yet
            told = await server.host(2).take_calls().restarts.get()
            assert told.state == own_state(server.parts.engine)
            assert told.state % 2, "up"
            other = server.host(3).take_calls()
            await asyncio.sleep(0.1)
            assert other.restarts.empty()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["files1", None])
def test_they_are_told_the_name_that_the_server_keeps_on_another_host(tmp_path: Path, name: str | None) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path, records=[RECORD], limits=LIMITS) as server:
            host = server.host(2).take_calls()
            notifier = nsm.Notifier(server.peers, server.parts.engine, name)
            notifier.start([RECORD])
            told = await host.restarts.get()
            assert told.mon_name.decode() == (name or socket.gethostname())
            await notifier.close()

    asyncio.run(main())


def test_the_state_number_differs_after_every_restart() -> None:
    world = World()
    seen = set()
    for epoch in (1, 2, 3, 1_800_000_000, 1_800_000_001):
        world.boot(Recovered(epoch))
        seen.add(own_state(world.engine))
    assert len(seen) == 5
    assert all(0 < state < 1 << 31 for state in seen)


def test_a_restarted_client_has_nothing_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            one, two = server.host(2), server.host(3).take_calls()
            one.handle = two.handle = await handle_of(server)
            assert await one.lock(0, 10) == GRANTED
            assert await two.lock(5, 10, block=True) == BLOCKED
            await one.notify_of_restart(one.state)
            assert two.grants.empty(), "that is what it was when it locked: an old message"
            third = server.host(4)
            await third.notify_of_restart(9, one.name)
            assert two.grants.empty(), "another host says so"
            await one.notify_of_restart(one.state + 2, b"host-2.example.org")
            assert (await two.granted()).l_offset == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("notified", "left"),
    [(b"first", [b"second.example.org"]), (b"second", [b"first"]), (b"SECOND.example.org", [b"first"]),
     (b"second.example.com", [b"first", b"second.example.org"]), (b"third", [b"first", b"second.example.org"])],
)  # fmt: skip
def test_of_several_clients_at_an_address_the_one_of_that_name_is_meant(notified: bytes, left: list[bytes]) -> None:
    table = World().engine.nlm
    for name in (b"first", b"second.example.org"):
        table.client(name, "10.0.0.1", "10.0.0.9")
    table.restarted(notified, "10.0.0.1", 5)
    assert [client.name for client in table.all()] == left


def test_who_has_held_nothing_for_a_lease_goes_off_the_record() -> None:
    world = World(Limits(lease=90, grace=0))
    engine = world.engine
    client, busy = (engine.nlm.client(name, "10.0.0.1", "10.0.0.9") for name in (b"a", b"b"))
    for one in (client, busy):
        engine.record_client(one)
    engine.nlm.open(busy, b"file", exclusive=True, reclaim=False)
    world.pass_time(80)
    assert len(engine.nlm.all()) == 2
    world.pass_time(200)
    assert engine.nlm.all() == [busy]
    world.store()
    assert [record.owner for record in world.records.values()] == [busy.owner]
    engine.nlm.drop(busy)
    assert engine.opens.file(b"file") is None


def test_records_survive_on_the_disk_beside_nfsv4s(tmp_path: Path) -> None:
    async def instance(work: Sequence[Any]) -> Recovered:
        store = SqliteStorage(str(tmp_path))
        found = await store.start(lease=5.0)
        engine = StateEngine(Limits(grace=5), lambda: 0.0, found)
        for address in work:
            engine.record_client(engine.nlm.client(b"name", address, "10.0.0.9"))
        await store.flush(engine)
        await store.close()
        return found

    asyncio.run(instance(["10.0.0.1", "10.0.0.2"]))
    found = asyncio.run(instance([]))
    assert {(record.minor, record.owner, record.principal) for record in found.records} == {
        (NLM, b"name\x00" + address.encode(), f"{address} 10.0.0.9") for address in ("10.0.0.1", "10.0.0.2")
    }


def test_octets_that_are_no_notification_cost_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            one = server.host(2)
            for octets in (b"", b"\0\0\0\1", b"\xff" * 8, b"\0\0\4\1" + bytes(1032)):
                reply = bytes(await one.raw(SM_NOTIFY, octets, program=SM_PROGRAM))
                assert int.from_bytes(reply[20:24], "big") == 4, "GARBAGE_ARGS"
            await one.notify_of_restart(3)

    asyncio.run(main())


def test_a_name_makes_no_second_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            one = server.host(2, b'host" was fine\nERROR nfsd: forged')
            one.handle = await handle_of(server)
            assert await one.lock(0, 10) == GRANTED
            await one.notify_of_restart(9)

    caplog.set_level("INFO")
    asyncio.run(main())
    (line,) = (record.getMessage() for record in caplog.records if "was restarted" in record.getMessage())
    assert line.startswith('127.0.0.2 "host\\" was fine\\nERROR nfsd: forged" was restarted: ')


def test_a_datagram_in_a_hosts_name_does_not_free_its_locks(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            one, two = server.host(2).take_calls(), server.host(3).take_calls()
            one.handle = two.handle = await handle_of(server)
            assert await one.lock(0, 10) == GRANTED
            assert await two.lock(5, 10, block=True) == BLOCKED
            # Somebody says so in its name: its status monitor does not.
            assert await one.datagram_of_restart(9)
            assert await one.test(0, 10, svid=2) is not None, "the lock is there"
            assert two.grants.empty()
            # It cannot be asked: it is to say so again.
            one.told = None
            server.peers._patience = 0.2
            assert not await one.datagram_of_restart(9, seconds=1)
            assert await one.test(0, 10, svid=2) is not None
            server.peers._patience = 5
            # Now it is true.
            one.told = 9
            assert await one.datagram_of_restart(9)
            assert (await two.granted()).l_offset == 5

    asyncio.run(main())


def test_hosts_that_do_not_answer_keep_no_other_from_being_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datagrams in the names of many hosts that are off have as many asked as may be; then one comes that is there."""
    monkeypatch.setattr(nsm, "MOST_ASKED", 2)

    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            server.peers._patience = 60  # for as long as the test takes
            handle = await handle_of(server)
            off = [server.host(number).take_calls() for number in (2, 3)]
            there = server.host(4).take_calls()
            for number, host in enumerate((*off, there)):
                host.handle, host.told = handle, None
                assert await host.lock(20 * number, 10) == GRANTED
            in_their_names = [asyncio.ensure_future(host.datagram_of_restart(9)) for host in off]
            visits = server.udp._visits
            await until(lambda: len(visits._of) == 2)
            there.told = 9
            assert await there.datagram_of_restart(9)
            assert len(visits._of) == 1, "who was asked the longest made room"
            assert await off[0].test(40, 10) is None, "it was heard"
            assert await there.test(0, 10) is not None, "the others' locks are there"
            for waiting in in_their_names:
                waiting.cancel()

    asyncio.run(main())


def test_who_has_no_status_monitor_when_it_says_so_is_believed(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            one, two = server.host(2), server.host(3).take_calls()
            one.handle = two.handle = await handle_of(server)
            assert await one.lock(0, 10) == GRANTED
            assert await two.lock(5, 10, block=True) == BLOCKED
            assert await one.datagram_of_restart(9)
            assert (await two.granted()).l_offset == 5

    asyncio.run(main())


def test_a_word_over_tcp_is_held_against_the_status_monitor_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path) as server:
            one = server.host(2).take_calls()
            one.handle = await handle_of(server)
            assert await one.lock(0, 10) == GRANTED
            await one.notify_of_restart(9)  # some user of the host
            assert await one.test(0, 10, svid=2) is not None
            one.told = None
            server.peers._patience = 0.2
            await one.notify_of_restart(9)
            assert await one.test(0, 10, svid=2) is None, "its address is shown by the connection"

    asyncio.run(main())
