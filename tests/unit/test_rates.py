"""Rates against a running server: what is answered of what was sent at once, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nfsd.pricing import Prices
from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from rpcrdma.memory import Pool
from rpcrdma.pace import pretend
from rpcrdma.paces import NO_BOUND, Bound, Paces
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header as rdma_header
from rpcrdma.rpc.tally import Tally
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from tests.hostile.peer import nfs3_call
from tests.support import hosts
from tests.support.delegations import until
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import mode
from tests.unit.test_host_memory import root_of
from tests.unit.test_pace import Clock

LIMITED, OTHER = "127.0.0.2", "127.0.0.3"
NO_GRACE = "  nfs4: {grace_time: 0, lease_time: 5, courtesy_time: 0}\n"
TEN = "  client_rate: {calls: 10}\n"
MANY = 40


@pytest.fixture
def clock() -> Iterator[Clock]:
    found = Clock()
    yield found
    pretend(0)


def on_clock(clock: Clock, test: Callable[[Site], Any]) -> Callable[[Site], Any]:
    async def run(site: Site) -> None:
        site.daemon.paces._schedule = clock.schedule
        await test(site)

    return run


class Caller:
    """Sends calls all at once, and counts what is answered."""

    def __init__(self, site: Site, wire: Any, root: nfs3.nfs_fh3) -> None:
        self.site, self.wire, self.root = site, wire, root
        self.answered = 0
        self.task = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            await self.wire.reply()
            self.answered += 1

    def send(self, count: int, call: bytes = b"") -> None:
        for _ in range(count):
            self.wire.send(call or nfs3_call("GETATTR", nfs3.GETATTR3args(self.root), uid=0))


async def caller(site: Site, host: str) -> Caller:
    return Caller(site, await site.wire(host), await root_of(site, OTHER))


async def quiet(site: Site, root: nfs3.nfs_fh3) -> None:
    """All that was to be done has been; another host's calls are answered meanwhile."""
    wire = await site.wire("127.0.0.9")
    still = 0
    async with asyncio.timeout(60):
        while still < 12:
            await asyncio.sleep(0.002)
            await wire.call(None, nfs3_call("NULL", None, uid=0))
            workers = site.daemon.service.executor.statistics()
            calls = [*site.daemon.dispatchers["nfs"].running, *site.daemon.dispatchers["nfs"].held]
            still = 0 if workers["queued"] or workers["running"] or calls else still + 1
    wire.writer.close()


@pytest.mark.parametrize("where", ["server", "client", "export"])
@pytest.mark.parametrize("kind", ["GETATTR", "FSSTAT"])
def test_calls_beyond_the_rate_are_not_read(tmp_path: Path, clock: Clock, where: str, kind: str) -> None:
    """GETATTR is answered natively, FSSTAT by the general path."""

    async def test(site: Site) -> None:
        one = await caller(site, LIMITED)
        call = b""
        if kind == "FSSTAT":
            call = nfs3_call(kind, nfs3.FSSTAT3args(one.root), uid=0)
        one.send(MANY, call)
        await until(lambda: one.answered >= 6)
        await quiet(site, one.root)
        # Half a second's worth, and the one that is too much; of those that wait for something, a second's worth more.
        assert one.answered == 6 or (kind == "FSSTAT" and one.answered <= 16)
        pace = site.daemon.paces.of(LIMITED)
        assert pace.held
        for expected in (17, 27):
            clock.pass_by(1.05)
            await quiet(site, one.root)
            assert abs(one.answered - expected) <= (6 if kind == "GETATTR" else 16), (
                "ten a second, and what is in progress"
            )
        clock.pass_by(10.0)
        await quiet(site, one.root)
        clock.pass_by(10.0)
        await until(lambda: one.answered == MANY)
        await quiet(site, one.root)
        assert not pace.held
        assert site.daemon.pool.in_use == 0, "nothing is kept of a connection that waits, and has been served"

    clients = f"[{{host: {LIMITED}, rate: {{calls: 10}}}}, '*']" if where == "client" else "['*']"
    more = "    rate: {calls: 10}\n" if where == "export" else ""
    on_site(tmp_path, on_clock(clock, test), clients, server=TEN if where == "server" else "", more=more)


