"""RPCSEC_GSS against those who do not follow it: every octet of these calls is made by hand."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcrdma.gss import contexts
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.gss.contexts import SEQUENCE_WINDOW, Context
from rpcrdma.gss.mechanism import Acceptance, Credential, GssError, Initiation, Sealer
from rpcrdma.gss.table import Table
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.gss_messages import (
    CONTINUE_INIT,
    DESTROY,
    INIT,
    INTEGRITY,
    NONE,
    PRIVACY,
    GssCredential,
    parse_credential,
    parse_init_results,
)
from rpcrdma.rpc.native import Gate
from rpcrdma.rpc.secured import unwrapped
from tests.peer.echo import ECHO, Control
from tests.support import kdc
from tests.unit.gss_support import SERVICE, Raw, acceptor, integrity, outcome, privacy, programs, realm, results
from tests.unit.rpc_support import FakeTransport


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


def run(example: kdc.Realm, test: Callable[[Raw, Acceptor, Control], Awaitable[None]], **limits: object) -> None:
    async def main() -> None:
        control, made = Control(), acceptor(example, **limits)
        try:
            await test(Raw(Dispatcher(programs(control), gss=made)), made, control)
        finally:
            made.close()

    asyncio.run(main())


def test_a_call_that_has_been_seen_or_is_too_old_gets_no_reply(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, control: Control) -> None:
        await raw.make()
        assert raw.window == SEQUENCE_WINDOW
        first = raw.message(sequence=5000)
        assert outcome(await raw.send(first)) == "SUCCESS"
        assert outcome(await raw.send(first)) == "dropped"
        assert await raw.call(sequence=5000 - SEQUENCE_WINDOW) == "dropped"
        assert await raw.call(sequence=5001 - SEQUENCE_WINDOW) == "SUCCESS"
        assert await raw.call(sequence=5001 - SEQUENCE_WINDOW) == "dropped"
        assert control.executed == 2
        assert made.counts["discarded"] == 3

    run(example, test)


def test_numbers_below_maxseq_are_answered_and_above_it_the_context_is_over(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        assert await raw.call(sequence=(1 << 31) - 1) == "SUCCESS"
        assert await raw.call(sequence=1 << 31) == "RPCSEC_GSS_CTXPROBLEM"
        assert await raw.call(sequence=(1 << 32) - 1) == "RPCSEC_GSS_CTXPROBLEM"
        assert await raw.call(sequence=(1 << 31) - 2) == "SUCCESS"

    run(example, test)


def test_the_window_is_exact_whatever_the_order(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        (context,) = made.table
        chance, seen, highest = random.Random(1), set[int](), 0
        for _ in range(20_000):
            number = max(1, highest + chance.randrange(-SEQUENCE_WINDOW - 50, chance.choice((3, 60, 3000))))
            expected = number > highest or (number > highest - SEQUENCE_WINDOW and number not in seen)
            assert (context.admit(number) == 0) is expected
            seen.add(number)
            highest = max(highest, number)

    run(example, test)


def test_whoever_cannot_sign_moves_no_window_and_calls_nothing(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, control: Control) -> None:
        await raw.make()
        good = raw.message(sequence=900)
        for index in (3, 23, 43, len(good) - 1):  # XID, procedure, sequence number, MIC
            bad = bytearray(good)
            bad[index] ^= 1
            assert outcome(await raw.send(bytes(bad))) == "RPCSEC_GSS_CREDPROBLEM"
        ahead = bytearray(raw.message(sequence=1 << 30))
        ahead[-1] ^= 1
        assert outcome(await raw.send(bytes(ahead))) == "RPCSEC_GSS_CREDPROBLEM"
        assert made.counts["refused_bad_mic"] == 5
        assert control.executed == 0
        assert outcome(await raw.send(good)) == "SUCCESS"
        # Another's context, with one's own key.
        other = Raw(raw.dispatcher)
        await other.make()
        assert await other.call(handle=raw.handle) == "RPCSEC_GSS_CREDPROBLEM"
        assert await other.call(handle=bytes(16)) == "RPCSEC_GSS_CREDPROBLEM"

    run(example, test)


@pytest.mark.parametrize(("service", "protect"), [(INTEGRITY, integrity), (PRIVACY, privacy)])
def test_protected_arguments_are_those_of_their_call_or_garbage(
    example: kdc.Realm, service: int, protect: Callable[..., bytes]
) -> None:
    async def test(raw: Raw, made: Acceptor, control: Control) -> None:
        await raw.make()
        echo = struct.pack(">II", 8, 0)
        assert await raw.call(protect(raw, 1, echo), ECHO, service=service) == "SUCCESS"
        assert await raw.call(protect(raw, 1, echo), ECHO, service=service) == "GARBAGE_ARGS"  # another call's
        assert await raw.call(protect(raw, 9, echo), ECHO, sequence=9, service=5 - service) == "GARBAGE_ARGS"
        assert await raw.call(echo, ECHO, sequence=10, service=service) == "GARBAGE_ARGS"
        whole = protect(raw, 11, echo)
        for cut in range(0, len(whole), 4):
            sequence = 100 + cut
            body = protect(raw, sequence, echo)[:cut]
            assert await raw.call(body, ECHO, sequence=sequence, service=service) == "GARBAGE_ARGS"
        for index in range(0, len(whole), 7):
            sequence = 500 + index
            changed = bytearray(protect(raw, sequence, echo))
            changed[index] ^= 0x40
            if index < len(whole) - 3:  # what may be padding says nothing
                assert await raw.call(bytes(changed), ECHO, sequence=sequence, service=service) == "GARBAGE_ARGS"
        long = bytes(40_000) + b"x"
        assert (
            await raw.call(protect(raw, 950, long)[:-8] + bytes(8), ECHO, sequence=950, service=service)
            == "GARBAGE_ARGS"
        )
        assert control.executed == 1
        # The reply says nothing of the arguments, and is signed all the same.
        reply = await raw.send(raw.message(b"", ECHO, sequence=960, service=service))
        assert reply is not None
        length = int.from_bytes(reply.head[16:20], "big")
        assert raw.sealer.verify(struct.pack(">I", 960), memoryview(reply.head)[20 : 20 + length])

    run(example, test)


def test_malformed_credentials_are_refused_as_the_rfc_has_it(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()

        async def sent(credential: bytes) -> str:
            head = raw.header(credential)
            mic = raw.sealer.sign(head)
            return outcome(await raw.send(head + struct.pack(">II", 6, len(mic)) + mic))

        good = GssCredential(1, 0, 1, NONE, raw.handle).encode()
        for cut in range(4, len(good), 4):
            assert await sent(good[:cut]) == "AUTH_BADCRED"
        assert await sent(b"") == "AUTH_BADCRED"
        assert await sent(good + bytes(4)) == "AUTH_BADCRED"
        assert await sent(struct.pack(">5I", 1, 0, 1, 1, 0xFFFFFFFF)) == "AUTH_BADCRED"
        assert await sent(GssCredential(1, 4, 1, NONE, raw.handle).encode()) == "AUTH_BADCRED"
        for service in (0, 4, 1 << 31):
            assert await sent(GssCredential(1, 0, 1, service, raw.handle).encode()) == "AUTH_BADCRED"
        for version in (0, 2, 3, 1 << 31):
            assert await sent(GssCredential(version, 0, 1, NONE, raw.handle).encode()) == "AUTH_BADCRED"
        # The verifier, of another flavor or longer than the call.
        head = raw.header(good)
        assert outcome(await raw.send(head + bytes(8))) == "RPCSEC_GSS_CREDPROBLEM"
        assert outcome(await raw.send(head + struct.pack(">II", 6, 0xFFFFFFF0))) == "GARBAGE_ARGS"
        assert await raw.call(sequence=1) == "SUCCESS"

    run(example, test)


def test_a_destroyed_context_is_none(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        assert await raw.call(procedure=1, gss=DESTROY) == "AUTH_BADCRED"
        assert len(made.table) == 1
        assert await raw.call(gss=DESTROY) == "SUCCESS"
        assert not made.table
        assert await raw.call() == "RPCSEC_GSS_CREDPROBLEM"
        assert await raw.call(gss=DESTROY) == "RPCSEC_GSS_CREDPROBLEM"

    run(example, test)


def test_garbage_tokens_make_nothing_and_cost_an_honest_client_nothing(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        good = await asyncio.to_thread(Initiation(SERVICE).step, b"")
        chance = random.Random(2)
        tokens = [b"", bytes(100), good[:50], good[:-1], good + b"x"]
        for _ in range(40):
            changed = bytearray(good)
            changed[chance.randrange(len(good) - 1)] ^= 1 << chance.randrange(8)
            tokens.append(bytes(changed))
        refused = 0
        for token in tokens:
            reply = await raw.init(token)
            assert reply is not None
            handle, major, *_ = parse_init_results(results(reply))
            refused += bool(major >> 16)
            assert bool(handle) is not bool(major >> 16)
        assert refused > 20  # not all octets of a token are under a checksum
        assert len(made.table) + refused == len(tokens)
        assert outcome(await raw.init(bytes(65 << 10))) == "GARBAGE_ARGS"
        assert outcome(await raw.init(good, tail=b"more")) == "GARBAGE_ARGS"
        assert outcome(await raw.init(good, GssCredential(1, INIT, 0, NONE, bytes(16)))) == "AUTH_BADCRED"
        assert outcome(await raw.init(good, GssCredential(1, CONTINUE_INIT, 0, NONE, bytes(16)))) == "AUTH_REJECTEDCRED"
        await raw.make()
        assert await raw.call() == "SUCCESS"

    run(example, test)


def test_the_host_with_most_contexts_loses_those_it_does_not_use(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        table = Table(200, 150)

        def add(host: str) -> Context:
            context = Context(raw.exported, "alice@EXAMPLE.ORG", host, float("inf"))
            table.add(context)
            return context

        honest = [add("honest") for _ in range(10)]
        used = add("greedy")
        for _ in range(2000):
            used.recent = True
            add("greedy")
        assert len(table) == 160
        assert table.of("greedy") == 150
        assert not used.gone
        for index in range(100):
            add(f"host {index}")
        assert len(table) == 200
        assert not any(context.gone for context in honest)
        assert table.of("greedy") == 90

    run(example, test)


def test_a_network_of_many_hosts_has_no_more_contexts_for_that(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        table = Table(300, 150)

        def add(host: str) -> Context:
            context = Context(raw.exported, "alice@EXAMPLE.ORG", host, float("inf"))
            table.add(context)
            return context

        honest = [add(f"192.0.{network}.{one}") for network in range(4) for one in range(20)]
        elsewhere = [add("2001:db8:7:1::") for _ in range(10)]
        for index in range(3000):
            add(f"10.1.{index >> 8}.{index & 255}")
        for index in range(3000):
            add(f"2001:db8:1:{index:x}::")
        assert len(table) == 300
        assert not any(context.gone for context in honest + elsewhere)
        for context in table:
            table.remove(context)
        assert len(table) == 0
        assert not table._hosts
        assert not table._networks.everybody.has
        assert not table._networks.everybody.most

    run(example, test)


def test_sealers_for_workers_are_bounded_in_all(example: kdc.Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        gc.collect()  # contexts of other tests count as well
        monkeypatch.setattr(contexts, "MOST_SPARES", 3)
        many = [Context(raw.exported, "alice@EXAMPLE.ORG", "host", float("inf")) for _ in range(5)]

        def lend() -> list[Sealer]:
            with contextlib.ExitStack() as stack:
                return [stack.enter_context(context.lent()) for context in many]

        first, second = lend(), lend()
        assert sum(one is other for one, other in zip(first, second, strict=True)) == 3
        many.clear()
        gc.collect()
        one = Context(raw.exported, "alice@EXAMPLE.ORG", "host", float("inf"))
        with one.lent() as sealer:
            pass
        with one.lent() as again:  # there is room for it again
            assert again is sealer

    run(example, test)


def test_contexts_that_have_expired_go(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        (context,) = made.table
        context.expires = 0.0
        assert await raw.call() == "RPCSEC_GSS_CREDPROBLEM"
        assert not made.table

    run(example, test)


class OnlyOne(Gate):
    """A gate that has to ask who somebody is first."""

    def learn(self, transport: Any) -> Awaitable[None] | None:
        return asyncio.sleep(0)

    def admits(self, transport: Any) -> bool:
        return transport.peer_address == "192.0.2.1"


def test_strangers_make_no_contexts(example: kdc.Realm) -> None:
    async def main() -> None:
        made = acceptor(example)
        try:
            dispatcher = Dispatcher(programs(Control()), gss=made, gate=OnlyOne())
            stranger = Raw(dispatcher, FakeTransport("198.51.100.7"))
            token = await asyncio.to_thread(Initiation(SERVICE).step, b"")
            assert outcome(await stranger.init(token)) == "AUTH_BADCRED"
            await Raw(dispatcher).make()
            assert made.events()["established"] == made.events()["refused_stranger"] == len(made.table) == 1
        finally:
            made.close()

    asyncio.run(main())


def test_long_arguments_are_decrypted_where_they_are(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        await raw.make()
        body = memoryview(bytearray(privacy(raw, 1, bytes(100_000))[4:]))
        (context,) = made.table
        plain = unwrapped(context.sealer, body, body[:0])
        assert plain is not None
        plain[5] = 77
        assert 77 in body[32:48]

    run(example, test)


_OPEN = """\
import sys
from rpcrdma.gss.mechanism import GssError, Sealer
sealer, *tokens = map(bytes.fromhex, sys.argv[1:])
sealer = Sealer(sealer)
for token in tokens:
    assert not sealer.verify(b"", token)
    try:
        sealer.unwrap(bytearray(token))
    except GssError:
        continue
    raise AssertionError(token.hex())
