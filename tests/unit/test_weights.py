"""Weights of clients: where they are shown, and turns at a running server's workers, by count."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.admin import shapes
from nfsd.config_file import ConfigError, load
from nfsd.protocol import nfs3
from rpcrdma.hosts import Hosts
from rpcrdma.memory import Pool
from rpcrdma.paces import Paces
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header as rdma_header
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.weights import _MOST, Weights
from tests.hostile.peer import nfs3_call, results3
from tests.support.delegations import until
from tests.support.hosts import Site, on_site, write_config
from tests.unit.test_host_memory import root_of
from tests.unit.test_rates import Caller, on_site_listening
from tests.unit.test_worker_turns import Lane, queued

HEAVY, LIGHT, OTHER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
MANY = 12


def test_followers_hear_of_what_has_changed() -> None:
    weights, one, all_ = Weights(), list[tuple[int, str, int]](), list[tuple[str, int]]()
    weights.for_one.append(lambda *told: one.append(told))
    weights.for_all.append(lambda *told: all_.append(told))
    weights.set("a", 1, 1)
    assert not one, "that is what everybody has"
    weights.set("a", 1, 4)
    weights.set("a", 2, 2)
    weights.set("a", 2, 2)
    weights.set("b", 1, 3)
    assert one == [(1, "a", 4), (2, "a", 2), (1, "b", 3)]
    assert all_ == [("a", 4), ("a", 4), ("b", 3)]
    assert (weights.of("a"), weights.of("b"), weights.of("c")) == (4, 3, 1)
    weights.set("a", 1, 1)
    assert (one[-1], all_[-1]) == ((1, "a", 1), ("a", 2))
    weights.forget()
    assert all_[-2:] == [("b", 1), ("a", 1)]
    assert (weights.of("a"), weights.of("b")) == (1, 1)


def test_hosts_whose_weights_are_known_are_bounded() -> None:
    weights, told = Weights(), dict[str, int]()
    weights.for_all.append(told.__setitem__)
    for number in range(_MOST):
        weights.set(f"host {number}", 1, 2)
    weights.set("host 0", 1, 2)  # it is the newest again
    weights.set("one more", 1, 2)
    assert [host for host, weight in told.items() if weight == 1] == ["host 1"]
    assert len(weights._of) == _MOST


def test_memory_of_a_host_goes_by_the_largest_of_its_weights() -> None:
    paces = Paces()
    hosts = Hosts(Pool(4 << 20), paces=paces)
    paces.weights.set(HEAVY, 1, 3)
    seat = hosts.enter(HEAVY, 0.0)
    assert seat.host.memory.weight == 3, "it was known before it had a connection"
    paces.weights.set(HEAVY, 2, 5)
    assert seat.host.memory.weight == 5
    paces.weights.forget()
    assert seat.host.memory.weight == 1


@pytest.mark.parametrize("weight", [0, 17, "many"])
def test_a_weight_is_bounded(tmp_path: Path, weight: object) -> None:
    with pytest.raises(ConfigError, match=r"weight"):
        load(str(write_config(tmp_path, f"[{{host: {HEAVY}, weight: {weight}}}]")))


class RdmaCaller:
    """As :class:`Caller`, over RDMA, from 127.0.0.1."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.answered = peer, 0

    async def _call(self, message: bytes) -> None:
        await self.peer.call(rdma_header(int.from_bytes(message[:4], "big")), message)
        self.answered += 1

    def send(self, count: int, call: bytes) -> None:
        first = int.from_bytes(call[:4], "big") + 1
        calls = (self._call(xid.to_bytes(4, "big") + call[4:]) for xid in range(first, first + count))
        self.task = asyncio.gather(*calls)


async def callers(site: Site, root: nfs3.nfs_fh3, call: bytes) -> list[Caller]:
    """One of each host, known to the server."""
    wires = [await site.wire(HEAVY), await site.wire(LIGHT)]
    for wire in wires:
        assert results3("FSSTAT", await wire.call(None, call)).status == 0
    return [Caller(site, wire, root) for wire in wires]


