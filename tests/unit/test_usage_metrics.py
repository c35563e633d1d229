"""Metrics of what was done for whom: of real clients of each version, over TCP and RDMA, natively and not."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nfsd.client import connect
from nfsd.faults.choosing import Faults
from nfsd.faults.rules import parse
from nfsd.protocol import nfs4 as p
from nfsd.supervising.totals import of_each
from nfsd.usage import OTHERS, Usage
from nfsd.usage_metrics import busiest, cumulated
from rpcrdma.rpc.tally import BOUNDS, Latencies
from tests.support.hosts import Site
from tests.support.nfs4 import Failed, mode
from tests.support.nfs4_native import RARE
from tests.unit.nfs_client_support import Rig

HOST = "127.0.0.1"
METRICS = "  metrics: {listen: '127.0.0.1:0'}\n"


async def page(daemon: Any) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.metrics_port}/metrics", timeout=30) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]

    return await asyncio.to_thread(fetch)


async def scrape(daemon: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and label values, in the order of the labels' names."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(await page(daemon)):
        for sample in family.samples:
            found[sample.name][tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.parametrize(("transport", "version"), [("tcp", "3"), ("tcp", "4.1"), ("rdma", "3"), ("rdma", "4.1")])
def test_a_client_and_an_export_have_the_octets_and_calls_that_were_made(
    tmp_path: Path, transport: str, version: str
) -> None:
    rig = Rig(tmp_path, transport, version)
    rig.extra += METRICS

    async def test() -> None:
        data = bytes(range(256)) * 1000
        async with rig.connect() as files:
            await files.write_bytes("file", data)
            before = await scrape(rig.daemon)
            for _ in range(3):
                assert await files.read_bytes("file") == data
            for _ in range(2):
                assert not await files.exists("nothing")
            after = await scrape(rig.daemon)
        for what, name in (("export", "/export"), ("client", HOST)):
            written = before[f"rdma_nfsd_{what}_written_bytes_total"][name,]
            assert written == after[f"rdma_nfsd_{what}_written_bytes_total"][name,] == len(data)
            assert before[f"rdma_nfsd_{what}_read_bytes_total"][name,] == 0
            assert after[f"rdma_nfsd_{what}_read_bytes_total"][name,] == 3 * len(data)
            counts = [
                {
                    field: found[f"rdma_nfsd_{what}_{field}_total"][name,]
                    for field in ("calls", "errors", "duration_seconds")
                }
                for found in (before, after)
            ]
            assert counts[1]["errors"] - counts[0]["errors"] == 2
            assert counts[1]["calls"] - counts[0]["calls"] >= 5
            assert counts[1]["duration_seconds"] > counts[0]["duration_seconds"] > 0
        short = version[0]
        assert after["rdma_nfsd_nfs_errors_total"]["LOOKUP", "NOENT", short] >= 2
        if version == "3":
            assert after["rdma_nfsd_rpc_duration_seconds_count"]["READ", "nfs", "3"] >= 3
            buckets = after["rdma_nfsd_rpc_duration_seconds_bucket"]
            reads = [count for labels, count in buckets.items() if "READ" in labels]
        else:
            operations = after["rdma_nfsd_nfs4_operations_total"]
            assert operations["READ",] >= 3
            assert operations["READ",] - before["rdma_nfsd_nfs4_operations_total"].get(("READ",), 0) >= 3
            assert operations["SEQUENCE",] >= operations["READ",]
            assert after["rdma_nfsd_nfs4_compound_duration_seconds_count"]["READ",] >= 3
            assert after["rdma_nfsd_nfs4_compound_duration_seconds_sum"]["READ",] > 0
            buckets = after["rdma_nfsd_nfs4_compound_duration_seconds_bucket"]
            reads = [count for labels, count in buckets.items() if "READ" in labels]
        assert len(reads) == len(BOUNDS) + 1
        assert reads == sorted(reads), "cumulative"
        assert reads[-1] >= 3

    rig.run(test)


def test_native_and_general_calls_count_alike(tmp_path: Path) -> None:
    """The operations of COMPOUNDs, whichever path answers."""
    rig = Rig(tmp_path)
    rig.extra += METRICS

    async def test() -> None:
        site = Site(tmp_path, rig.daemon)
        client = await (await site.client(HOST)).connect()
        await client.open("/export", b"f", create=mode(0o666))
        _, handle = await client.open("/export", b"f")
        counts, rows = rig.daemon._nfs4.counts, rig.daemon.dispatchers["nfs"].rows
        row = rows[100003, 4, 1]
        for native, operations in (
            (True, ((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_GETATTR, p.GETATTR4args([1 << 1])))),
            (False, (*client.path("/export"), RARE, (p.OP_GETATTR, p.GETATTR4args([1 << 1])))),
        ):
            before, calls, was_native = counts.all(), row.calls, row.native_calls
            timed = row.latencies.rows().get(int(p.OP_GETATTR), ([], 0.0))[0]
            for _ in range(7):
                await client.run(*operations)
            assert row.calls - calls == 7
            assert (row.native_calls - was_native > 0) == native
            after = counts.all()
            for number in (p.OP_SEQUENCE, p.OP_GETATTR, p.OP_PUTFH if native else p.OP_PUTROOTFH):
                assert after[number] - before.get(number, 0) == 7, number
            about = p.OP_GETATTR if native else p.OP_NVERIFY
            assert sum(row.latencies.of(int(about))[0]) >= 7, timed
        await site.close()

    rig.run(test)


@pytest.mark.parametrize("minor", [0, 1])
def test_what_clients_hold_and_the_grace_period_are_told(tmp_path: Path, minor: int) -> None:
    rig = Rig(tmp_path)
    rig.extra += METRICS

    async def test() -> None:
        site = Site(tmp_path, rig.daemon)
        client = await (await site.client(HOST, minor)).connect()
        stateid, handle = await client.open("/export", b"f", create=mode(0o666))
        found = await scrape(rig.daemon)
        assert found["rdma_nfsd_nfs4_clients"] == {("active",): 1, ("courtesy",): 0, ("unconfirmed",): 0}
        held = found["rdma_nfsd_nfs4_held"]
        assert (held["opens",], held["sessions",]) == (1, minor)
        assert found["rdma_nfsd_grace_seconds"] == {(): 0}
        assert found["process_open_fds"][()] > 10
        await client.close(stateid, handle)
        assert (await scrape(rig.daemon))["rdma_nfsd_nfs4_held"]["opens",] == 0
        with pytest.raises(Failed):
            await client.run(p.OP_PUTROOTFH, (p.OP_LOOKUP, p.LOOKUP4args(b"nothing")))
        assert (await scrape(rig.daemon))["rdma_nfsd_nfs_errors_total"]["LOOKUP", "NOENT", "4"] == 1
        await site.close()

    rig.run(test)


def test_every_metric_is_documented_and_named_by_the_conventions(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "rdma", "4.1")
    rig.extra += METRICS
    rig.faults = Faults(parse("rules: []", "rules.yaml"))  # else there would be no metric of faults
    documented = set(re.findall(r"`((?:rdma_nfsd|process)_[a-z0-9_]+)`", Path("docs/metrics.md").read_text()))

    async def test() -> None:
        for transport in ("rdma", "tcp"):
            rig.transport = transport
            for version in ("3", "4.1"):
                options = replace(rig.options, nfs_version=version, mount_port=rig.ports["mountd"])
                async with connect(rig.url(), options) as files:
                    await files.write_bytes("file", b"content")
        text = await page(rig.daemon)
        named = set()
        for family in (*text_string_to_metric_families(text), *of_each({}, {})):
            assert family.documentation, family.name
            name = family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else "")
            named.add(name)
            assert not re.search(r"_(ms|us|milliseconds|kb|mb|kilobytes|percent)(_|$)", name), "base units"
            assert (family.type == "counter") == name.endswith("_total"), name
        # Prometheus's text format writes an info as a gauge.
        assert named == documented

    rig.run(test)


def test_time_goes_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    found = Latencies()
    for bound in BOUNDS:
        found.observe(25, bound * 0.999)
    for seconds in (0.0, -1.0, 1e9):
        found.observe(25, seconds)
    buckets, seconds = found.of(25)
    assert buckets == [3, *[1] * (len(BOUNDS) - 1), 1]
    assert seconds == pytest.approx(sum(BOUNDS) * 0.999 - 1 + 1e9)
    assert found.rows().keys() == {25}
    assert [count for _, count in cumulated(buckets)] == [3 + number for number in range(len(BOUNDS) + 1)]
    found.observe(128 + 25, 1.0)  # no such row: it is counted somewhere, and nowhere else
    assert sum(found.of(25)[0]) == len(BOUNDS) + 4


def test_clients_are_bounded_and_exports_lose_nothing() -> None:
    now = 0.0
    forgotten: list[int] = []
    usage = Usage(3, lambda: now)
    usage.on_forgotten = lambda: forgotten.append(1)
    for number in range(3):
        usage.of(f"client {number}", 1).calls += 1
    usage.of("one too many", 1).calls += 10
    assert set(usage.by_client()) == {"client 0", "client 1", "client 2", OTHERS}
    assert usage.by_export()[1].calls == 13
    # Each is counted by itself, so that it is charged for what it does.
    assert usage.of("another", 1) is usage.of("another", 1) is not usage.of("one too many", 1)
    assert OTHERS in usage.by_client(), "nobody was forgotten a moment ago"
    now = 200.0
    usage.of("another", 1)  # the first look
    usage.of("client 1", 1).calls += 1
    now = 400.0
    newcomer = usage.of("newcomer", 1)
    newcomer.read += 5
    assert set(usage.by_client()) == {"client 1", "newcomer", OTHERS}
    assert (usage.by_export()[1].calls, usage.by_export()[1].read) == (14, 5)
    assert len(forgotten) == 2
    usage.keep([2])
    assert not usage.by_export()


def test_others_are_bounded_too_and_exports_lose_nothing() -> None:
    forgotten: list[int] = []
    usage = Usage(1, lambda: 0.0)
    usage.on_forgotten = lambda: forgotten.append(1)
    for number in range(10001):
        usage.of(f"client {number}", 1).calls += 1
    assert set(usage.by_client()) == {"client 0", OTHERS}
    assert usage.by_export()[1].calls == 10001
    assert len(usage._others) <= 4096
    assert len(forgotten) == 3, "each makes all callers be looked at again"


def test_the_busiest_clients_are_told_apart() -> None:
    usage = Usage()
    for number in range(10):
        usage.of(f"c{number}", 1).calls += number
    found = busiest(usage.by_client(), 3)
    assert {name: amount.calls for name, amount in found.items()} == {"c9": 9, "c8": 8, "c7": 7, OTHERS: 21}