"""
OLD = (b"\1\1", b"\2\1", b"\1\2")
"""TOK_ID of tokens as RFC 1964 has them: what is signed, what is encrypted, the end of a context."""


def test_tokens_of_an_older_form_do_not_end_the_process(example: kdc.Realm) -> None:
    chance = random.Random(1)
    making, acceptance = Initiation(SERVICE), Acceptance()
    store = {"rcache": "none:", "keytab": f"FILE:{example.directory}/keytab"}
    making.step(acceptance.step(Credential("nfs", store, True), making.step(b"")))
    tokens = [form + chance.randbytes(size) for form in OLD for size in (0, 4, 6, 22, 100, 5000) for _ in range(3)]
    framed = [b"\x60\x0d\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02" + form for form in OLD]
    words = [octets.hex() for octets in (acceptance.export(), *tokens, *framed)]
    done = subprocess.run([sys.executable, "-c", _OPEN, *words], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_contexts_of_rc4_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kdc, "ENCTYPES", ("arcfour-hmac:normal",))
    weak = "[libdefaults]\n    allow_weak_crypto = true\n    allow_rc4 = true\n    permitted_enctypes = arcfour-hmac\n"
    monkeypatch.setattr(kdc, "_CLIENT", weak + kdc._CLIENT)
    with realm(tmp_path / "realm") as old:
        making, acceptance = Initiation(SERVICE), Acceptance()
        store = {"rcache": "none:", "keytab": f"FILE:{old.directory}/keytab"}
        making.step(acceptance.step(Credential("nfs", store, True), making.step(b"")))
        assert acceptance.made
        with pytest.raises(GssError, match="RC4"):
            Sealer(acceptance.export())


def test_a_keytab_without_the_service_is_told_at_once(example: kdc.Realm) -> None:
    path = example.keytab("host/localhost", path=example.directory / "other")
    with pytest.raises(GssError, match="nfs"):
        Acceptor(lambda _: None, keytab=str(path), service=SERVICE)


def test_tickets_of_another_service_in_the_keytab_are_not_taken(example: kdc.Realm) -> None:
    async def test(raw: Raw, made: Acceptor, _: Control) -> None:
        example.keytab("host/localhost")  # joins nfs/localhost
        reply = await raw.init(await asyncio.to_thread(Initiation("host@localhost").step, b""))
        assert reply is not None
        assert parse_init_results(results(reply))[1] >> 16
        assert made.counts["refused_token"] == 1

    run(example, test)


@pytest.mark.parametrize("size", [0, 3, 4, 19, 20, 36, 400])
def test_credentials_are_read_within_their_octets(size: int) -> None:
    chance = random.Random(size)
    for _ in range(2000):
        body = struct.pack(">I", 1) + chance.randbytes(size)
        read = parse_credential(memoryview(body[:size]))
        assert read is None or read.version != 1 or read.encode()[:20] == body[:20]
