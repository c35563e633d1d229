"""Random messages in both versions, their answers compared with what the specifications prescribe
(tests/peer/oracle.py); ``python -m tests.peer.random_messages`` sends many more."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rpcrdma.engine import assembly, reduce
from rpcrdma.wire.transport_header import encode_reply, reply_size
from rpcrdma.wire.version_one import VersionOne
from rpcrdma.wire.version_two import VersionTwo
from tests.peer import random_backward
from tests.peer.messages import KINDS
from tests.peer.random_messages import PROVIDERS, Difference, Tally, converse
from tests.rfc.plugin import covers


@pytest.fixture(autouse=True)
def few_records(caplog):
    """The log's records keep the connections they are about in memory, and pytest keeps the records."""
    caplog.set_level(logging.ERROR, "rpcrdma")


@covers(
    "RFC 8166 4.5 any-octets",
    "RFC 8166 4.5.2 malformed",
    "RFC 8166 8.1.4 bounds",
    "draft-cel-nfsv4-rpcrdma-version-two-02 XDR header",
)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_random_messages_are_answered_as_prescribed_and_harm_nobody_else(provider):
    tally = asyncio.run(converse(provider, 400, 20))
    assert len({kind for kind, _ in tally.answers}) > 0.9 * len(KINDS)
    assert tally.looks > 10


@covers("RFC 8166 3.4.6 segments-in-order", "RFC 8166 3.5.3 placement")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_any_layout_of_chunks_moves_every_octet_to_its_place(provider):
    tally = asyncio.run(converse(provider, 300, 21, ["legal call"]))
    assert tally.answers["legal call", "reply"] > 200


@covers("RFC 8167 5.2 reply-fields", "RFC 8167 2.4 xid-spaces")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_random_answers_to_backward_calls_reach_their_maker_or_nobody(provider):
    tally = asyncio.run(random_backward.converse(provider, 400, 23))
    assert tally.keys() == random_backward.KINDS.keys()


def test_the_table_has_every_kind_and_every_answer():
    tally = Tally()
    tally.answers["NULL", "reply"] = 3
    tally.answers["noise", "discarded"] = 2
    assert tally.table().splitlines()[2:] == ["| NULL | 3 | 3 |  |", "| noise | 2 |  | 2 |", "| all | 5 | 3 | 2 |"]


def with_all_chunks_full(buffer, call, credit, procedure, writes, reply):
    full = [sum(length for _, length, _ in chunk) for chunk in [*call.writes, call.reply or []]]
    return encode_reply(buffer, call, credit, procedure, full[:-1], full[-1])


MISTAKES = {
    "a Write chunk's padding counted": (reduce, "_capacity", lambda chunk: sum(length for _, length, _ in chunk) + 1),
    "unused chunks come back full": (VersionOne, "encode_reply", lambda self, *reply: with_all_chunks_full(*reply)),
    "positions unchecked": (assembly, "_check_positions", lambda chunks, stream: None),
    "the payload's XID unchecked": (assembly, "is_call", lambda header, data: True),
    "version One invalidates what it likes": (VersionOne, "invalidates", lambda self, call: 0x77777777),
    "version Two never invalidates": (VersionTwo, "invalidates", lambda self, call: None),
    "version Two's header miscounted": (VersionTwo, "reply_size", lambda self, call: reply_size(call) - 8),
    "a reply too large": (VersionOne, "reply_size", lambda self, call: 28),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_server_that_made_a_mistake_would_be_found_out(mistake, monkeypatch):
    """Of the comparison itself: with one thing wrong in the server, some answer differs."""
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises((Difference, AssertionError, ConnectionError)):
        asyncio.run(converse("loopback", 600, 22))
