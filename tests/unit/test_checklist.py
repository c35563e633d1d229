"""The questions of tests/peer/checklist, put to this server; tests/vm/checklist.py puts them to Linux's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tests.peer.checklist.__main__ import ask, put
from tests.peer.checklist.link import QUESTIONS, Differs
from tests.peer.version_two_session import server
from tests.rfc.document import linux
from tests.rfc.items import ITEMS


def test_this_server_does_all_that_is_demanded(tmp_path):
    with server(tmp_path) as ports:
        for listener in ("two", "one"):
            found = asyncio.run(ask("127.0.0.1", ports[listener], ports["mountd"]))
            assert {item: how for item, how in found.items() if how} == {}, listener
            assert found.keys() == QUESTIONS.keys()


def test_the_questions_are_about_items_that_there_are_and_have_been_put_to_linux():
    assert set(QUESTIONS) <= set(ITEMS)
    kernel, differs = linux()
    assert kernel.startswith("6.")
    assert differs.keys() == QUESTIONS.keys()


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
