"""What the running command captures, as Wireshark's own dissectors see it: the same NFS work over RPC-over-RDMA, with
chunks of every kind, and over TCP. tshark is needed: without it this fails, and says how to have it."""

from __future__ import annotations

import asyncio
import re
import stat
from pathlib import Path

import pytest

from rpcrdma.memory import Pool
from rpcrdma.verbs.device import make_provider
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.nfs3_client import Nfs3Client
from tests.peer.rig import DEVICE_ADDRESS
from tests.peer.version_two_session import server
from tests.support.captures import capturing, decoded, dissected
from tests.support.nfs_work import DATA, NAME3, NAME4, SHORT, work_over_rdma, work_over_tcp

FIELDS = (
    "tcp.port", "rpc.msgtyp", "rpc.xid", "nfs.procedure_v3", "nfs.opcode", "nfs.name",
    "nfs.data", "rpcordma.reassembled.length", "rpcordma.msg_type", "_ws.col.Info", "_ws.malformed",
)  # fmt: skip
CALL, REPLY = "0", "1"
HOST = DEVICE_ADDRESS or "127.0.0.1"


class Captured:
    """One capture of the work, and what the server said of itself."""

    def __init__(self, base: Path) -> None:
        self.file = base / "work.pcapng"
        with server(base, DEVICE_ADDRESS) as ports:
            self.ports = ports
            with capturing(base, self.file) as self.said:
                asyncio.run(self._work())
        self.log = (base / "log").read_text()
        self.packets = dissected(self.file, FIELDS)

    async def _work(self) -> None:
        pool = Pool(256 << 20)
        provider = make_provider(pool) if DEVICE_ADDRESS else SoftIwarp(pool)
        async with await Nfs3Client.connect("127.0.0.1", self.ports["mountd"]) as mountd:
            root = await mountd.mount("/export")
        await work_over_rdma(provider, pool, ListenAddress(HOST, self.ports["two"]), root)
        await work_over_tcp("127.0.0.1", self.ports["tcp"], root)
        await provider.close()

    def of(self, way: str) -> list[dict[str, str]]:
        port = str(self.ports["two" if way == "rdma" else "tcp"])
        return [packet for packet in self.packets if port in packet["tcp.port"].split(",")]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return Captured(tmp_path_factory.mktemp("captured"))


@pytest.mark.parametrize("way", ["rdma", "tcp"])
def test_version_three_with_names_and_data(captured, way):
    packets = captured.of(way)

    def data(procedure: str, direction: str) -> list[str]:
        chosen = [p for p in packets if (p["nfs.procedure_v3"], p["rpc.msgtyp"]) == (procedure, direction)]
        return [packet["nfs.data"] for packet in chosen]

    assert data("7", CALL) == [SHORT.hex(), DATA.hex()], "WRITE: inline, and from a Read chunk"
    assert data("6", REPLY) == [DATA[: len(SHORT)].hex(), DATA.hex()]
    assert len(data("7", REPLY)) == len(data("6", CALL)) == 2
    (created,) = [p for p in packets if (p["nfs.procedure_v3"], p["rpc.msgtyp"]) == ("8", CALL)]
    assert created["nfs.name"] == NAME3.decode()
    (listed,) = [p for p in packets if (p["nfs.procedure_v3"], p["rpc.msgtyp"]) == ("17", REPLY)]
    assert NAME3.decode() in listed["_ws.col.Info"]
    assert sorted(p["rpc.msgtyp"] for p in packets if p["nfs.procedure_v3"] == "1") == [CALL, REPLY], "a Long Call"


@pytest.mark.parametrize("way", ["rdma", "tcp"])
def test_version_four_with_names_and_data(captured, way):
    packets = captured.of(way)
    info = [packet["_ws.col.Info"] for packet in packets]
    for words in ("EXCHANGE_ID", "CREATE_SESSION", "RECLAIM_COMPLETE", f"OPEN {NAME4.decode()}"):
        assert any(words in line and "Call" in line for line in info), words
    (written,) = [p for p in packets if "WRITE StateID" in p["_ws.col.Info"] and "V4 Call" in p["_ws.col.Info"]]
    assert (written["nfs.opcode"], written["nfs.data"]) == ("53,22,38", DATA.hex())
    (read,) = [p for p in packets if p["rpc.msgtyp"] == REPLY and p["nfs.opcode"] == "53,22,25"]
    assert read["nfs.data"] == DATA.hex()


def test_chunks_are_put_together(captured):
    """Each of these lengths is a whole RPC message: what was inline and what went through chunks."""
    packets = captured.of("rdma")
    lengths = [int(p["rpcordma.reassembled.length"]) for p in packets if p["rpcordma.reassembled.length"]]
    assert sum(length > len(DATA) for length in lengths) == 4, "WRITE and READ in both versions"
    kinds = {p["rpcordma.msg_type"] for p in packets}
    assert {"0", "1"} <= kinds, "RDMA_MSG and RDMA_NOMSG"


def test_nothing_is_malformed_and_every_call_has_its_reply(captured):
    assert [p["_ws.col.Info"] for p in captured.packets if p["_ws.malformed"]] == []
    for way in ("rdma", "tcp"):
        sides = {side: {p["rpc.xid"] for p in captured.of(way) if p["rpc.msgtyp"] == side} for side in (CALL, REPLY)}
        assert sides[CALL] == sides[REPLY] != set()


def test_calls_that_are_answered_natively_are_in_it(captured):
    counters = re.search(rf"rdma://{re.escape(HOST)}:{captured.ports['two']}: (calls .*)", captured.log)
    assert counters is not None
    counted = dict(re.findall(r"(\w+) (\d+)", counters[1]))
    assert int(counted["native_calls"]) >= 2, "READ, inline and into a Write chunk"
    calls = [p for p in captured.of("rdma") if p["rpc.msgtyp"] == CALL]
    assert len(calls) == int(counted["calls"])


def test_the_commands_words_and_the_file_mode(captured):
    assert "contains the data and the names of files" in captured.said[0]
    assert re.fullmatch(r"\d+ packets in .*work\.pcapng", captured.said[-1])
    assert stat.S_IMODE(captured.file.stat().st_mode) == 0o600


def test_decode_says_the_same(captured):
    text = decoded(captured.file)
    for words in (
        "private data of RFC 8797: sends up to 4096 octets, receives up to 4096, remote invalidation ",
        "call MOUNT version 3 MNT",
        "call NFS version 3 GETATTR, from the Read chunk",
        "call NFS version 4 COMPOUND (SEQUENCE PUTFH WRITE), ",
        "reply to NFS version 4 COMPOUND (SEQUENCE PUTFH READ): NFS4_OK, ",
        "closed: the peer closed the connection",
    ):
        assert words in text
    assert len(re.findall("^ +call ", text, re.M)) == len(re.findall("^ +reply to ", text, re.M)) > 20
    segments = len(re.findall(r"Read chunk at position \d+: \d+ octets of 0x", text))
    assert segments == len(re.findall(r"RDMA Read's data: ", text)) == (3 if DEVICE_ADDRESS else 5)
