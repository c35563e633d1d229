"""``rdma-nfsd conformance``: what it says of servers that are wrong. That this server is right is test_checklist's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nfsd.conformance import report
from nfsd.conformance.demands import BASICS, Item
from nfsd.conformance.link import QUESTIONS, Target
from nfsd.conformance.relay import Fpdus, Fragments
from nfsd.conformance.run import Answer, chosen, put
from rpcrdma.peer.wire import words
from rpcrdma.verbs.interface import ListenAddress
from tests.peer.version_two_session import server
from tests.support.captures import decoded

OWN = """
import struct
from nfsd.conformance.link import Target, asks, check, expect, opaque

@asks("mine wrong", over=["rdma", "tcp"])
async def wrong(target: Target) -> None:
    if target.transport == "rdma":
        link = await target.link()
        handle = await link.filled(b"name in the capture", b"data" * 1000)
        area = link.peer.writable(4000)
        check(await link.read(handle, 4000, writes=[[area.segment()]]), "READ")
    await (await target.exchanger()).exchange(struct.pack(">10I", 7, 0, 2, 100003, 3, 0, 0, 0, 0, 0))
    expect(1, 2, "\\x01 <the number>")

@asks("mine right", over=["rdma"])
async def right(target: Target) -> None:
    await target.link()
"""


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "nfsd.cli", "conformance", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server, and questions of which it fails one."""
    base = tmp_path_factory.mktemp("served")
    cases = base / "cases.py"
    cases.write_text(OWN)
    with server(base) as ports:
        rdma, tcp = f"rdma://127.0.0.1:{ports['two']}/export", f"tcp://127.0.0.1:{ports['tcp']}/export"
        more = ("--mount-port", str(ports["mountd"]), "--cases", cases, "--only", "wrong")
        yield base, rdma, tcp, more


def test_a_server_that_does_nothing_right_fails_every_question():
    """Each question could be passed by a server that it does not look at."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                whole, last = b"", False
                while not last:
                    mark = int.from_bytes(await reader.readexactly(4), "big")
                    whole += await reader.readexactly(mark & 0x7FFFFFFF)
                    last = mark >= 0x80000000
                writer.write(words(0x80000018) + whole[:4] + words(1, 0, 0, 0, 5))
        except asyncio.IncompleteReadError:
            writer.close()

    async def main() -> dict[str, str]:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        there = ListenAddress("127.0.0.1", listening.sockets[0].getsockname()[1])
        found = {}
        for question, items in chosen("tcp"):
            if items[0].name in BASICS:
                target = Target(None, None, there, b"root", transport="tcp")  # type: ignore[arg-type]
                found[question.__name__] = await put(question, target)
        listening.close()
        return found

    found = asyncio.run(main())
    assert len(found) == len({QUESTIONS[name] for name in BASICS})
    assert [name for name, differs in found.items() if not differs] == []


def test_a_failure_over_rdma_is_told_and_captured_with_the_servers_rdma_writes(own):
    base, rdma, _, more = own
    done = command(rdma, *more, "--only", "right", "--captures", base / "captures", "--junit", base / "junit.xml")
    assert done.returncode == 1, done.stderr
    table = done.stdout.splitlines()
    assert table[0] == "differs M  mine wrong"
    assert "wrong: \x01 <the number>: 1, not 2" in table[1]
    assert table[2].strip() == f"captured in {base}/captures/wrong.pcapng"
    assert table[3:] == ["ok      M  mine right", "2 demands: 1 as demanded, 1 not (1 MUST, 0 SHOULD, 0 MAY)"]
    text = decoded(base / "captures/wrong.pcapng")
    for said in (
        "private data of RFC 8797",
        "call NFS version 3 WRITE",
        "RDMA Write: 4000 octets to",
        "version 3 NULL",
    ):
        assert said in text
    assert (base / "captures/wrong.pcapng").stat().st_mode & 0o777 == 0o600
    assert not (base / "captures/right.pcapng").exists()
    suite = ElementTree.parse(base / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    wrong, right = suite
    assert wrong.find("failure").get("message") == "? <the number>: 1, not 2"  # type: ignore[union-attr]
    assert right.find("failure") is None
    assert list((base / "export").iterdir()) == []


def test_a_failure_over_tcp_is_told_as_json_and_captured(own):
    base, _, tcp, more = own
    done = command(tcp, *more, "--captures", base / "over tcp", "--json")
    assert done.returncode == 1, done.stderr
    (answer,) = json.loads(done.stdout)["answers"]
    assert (answer["demand"], answer["level"], answer["question"]) == ("mine wrong", "MUST", "wrong")
    text = decoded(Path(answer["capture"]))
    assert "call NFS version 3 NULL" in text
    assert "reply to NFS version 3 NULL" in text


DEADLY = """
import os
from nfsd.conformance.link import Target, asks

