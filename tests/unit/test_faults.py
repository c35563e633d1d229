"""Each fault as clients see it: our own, over TCP and RDMA in both versions, against a daemon that misbehaves."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nfsd.conformance.link import LINUX, Link
from nfsd.faults.choosing import Faults
from nfsd.faults.rules import parse
from nfsd.protocol.nfs3 import NFS_PROGRAM
from rpcrdma.client import TransportError
from rpcrdma.faults import dispatcher
from rpcrdma.memory import Pool
from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import header, words
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp import SoftIwarp
from rpcrdma.wire.errors import ERR_CHUNK
from rpcrdma.wire.header import ERR_VERS
from tests.support.delegations import until
from tests.unit.nfs_client_support import MORE_WAYS, WAYS, Rig
from tests.unit.test_nfs_client_files import pattern
from tests.unit.test_nfs_client_session import session_of

IMPATIENT = 1.0
"""Seconds after which the client takes a connection for dead."""


def rules(*lines: str, seed: int = 0) -> Faults:
    """Faults by these rules."""
    text = "".join(f"  - {{{line}}}\n" for line in lines)
    return Faults(parse(f"seed: {seed}\nrules:\n{text}" if lines else "rules: []", "rules.yaml"), "rules.yaml")


def rig_of(tmp_path: Path, way: Any, *lines: str) -> Rig:
    rig = Rig(tmp_path, *way)
    rig.faults = rules(*lines)
    return rig


def acted(rig: Rig) -> list[int]:
    assert rig.faults is not None
    return [use.acted for use in rig.faults.uses]


each_way = pytest.mark.parametrize("way", [*WAYS, *MORE_WAYS[:2]], ids=str)
MKDIR = "calls: [MKDIR, CREATE]"


@each_way
@pytest.mark.parametrize("key", ["delay", "delay_reply"])
def test_a_call_or_its_reply_is_late(tmp_path: Path, way: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of(tmp_path, way, f"{MKDIR}, {key}: 0.5")
    later: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(dispatcher, "_later", lambda seconds, act: later.append((seconds, act)))

    async def test() -> None:
        async with rig.connect() as fs:
            making = asyncio.ensure_future(fs.mkdir("d"))
            await until(lambda: later)
            ((seconds, act),) = later
            assert seconds == 0.5
            assert (rig.export / "d").exists() == (key == "delay_reply")
            assert not making.done()
            act()
            await making
            assert (rig.export / "d").exists()

    rig.run(test)


@each_way
@pytest.mark.parametrize(
    "fault", ["drop: call", "drop: reply", "disconnect: before", "disconnect: after"]
)  # fmt: skip
def test_a_call_that_is_lost_is_sent_again_and_done_once(tmp_path: Path, way: Any, fault: str) -> None:
    rig = rig_of(tmp_path, way, f"{MKDIR}, {fault}, times: 1")
    rig.options = replace(rig.options, rpc=replace(rig.options.rpc, silence=IMPATIENT))

    async def test() -> None:
        server = await rig.server()
        fs, path = await server.locate(rig.url("d").names)
        await fs.mkdir(path)  # an effect that was there already would be EEXIST
        assert (rig.export / "d").is_dir()
        assert server.connection.reconnections >= 1
        assert acted(rig) == [1]
        await server.close()

    rig.run(test)


@each_way
def test_an_operation_fails_without_an_effect(tmp_path: Path, way: Any) -> None:
    name = "NFS3ERR_DQUOT" if way[1] == "3" else "NFS4ERR_DQUOT"
    rig = rig_of(tmp_path, way, f"{MKDIR}, error: {name}, skip: 1")

    async def test() -> None:
        async with rig.connect() as fs:
            await fs.mkdir("first")
            for _ in range(2):
                with pytest.raises(OSError) as failed:  # noqa: PT011 (which, is looked at below)
                    await fs.mkdir("second")
                assert failed.value.errno == errno.EDQUOT
            assert not (rig.export / "second").exists()
            assert await fs.listdir() == ["first"]

    rig.run(test)


@pytest.mark.parametrize("way", [("tcp", "4.1", None), ("rdma", "4.1", 2)], ids=str)
def test_a_failure_has_one_answer_however_often_it_is_asked_for(tmp_path: Path, way: Any) -> None:
    """The slot remembers a COMPOUND without the operation that fails: that must never be seen."""
    rig = rig_of(
        tmp_path, way, "calls: [CREATE], error: NFS4ERR_ACCESS, times: 1", "calls: [CREATE], drop: reply, times: 1"
    )
    rig.options = replace(rig.options, rpc=replace(rig.options.rpc, silence=IMPATIENT))

    async def test() -> None:
        async with rig.connect() as fs:
            with pytest.raises(PermissionError):
                await fs.mkdir("d")
            await fs.mkdir("d")
            assert acted(rig) == [1, 1]

    rig.run(test)


@each_way
def test_a_storm_of_delays_passes(tmp_path: Path, way: Any) -> None:
    name = "NFS3ERR_JUKEBOX" if way[1] == "3" else "NFS4ERR_DELAY"
    rig = rig_of(tmp_path, way, f"{MKDIR}, error: {name}, times: 3")

    async def test() -> None:
        async with rig.connect() as fs:
            await fs.mkdir("d")
            assert acted(rig) == [3]

    rig.run(test)


@each_way
def test_reads_are_short(tmp_path: Path, way: Any) -> None:
    rig = rig_of(tmp_path, way, "calls: [READ], read_at_most: 70001")
    data = pattern(500_001)

    async def test() -> None:
        (rig.export / "file").write_bytes(data)
        async with rig.connect() as fs:
            assert await fs.read_bytes("file") == data
        assert acted(rig)[0] >= 8

    rig.run(test)


@each_way
def test_a_reply_is_overtaken(tmp_path: Path, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "LONGEST_OVERTAKING", 60.0)
    before = 1 if way[1] == "3" else 0  # the client of NFSv3 begins with a NULL of its own
    rig = rig_of(tmp_path, way, f"calls: ['NULL'], overtaken_by: 2, times: 1, skip: {before}")
    order: list[int] = []

    async def test() -> None:
        server = await rig.server()

        async def null(number: int) -> None:
            await server.connection.call(NFS_PROGRAM, 3, 0)
            order.append(number)

        first = asyncio.ensure_future(null(1))
        await until(lambda: acted(rig) == [1])
        await null(2)
        await null(3)
        await first
        assert order == [2, 3, 1]
        await server.close()

    rig.run(test)


@pytest.mark.parametrize("way", [("rdma", "3", 1), ("rdma", "3", 2)], ids=str)
@pytest.mark.parametrize(("refusal", "code"), [("ERR_CHUNK", ERR_CHUNK), ("ERR_VERS", ERR_VERS)])
def test_a_call_is_refused_by_the_transport(tmp_path: Path, way: Any, refusal: str, code: int) -> None:
    rig = rig_of(tmp_path, way, f"calls: ['NULL'], refuse: {refusal}, skip: 1, times: 1")

    async def test() -> None:
        server = await rig.server()
        with pytest.raises(TransportError) as refused:
            await server.connection.call(NFS_PROGRAM, 3, 0)
        assert refused.value.error.code == code
        await server.connection.call(NFS_PROGRAM, 3, 0)
        assert acted(rig) == [1]
        assert server.connection.reconnections == 0
        await server.close()

    rig.run(test)


@pytest.mark.parametrize("way", [("rdma", "3", 1), ("rdma", "3", 2)], ids=str)
@pytest.mark.parametrize("granted", [0, 1, 7])
def test_credits_are_what_the_rule_says(tmp_path: Path, way: Any, granted: int) -> None:
    rig = rig_of(tmp_path, way, f"credits: {granted}")

    async def test() -> None:
        server = await rig.server()
        await server.connection.call(NFS_PROGRAM, 3, 0)
        carrier: Any = server.connection._carrier
        assert carrier.requester.window == max(granted, 1)
        await server.close()

    rig.run(test)


@pytest.mark.parametrize("which", ["", "none", "last", "wrong"])
def test_another_handle_is_invalidated(tmp_path: Path, which: str) -> None:
    rule = f"calls: [READ], invalidate: {which}" if which else "calls: [READ], delay: 0.01"
    rig = rig_of(tmp_path, ("rdma", "3", 1), rule)

    async def test() -> None:
        (rig.export / "file").write_bytes(pattern(5000))
        async with rig.connect() as fs:
            found = await fs.backend.lookup(fs.root.handle, b"file")
        pool = Pool(16 << 20)
        provider = SoftIwarp(pool)
        account = pool.account(8 << 20)
        peer = Peer(account)
        await peer.connect(provider, ListenAddress("127.0.0.1", rig.ports["rdma"]), LINUX)
        link = Link(peer, b"", 5)
        await link.wake()
        places = [peer.writable(4000), peer.writable(1000)]
        handle = bytes(found.handle)
        arguments = words(len(handle)) + handle + bytes(-len(handle) & 3) + words(0, 0, 5000)
        chunk = [place.segment() for place in places]
        xid = link.next_xid()
        rpc = words(xid, 0, 2, NFS_PROGRAM, 3, 6, 1, 20) + bytes(28) + arguments
        peer.send(header(xid, writes=[chunk]), rpc)
        if which == "wrong":
            # RFC 5040 section 7.1: an STag that is none ends the stream.
            assert await peer.over()
        else:
            message = await peer.message()
            expected = {"": places[0].handle, "none": None, "last": places[1].handle}[which]
            assert message.invalidated == expected
        peer.endpoint.close(abort=True)
        await provider.close()

    rig.run(test)


@pytest.mark.parametrize("way", [("tcp", "4.1", None), ("rdma", "4.1", 2)], ids=str)
def test_a_lease_expires_and_the_server_becomes_another(tmp_path: Path, way: Any) -> None:
    rig = rig_of(tmp_path, way, f"{MKDIR}, expire: true, new_owner: true, new_verifier: true, times: 1")

    async def test() -> None:
        nfs4 = rig.daemon._nfs4
        async with rig.connect() as fs:
            await fs.listdir()
            (client,) = nfs4.engine.clients.all()
            root = await nfs4.service.root(nfs4.exports.exports[0])
            owner, verifier = nfs4.owner, root.write_back.verifier
            await fs.mkdir("d")
            assert client.expired
            assert (nfs4.owner == owner, len(nfs4.owner)) == (False, len(owner))
            assert root.write_back.verifier != verifier
            assert all(one is not client for one in nfs4.engine.clients.all())

    rig.run(test)


@each_way
def test_unstable_data_are_sent_again_when_the_verifier_changes(tmp_path: Path, way: Any) -> None:
    rig = rig_of(
        tmp_path, way, "name: v, calls: [COMMIT], new_verifier: true, times: 1", "name: w, calls: [WRITE], delay: 0.001"
    )
    data = pattern(300_000)

    async def test() -> None:
        async with rig.connect() as fs:
            await fs.write_bytes("file", data)
        assert (rig.export / "file").read_bytes() == data
        assert acted(rig)[0] == 1
        assert acted(rig)[1] >= 2

    rig.run(test)


def test_only_those_that_rules_are_for_lose_the_native_path(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, ("tcp", "3", None), "clients: [192.0.2.0/24], calls: [GETATTR], delay: 0.01")
    assert rig.faults is not None
    faults = rig.faults

    async def test() -> None:
        async with rig.connect() as fs:
            row = rig.daemon.dispatchers["nfs"].rows[NFS_PROGRAM, 3, 1]
            await fs.stat("")
            before: Any = row
            assert before.native_calls == before.calls > 0
            faults.replace(parse("rules: [{clients: [127.0.0.1], calls: [GETATTR], delay: 0.01}]", "other.yaml"))
            seen = row.calls
            await fs.stat("")
            assert row.calls == seen + 1
            assert acted(rig) == [1], "the connection was there before"
            faults.replace(parse("rules: []", "none.yaml"))
            await fs.stat("")
            assert acted(rig) == []

    rig.run(test)


def test_rules_are_for_connections_and_exports(tmp_path: Path) -> None:
    rig = rig_of(
        tmp_path, ("tcp", "3", None),
        "name: second, calls: [GETATTR], connections: [2], delay: 0.001",
        "name: other, calls: [GETATTR], exports: [/other], delay: 0.001",
        "name: this, calls: [GETATTR], exports: [/export], delay: 0.001",
    )  # fmt: skip

    async def test() -> None:
        seen: list[list[int]] = []
        for _ in range(3):
            async with rig.connect() as fs:
                before = acted(rig)
                await fs.stat("")
                seen.append([now - then for now, then in zip(acted(rig), before, strict=True)])
        assert [row[0] > 0 for row in seen] == [False, True, False]
        assert [row[1] for row in seen] == [0, 0, 0]
        assert all(row[2] > 0 for row in seen)

    rig.run(test)


def test_the_same_seed_chooses_the_same_calls(tmp_path: Path) -> None:
    chosen: Counter[tuple[bool, ...]] = Counter()
    for seed in (1, 1, 2):
        faults = rules("calls: [GETATTR], probability: 0.5, delay: 1", seed=seed)
        chosen[tuple(faults.uses[0].acts() for _ in range(64))] += 1
    assert sorted(chosen.values()) == [1, 2]


def test_how_often_a_rule_acts(tmp_path: Path) -> None:
    (use,) = rules("skip: 2, every: 3, times: 2, delay: 1").uses
    assert [number for number in range(12) if use.acts()] == [2, 5]
    now = [0.0]
    faults = Faults(parse("rules: [{delay: 1, seconds: 5}]", "x"), clock=lambda: now[0])
    seen = []
    for at in (10.0, 14.9, 15.1):
        now[0] = at
        seen.append(faults.uses[0].acts())
    assert seen == [True, True, False]


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
@pytest.mark.parametrize("fault", ["unsent", "unheard"])
def test_a_recall_gets_lost(tmp_path: Path, transport: str, fault: str) -> None:
    rig = rig_of(tmp_path, (transport, "4.1", None), f"callback: {fault}, calls: [CB_RECALL]")

    async def test() -> None:
        (rig.export / "file").write_bytes(b"content")
        async with rig.connect() as other:
            async with rig.connect(delegations=True) as one:
                reading = await one.open("file")
                (opened,) = session_of(one).opens
                while opened.delegation is None:
                    # The server gives none before it has tried the callback path.
                    await reading.close()
                    reading = await one.open("file")
                    (opened,) = session_of(one).opens
                writing = asyncio.ensure_future(other.write_bytes("file", b"changed"))
                await until(lambda: acted(rig)[0] > 0)
                received = session_of(one).caller.backchannel.received
                if fault == "unheard":
                    await until(lambda: received.get("CB_RECALL"))
                    await writing  # the client has returned it all the same
                else:
                    await asyncio.sleep(0.2)
                    assert not writing.done()
                    assert "CB_RECALL" not in received
                await reading.close()
            await writing  # who leaves returns what it holds
        assert (rig.export / "file").read_bytes() == b"changed"

    rig.run(test)
