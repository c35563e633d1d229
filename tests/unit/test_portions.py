"""What one of several processes has of the whole, where client records go, and how answers and metrics are added."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from nfsd.config import Config, Limits, Nfs4Limits
from nfsd.config_file import ConfigError, load
from nfsd.findings import examine
from nfsd.planned import Place, planned
from nfsd.portions import Portion, state_dir_of
from nfsd.settling import MARK, settle
from nfsd.stable.sqlite import FILE_NAME, Records, read_records, write_records
from nfsd.state.recovery import ClientRecord
from nfsd.state.types import NLM
from nfsd.supervising import answers
from nfsd.supervising.totals import Seen, Totals
from rpcrdma.server.spread import place_of


def configured(tmp_path: Path, server: str = "", exports: str = "") -> Config:
    (tmp_path / "data").mkdir(exist_ok=True)
    file = tmp_path / "exports.yaml"
    file.write_text(
        f"server:\n  listen: ['tcp://127.0.0.1:0']\n  mountd_port: 0\n{server}exports:\n  - path: data\n{exports}"
    )
    return load(str(file))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_all_portions_together_keep_to_the_limits(tmp_path: Path, count: int) -> None:
    config = configured(
        tmp_path, "  limits: {open_files: 1000, host_open_files: 900}\n", "    rate: {octets: 1000003, calls: 17}\n"
    )
    portions = [Portion(index, count, "/s").of(config) for index in range(count)]
    whole, parts = config.server.limits, [portion.server.limits for portion in portions]
    for name in ("memory", "connections", "all_calls", "open_files", "replay_memory"):
        assert sum(getattr(part, name) for part in parts) <= getattr(whole, name)
    for part in parts:
        assert part.connection_memory <= part.memory
        assert part.host_connections <= part.connections
        assert part.host_calls <= part.all_calls
        assert part.host_open_files <= part.open_files
        assert part.calls == whole.calls, "of one connection"
    states = [portion.server.nfs4.limits for portion in portions]
    per_client = ("sessions", "connections", "slots", "operations", "cached_reply_octets", "client_cached_octets",
                  "client_waiters", "client_copies", "client_delegations", "host_share")  # fmt: skip
    for field in dataclasses.fields(Nfs4Limits):
        most, found = getattr(config.server.nfs4.limits, field.name), [getattr(one, field.name) for one in states]
        assert set(found) == {most} if field.name in per_client else sum(found) <= most, field.name
    rates = [portion.exports[0].rate for portion in portions]
    assert sum(rate.octets for rate in rates) <= 1000003
    assert sum(rate.calls for rate in rates) <= 17
    directories = {portion.server.state_dir for portion in portions}
    assert directories == {state_dir_of("/s", index, count) for index in range(count)}
    assert len(directories) == count


def test_what_is_off_stays_off(tmp_path: Path) -> None:
    config = configured(tmp_path, "  nfs4: {limits: {delegations: 0, client_copies: 0, copies: 0}}\n")
    limits = Portion(0, 4, "/s").of(config).server.nfs4.limits
    assert (limits.delegations, limits.copies) == (0, 0)
    assert Portion(0, 4, "/s").of(config).exports[0].rate == config.exports[0].rate
    assert Limits().open_files is None
    assert Portion(0, 4, "/s").of(config).server.limits.open_files is None


def test_listeners_on_devices_are_dealt_out(tmp_path: Path) -> None:
    urls = ["rdma://10.0.0.1", "rdma://10.0.0.2", "rdma://10.0.0.3", "rdma://127.0.0.1:7", "tcp://0.0.0.0"]
    config = configured(tmp_path)
    entries = [dataclasses.replace(config.server.listen[0], url=url) for url in urls]
    on_devices = frozenset(urls[:3])
    found = [list(Portion(index, 2, "/s", on_devices).listeners(entries)) for index in (0, 1)]
    assert [[entry.url for entry in mine] for mine in found] == [
        [urls[0], urls[2], urls[3], urls[4]],
        [urls[1], urls[3], urls[4]],
    ]
    assert {entry.provider for mine in found for entry in mine if entry.url == urls[3]} == {"softiwarp"}


def test_every_socket_is_planned(tmp_path: Path) -> None:
    config = configured(tmp_path, "  rquota: true\n  portmapper: true\n")
    found = [(place.service, place.kind) for _, place in planned(config)]
    pairs = [(name, kind) for name in ("nsm", "rquota", "rpcbind") for kind in ("tcp", "udp")]
    assert found == [("nfs", "tcp"), ("mountd", "tcp"), ("nlm", "tcp"), *pairs]
    assert {place.host for _, place in planned(config)} == {"127.0.0.1"}
    assert next(planned(config))[1] == Place("nfs", "tcp", "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("  processes: 0\n", "at least 1"),
        ("  processes: 129\n", "at most 128"),
        ("  processes: many\n", "whole number"),
        ("  processes: 64\n", "too little for 64 processes; each takes 16MiB"),
        ("  processes: 2\n  nfs4: {delegations: nfs}\n", "takes one process"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, server: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(tmp_path, server)


def test_auto_is_one_for_each_processor(tmp_path: Path) -> None:
    assert configured(tmp_path, "  processes: auto\n").server.processes == len(os.sched_getaffinity(0))
    assert configured(tmp_path, "  processes: 2\n  nfs4: {delegations: 'off'}\n").server.processes == 2


def test_the_check_knows_that_files_without_handles_are_each_processs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nfsd import findings

    class Mount:
        naming = 0

    config = configured(tmp_path, "  processes: 2\n")
    lone = dataclasses.replace(config, server=dataclasses.replace(config.server, processes=1))
    assert len(list(findings._by_place(lone, 0, Mount()))) == 1
    _, second = findings._by_place(config, 0, Mount())
    assert "each of 2 processes" in second.message
    assert [one for one in examine(config) if one.severity == "error"] == []


# -- records -----------------------------------------------------------------------------------------------------------
def record(address: str, name: bytes, minor: int = 1) -> ClientRecord:
    return ClientRecord(minor, name, f"{address} 10.9.9.9" if minor == NLM else f"sys {address} 0011", 5)


def test_records_go_where_their_clients_will_come(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    hosts = [f"10.0.0.{number}" for number in range(1, 40)]
    wanted = {record(host, host.encode(), minor) for host in hosts for minor in (1, NLM)}
    nameless = ClientRecord(1, b"nobody knows from where", "sys", 5)
    write_records(str(state / FILE_NAME), Records(7, 90.0, (*wanted, nameless)))
    for count in (3, 8, 3, 2, 1):
        settle(str(state), count)
        settle(str(state), count)  # which changes nothing
        found = [read_records(os.path.join(state_dir_of(str(state), i, count), FILE_NAME)) for i in range(count)]
        assert {one.epoch for one in found} == {7}
        assert {one.lease for one in found} == {90.0}
        for index, one in enumerate(found):
            assert nameless in one.records
            for each in set(one.records) - {nameless}:
                address = each.principal.split()[0 if each.minor == NLM else 1]
                assert place_of(address, count) == index
        assert {each for one in found for each in one.records} == {*wanted, nameless}


def test_a_crash_while_records_are_moved_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nfsd import settling

    state = tmp_path / "state"
    state.mkdir()
    records = tuple(record(f"10.0.0.{number}", b"%d" % number) for number in range(20))
    write_records(str(state / FILE_NAME), Records(7, 90.0, records))
    settle(str(state), 2)
    written = []

    def cut(path: str, found: Records) -> None:
        if len(written) == 2:
            raise OSError("the power is gone")
        written.append(path)
        write_records(path, found)

    with monkeypatch.context() as patched:
        patched.setattr(settling, "write_records", cut)
        with pytest.raises(OSError, match="the power is gone"):
            settle(str(state), 4)
    assert (state / MARK).read_text() == "2\n"
    settle(str(state), 1)
    assert set(read_records(str(state / FILE_NAME)).records) == set(records)


def test_one_process_leaves_no_mark(tmp_path: Path) -> None:
    settle(str(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


# -- answers -----------------------------------------------------------------------------------------------------------
def test_statistics_are_added() -> None:
    def one(calls: int, uptime: float, **more: Any) -> dict[str, Any]:
        rows = [{"call": "v3 READ", "count": calls, "seconds": 0.5, "buckets": [calls, 1]}]
        return {
            "version": "1", "uptime": uptime, "bounds": [0.1], "calls": rows, "exports": {"/a": {"calls": calls}},
            "connections": [{"listener": "tcp://x", "open": calls}],
            "hosts": {"hosts": 1, "most_memory_of_a_host": calls},
            "inflight": [{"seconds": calls}], "notes": ["slow"], "read_only": False, "grace": uptime, **more,
        }  # fmt: skip

    found = answers.statistics({0: one(3, 10.0), 2: one(4, 5.0, read_only=True)})
    assert found["calls"] == [{"call": "v3 READ", "count": 7, "seconds": 1.0, "buckets": [7, 2]}]
    assert found["exports"] == {"/a": {"calls": 7}}
    assert found["connections"] == [{"listener": "tcp://x", "open": 7}]
    assert found["hosts"] == {"hosts": 2, "most_memory_of_a_host": 4}
    assert (found["uptime"], found["grace"], found["bounds"], found["version"]) == (10.0, 10.0, [0.1], "1")
    assert found["inflight"] == [{"seconds": 4}, {"seconds": 3}]
    assert found["notes"] == ["process 0: slow", "process 2: slow"]
    assert found["read_only"] is True


def test_tables_keep_to_their_limit() -> None:
    rows = {index: {"rows": [{"client": f"{index}.{n}"} for n in range(3)], "left_out": 1} for index in (0, 1)}
    found = answers.table(rows, 4)
    assert [(row["client"], row["process"]) for row in found["rows"]] == [
        ("0.0", 0),
        ("0.1", 0),
        ("0.2", 0),
        ("1.0", 1),
    ]
    assert found["left_out"] == 4


def test_counters_of_all_never_fall() -> None:
    def says(calls: float, held: float) -> list[dict[str, Any]]:
        return [
            {"name": "c", "type": "counter", "text": "", "samples": [["c_total", {"a": "b"}, calls]]},
            {"name": "g", "type": "gauge", "text": "", "samples": [["g", {}, held]]},
            {"name": "rdma_nfsd_grace_seconds", "type": "gauge", "text": "", "samples": [["grace", {}, held]]},
        ]

    totals = Totals(asyncio.new_event_loop(), lambda: None, dict)  # type: ignore[arg-type, return-value]

    def now(**seen: Seen) -> dict[str, float]:
        answered = {int(name[1:]): one for name, one in seen.items()}
        return {sample.name: sample.value for metric in totals.together(answered) for sample in metric.samples}

    assert now(p0=Seen(1, says(10, 1)), p1=Seen(1, says(5, 2))) == {"c_total": 15, "g": 3, "grace": 2}
    # Number 1 has ended, is started again, and ends again.
    assert now(p0=Seen(1, says(11, 1))) == {"c_total": 16, "g": 1, "grace": 1}
    assert now(p0=Seen(1, says(11, 1)), p1=Seen(2, says(1, 0)))["c_total"] == 17
    assert now(p0=Seen(1, says(11, 1)), p1=Seen(3, says(2, 0)))["c_total"] == 19
    # The answer to somebody who asked before that comes last.
    assert now(p0=Seen(1, says(11, 1)), p1=Seen(2, says(1, 0)))["c_total"] == 19
    assert now(p0=Seen(1, says(11, 1)), p1=Seen(3, says(2, 0)))["c_total"] == 19
