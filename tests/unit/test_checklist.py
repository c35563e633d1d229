"""The questions of ``rdma-nfsd conformance``, put to this server; tests/vm/four_servers.py puts them to others, too."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from nfsd.client.url import Url
from nfsd.conformance.demands import BASICS, ITEMS
from nfsd.conformance.link import QUESTIONS, TRANSPORTS, Differs
from nfsd.conformance.run import Options, ask, chosen, put
from tests.peer.version_two_session import server
from tests.rfc.document import FACTS, linux
from tests.vm.four_servers import DOCUMENT, written


def test_this_server_does_all_that_is_demanded(tmp_path):
    with server(tmp_path) as ports:
        for transport, listener in (("rdma", "two"), ("rdma", "one"), ("tcp", "tcp")):
            url = Url(transport, "127.0.0.1", ports[listener], (b"export",))
            found = asyncio.run(ask(url, Options(patience=0.0, mount_port=ports["mountd"])))
            assert {answer.question: answer.differs for answer in found if answer.differs} == {}, listener
            lacks = {answer.absent for answer in found if answer.absent}
            assert lacks == ({"it has no version Two"} if listener == "one" else set())
            wanted = {name for name, question in QUESTIONS.items() if transport in TRANSPORTS[question]}
            assert {item.name for answer in found for item in answer.items} == wanted
        assert list((tmp_path / "export").iterdir()) == [], "the questions clean up behind them"


def test_the_questions_are_about_items_that_there_are_and_have_been_put_to_every_server():
    assert set(QUESTIONS) <= set(ITEMS) | set(BASICS)
    assert set(BASICS) <= set(QUESTIONS)
    kernel, differs = linux()
    assert kernel.startswith("6.")
    assert differs.keys() <= QUESTIONS.keys() & ITEMS.keys()
    facts = json.loads(FACTS.read_text())
    assert len(facts) == 11
    for server_asked, answers in facts.items():
        device = server_asked.endswith(" device")
        way = "tcp" if server_asked.endswith(", TCP") else "rdma"
        wanted = {item.name for _, items in chosen(way, device=device) for item in items}
        assert {answer["demand"] for answer in answers} == wanted, server_asked
        if server_asked.startswith("rdma-nfsd"):
            wrong = {answer["demand"] for answer in answers if answer["differs"] or answer["absent"]}
            # siw does not say why a connection has ended, so nobody knows that it was for this call.
            assert wrong == ({"RFC 8166 4.5.3 refused-memory"} if "siw" in server_asked else set())


def test_the_document_has_the_tables_of_what_was_answered():
    document = DOCUMENT.read_text()
    assert written(document, json.loads(FACTS.read_text())) == document, "python -m tests.vm.four_servers writes them"


@pytest.mark.parametrize(
    ("happens", "how"),
    [
        (Differs("it says yes"), "it says yes"),
        (ConnectionError("reset"), "the connection is lost (reset)"),
        (ConnectionError("no message within 20 s"), "no message within 20 s"),
        (TimeoutError(), "there is no answer"),
        (None, ""),
    ],
)
def test_what_a_question_comes_to(happens, how):
    left = []

    async def question(target):
        if happens is not None:
            raise happens

    async def leave():
        left.append(True)

    peers = [SimpleNamespace(reason="reset" if how.endswith("(reset)") else None)]
    assert asyncio.run(put(question, SimpleNamespace(leave=leave, peers=peers))) == how
    assert left