def test_octets_beyond_the_rate_are_not_read_and_nothing_is_held_for_them(tmp_path: Path, clock: Clock) -> None:
    size = 1 << 20

    async def test(site: Site) -> None:
        one = await caller(site, LIMITED)
        v4 = await (await site.client(OTHER)).connect()
        await v4.open("/export", b"file", create=mode(0o666))
        wire = await site.wire(OTHER)
        looked = await wire.call(None, nfs3_call("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(one.root, b"file")), uid=0))
        length = int.from_bytes(looked[28:32], "big")
        file = nfs3.nfs_fh3(looked[32 : 32 + length])
        write = nfs3.WRITE3args(file, 0, size, nfs3.stable_how.UNSTABLE, memoryview(bytes(size)))
        one.send(8, nfs3_call("WRITE", write, uid=0))
        await until(lambda: one.answered >= 1)
        await quiet(site, one.root)
        assert one.answered == 1
        assert site.daemon.pool.in_use <= 128 << 10, "the next one is the network's to hold"
        for _ in range(40):
            clock.pass_by(1.0)
            await quiet(site, one.root)
        assert one.answered == 8

    on_site(tmp_path, on_clock(clock, test), server=NO_GRACE + "  client_rate: {octets: 256K}\n")


def test_other_clients_do_not_wait(tmp_path: Path, clock: Clock) -> None:
    async def test(site: Site) -> None:
        one, other = await caller(site, LIMITED), await caller(site, OTHER)
        one.send(MANY)
        other.send(MANY)
        await until(lambda: other.answered == MANY)
        assert one.answered <= 6

    clients = f"[{{host: {LIMITED}, rate: {{calls: 10}}}}, '*']"
    on_site(tmp_path, on_clock(clock, test), clients)


def test_it_is_told_who_is_held_back(tmp_path: Path, clock: Clock) -> None:
    async def test(site: Site) -> None:
        one = await caller(site, LIMITED)
        one.send(MANY)
        await quiet(site, one.root)
        clock.pass_by(0.001)
        rows = {row["client"]: row for row in await site.daemon._inspector.clients()}
        assert rows[LIMITED]["slowed"]
        assert rows[LIMITED]["rates"] == {}, "it is the export's"
        assert [row["rate"] for row in await site.daemon._inspector.exports()] == ["10 calls/s"]
        notes = site.daemon._statistics.snapshot()["notes"]
        assert any(LIMITED in note and "faster than their rates" in note for note in notes)
        assert site.daemon.listeners.hosts.statistics()["slowed_hosts"] == 1

    on_site(tmp_path, on_clock(clock, test), more="    rate: {calls: 10}\n")


def test_more_connections_are_worth_no_more(tmp_path: Path, clock: Clock) -> None:
    async def test(site: Site) -> None:
        many = [await caller(site, LIMITED) for _ in range(5)]
        for one in many:
            one.send(MANY)
        await quiet(site, many[0].root)
        late = await caller(site, LIMITED)
        late.send(MANY)
        await quiet(site, many[0].root)
        assert sum(one.answered for one in (*many, late)) == 6
        assert late.answered == 0, "who comes later waits behind what was done"

    on_site(tmp_path, on_clock(clock, test), server=TEN)


def test_a_reload_changes_the_rate_of_clients_that_wait(tmp_path: Path, clock: Clock) -> None:
    async def test(site: Site) -> None:
        file = tmp_path / "exports.yaml"
        one = await caller(site, LIMITED)
        one.send(MANY)
        await quiet(site, one.root)
        assert one.answered == 6
        file.write_text(file.read_text().replace("{calls: 10}", "{calls: 20}"))
        assert await site.daemon.reload()
        clock.pass_by(0.01)
        await quiet(site, one.root)
        assert one.answered == 6 + 11, "nothing is owed for what was done before"
        file.write_text(file.read_text().replace(TEN.replace("10", "20"), ""))
        assert await site.daemon.reload()
        clock.pass_by(0.01)
        await until(lambda: one.answered == MANY)

    on_site(tmp_path, on_clock(clock, test), server=TEN)


def set_clock(site: Site, clock: Callable[[], float]) -> None:
    """Have the engine, and its clients, look at another clock."""
    site.engine.now = clock
    for record in site.engine.clients.all():
        record.clock = clock


@pytest.mark.parametrize("minor", [0, 1])
def test_a_client_that_is_slowed_down_keeps_its_lease(tmp_path: Path, clock: Clock, minor: int) -> None:
    async def test(site: Site) -> None:
        wire = await site.wire(LIMITED)
        client = await (await site.client(LIMITED, minor)).connect()
        await client.open("/export", b"file", create=mode(0o666))
        root = await root_of(site, OTHER)
        one = Caller(site, wire, root)
        one.send(MANY)
        await quiet(site, root)
        engine = site.engine
        (record,) = [found for found in engine.clients.all() if found.confirmed]
        now = asyncio.get_running_loop().time() + 100.0
        site.daemon._nfs4._timer.cancel()  # what it would do is done here, at another time
        set_clock(site, lambda: now)
        assert record.lease_end < now
        engine.handle_timer(now)
        assert not record.expired, "what it has sent is not read: nobody knows whether it is silent"
        assert record.lease_end >= now
        one.task.cancel()
        wire.writer.close()
        site.daemon.paces.of(LIMITED).release()
        clock.pass_by(10.0)
        await quiet(site, root)
        now += 100.0
        engine.handle_timer(now)
        assert record.expired, "it has nothing unread, and is silent"

    on_site(tmp_path, on_clock(clock, test), server=NO_GRACE + TEN)


async def swept(site: Site, now: float) -> None:
    """The timer's work at another time; by itself it does nothing any more."""
    site.daemon._nfs4._timer.cancel()
    set_clock(site, lambda: now)
    site.engine.handle_timer(now)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_dead_client_is_not_kept_alive_by_a_busy_neighbour(tmp_path: Path, clock: Clock, minor: int) -> None:
    """Both are behind one address. While something of the host's lies unread it might be the client's, come back: for a
    few leases, and again when it has been heard of."""

    async def test(site: Site) -> None:
        client = await (await site.client(LIMITED, minor)).connect()
        await client.open("/export", b"file", create=mode(0o666))
        root = await root_of(site, OTHER)
        neighbour = await caller(site, LIMITED)
        neighbour.send(MANY)
        await quiet(site, root)
        assert site.daemon.paces.of(LIMITED).held
        (record,) = [found for found in site.engine.clients.all() if found.confirmed]
        now = asyncio.get_running_loop().time()
        for _ in range(3):
            now += 100.0
            await swept(site, now)
            assert not record.expired
        set_clock(site, lambda: now + 1.0)
        record.renew()  # as its SEQUENCE or RENEW would
        for _ in range(3):
            now += 100.0
            await swept(site, now)
            assert not record.expired
        now += 100.0
        await swept(site, now)
        assert record.expired, "its neighbour is no sign of its life"
        neighbour.task.cancel()

    on_site(tmp_path, on_clock(clock, test), server=NO_GRACE + TEN)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_client_whose_own_calls_lie_unread_keeps_its_lease(tmp_path: Path, clock: Clock, minor: int) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(LIMITED, minor)).connect()
        await client.open("/export", b"file", create=mode(0o666))
        root = await root_of(site, OTHER)

        async def asks() -> None:
            while True:
                await client.open("/export", b"file")

        asking = asyncio.ensure_future(asks())
        pace = site.daemon.paces.of(LIMITED)
        await until(lambda: pace.held)
        await quiet(site, root)
        (record,) = [found for found in site.engine.clients.all() if found.confirmed]
        now = asyncio.get_running_loop().time()
        for _ in range(10):
            now += 100.0
            await swept(site, now)
            assert not record.expired
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    on_site(tmp_path, on_clock(clock, test), server=NO_GRACE + TEN)


def test_who_is_called_back_is_read_from_at_once(tmp_path: Path, clock: Clock) -> None:
    async def test(site: Site) -> None:
        wire = await site.wire(LIMITED)
        await (await site.client(LIMITED)).connect()
        root = await root_of(site, OTHER)
        one = Caller(site, wire, root)
        one.send(MANY)
        await quiet(site, root)
        assert one.answered < MANY
        (record,) = site.engine.clients.all()
        site.daemon._nfs4.callbacks.on_call(record)
        clock.pass_by(0.01)
        await until(lambda: one.answered == MANY)

    on_site(tmp_path, on_clock(clock, test), server=NO_GRACE + TEN)


def test_calls_over_rdma_beyond_the_rate_wait_in_their_receives(tmp_path: Path, clock: Clock) -> None:
    async def test(site: Site) -> None:
        root = await root_of(site, OTHER)
        pool = Pool(64 << 20)
        provider, peer = SoftIwarp(pool), Peer(pool.account(64 << 20), 4096)
        port = next(s.address.port for s in site.daemon.listeners.started if s.address.scheme == "rdma")
        await peer.connect(provider, ListenAddress("127.0.0.1", port), b"")

        async def call(xid: int) -> None:
            message = nfs3_call("GETATTR", nfs3.GETATTR3args(root), uid=0, xid=xid)
            await peer.call(rdma_header(xid), message)
            answered.append(xid)

        answered: list[int] = []
        tasks = [asyncio.ensure_future(call(xid)) for xid in range(1, 13)]
        await until(lambda: len(answered) >= 6)
        await quiet(site, root)
        assert len(answered) == 6
        assert site.daemon.paces.of("127.0.0.1").held
        for _ in range(4):
            clock.pass_by(1.0)
            await quiet(site, root)
        assert sorted(answered) == list(range(1, 13))
        await asyncio.gather(*tasks)
        peer.endpoint.close()
        await provider.close()

    clients = "[{host: 127.0.0.1, rate: {calls: 10}}, '*']"
    listen = "  listen: ['tcp://127.0.0.1:0', {url: 'rdma://127.0.0.1:0', provider: softiwarp}]\n"
    on_site_listening(tmp_path, on_clock(clock, test), clients, listen)


def on_site_listening(tmp_path: Path, test: Any, clients: str, listen: str) -> None:
    """As :func:`on_site`, with listeners of its own."""
    original = hosts.write_config

    def write(*args: Any, **how: Any) -> Path:
        file = original(*args, **how)
        file.write_text(file.read_text().replace("  listen: ['tcp://127.0.0.1:0']\n", listen))
        return file

    hosts.write_config = write  # type: ignore[assignment]
    try:
        on_site(tmp_path, test, clients)
    finally:
        hosts.write_config = original


@pytest.mark.parametrize("how", ["leave", "restore", "general path"])
def test_a_compound_pays_where_it_reads_not_where_it_ends(tmp_path: Path, clock: Clock, how: str) -> None:
    """Who could end his COMPOUNDs on an export without a rate would have none anywhere."""
    size = 64 << 10
    (tmp_path / "free").mkdir()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "file").write_bytes(b"x" * size)

    async def test(site: Site) -> None:
        client = await (await site.client(LIMITED, 2)).connect()
        stateid, file = await client.open("/export", b"file", access=1)
        *_, free = await client.run(*client.path("/free"), p.OP_GETFH)
        clock.pass_by(10.0)
        await client.run(*client.path("/free"))  # what it had saved up counts from here
        pace = site.daemon.paces.of(LIMITED)
        assert not pace.is_over()
        elsewhere = (p.OP_PUTFH, p.PUTFH4args(free.resok4.object))
        here = (p.OP_PUTFH, p.PUTFH4args(file))
        read = (p.OP_READ, p.READ4args(stateid, 0, size))
        if how == "restore":
            anonymous = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, size))
            await client.run(here, p.OP_SAVEFH, elsewhere, p.OP_RESTOREFH, anonymous, elsewhere)
        elif how == "general path":
            await client.run(here, (p.OP_READ_PLUS, p.READ_PLUS4args(stateid, 0, size)), elsewhere)
        else:
            await client.run(here, read, elsewhere)
        assert site.daemon.exports.usage.by_export()[1].read == size
        # 64 KiB take sixteen seconds, of which half a one was saved.
        assert 15 < pace.owed < 17

    more = "    id: 1\n    rate: {octets: 4096}\n  - {path: free, pseudo: /free, id: 2, squash: none, clients: ['*']}\n"
    on_site(tmp_path, on_clock(clock, test), server=NO_GRACE, more=more)


class Rating(NamedTuple):
    rate: Bound


def test_addresses_of_one_network_have_their_own_rates() -> None:
    """An IPv6 /64 is one host, and its addresses may have rates of their own in ``clients``."""
    prices = Prices(Paces())
    prices.changed(True)
    slow, fast = Tally(), Tally()
    export, no = Rating(NO_BOUND), 7
    prices.price(slow, "fd00::1", no, export, Rating(Bound(calls=1)))
    prices.price(fast, "fd00::2", no, export, Rating(Bound(calls=1000)))
    rates = [tally.dues and tally.dues.own for tally in (slow, fast)]
    assert [rate and rate.calls for rate in rates] == [1, 1000]
