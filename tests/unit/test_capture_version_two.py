"""Captures of version Two, as Wireshark sees them with the dissector that comes with ``rdma-nfsd capture``. tshark is
needed: without it this fails, and says how to have it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rpcrdma.capture import DISSECTOR
from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.nfs3_client import Nfs3Client
from tests.peer.version_two_session import server, session
from tests.support.captures import capturing, dissected
from tests.support.nfs_work import DATA, NAME3, NAME4, SHORT, work_over_rdma

FIELDS = (
    "frame.number", "rpc.msgtyp", "rpc.xid", "nfs.procedure_v3", "nfs.opcode", "nfs.data", "_ws.col.Info",
    "_ws.malformed", "_ws.lua.error", "rpcordma2.xid", "rpcordma2.proc", "rpcordma2.error", "rpcordma2.whole_in",
    "rpcordma2.header_in", "rpcordma2.malformed", "rpcordma2.incomplete",
)  # fmt: skip
CALL, REPLY = "0", "1"


async def mounted(port: int):
    async with await Nfs3Client.connect("127.0.0.1", port) as mountd:
        return await mountd.mount("/export")


async def work(ports: dict[str, int], version: int) -> None:
    pool = Pool(256 << 20)
    provider = SoftIwarp(pool)
    root = await mounted(ports["mountd"])
    await work_over_rdma(provider, pool, ListenAddress("127.0.0.1", ports["two"]), root, version)
    await provider.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The work of version Two, its beginning of each message, that of version One; and a session with every error."""
    captured = {}
    for name, options in (("two", ()), ("cut", ("--snaplen", "300")), ("one", ()), ("session", ())):
        base = tmp_path_factory.mktemp(name)
        captured[name] = base / "pcapng"
        with server(base) as ports, capturing(base, captured[name], *options):
            asyncio.run(session(ports) if name == "session" else work(ports, 1 if name == "one" else 2))
    return captured


@pytest.fixture(scope="module")
def packets(files) -> list[dict[str, str]]:
    return dissected(files["two"], FIELDS, script=DISSECTOR)


def test_every_call_has_its_reply_and_nothing_is_malformed(packets):
    assert [
        p["_ws.col.Info"] for p in packets if p["_ws.malformed"] or p["_ws.lua.error"] or p["rpcordma2.incomplete"]
    ] == []
    rdma = [p for p in packets if "MNT" not in p["_ws.col.Info"]]
    sides = {side: [p["rpc.xid"] for p in rdma if p["rpc.msgtyp"] == side] for side in (CALL, REPLY)}
    assert sorted(sides[CALL]) == sorted(sides[REPLY])
    assert len(set(sides[CALL])) == len(sides[CALL]) == 13


def test_data_are_where_they_belong_in_version_three(packets):
    def data(procedure: str, direction: str) -> list[str]:
        return [p["nfs.data"] for p in packets if (p["nfs.procedure_v3"], p["rpc.msgtyp"]) == (procedure, direction)]

    assert data("7", CALL) == [SHORT.hex(), DATA.hex()], "WRITE: inline, and from a Read chunk of two segments"
    assert data("6", REPLY) == [DATA[: len(SHORT)].hex(), DATA.hex()], "READ: inline, and in a Write chunk of two"


def test_data_are_where_they_belong_in_version_four(packets):
    (written,) = [p for p in packets if (p["nfs.opcode"], p["rpc.msgtyp"]) == ("53,22,38", CALL)]
    (read,) = [p for p in packets if (p["nfs.opcode"], p["rpc.msgtyp"]) == ("53,22,25", REPLY)]
    assert written["nfs.data"] == read["nfs.data"] == DATA.hex()
    assert any(f"OPEN {NAME4.decode()}" in p["_ws.col.Info"] for p in packets)


def test_long_calls_and_long_replies_are_put_together(packets):
    by_number = {p["frame.number"]: p for p in packets}
    (call,) = [p for p in packets if (p["nfs.procedure_v3"], p["rpc.msgtyp"]) == ("1", CALL)]
    header = by_number[call["rpcordma2.header_in"]]
    assert (header["rpcordma2.proc"], header["rpcordma2.whole_in"]) == ("1", call["frame.number"])
    (listed,) = [p for p in packets if (p["nfs.procedure_v3"], p["rpc.msgtyp"]) == ("17", REPLY)]
    assert NAME3.decode() in listed["_ws.col.Info"]


def test_a_reply_in_a_reply_chunk_and_every_error(files):
    """The session has a listing that did not fit inline, and one message that is malformed indeed."""
    packets = dissected(files["session"], FIELDS, script=DISSECTOR)
    (listed,) = [p for p in packets if p["rpcordma2.proc"] == "1" and p["rpc.msgtyp"] == REPLY]
    assert "number 59" in listed["_ws.col.Info"]
    assert {p["rpcordma2.error"] for p in packets} == {"", "1", "2", "3", "4", "5"}
    (bad,) = [p for p in packets if p["_ws.malformed"] or p["rpcordma2.malformed"]]
    assert bad["rpc.xid"] == ""
    (refused,) = [p for p in packets if p["rpcordma2.error"] == "2"]
    assert refused["rpcordma2.xid"] == bad["rpcordma2.xid"]
    assert not any(p["_ws.lua.error"] or p["rpcordma2.incomplete"] for p in packets)


def test_what_was_left_out_of_the_capture_is_not_made_up(files):
    packets = dissected(files["cut"], FIELDS, script=DISSECTOR)
    assert not any(p["_ws.lua.error"] for p in packets)
    assert not any(p["_ws.malformed"] for p in packets)
    shown = {(p["nfs.procedure_v3"], p["rpc.msgtyp"]) for p in packets}
    assert ("1", CALL) in shown, "a Long Call is short enough to be there whole"
    told = [(p["rpcordma2.proc"], p["rpc.msgtyp"]) for p in packets if p["rpcordma2.incomplete"]]
    assert told == [("0", ""), ("0", "")], "the replies whose data went into Write chunks"
    assert DATA.hex() not in {p["nfs.data"] for p in packets}


def test_version_one_and_tcp_look_as_without_it(files):
    fields = ("frame.number", "nfs.data", "_ws.col.Info", "_ws.malformed", "rpcordma.reassembled.length")
    assert dissected(files["one"], fields, script=DISSECTOR) == dissected(files["one"], fields)


def test_the_command_says_where_it_is():
    command = [sys.executable, "-m", "nfsd.cli", "capture", "--dissector"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.rstrip("\n")) == DISSECTOR
    assert DISSECTOR.is_file()


def test_a_capture_still_wants_to_know_of_whom_and_where_to():
    done = subprocess.run([sys.executable, "-m", "nfsd.cli", "capture"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--output and --config are required" in done.stderr
