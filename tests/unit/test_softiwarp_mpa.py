"""MPA connection setup: frames, both revisions, CRC, IRD and ORD, RTR, rejects, and peers that never finish."""

import asyncio
import contextlib
import errno
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcrdma.hosts import HostLimits, Hosts
from rpcrdma.verbs.interface import ListenAddress, Send
from rpcrdma.verbs.softiwarp import SoftIwarp, SoftIwarpOptions, crc, listener, mpa

from .softiwarp_support import (
    CLIENT_REQUEST,
    PRIVATE,
    READ_RESPONSE,
    SEND,
    WRITE,
    Raw,
    Recorder,
    World,
    enhanced,
    fpdu,
    read_request,
    reply_frame,
    request,
    responder,
    settle,
    tagged,
    untagged,
    world,
)


def test_published_vectors() -> None:
    frame = mpa.decode(CLIENT_REQUEST, mpa.REQUEST_KEY)
    assert frame == mpa.Frame(enhanced=mpa.Enhanced(ird=128), private_data=PRIVATE)
    assert frame.encode(mpa.REQUEST_KEY) == CLIENT_REQUEST
    reply = mpa.Frame(crc=True, enhanced=mpa.Enhanced(ord=16), private_data=PRIVATE)
    assert reply.encode(mpa.REPLY_KEY) == bytes.fromhex(
        "4d504120494420526570204672616d655002000c00000010f6ab0e1801010303"
    )


@given(
    st.builds(
        mpa.Frame,
        revision=st.just(2),
        markers=st.booleans(),
        crc=st.booleans(),
        rejected=st.booleans(),
        enhanced=st.none()
        | st.builds(
            mpa.Enhanced,
            ird=st.integers(0, 0x3FFF),
            ord=st.integers(0, 0x3FFF),
            peer_to_peer=st.just(True),
            rtr=st.sampled_from(list(map(mpa.RTR, range(8)))),
        ),
        private_data=st.binary(max_size=508),
    )
)
def test_frames_survive_encoding(frame: mpa.Frame) -> None:
    encoded = frame.encode(mpa.REPLY_KEY)
    assert mpa.frame_length(encoded[:20], mpa.REPLY_KEY) == len(encoded)
    assert mpa.decode(encoded, mpa.REPLY_KEY) == frame


@given(st.binary(min_size=20, max_size=600))
def test_any_octets_are_a_frame_or_an_error(data: bytes) -> None:
    try:
        length = mpa.frame_length(data[:20], data[:16])
    except mpa.MpaError:
        return
    assert length <= 532
    if len(data) >= length:
        try:
            mpa.decode(data[:length], mpa.REQUEST_KEY)
        except mpa.MpaReject:
            assert length < 24


def test_private_data_that_does_not_fit_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="private data"):
        mpa.Frame(enhanced=mpa.Enhanced(), private_data=bytes(509)).encode(mpa.REPLY_KEY)


async def answer(it: World, sent: bytes) -> Raw:
    raw = Raw()
    await raw.connect(it.address)
    await raw.send(sent)
    return raw