async def rounds(site: Site, lane: Lane, root: nfs3.nfs_fh3, weight: int, over_rdma: Peer | None = None) -> None:
    """Calls of two hosts wait, and in each round one job of a third one, which lets nobody by for a while."""
    call = nfs3_call("FSSTAT", nfs3.FSSTAT3args(root), uid=0)  # by the general path
    heavy: Any
    heavy, light = await callers(site, root, call)
    if over_rdma is not None:
        heavy.task.cancel()
        heavy = RdmaCaller(over_rdma)
        await over_rdma.call(rdma_header(int.from_bytes(call[:4], "big")), call)
    begun = len(lane.begun)
    lane.put("", "x", waits=True)
    await lane.begin(begun + 1)
    for _ in range(3):
        lane.put(OTHER, "c", waits=True)
    await queued(site, 3)
    heavy.send(MANY, call)
    await queued(site, 3 + MANY)
    light.send(MANY, call)
    await queued(site, 3 + 2 * MANY)
    for number in range(3):
        lane.let_go()
        await lane.begin(begun + 2 + number)
        await until(lambda number=number: heavy.answered == weight * number and light.answered == number)  # type: ignore[misc]
        assert site.daemon.service.executor.statistics()["queued"] == 2 * MANY + 2 - number * (weight + 2)
    lane.let_go()
    await until(lambda: heavy.answered == light.answered == MANY)
    for one in heavy, light:
        one.task.cancel()