@asks("mine right", over=["tcp"])
async def first(target: Target) -> None:
    await target.exchanger()

@asks("mine deadly", over=["tcp"])
async def deadly(target: Target) -> None:
    to = await target.exchanger()
    os.kill({pid}, 9)
    await to.exchange(bytes(40))
"""


def test_the_answers_of_a_server_that_dies_are_told(tmp_path):
    with contextlib.suppress(AssertionError), server(tmp_path) as ports:  # it does not end as it should
        (tmp_path / "cases.py").write_text(DEADLY.format(pid=ports["pid"]))
        more = ("--mount-port", str(ports["mountd"]), "--cases", tmp_path / "cases.py")
        url = f"tcp://127.0.0.1:{ports['tcp']}/export"
        done = command(url, *more, "--only", "first", "--only", "deadly", "--json")
    assert done.returncode == 1, done.stderr
    first, deadly = json.loads(done.stdout)["answers"]
    assert not first["differs"]
    assert deadly["differs"] == "the server closed the connection"
    assert "is left in the export" in done.stderr


@pytest.mark.parametrize(
    ("words_of_it", "said"),
    [
        (["tcp://127.0.0.1:1/export", "--mount-port", "1"], "127.0.0.1"),
        (["tcp://127.0.0.1/export", "--only", "segments"], "no question over tcp is called segments"),
        (["tcp://127.0.0.1/export", "--provider", "verbs"], "--provider verbs is for rdma:// URLs"),
        (
            ["rdma://127.0.0.1/export", "--provider", "verbs", "--captures", "."],
            "nothing can be captured over a device",
        ),
        (["rdma://127.0.0.1/export", "--provider", "verbs", "--only", "both_r"], "no question over a device is called"),
        (["http://127.0.0.1/export"], "the scheme is rdma, tcp or tls"),
        ([], "which server?"),
    ],
)
def test_what_cannot_be_asked_is_said(words_of_it, said):
    done = command(*words_of_it)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_questions_can_be_listed():
    done = command("--list")
    assert done.returncode == 0
    listed = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["tcp", "fragments"] in listed
    assert ["rdma", "segments"] in listed
    assert ["tcp", "segments"] not in listed
    assert ["rdma", "replay"] in listed


def test_nothing_is_said_of_memory_that_our_end_refuses(own):
    _, rdma, _, more = own
    done = command(rdma, *more[:2], "--only", "refused_memory")
    assert (done.returncode, done.stderr) == (0, "")


def test_only_what_a_must_demands_counts_for_the_exit_status():
    def answer(level: str, differs: str) -> Answer:
        return Answer("question", (Item("RFC 0 1 word", level, "Text."),), differs, 0.0)

    assert report.status([answer("M", ""), answer("S", "it says no"), answer("O", "it says no")]) == 0
    assert report.status([answer("M", "it says no")]) == 1


def test_streams_are_cut_where_their_messages_end():
    request = b"MPA ID Req Frame" + b"\0\1" + b"\0\3" + b"abc"
    fpdu = b"\0\5" + b"12345" + b"\0" + b"CRC."
    for size in (1, 7, 100):
        cutter = Fpdus()
        octets = request + fpdu + fpdu + b"\0\5half"
        pieces = [piece for at in range(0, len(octets), size) for piece in cutter.feed(octets[at : at + size])]
        assert pieces == [request, fpdu, fpdu]
        assert cutter.rest() == b"\0\5half"
    fragments = Fragments()
    assert list(fragments.feed(words(3) + b"abc" + words(0x80000001) + b"d")) == [
        words(3) + b"abc",
        words(0x80000001) + b"d",
    ]