@pytest.mark.parametrize(
    ("sent", "flags", "revision", "offer", "expected"),
    [
        # The Linux client: our ORD is what we want, at most its IRD; its ORD of 0 makes our IRD 0.
        (request(), 0x10, 2, (128, 0), (0, 4)),
        (request(body=enhanced(2, 0) + PRIVATE), 0x10, 2, (2, 0), (0, 2)),
        (request(body=enhanced(128, 3)), 0x10, 2, (128, 3), (3, 4)),
        (request(body=enhanced(128, 200)), 0x10, 2, (128, 200), (16, 4)),
        # An IRD of 0 allows no Read; 0x3fff leaves it to the consumers, and is echoed.
        (request(body=enhanced(0, 0)), 0x10, 2, (0, 0), (0, 0)),
        (request(body=enhanced(0x3FFF, 0x3FFF)), 0x10, 2, (None, None), (0x3FFF, 0x3FFF)),
        (request(body=enhanced(0x3FFF, 0)), 0x10, 2, (None, 0), (0, 0x3FFF)),
        # CRC as asked; reserved bits are ignored; R in a Request is not looked at.
        (request(flags=0x50), 0x50, 2, (128, 0), (0, 4)),
        (request(flags=0x3F), 0x10, 2, (128, 0), (0, 4)),
        # Without S, and in revision 1 whatever that bit says, there are no enhanced octets.
        (request(flags=0, body=PRIVATE), 0, 2, (None, None), None),
        (request(flags=0x40, revision=1, body=PRIVATE), 0x40, 1, (None, None), None),
        (request(flags=0x10, revision=1, body=b""), 0, 1, (None, None), None),
        # Peer to peer: of what is offered, the Write and the Read; the Send only when it is all there is.
        (request(body=enhanced(0x8000 | 128, 0xC000)), 0x10, 2, (128, 0), (0x8000 | 1, 0xC000 | 4)),
        (request(body=enhanced(0xC000 | 128, 0x8000)), 0x10, 2, (128, 0), (0x8000, 0x8000 | 4)),
        (request(body=enhanced(0xC000 | 128, 0)), 0x10, 2, (128, 0), (0xC000, 4)),
        (request(body=enhanced(0x8000 | 128, 0)), 0x10, 2, (128, 0), (0x8000, 0x8000 | 4)),
        # With A clear the others are ignored.
        (request(body=enhanced(0x4000 | 128, 0xC000)), 0x10, 2, (128, 0), (0, 4)),
    ],
)
def test_the_reply_fits_the_request(
    sent: bytes, flags: int, revision: int, offer: tuple[int | None, int | None], expected: tuple[int, int] | None
) -> None:
    async def run() -> None:
        async with world() as it:
            raw = await answer(it, sent)
            reply = await raw.mpa_frame()
            body = (enhanced(*expected) if expected is not None else b"") + b"welcome"
            assert reply == b"MPA ID Rep Frame" + struct.pack(">BBH", flags, revision, len(body)) + body
            assert (it.requests[0].responder_resources, it.requests[0].initiator_depth) == offer
            assert it.requests[0].private_data == sent[20 + (4 if expected is not None else 0) :]
            endpoint = it.servers[0].endpoint
            assert endpoint is not None
            assert endpoint.max_reads == (4 if expected is None or expected[1] == 0x3FFF else expected[1] & 0x3FFF)
            raw.crc = bool(flags & 0x40)
            await raw.message(b"works")
            await it.servers[0].until(lambda me: me.messages == [b"works"])
            raw.close()

    asyncio.run(run())


def test_a_request_may_come_octet_by_octet() -> None:
    async def run() -> None:
        async with world() as it:
            raw = Raw()
            await raw.connect(it.address)
            for octet in CLIENT_REQUEST:
                await raw.send(bytes([octet]))
                await asyncio.sleep(0)
            assert (await raw.mpa_frame())[:16] == b"MPA ID Rep Frame"
            raw.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"MPA ID Rep Frame" + CLIENT_REQUEST[16:],
        request(revision=0),
        request(revision=3),
        request(length=513),
        request(length=0xFFFF),
    ],
)
def test_what_is_no_request_is_closed_without_an_answer(sent: bytes) -> None:
    async def run() -> None:
        async with world() as it:
            raw = await answer(it, sent)
            loop = asyncio.get_running_loop()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(raw.socket, 100), 10) == b""
            assert it.requests == []
            assert it.provider.half_open == {}
            raw.close()

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x80\x00"])
def test_an_enhanced_request_without_room_for_ird_and_ord_is_rejected(body: bytes) -> None:
    async def run() -> None:
        async with world() as it:
            raw = await answer(it, request(body=body))
            reply = await raw.mpa_frame()
            assert reply[16:18] == b"\x30\x02"
            assert len(reply) >= 24
            await raw.end()
            assert it.requests == []

    asyncio.run(run())


