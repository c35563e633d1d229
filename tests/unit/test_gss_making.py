"""Security contexts that are being made: whose turn it is, who gives way, and what hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import pytest

from rpcrdma import crowd
from rpcrdma.callers import on_behalf_of
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.gss.identity import Identity
from rpcrdma.gss.mechanism import Initiation
from rpcrdma.rpc.gss_messages import CONTINUE_INIT, NONE, GssCredential, parse_init_results
from tests.peer.echo import Control
from tests.support import kdc
from tests.unit.client_support import until
from tests.unit.gss_support import SERVICE, USERS, Raw, outcome, realm, results
from tests.unit.rpc_support import FakeTransport
from tests.unit.test_gss_hostile import run

DCE_STYLE = 0x1000
"""A flag with which Kerberos takes a step more (gssapi_ext.h): the acceptor has to wait for it."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


async def half(caller: Raw) -> tuple[Initiation, bytes, bytes]:
    making = Initiation(SERVICE, None, DCE_STYLE)
    reply = await caller.init(await asyncio.to_thread(making.step, b""))
    if reply is None:
        raise ConnectionError
    handle, major, _, _, token = parse_init_results(results(reply))
    assert major == 1
    return making, handle, token


def test_half_made_contexts_are_bounded_for_each_host_and_belong_to_it(
    example: kdc.Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        monkeypatch.setattr(crowd, "PATIENCE", 60.0)
        begun = [await half(raw) for _ in range(8)]
        with pytest.raises(ConnectionError):
            await half(raw)
        assert made.counts["refused_busy"] == 1
        honest = Raw(raw.dispatcher, FakeTransport("198.51.100.7"))
        await honest.make()
        assert await honest.call() == "SUCCESS"
        # Another host's, and one's own.
        making, handle, token = begun[0]
        third = making.step(token)
        continued = GssCredential(1, CONTINUE_INIT, 0, NONE, handle)
        assert outcome(await honest.init(third, continued)) == "AUTH_REJECTEDCRED"
        reply = await raw.init(third, continued)
        assert reply is not None
        assert parse_init_results(results(reply))[1] == 0
        assert made.table.of("192.0.2.1") == 1
        assert outcome(await raw.init(third, continued)) == "AUTH_REJECTEDCRED"

    run(example, test, host_waiting=8)


def test_a_network_that_has_most_half_made_contexts_loses_its_own(
    example: kdc.Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        monkeypatch.setattr(crowd, "PATIENCE", 60.0)

        async def of(host: str) -> tuple[Raw, Initiation, bytes, bytes]:
            caller = Raw(raw.dispatcher, FakeTransport(host))
            return caller, *await half(caller)

        honest = await of("203.0.113.7")  # the oldest
        crowding = [await of(f"198.51.100.{number}") for number in range(7)]
        for number in range(10, 14):
            with pytest.raises(ConnectionError):  # its own network has all there is
                await of(f"198.51.100.{number}")
        assert len(made._half) == 8
        for number in range(4):
            await Raw(raw.dispatcher, FakeTransport(f"10.{number}.0.1")).make()
            await of(f"10.{number}.0.1")
        assert made.counts["abandoned"] == 4
        for (caller, making, handle, token), fate in ((crowding[0], "AUTH_REJECTEDCRED"), (honest, "SUCCESS")):
            continued = GssCredential(1, CONTINUE_INIT, 0, NONE, handle)
            assert outcome(await caller.init(making.step(token), continued)) == fate

    run(example, test, waiting=8)


def test_a_name_service_that_hangs_has_one_thread_of_a_principal(example: kdc.Realm) -> None:
    """However many contexts the principal has; there are others to be looked up."""
    asked, answer = [], threading.Event()

    def mapper(principal: str) -> None:
        asked.append(principal)
        answer.wait(60)

    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        callers = [raw, Raw(raw.dispatcher), Raw(raw.dispatcher)]
        for caller in callers:
            await caller.make()
        for context in made.table:
            context.known_until = 0.0
        made.identities.mapper = mapper
        try:
            for caller in callers:
                assert await caller.call() == "SUCCESS"
            # Whatever has been asked before this has got its thread.
            await made._askers.run("", lambda: None)
            await until(lambda: asked)
            assert asked == ["alice@EXAMPLE.ORG"]
        finally:
            answer.set()

    run(example, test)


def test_a_host_may_make_as_many_contexts_at_once_as_its_users_want(example: kdc.Realm) -> None:
    """As after a restart of the server: all of a large host's, and nobody else wants any."""

    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        callers = [Raw(raw.dispatcher, FakeTransport(f"2001:db8::{number:x}")) for number in range(100)]
        makings = [Initiation(SERVICE) for _ in callers]
        tokens = await asyncio.to_thread(lambda: [making.step(b"") for making in makings])
        replies = await asyncio.gather(*(caller.init(token) for caller, token in zip(callers, tokens, strict=True)))
        assert {outcome(reply) for reply in replies} == {"SUCCESS"}
        assert made.counts["established"] == 100

    run(example, test)


def test_a_name_service_that_hangs_keeps_nobody_waiting_whom_it_does_not_know_alone(example: kdc.Realm) -> None:
    asked, answer = Counter[str](), threading.Event()

    def mapper(principal: str) -> Identity | None:
        asked[principal] += 1
        if principal.startswith("bob"):
            answer.wait(60)
        return USERS.get(principal)

    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        made.identities.mapper = mapper
        await raw.make()
        with mock.patch.dict(os.environ, example.ticket("bob")):
            bobs = [Initiation(SERVICE) for _ in range(40)]
            tokens = await asyncio.to_thread(lambda: [making.step(b"") for making in bobs])
        hosts = [Raw(raw.dispatcher, FakeTransport(f"198.51.{number}.1")) for number in range(40)]
        waiting = [asyncio.ensure_future(host.init(token)) for host, token in zip(hosts, tokens, strict=True)]
        try:
            await until(lambda: asked["bob@EXAMPLE.ORG"])
            for number in range(3):
                other = Raw(raw.dispatcher, FakeTransport(f"192.0.2.{number}"))
                await other.make()
                assert await other.call() == "SUCCESS"
            assert asked == {"alice@EXAMPLE.ORG": 1, "bob@EXAMPLE.ORG": 1}
            assert not any(one.done() for one in waiting)
        finally:
            answer.set()
        assert {outcome(reply) for reply in await asyncio.gather(*waiting)} == {"SUCCESS"}

    run(example, test)


def test_why_a_context_is_refused_is_told_in_the_librarys_words(
    example: kdc.Realm, caplog: pytest.LogCaptureFixture
) -> None:
    """With the details, which it has in the thread that has failed only, and without lines that a client has made."""

    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        example.keytab("host/localhost", path=example.directory / "unused")
        token = await asyncio.to_thread(Initiation("host@localhost").step, b"")
        name = token.index(b"localhost")
        await raw.init(token[:name] + b"loc\x0b\nlhos"[:9] + token[name + 9 :])
        (line,) = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
        assert "host/loc" in line
        assert line.isprintable()

    with caplog.at_level(logging.INFO):
        run(example, test)


def test_half_made_contexts_are_forgotten_when_their_time_is_over(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        making = Initiation(SERVICE, None, DCE_STYLE)
        await raw.init(await asyncio.to_thread(making.step, b""))
        (one,) = made._half.values()
        one.since -= 1000.0
        await raw.make()
        assert not made._half
        assert made.counts["abandoned"] == 1

    run(example, test)


def test_long_work_of_one_host_keeps_no_other_waiting(example: kdc.Realm) -> None:
    """However many long calls it has, another's next one comes next."""

    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        begun, go_on = queue.SimpleQueue[str](), threading.Semaphore(0)

        def work(host: str) -> None:
            begun.put(host)
            go_on.acquire(timeout=60)

        hosts = ["192.0.2.1"] * 50 + ["198.51.100.1"] * 2
        jobs = [on_behalf_of(host, asyncio.ensure_future, made.work(work, host)) for host in hosts]
        order = []
        for _ in hosts:  # one ends only when the threads that there are have begun what they do
            order.append(await asyncio.to_thread(begun.get, True, 60))
            if len(order) >= 4:
                go_on.release()
        go_on.release(3)
        await asyncio.gather(*jobs)
        assert max(at for at, host in enumerate(order) if host == "198.51.100.1") < 4 + 2 * 4

    run(example, test)
