"""The dispatcher: headers, credentials, procedures, outcomes, and what it owns."""

import asyncio
import logging
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.messages import accept_stat, auth_flavor, auth_stat, opaque_auth, reject_stat, reply_stat
from rpcrdma.rpc.native import Gate
from rpcrdma.rpc.program import Call, DropCall, GarbageArguments, Procedure, Program, RpcCredential
from rpcrdma.xdr import DDP, Payload, XdrError, opaque, struct, uint32
from tests.unit.rpc_support import FakeTransport, Replies, auth_sys, call


@struct
class pair:
    a: uint32
    b: uint32


@struct
class blob:
    data: Annotated[bytes | memoryview | Payload, opaque(1 << 20), DDP]


class Service:
    """Procedures that do what a test asks of them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.gate: asyncio.Event | None = None
        self.error: BaseException | None = None

    async def null(self, call: Call, _: None) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        if self.gate is not None:
            await self.gate.wait()

    async def swap(self, call: Call, value: pair) -> pair:
        self.calls.append(call)
        return pair(value.b, value.a)

    async def raw(self, call: Call) -> None:
        try:
            call.results.uint32(call.arguments.uint32() + 1 & 0xFFFFFFFF)
        except XdrError:
            raise GarbageArguments from None

    async def length(self, call: Call, value: blob) -> pair:
        return pair(len(value.data), sum(value.data) & 0xFFFFFFFF)  # type: ignore[arg-type]

    async def wrong(self, call: Call, _: None) -> pair:
        return pair(-1, 0)

    async def bulk(self, call: Call, _: None) -> blob:
        lease = await call.transport.lease(1000)
        return blob(Payload(lease.view[:5], lease))

    def program(self) -> Program:
        rows = {
            0: Procedure("NULL", self.null),
            1: Procedure("SWAP", self.swap, pair, pair),
            2: Procedure("RAW", self.raw, raw=True),
            3: Procedure("LENGTH", self.length, blob, pair),
            4: Procedure("WRONG", self.wrong, None, pair),
            5: Procedure("BULK", self.bulk, None, blob),
        }
        return Program(400000, "test", {3: rows, 4: {0: rows[0]}})


def send(message: Any, service: Service | None = None, chunks: Any = (), holds: Any = None) -> Replies:
    replies = Replies()
    dispatcher = Dispatcher([(service or Service()).program()])
    dispatcher.dispatch(FakeTransport(), memoryview(message), chunks, [] if holds is None else holds, replies)
    assert len(replies.all) == 1
    return replies


def accepted(replies: Replies) -> Any:
    header, _ = replies.header()
    assert header.body.rbody is not None
    assert header.body.rbody.stat == reply_stat.MSG_ACCEPTED
    assert header.body.rbody.areply is not None
    assert header.body.rbody.areply.verf == opaque_auth(auth_flavor.AUTH_NONE, b"")
    return header.body.rbody.areply.reply_data


def test_a_call_is_decoded_executed_and_answered_in_one_stack() -> None:
    replies = send(call(1, bytes(3) + b"\1" + bytes(3) + b"\2", xid=0xDEADBEEF))
    header, results = replies.header()
    assert header.xid == 0xDEADBEEF
    assert accepted(replies).stat == accept_stat.SUCCESS
    assert results.decode(pair) == pair(2, 1)
    assert results.remaining == 0


def test_a_raw_procedure_decodes_and_encodes_itself() -> None:
    replies = send(call(2, b"\0\0\0\x29"))
    _, results = replies.header()
    assert results.uint32() == 42


def test_void_arguments_and_results() -> None:
    replies = send(call(0))
    assert accepted(replies).stat == accept_stat.SUCCESS
    assert len(replies.all[0].head) == 24  # type: ignore[union-attr]


@pytest.mark.parametrize("size", range(8))
def test_less_than_an_xid_and_a_type_closes_the_connection(size: int) -> None:
    assert send(bytes(call(0))[:size]).all == [None]


@pytest.mark.parametrize("size", range(8, 40))
def test_a_header_cut_short_is_garbage(size: int) -> None:
    replies = send(bytes(call(0))[:size])
    assert replies.header()[0].xid == 1
    assert accepted(replies).stat == accept_stat.GARBAGE_ARGS


def test_a_credential_cut_short_is_garbage() -> None:
    whole = bytes(call(0, credential=auth_sys(gids=range(16))))
    for size in range(40, len(whole), 4):
        assert accepted(send(whole[:size])).stat == accept_stat.GARBAGE_ARGS


@pytest.mark.parametrize("size", [8, 12, 40])
def test_a_reply_where_a_call_is_due_closes_the_connection(size: int) -> None:
    message = bytearray(call(0))[:size]
    message[7] = 1
    assert send(message).all == [None]


@pytest.mark.parametrize("cut", [12, None])
@pytest.mark.parametrize("version", [0, 1, 3, 0xFFFFFFFF])
def test_another_rpc_version_is_a_mismatch(version: int, cut: int | None) -> None:
    header, _ = send(bytes(call(0, rpc_version=version))[:cut]).header()
    denied = header.body.rbody.rreply  # type: ignore[union-attr]
    assert denied.stat == reject_stat.RPC_MISMATCH  # type: ignore[union-attr]
    assert (denied.mismatch_info.low, denied.mismatch_info.high) == (2, 2)  # type: ignore[union-attr]


def test_unknown_program_version_and_procedure() -> None:
    assert accepted(send(call(0, program=100227))).stat == accept_stat.PROG_UNAVAIL
    data = accepted(send(call(0, version=2)))
    assert data.stat == accept_stat.PROG_MISMATCH
    assert (data.mismatch_info.low, data.mismatch_info.high) == (3, 4)
    assert accepted(send(call(99))).stat == accept_stat.PROC_UNAVAIL
    assert accepted(send(call(1, version=4))).stat == accept_stat.PROC_UNAVAIL


@pytest.mark.parametrize(
    ("credential", "verifier", "expected"),
    [
        (opaque_auth(auth_flavor.AUTH_NONE, b"abcd"), None, auth_stat.AUTH_BADCRED),
        (opaque_auth(auth_flavor.AUTH_SHORT, b"abcd"), None, auth_stat.AUTH_REJECTEDCRED),
        (opaque_auth(auth_flavor.RPCSEC_GSS, b""), None, auth_stat.AUTH_REJECTEDCRED),
        (opaque_auth(0x7FFFFFFF, b""), None, auth_stat.AUTH_REJECTEDCRED),
        (opaque_auth(7, b""), None, auth_stat.AUTH_BADCRED),  # AUTH_TLS
        (opaque_auth(auth_flavor.AUTH_SYS, b""), None, auth_stat.AUTH_BADCRED),
        (opaque_auth(auth_flavor.AUTH_SYS, bytes(24)), None, auth_stat.AUTH_BADCRED),
        (opaque_auth(auth_flavor.AUTH_SYS, bytes(4) + b"\0\0\1\0" + bytes(300)), None, auth_stat.AUTH_BADCRED),
        (opaque_auth(auth_flavor.AUTH_SYS, bytes(4) + b"\xff\xff\xff\xfd" + bytes(300)), None, auth_stat.AUTH_BADCRED),
        (opaque_auth(auth_flavor.AUTH_SYS, bytes(16) + b"\0\0\0\x11" + bytes(68)), None, auth_stat.AUTH_BADCRED),
        (opaque_auth(auth_flavor.AUTH_SYS, bytes(16) + b"\xff\xff\xff\xff" + bytes(64)), None, auth_stat.AUTH_BADCRED),
        (auth_sys(), opaque_auth(auth_flavor.AUTH_SYS, b""), auth_stat.AUTH_BADVERF),
        (auth_sys(), opaque_auth(auth_flavor.AUTH_NONE, b"abcd"), auth_stat.AUTH_BADVERF),
    ],
)
def test_refused_credentials(credential: opaque_auth, verifier: opaque_auth | None, expected: auth_stat) -> None:
    message = call(0, credential=credential, verifier=verifier or opaque_auth(auth_flavor.AUTH_NONE, b""))
    header, _ = send(message).header()
    denied = header.body.rbody.rreply  # type: ignore[union-attr]
    assert (denied.stat, denied.auth_stat) == (reject_stat.AUTH_ERROR, expected)  # type: ignore[union-attr]


def test_a_credential_beyond_400_octets_is_refused_before_anything_is_looked_at() -> None:
    message = bytearray(call(0))
    message[28:32] = (401).to_bytes(4, "big")
    header, _ = send(bytes(message) + bytes(404)).header()
    assert header.body.rbody.rreply.auth_stat == auth_stat.AUTH_BADCRED  # type: ignore[union-attr]


@pytest.mark.parametrize("machine", [b"", b"a", b"host.example", b"x" * 255, b"\xff\xfe"])
@pytest.mark.parametrize("gids", [(), (1, 2, 3), tuple(range(16))])
def test_auth_sys_is_read_whole(machine: bytes, gids: tuple[int, ...]) -> None:
    service = Service()
    send(call(0, credential=auth_sys(7, 8, gids, machine=machine)), service)
    found = service.calls[0].credential
    assert (found.flavor, found.uid, found.gid, found.gids) == (1, 7, 8, gids)
    assert found.machine == machine.decode("utf-8", "backslashreplace")


def test_equal_callers_are_one_object_whatever_their_stamp() -> None:
    service, replies = Service(), Replies()
    dispatcher = Dispatcher([service.program()])
    for stamp in (1, 2):
        dispatcher.dispatch(FakeTransport(), call(0, credential=auth_sys(stamp=stamp)), (), [], replies)
    dispatcher.dispatch(FakeTransport(), call(0, credential=auth_sys(uid=1)), (), [], replies)
    dispatcher.dispatch(FakeTransport(), call(0), (), [], replies)
    first, second, other, anonymous = (c.credential for c in service.calls)
    assert first is second
    assert other.uid == 1
    assert anonymous == RpcCredential(0)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ({"uid": 0xFFFFFFFF}, (None, 8, (9,))),
        ({"gid": 0xFFFFFFFF}, (7, None, (9,))),
        ({"gids": (9, 0xFFFFFFFF, 0, 0xFFFFFFFF)}, (7, 8, (9, 0))),
        ({"uid": 0xFFFFFFFE, "gid": 0xFFFFFFFE, "gids": (0xFFFFFFFE,)}, (0xFFFFFFFE, 0xFFFFFFFE, (0xFFFFFFFE,))),
    ],
)
def test_the_id_of_nobody_is_no_id(sent: dict[str, Any], found: tuple[Any, ...]) -> None:
    service = Service()
    send(call(0, credential=auth_sys(**({"uid": 7, "gid": 8, "gids": (9,)} | sent))), service)
    (credential,) = (made.credential for made in service.calls)
    assert (credential.uid, credential.gid, credential.gids) == found


@pytest.mark.parametrize("cut", range(8))
def test_arguments_cut_short_are_garbage(cut: int) -> None:
    service = Service()
    assert accepted(send(call(1, bytes(cut)), service)).stat == accept_stat.GARBAGE_ARGS
    assert service.calls == []


def test_chunks_are_taken_at_their_positions() -> None:
    message = call(3, b"\0\0\0\5")
    data = memoryview(b"\1\1\1\1\1")
    _, results = send(message, chunks=[(len(message), data)]).header()
    assert results.decode(pair) == pair(5, 5)
    for position in (0, 8, 39, len(message) + 4):
        replies = send(message, chunks=[(position, data)])
        assert accepted(replies).stat == accept_stat.GARBAGE_ARGS


def test_failures_are_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    service.error = GarbageArguments()
    assert accepted(send(call(0), service)).stat == accept_stat.GARBAGE_ARGS
    service.error = DropCall()
    assert send(call(0), service).all == [None]
    service.error = DropCall(silently=True)
    assert send(call(0), service).all == [NO_REPLY]
    assert caplog.records == []
    service.error = ZeroDivisionError("division of something")
    assert accepted(send(call(0, xid=0xABC), service)).stat == accept_stat.SYSTEM_ERR
    assert "0x00000abc" in caplog.text
    assert "division of something" in caplog.text
    service.error = None  # its traceback leads back here
    caplog.clear()
    assert accepted(send(call(4))).stat == accept_stat.SYSTEM_ERR
    assert "cannot be encoded" in caplog.text


def test_holds_are_released_when_the_call_is_over_and_on_every_refusal() -> None:
    account = Pool(1 << 20).account(1 << 20)
    good = call(1, bytes(8))
    bad = [good[:4], good[:30], good[:-1], call(0, program=1), call(0, rpc_version=3), call(0, credential=auth_sys())]
    for message in (good, *bad):
        lease = account.lease(100)
        send(message, holds=[lease])
        assert account.in_use == 0


def test_a_payload_goes_to_the_receiver_of_the_reply() -> None:
    transport, replies = FakeTransport(), Replies()
    Dispatcher([Service().program()]).dispatch(transport, call(5), (), [], replies)
    reply = replies.all[0]
    assert reply is not None
    assert [(offset, len(payload)) for offset, payload in reply.payloads] == [(28, 5)]
    assert len(reply) == 28 + 8
    assert transport.pool.in_use > 0
    reply.release()
    assert transport.pool.in_use == 0


def test_a_waiting_call_is_in_flight_until_it_ends() -> None:
    async def main() -> None:
        service, replies = Service(), Replies()
        service.gate = asyncio.Event()
        dispatcher = Dispatcher([service.program()])
        lease = Pool(1 << 20).account(1 << 20).lease(1)
        dispatcher.dispatch(FakeTransport(), call(0, xid=5), (), [lease], replies)
        assert replies.all == []
        (line,) = dispatcher.in_flight()
        assert "192.0.2.1" in line
        assert "0x00000005" in line
        assert "NULL" in line
        service.gate.set()
        assert await dispatcher.drain(5) == 0
        assert accepted(replies).stat == accept_stat.SUCCESS
        assert dispatcher.in_flight() == []
        with pytest.raises(RuntimeError):
            lease.release()

    asyncio.run(main())


def test_draining_gives_up_after_its_time_and_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        service, replies = Service(), Replies()
        service.gate = asyncio.Event()
        dispatcher = Dispatcher([service.program()])
        dispatcher.dispatch(FakeTransport(), call(0), (), [], replies)
        assert await dispatcher.drain(0.001) == 1
        assert replies.all == [None]
        assert await dispatcher.drain(0.001) == 0

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "giving up" in caplog.text


def test_admission_is_awaited_before_the_procedure_runs() -> None:
    async def main() -> None:
        service, replies = Service(), Replies()
        known: set[str] = set()
        named: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        class Names(Gate):
            def learn(self, transport: Any) -> asyncio.Future[None] | None:
                return None if transport.peer_address in known else named

            def admits(self, transport: Any) -> bool:
                return friendly

        friendly = True
        dispatcher = Dispatcher([service.program()], gate=Names())
        dispatcher.dispatch(FakeTransport(), call(1, bytes(8)), (), [], replies)
        assert service.calls == []
        named.set_result(None)
        await asyncio.sleep(0)
        assert len(service.calls) == 1
        known.add("192.0.2.1")
        dispatcher.dispatch(FakeTransport(), call(1, bytes(8)), (), [], replies)
        assert len(replies.all) == 2
        # Its name says that it is nobody's.
        known.clear()
        named, friendly = asyncio.get_running_loop().create_future(), False
        dispatcher.dispatch(FakeTransport(), call(1, bytes(8)), (), [], replies)
        assert len(replies.all) == 2
        named.set_result(None)
        await asyncio.sleep(0)
        reply, _ = replies.header()
        assert reply.body.rbody is not None
        assert reply.body.rbody.rreply is not None
        assert reply.body.rbody.rreply.stat == reject_stat.AUTH_ERROR
        assert reply.body.rbody.rreply.auth_stat == auth_stat.AUTH_BADCRED
        dispatcher.dispatch(FakeTransport(), call(0), (), [], replies)
        assert accepted(replies).stat == accept_stat.SUCCESS, "NULL is for everybody"
        assert len(service.calls) == 3

    asyncio.run(main())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_arrives_gets_exactly_one_outcome_and_nothing_leaks(data: st.DataObject) -> None:
    message = bytearray(call(data.draw(st.integers(0, 5)), bytes(12), credential=auth_sys(gids=(1, 2))))
    for _ in range(data.draw(st.integers(0, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(0, len(message))) :]
    chunk = data.draw(st.none() | st.integers(0, 200))
    transport, replies = FakeTransport(), Replies()
    lease = transport.pool.account(1 << 20).lease(100)
    chunks = [] if chunk is None else [(chunk, memoryview(b"12345"))]
    Dispatcher([Service().program()]).dispatch(transport, memoryview(message), chunks, [lease], replies)
    (reply,) = replies.all
    if reply is not None:
        assert replies.header()[0].xid == int.from_bytes(message[:4], "big")
        reply.release()
    assert transport.pool.in_use == 0


def test_counters() -> None:
    service, replies = Service(), Replies()
    dispatcher = Dispatcher([service.program()])
    for message in (call(0), call(1, b""), call(9), call(0, program=5)):
        dispatcher.dispatch(FakeTransport(), message, (), [], replies)
    rows = {row.label: (row.calls, row.errors) for row in dispatcher.rows.values()}
    assert rows["test", 3, "NULL"] == (1, 0)
    assert rows["test", 3, "SWAP"] == (1, 1)
    assert dispatcher.refused == 2