@pytest.mark.parametrize("sent", [request(), request(flags=0, revision=1, body=PRIVATE)])
def test_the_consumers_reject_carries_its_reason(sent: bytes) -> None:
    async def run() -> None:
        async with world() as it:
            it.answer = lambda asked: asked.reject(b"not you")
            raw = await answer(it, sent)
            reply = await raw.mpa_frame()
            assert reply[16] == (0x30 if sent[17] == 2 else 0x20)
            assert reply[-7:] == b"not you"
            # siw subtracts the enhanced octets from the length without a check, so they are there in a reject too.
            assert len(reply) == 20 + 7 + (4 if sent[17] == 2 else 0)
            await raw.end()
            with pytest.raises(RuntimeError):
                it.requests[0].reject()
            with pytest.raises(RuntimeError):
                it.requests[0].accept(Recorder(it.account), b"", [], initiator_depth=1)

    asyncio.run(run())


def test_a_rejected_connect_raises_with_the_peers_reason() -> None:
    async def run() -> None:
        async with world() as it:
            it.answer = lambda asked: asked.reject(b"full")
            client = Recorder(it.account)
            with pytest.raises(ConnectionRefusedError) as caught:
                await it.provider.connect(it.address, client, b"", [])
            assert caught.value.private_data == b"full"  # type: ignore[attr-defined]
            assert client.reasons == []

    asyncio.run(run())


def test_half_open_connections_take_seats_until_the_consumer_is_asked() -> None:
    async def run() -> None:
        async with world() as it:
            hosts = it.provider.hosts = Hosts(it.pool, HostLimits(host_connections=2))
            first = await it.raw()
            assert hosts.connections == 0
            silent = [Raw(), Raw(), Raw()]
            for raw in silent:
                await raw.connect(it.address)
            await silent[0].end()  # made room
            assert hosts.connections == 2
            await it.raw()
            await silent[1].end()
            silent[2].close()
            first.close()

    asyncio.run(run())


def test_half_open_connections_are_timed_out() -> None:
    async def run() -> None:
        async with world(SoftIwarpOptions(mpa_timeout=0.5)) as it:
            it.answer = lambda asked: None
            silent, halfway, unanswered = Raw(), Raw(), Raw()
            for raw, sent in ((silent, b""), (halfway, CLIENT_REQUEST[:25]), (unanswered, CLIENT_REQUEST)):
                await raw.connect(it.address)
                await raw.send(sent)
            for raw in (silent, halfway, unanswered):
                await raw.end()
            assert it.provider.half_open == {}
            # Too late: the endpoint exists, and says at once that it is over.
            late = Recorder(it.account)
            late.endpoint = it.requests[0].accept(late, b"", late.leases(2), initiator_depth=1)
            assert late.reasons == []
            assert "gone" in await late.ended()

    asyncio.run(run())


def test_a_flood_of_silent_peers_pushes_out_its_own_oldest() -> None:
    async def run() -> None:
        async with world(SoftIwarpOptions(max_half_open=3)) as it:
            silent = [Raw() for _ in range(5)]
            for raw in silent:
                await raw.connect(it.address)
                await settle()
            assert len(it.provider.half_open) == 3
            await silent[0].end()
            await silent[1].end()
            honest = await it.raw()
            assert honest.reply[:16] == b"MPA ID Rep Frame"
            for raw in (*silent[2:], honest):
                raw.close()

    asyncio.run(run())


def test_requests_the_consumer_sits_on_are_not_pushed_out() -> None:
    async def run() -> None:
        async with world(SoftIwarpOptions(max_half_open=2)) as it:
            it.answer = lambda asked: None
            waiting = [await answer(it, request()) for _ in range(2)]
            await settle()
            refused = Raw()
            await refused.connect(it.address)
            await refused.end()
            assert len(it.requests) == 2
            for asked, raw in zip(it.requests, waiting, strict=True):
                it.accept(asked)
                assert (await raw.mpa_frame())[:16] == b"MPA ID Rep Frame"
                raw.close()

    asyncio.run(run())