def test_a_client_has_turns_by_its_weight_and_by_another_after_a_reload(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        root = await root_of(site, OTHER)
        number = (await site.daemon.service.resolve(bytes(root.data))).mount.lane
        with contextlib.closing(Lane(site.daemon.service.executor, 1, number)) as lane:
            await rounds(site, lane, root, 4)
            hosts = site.daemon.listeners.hosts
            wire = await site.wire(HEAVY)
            await wire.call(None, nfs3_call("GETATTR", nfs3.GETATTR3args(root), uid=0))
            assert hosts._hosts[HEAVY].memory.weight == 4
            file = tmp_path / "exports.yaml"
            for before, after, weight in (("weight: 4", "weight: 2", 2), (", weight: 2", "", 1)):
                file.write_text(file.read_text().replace(before, after))
                assert await site.daemon.reload()
                site.daemon.service.executor.set_lane(number, 1)
                await rounds(site, lane, root, weight)
                assert hosts._hosts[HEAVY].memory.weight == weight
            await asyncio.gather(*lane.running)

    on_site(tmp_path, test, f"[{{host: {HEAVY}, weight: 4}}, '*']")


def test_a_weight_is_of_its_export_only(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    async def test(site: Site) -> None:
        roots = [await root_of(site, OTHER), await root_of(site, OTHER, "other")]
        executor = site.daemon.service.executor
        for root, weight in zip(roots, (4, 1), strict=True):
            number = (await site.daemon.service.resolve(bytes(root.data))).mount.lane
            with contextlib.closing(Lane(executor, 1, number)) as lane:
                await rounds(site, lane, root, weight)
                await asyncio.gather(*lane.running)
        assert site.daemon.listeners.hosts._hosts[HEAVY].memory.weight == 4, "of memory nobody knows what it is for"

    more = "    id: 1\n  - {path: other, pseudo: /other, id: 2, squash: none}\n"
    on_site(tmp_path, test, f"[{{host: {HEAVY}, weight: 4}}, '*']", more=more)


def test_a_client_over_rdma_has_its_turns_beside_one_over_tcp(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        root = await root_of(site, OTHER)
        pool = Pool(64 << 20)
        provider, peer = SoftIwarp(pool), Peer(pool.account(64 << 20), 4096)
        port = next(s.address.port for s in site.daemon.listeners.started if s.address.scheme == "rdma")
        await peer.connect(provider, ListenAddress("127.0.0.1", port), b"")
        number = (await site.daemon.service.resolve(bytes(root.data))).mount.lane
        with contextlib.closing(Lane(site.daemon.service.executor, 1, number)) as lane:
            await rounds(site, lane, root, 4, peer)
            await asyncio.gather(*lane.running)
        assert site.daemon.listeners.hosts._hosts["127.0.0.1"].memory.weight == 4
        peer.endpoint.close()
        await provider.close()

    listen = "  listen: ['tcp://127.0.0.1:0', {url: 'rdma://127.0.0.1:0', provider: softiwarp}]\n"
    on_site_listening(tmp_path, test, "[{host: 127.0.0.1, weight: 4}, '*']", listen)


def test_listings_take_turns_by_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(site: Site) -> None:
        service = site.daemon.service
        root = await root_of(site, OTHER)
        mount = (await service.resolve(bytes(root.data))).mount
        monkeypatch.setattr(mount, "inline", False)
        heavy, light = await callers(site, root, nfs3_call("FSSTAT", nfs3.FSSTAT3args(root), uid=0))
        turns, original, order = service.listings.turns, service.listings.turns.turn, list[str]()

        @contextlib.asynccontextmanager
        async def turn(number: int, host: str, at_once: int, *, begun: bool = False) -> AsyncIterator[None]:
            async with original(number, host, 1, begun=begun):
                order.append({HEAVY: "h", LIGHT: "l"}[host])
                yield

        monkeypatch.setattr(turns, "turn", turn)
        args = nfs3.READDIR3args(root, 0, bytes(8), 4096)
        waiting = turns._lanes
        async with original(mount.lane, OTHER, 1):
            for caller in (heavy, light):
                caller.send(MANY, nfs3_call("READDIR", args, uid=0))
            await until(lambda: sum(map(len, waiting[mount.lane].waiting.values())) == 2 * MANY)
        await until(lambda: heavy.answered == light.answered == MANY)
        assert "".join(order) in ("hhhhl" * 3 + "l" * (MANY - 3), "l" + "hhhhl" * 3 + "l" * (MANY - 4))
        for one in heavy, light:
            one.task.cancel()

    on_site(tmp_path, test, f"[{{host: {HEAVY}, weight: 4}}, '*']")


def test_tables_show_rates_and_weights_where_there_are_any(tmp_path: Path) -> None:
    def cells(lines: list[str], name: str) -> dict[str, str]:
        """The row that begins with a name, by the heads: those of the columns that the test looks at."""
        row = next(line for line in lines if line.startswith(name))
        heads = [*re.finditer(r"\S+(?: \S+)*", lines[0])]
        ends = [head.start() for head in heads[1:]] + [None]
        return {head[0]: row[head.start() : end].strip() for head, end in zip(heads, ends, strict=True)}

    async def test(site: Site) -> None:
        root = await root_of(site, OTHER)
        getattr_ = nfs3_call("GETATTR", nfs3.GETATTR3args(root), uid=0)
        for host in (HEAVY, LIGHT):
            await (await site.wire(host)).call(None, getattr_)
        clients = shapes.SHAPES["clients"]({"rows": await site.daemon._inspector.clients()})
        heavy, light = cells(clients, HEAVY), cells(clients, LIGHT)
        assert (heavy["RATE"], heavy["WEIGHT"]) == ("20MiB/s, 500 calls/s on /export", "4 on /export")
        assert (light["RATE"], light["WEIGHT"]) == ("4097 octets/s", "-")
        assert "HELD" not in heavy, "nobody was"
        exports = cells(shapes.SHAPES["exports"]({"rows": await site.daemon._inspector.exports()}), "/export")
        assert exports["FOR"] == f"{HEAVY} (20MiB/s, 500 calls/s, weight 4) *"
        assert exports["RATE"] == "1GiB/s"
        file = tmp_path / "exports.yaml"
        file.write_text(re.sub(r"(, |    |  client_)rate: \{.*?\}|, weight: 4", "", file.read_text()))
        assert await site.daemon.reload()
        await (await site.wire(HEAVY)).call(None, getattr_)
        clients = shapes.SHAPES["clients"]({"rows": await site.daemon._inspector.clients()})
        exports = cells(shapes.SHAPES["exports"]({"rows": await site.daemon._inspector.exports()}), "/export")
        assert not {"RATE", "WEIGHT", "HELD"} & {*cells(clients, HEAVY), *exports}
        assert exports["FOR"] == f"{HEAVY} *"

    entry = f"{{host: {HEAVY}, rate: {{octets: 20MiB, calls: 500}}, weight: 4}}"
    server, more = "  client_rate: {octets: 4097}\n", "    rate: {octets: 1GiB}\n"
    on_site(tmp_path, test, f"[{entry}, '*']", server=server, more=more)
