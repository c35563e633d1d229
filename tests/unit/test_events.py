"""The log and the audit log have lines for mounts, refusals, departures, restarts and unanswered recalls."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsd.audit import Audit
from nfsd.events import Events
from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from rpcrdma.log_limits import LIMIT
from rpcrdma.shown import shown
from rpcrdma.xdr import XdrError
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.support.delegations import BOTH, delegated, until, with_two
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, mode, serving
from tests.unit.nfs_client_support import Rig

HOST, OTHER = "127.0.0.1", "127.0.0.9"
TWO = "  - {path: other, pseudo: /other, clients: [127.0.0.9]}\n"
NO_GRACE = "  nfs4: {grace_time: 0}\n"


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    LIMIT.reset()
    caplog.set_level(logging.INFO)
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name in ("nfsd.events", "nfsd.admission")]


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_an_nfsv4_client_is_named_once_for_each_export_it_enters(
    tmp_path: Path, log: pytest.LogCaptureFixture, minor: int
) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        await client.run(p.OP_PUTROOTFH, (p.OP_READDIR, p.READDIR4args(0, bytes(8), 4096, 4096, [])))
        assert lines(log) == [], "to list is not to mount"
        for _ in range(3):
            await client.run(*client.path("/export"), p.OP_GETFH)
        assert lines(log) == [f"{HOST} mounts /export: NFSv4.{minor} over tcp, read-write, nobody squashed"]

    on_site(tmp_path, test, server=NO_GRACE)


def test_long_names_that_are_refused_cost_no_more_memory_than_is_shown(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        for number in range(20):
            name = b"%02d" % number + b"\xff" * 60_000
            for _ in range(2):
                with pytest.raises(Failed, match="NAMETOOLONG"):
                    await client.run(p.OP_PUTROOTFH, (p.OP_LOOKUP, p.LOOKUP4args(name)))
        kept = site.daemon.events._refusals
        assert len(kept) == 20
        assert sum(sys.getsizeof(path) for _, path, _ in kept) < 20 * 4096
        assert len([line for line in lines(log) if "is refused /" in line]) == 5, "the limit of one cause"

    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_client_that_an_export_is_not_for_is_named_with_the_line_that_would_admit_it(
    tmp_path: Path, log: pytest.LogCaptureFixture, minor: int
) -> None:
    (tmp_path / "other").mkdir()

    async def test(site: Site) -> None:
        client = await (await site.client(HOST, minor)).connect()
        for _ in range(2):
            with pytest.raises(Failed) as failed:
                await client.run(*client.path("/other"))
            assert failed.value.status == p.NFS4ERR_NOENT
        (line,) = lines(log)
        config = tmp_path / "exports.yaml"
        where = f"{config}:{config.read_text().splitlines().index(TWO.rstrip()) + 1}"
        assert line == (
            f"{HOST} is refused /other (NFSv4.{minor} over tcp): it is not among its clients; to admit it, write for "
            f"/other ({where}): clients: [{OTHER}, {HOST}]"
        )
        with pytest.raises(Failed):
            await client.run(*client.path("/exprot"))
        assert lines(log)[1] == f"{HOST} is refused /exprot (NFSv4.{minor} over tcp): there is no such export"

    on_site(tmp_path, test, server=NO_GRACE, more=TWO)


def test_mounts_and_refusals_of_nfsv3(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "below").mkdir()

    async def test(site: Site) -> None:
        async with await Nfs3Client.connect(HOST, site.port("mountd"), uid=0, gid=0) as mountd:
            await mountd.mount("/export/below")
            for path in ("/other", "/nowhere"):
                with pytest.raises(Nfs3Failure):
                    await mountd.mount(path)
            await mountd.unmount("/export/below")
            await mountd.unmount_all()
        mount, refused, unknown, unmount, unmount_all = lines(log)
        assert mount == f"{HOST} mounts /export/below: NFSv3 over tcp, read-write, nobody squashed"
        assert refused.startswith(
            f"{HOST} is refused /other (NFSv3 over tcp): it is not among its clients; to admit it"
        )
        assert unknown == f"{HOST} is refused /nowhere (NFSv3 over tcp): there is no such directory"
        assert unmount == f"{HOST} unmounts /export/below"
        assert unmount_all == f"{HOST} unmounts all that it had mounted with NFSv3"

    on_site(tmp_path, test, more=TWO)


def test_a_client_that_knows_a_handle_goes_on_with_its_mount(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    handles: list[Any] = []

    async def mount(site: Site) -> None:
        async with await Nfs3Client.connect(HOST, site.port("mountd"), uid=0, gid=0) as mountd:
            handles.append(await mountd.mount("/export"))

    async def go_on(site: Site) -> None:
        log.clear()
        async with await Nfs3Client.connect(HOST, site.port(), uid=0, gid=0) as client:
            for _ in range(3):
                await client.getattr(handles[0])
        assert lines(log) == [f"{HOST} goes on with /export, which it mounted earlier, over tcp"]

    on_site(tmp_path, mount)
    on_site(tmp_path, go_on)


@pytest.mark.parametrize(("transport", "version"), [("rdma", "3"), ("rdma", "4.1"), ("tcp", "4.1")])
def test_a_mount_by_rdma_and_tcp_and_its_end(
    tmp_path: Path, log: pytest.LogCaptureFixture, transport: str, version: str
) -> None:
    rig = Rig(tmp_path, transport, version)

    async def test() -> None:
        async with rig.connect() as files:
            await files.write_bytes("file", b"content")
        told = lines(log)
        over = "tcp" if version == "3" else transport  # MOUNT goes by TCP
        assert told[0].startswith(f"127.0.0.1 mounts /export: NFSv{version} over {over}, "), told
        if version == "4.1":
            assert told[-1].startswith('127.0.0.1 "')
            assert told[-1].endswith("(NFSv4.1+) is gone: it said so; released: nothing")

    rig.run(test)


def test_a_client_that_restarts_and_one_that_falls_silent(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        await client.open("/export", b"f", create=mode(0o666))
        log.clear()
        again = await (await site.client(HOST)).connect(b"rebooted")
        assert lines(log) == [
            f'{HOST} "client" (NFSv4.1+) has restarted; what it had before is released: 1 session, 1 open'
        ]
        await again.open("/export", b"f")
        log.clear()
        (record,) = site.engine.clients.all()
        record.lease_end = 0.0
        for courtesy in (True, False):
            site.engine._sweep(site.engine.now() + (0 if courtesy else 10**6))
        away, gone = lines(log)
        assert away.startswith(f'{HOST} "client" (NFSv4.1+) has not been heard of for its lease; it keeps what it has')
        assert gone == f'{HOST} "client" (NFSv4.1+) is gone: its lease is over; released: 1 session, 1 open'
        log.clear()
        back = await (await site.client(HOST)).connect()
        await back.run(*back.path("/export"))
        assert lines(log)[0].startswith(f"{HOST} mounts /export"), "who comes back mounts again"

    on_site(tmp_path, test, server=NO_GRACE)


def test_a_client_that_shows_itself_at_another_address(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    async def test(site: Site) -> None:
        await (await site.client(HOST)).connect()
        log.clear()
        await (await site.client(OTHER)).connect(reclaim_complete=False)
        assert f'{HOST} "client" (NFSv4.1+) is now at {OTHER} too: it has shown that it is the same' in lines(log)

    on_site(tmp_path, test, server=NO_GRACE)


def test_what_clients_choose_is_escaped_and_cut_short(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST, name=b"evil\nWARNING\x1b[2J\xff" + b"x" * 900)).connect()
        with pytest.raises(Failed):
            await client.run(p.OP_PUTROOTFH, (p.OP_LOOKUP, p.LOOKUP4args("a\n\u202eb\x1b".encode())))
        site.engine.expire_client(site.engine.clients.all()[0])
        refused, gone = lines(log)
        assert "/a\\n\\u202eb\\x1b (NFSv4.1" in refused
        assert gone.startswith(f'{HOST} "evil\\nWARNING\\x1b[2J\\xffxxx')
        assert max(map(len, (refused, gone))) < 400

    on_site(tmp_path, test, server=NO_GRACE)


def test_the_addresses_of_an_ipv6_64_are_one_host(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    first, second, other = "2001:db8::1", "2001:db8::2:0:0:2", "2001:db8:0:1::1"

    async def main() -> None:
        for name in ("export", "state"):
            (tmp_path / name).mkdir()
        async with asyncio.timeout(60), serving(tmp_path / "export", state_dir=tmp_path / "state") as server:
            events = Events(server.nfs4.exports)
            events.watch(server.engine)
            clients = {}
            for address in (first, second, other):
                client = Client4(server, 1, name=address.encode(), transport=LoopbackTransport(address))
                clients[address] = await client.connect()
                await client.run(*client.path("/0"))
            assert [line.partition(" ")[0] for line in lines(log)] == [first, other], "mounts, one for each host"
            log.clear()

            async def leaves(address: str) -> None:
                (record,) = (one for one in server.engine.clients.all() if one.owner == address.encode())
                server.engine.expire_client(record)

            await leaves(first)
            await clients[second].run(*clients[second].path("/0"))
            assert not any(" mounts " in line for line in lines(log)), "the host has a client still"
            await leaves(second)
            again = Client4(server, 1, name=b"again", transport=LoopbackTransport(second))
            await again.connect()
            await again.run(*again.path("/0"))
            assert lines(log)[-1].startswith(f"{second} mounts /0")

    asyncio.run(main())


def test_no_name_or_path_ends_its_quotes_or_looks_like_the_rest_of_a_line(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    forged = b'a" (NFSv4.1+) is gone: it said so; released: nothing \\x0a'

    async def test(site: Site) -> None:
        client = await (await site.client(HOST, name=forged)).connect()
        with pytest.raises(Failed):
            await client.run(p.OP_PUTROOTFH, (p.OP_LOOKUP, p.LOOKUP4args(b"a (NFSv4.1 over tcp): all is well")))
        site.engine.expire_client(site.engine.clients.all()[0])
        refused, gone = lines(log)
        assert refused.startswith(
            f'{HOST} is refused "/a (NFSv4.1 over tcp): all is well" (NFSv4.1 over tcp): there is'
        )
        assert gone.startswith(f'{HOST} "a\\" (NFSv4.1+) is gone: it said so; released: nothing \\\\x0a" (NFSv4.1+) is')

    on_site(tmp_path, test, server=NO_GRACE + "  audit: {file: audit.jsonl}\n")
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", "refused", "departed", "stopped"]
    assert events[1]["path"] == "/a (NFSv4.1 over tcp): all is well"


@given(st.binary(max_size=300))
def test_no_octets_end_the_line_or_the_quotes_they_are_in(octets: bytes) -> None:
    safe = shown(octets)
    assert safe.isprintable()
    assert re.fullmatch(r'(?:[^"\\]|\\.)*', safe), "every quotation mark has a backslash of its own before it"


def test_many_refusals_are_few_lines_and_all_of_them_in_the_audit_log(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        for number in range(50):
            with pytest.raises(Failed):
                await client.run(*client.path(f"/no{number}"))

    on_site(tmp_path, test, server=NO_GRACE + "  audit: {file: audit.jsonl}\n")
    assert len(lines(log)) == 5
    file = tmp_path / "audit.jsonl"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", *["refused"] * 50, "stopped"]
    assert events[1] | {"time": 0} == {
        "time": 0, "event": "refused", "client": HOST, "path": "/no0", "version": "NFSv4.1", "netid": "tcp",
        "why": "there is no such export", "remedy": "",
    }  # fmt: skip


def test_one_host_does_not_push_others_out_of_the_audit_log(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        other = await (await site.client(OTHER, name=b"other")).connect()
        await other.run(*other.path("/export"))
        client = await (await site.client(HOST)).connect()
        for number in range(302):
            with pytest.raises(Failed):
                await client.run(*client.path(f"/no{number}"))
        with pytest.raises(Failed):
            await other.run(*other.path("/nothing"))
        site.daemon.events._clock = lambda: time.monotonic() + 60
        with pytest.raises(Failed):
            await client.run(*client.path("/later"))

    on_site(tmp_path, test, server=NO_GRACE + "  audit: {file: audit.jsonl, size: 1048576}\n")
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    words = [(event["event"], event.get("client")) for event in events]
    expected = [("started", None), ("mount", OTHER), *[("refused", HOST)] * 300, ("too_many", HOST), ("refused", OTHER)]
    assert words == [*expected, ("left_out", HOST), ("refused", HOST), ("stopped", None)]
    assert 0 < events[302]["seconds"] <= 60
    assert events[-3]["lines"] == 2


def test_a_host_that_no_export_is_for_is_in_the_audit_log(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        stranger = await site.client(OTHER)
        with pytest.raises(XdrError):  # a denied call has no results
            await stranger.connect()

    on_site(tmp_path, test, f"['{HOST}']", server="  audit: {file: audit.jsonl}\n")
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    (refused,) = [event for event in events if event["event"] == "refused"]
    assert refused["client"] == OTHER
    assert f"{tmp_path}/exports.yaml:" in refused["remedy"]


def test_the_audit_log_is_bounded_and_counts_what_it_lost(tmp_path: Path) -> None:
    file = tmp_path / "log"
    audit = Audit(str(file), 4096)
    for number in range(300):
        audit.tell("mount", number=number)
    audit.close()
    assert file.stat().st_size <= 4096
    assert (tmp_path / "log.1").stat().st_size <= 4096
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    numbers = [json.loads(line)["number"] for line in file.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 300))

    audit = Audit(str(tmp_path / "slow"), 1 << 20, waiting=4)
    audit._file.acquire()  # the disk does not answer
    try:
        for number in range(20):
            audit.tell("mount", number=number)
    finally:
        audit._file.release()
    audit._lines.join()
    audit.tell("mount", number=20)
    audit.close()
    events = [json.loads(line) for line in (tmp_path / "slow").read_text().splitlines()]
    (lost,) = [event for event in events if event["event"] == "lost"]
    assert lost["lines"] + len([event for event in events if event["event"] == "mount"]) == 21
    assert lost["lines"] >= 14


@pytest.mark.parametrize("minor", [0, 1])
def test_a_recall_that_is_not_answered(tmp_path: Path, log: pytest.LogCaptureFixture, minor: int) -> None:
    async def test(server, export, holder, other):
        Events(server.nfs4.exports).watch(server.engine)
        (export / "f").write_bytes(b"content")
        holder.end.keep = True
        await delegated(holder)
        await other.open_status(b"f", BOTH)
        await until(lambda: server.engine.delegations.revoked)
        (line,) = [line for line in lines(log) if "recall" in line]
        version = "NFSv4.0" if not minor else "NFSv4.1+"
        assert line.startswith(
            f'127.0.0.1 "one" ({version}) has not answered the recall of a read delegation in time: it is revoked'
        )
        assert holder.handles[b"f"].hex() in line

    with_two(tmp_path, minor, test, limits=Limits(grace=0, recall=0.2))


def test_an_audit_log_that_is_a_pipe_which_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe that nobody reads"):
        Audit(str(tmp_path / "pipe"), 4096)