def test_a_peer_that_gives_up_or_talks_too_early_is_forgotten() -> None:
    async def run() -> None:
        async with world() as it:
            it.answer = lambda asked: None
            gone, early = await answer(it, request()), await answer(it, request())
            await settle()
            assert len(it.provider.half_open) == 2
            gone.close()
            await early.send(fpdu(untagged(SEND, 0, 1, 0)))
            await settle()
            assert it.provider.half_open == {}
            early.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("bits", "rtr", "answered"),
    [
        (0xC000 | 128, None, b""),
        (0x8000 | 128, tagged(WRITE, 1, 0), b""),
        (0x8000 | 128, read_request(1, (0, 0), 0, (1, 0)), tagged(READ_RESPONSE, 0, 0)),
    ],
)
def test_every_rtr_is_taken_and_needs_no_receive(bits: int, rtr: bytes | None, answered: bytes) -> None:
    async def run() -> None:
        async with world() as it:
            it.receives = 1
            raw = await it.raw(request(body=enhanced(bits, 0 if rtr is None else 0xC000)))
            server = it.servers[0]
            assert server.endpoint is not None
            server.endpoint.post([], Send([b"after the RTR"]), 1)
            if rtr is None:
                await raw.message()
            else:
                await raw.frame(rtr)
            seen = [await raw.next_ulpdu() for _ in range(2 if answered else 1)]
            assert untagged(SEND, 0, 1, 0, b"after the RTR") in seen
            assert not answered or answered in seen
            assert server.messages == []
            await raw.message(b"first")
            await server.until(lambda me: me.messages == [b"first"])
            raw.close()

    asyncio.run(run())


def test_crc_without_the_library_is_refused_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc, "is_available", lambda: False)

    async def run() -> None:
        async with world() as it:
            raw = await answer(it, request(flags=0x50))
            reply = await raw.mpa_frame()
            assert reply[16] & 0x20
            assert b"libisal" in reply
            await raw.end()
            without = await it.raw()
            without.close()
        server, address, _ = await responder(reply_frame(flags=0x50))
        it = World()
        with pytest.raises(ConnectionAbortedError, match="libisal"):
            await it.provider.connect(address, Recorder(it.account), b"", [])
        server.close()
        with pytest.raises(OSError, match="libisal"):
            SoftIwarp(it.pool, SoftIwarpOptions(crc="always"))

    asyncio.run(run())


def test_crc_always_asks_for_it_as_responder() -> None:
    async def run() -> None:
        async with world(SoftIwarpOptions(crc="always")) as it:
            raw = await it.raw()
            assert raw.reply[16] & 0x40
            await raw.message(b"checked")
            await it.servers[0].until(lambda me: me.messages == [b"checked"])
            raw.close()

    asyncio.run(run())


def test_running_out_of_descriptors_only_pauses_the_listener(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE", 0.02)

    async def run() -> None:
        async with world() as it:
            soft = it.provider._listeners[0]
            real = soft._socket

            class Exhausted:
                failures = 2

                def accept(self) -> Any:
                    if self.failures:
                        self.failures -= 1
                        raise OSError(errno.EMFILE if self.failures else errno.ECONNABORTED, "refused by the test")
                    return real.accept()

                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

            soft._socket = Exhausted()  # type: ignore[assignment]
            raw = await it.raw()
            raw.close()

    asyncio.run(run())
    assert "trying again" in caplog.text


def test_a_consumer_that_fails_on_a_request_costs_that_request(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with world() as it:
            accept = it.answer

            def fail(asked: object) -> None:
                it.answer = accept
                raise LookupError("no such export")

            it.answer = fail
            raw = await answer(it, request())
            await raw.end()
            second = await it.raw()
            second.close()

    asyncio.run(run())
    assert "no such export" in caplog.text


def test_addresses_that_cannot_be_had() -> None:
    async def run() -> None:
        async with world() as it:
            with pytest.raises(OSError, match="in use"):
                await it.provider.listen(it.address, lambda _: None)
            with pytest.raises(ValueError, match="does not appear"):
                await it.provider.listen(ListenAddress("host.example", 0), lambda _: None)
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                with pytest.raises(ConnectionRefusedError):
                    await it.provider.connect(
                        ListenAddress("127.0.0.1", unused.getsockname()[1]), Recorder(it.account), b"", []
                    )

    asyncio.run(run())
