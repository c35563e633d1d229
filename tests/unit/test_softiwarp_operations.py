"""Two softiwarp endpoints over loopback: every operation, both address families, both event loops, and the end."""

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import ListenAddress, RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.softiwarp import SoftIwarpOptions
from tests.support.machine import needs_ipv6

from .softiwarp_support import (
    CLIENT_REQUEST,
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    Recorder,
    World,
    read_request,
    settle,
    tagged,
    untagged,
    world,
)

MIB = 1 << 20
OPTIONS = {
    "plain": SoftIwarpOptions(),
    "crc": SoftIwarpOptions(crc="always"),
    "max": SoftIwarpOptions(fpdu="max"),
    "max crc": SoftIwarpOptions(fpdu="max", crc="always"),
    "revision 1": SoftIwarpOptions(revision=1),
    "peer to peer": SoftIwarpOptions(peer_to_peer=True),
    "small buffers": SoftIwarpOptions(send_buffer=4096, receive_buffer=4096),
}
SIZES = [0, 1, 2, 3, 4, 5, 127, 255, 256, 257, 1000, 4096, 65471, 65536, 65537, 300_001, MIB, MIB + 13]


def on_asyncio(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


@pytest.mark.parametrize("run", [on_asyncio, on_uvloop])
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
@pytest.mark.parametrize("name", OPTIONS)
def test_writes_reads_sends_and_invalidations(
    run: Callable[[Coroutine[Any, Any, None]], None], host: str, name: str
) -> None:
    async def main() -> None:
        rng = random.Random(5)
        async with world(OPTIONS[name], host) as it:
            it.initiator_depth = 3
            client, server = await it.pair(responder_resources=3)
            assert client.endpoint is not None
            assert server.endpoint is not None
            assert (server.endpoint.peer_address, server.endpoint.local_address) == (host, host)
            client.endpoint.post([], Send([b"hello"]), "hello")
            source, target = rng.randbytes(MIB + 100), bytearray(MIB + 100)
            for size in SIZES:
                at = rng.randrange(0, 80)
                read_handle, read_base = client.endpoint.register(memoryview(source), remote_read=True)
                write_handle, write_base = client.endpoint.register(memoryview(target), remote_write=True)
                sink = bytearray(size + 2)
                cuts = sorted(rng.randrange(0, size + 1) for _ in range(6))
                spans = list(zip([0, *cuts], [*cuts, size], strict=True))
                server.endpoint.post_reads(
                    [RdmaRead(read_handle, read_base + at + a, memoryview(sink)[1 + a : 1 + b]) for a, b in spans],
                    ("read", size),
                )
                token = ("read", size)
                await server.until(lambda me, token=token: (token, True) in me.completions)
                assert sink == b"\0" + source[at : at + size] + b"\0"
                payload = memoryview(sink)[1 : 1 + size]
                target[:] = bytes(len(target))
                server.endpoint.post(
                    [RdmaWrite(write_handle, write_base + at + a, payload[a:b]) for a, b in spans],
                    Send([b"head", payload[: min(size, 60000)]], invalidate=write_handle),
                    ("write", size),
                )
                await client.until(lambda me: me.messages != [])
                assert client.messages.pop() == b"head" + source[at : at + min(size, 60000)]
                assert client.invalidated.pop() == write_handle
                assert target == bytes(at) + source[at : at + size] + bytes(len(target) - at - size)
                await server.until(lambda me, size=size: (("write", size), True) in me.completions)
                client.endpoint.invalidate(read_handle)
                with pytest.raises(KeyError):
                    client.endpoint.invalidate(write_handle)
            assert server.messages == [b"hello"]
            assert client.completions == [("hello", True)]
            assert len(server.completions) == 2 * len(SIZES)

    run(main())


def test_ipv4_arrives_at_a_dual_stack_listener_under_its_own_address() -> None:
    async def main() -> None:
        async with world(None, "::") as it:
            it.address = ListenAddress("127.0.0.1", it.address.port)
            _, server = await it.pair()
            assert server.endpoint is not None
            assert server.endpoint.peer_address == server.endpoint.local_address == "127.0.0.1"

    asyncio.run(main())


def test_a_read_sees_an_earlier_write_and_a_send_follows_its_writes() -> None:
    async def main() -> None:
        async with world() as it:
            client, server = await it.pair()
            assert client.endpoint is not None
            assert server.endpoint is not None
            memory = bytearray(500_000)
            handle, base = client.endpoint.register(memoryview(memory), remote_read=True, remote_write=True)
            seen: list[bytes] = []
            client.on_received = lambda _: seen.append(bytes(memory))
            client.endpoint.post([], Send([]), None)
            await server.until(lambda me: len(me.messages) == 1)
            for number in range(20):
                pattern, sink = bytes([number]) * 500_000, bytearray(500_000)
                server.endpoint.post([RdmaWrite(handle, base, memoryview(pattern))], Send([b"x"]), ("w", number))
                server.endpoint.post_reads([RdmaRead(handle, base, memoryview(sink))], ("r", number))
                await server.until(lambda me, number=number: (("r", number), True) in me.completions)
                assert sink == pattern
                assert seen.pop() == pattern

    asyncio.run(main())


def test_outstanding_reads_keep_to_the_negotiated_depth_and_to_their_order() -> None:
    async def main() -> None:
        async with world() as it:
            it.initiator_depth = 3
            raw = await it.raw()
            await raw.message()
            server = it.servers[0]
            assert server.endpoint is not None
            assert server.endpoint.max_reads == 3
            sinks = [bytearray(4) for _ in range(10)]
            for number in range(0, 10, 2):
                server.endpoint.post_reads(
                    [RdmaRead(number + at, 0, memoryview(sinks[number + at])) for at in range(2)], number
                )
            server.endpoint.post([], Send([b"passes the waiting reads"]), "send")
            waiting: list[bytes] = []
            answered = 0
            first_send_after = None
            while answered < 10:
                while len(waiting) < min(3, 10 - answered) or first_send_after is None:
                    ulpdu = await raw.next_ulpdu()
                    if ulpdu[1] & 15 == SEND:
                        first_send_after = answered + len(waiting)
                        continue
                    assert ulpdu[1] & 15 == READ_REQUEST
                    waiting.append(ulpdu)
                # Nothing more comes until one is answered.
                await asyncio.sleep(0)
                with pytest.raises(BlockingIOError):
                    raw.socket.recv(1)
                request = waiting.pop(0)
                assert int.from_bytes(request[10:14], "big") == answered + 1, "MSN"
                assert int.from_bytes(request[34:38], "big") == answered, "source STag"
                sink = int.from_bytes(request[18:22], "big")
                await raw.frame(tagged(READ_RESPONSE, sink, 0, bytes([answered] * 4)))
                answered += 1
            assert first_send_after == 3
            await server.until(lambda me: len(me.completions) == 6)
            assert [token for token, ok in server.completions if ok] == ["send", 0, 2, 4, 6, 8]
            assert sinks == [bytearray([number] * 4) for number in range(10)]
            raw.close()

    asyncio.run(main())


def test_read_responses_and_sends_take_turns() -> None:
    async def main() -> None:
        async with world() as it:
            raw = await it.raw(CLIENT_REQUEST[:22] + b"\x00\x10" + CLIENT_REQUEST[24:])
            server = it.servers[0]
            assert server.endpoint is not None
            handle, base = server.endpoint.register(memoryview(bytes(1000)), remote_read=True)
            for number in range(8):
                server.endpoint.post([], Send([bytes([number])]), number)
            await raw.frame(*(read_request(number, (number, 0), 1000, (handle, base)) for number in range(1, 9)))
            opcodes = [(await raw.next_ulpdu())[1] & 15 for _ in range(16)]
            assert opcodes.count(SEND) == opcodes.count(READ_RESPONSE) == 8
            assert all(opcodes[at] != opcodes[at + 1] for at in range(15))
            raw.close()

    asyncio.run(main())


def test_nothing_is_reported_from_inside_a_call() -> None:
    async def main() -> None:
        async with world() as it:
            client, server = await it.pair()
            assert client.endpoint is not None
            assert server.endpoint is not None
            for recorder, endpoint in ((client, client.endpoint), (server, server.endpoint)):
                endpoint.post([], Send([b"x"]), 1)
                endpoint.post([], None, 2)
                endpoint.post_reads([], 3)
                endpoint.close(abort=True)
                endpoint.post([], Send([b"x"]), 4)
                assert recorder.completions == []
                assert recorder.reasons == []
            await client.ended()
            await server.ended()
            await asyncio.sleep(0)
            assert sorted(token for token, _ in client.completions) == [1, 2, 3, 4]
            assert sorted(token for token, _ in server.completions) == [1, 2, 3, 4]
            assert (4, False) in client.completions
            assert (4, False) in server.completions

    asyncio.run(main())


def test_what_is_posted_after_the_end_comes_back_as_failed() -> None:
    class Late(Recorder):
        def completed(self, token: object, ok: bool) -> None:
            self.completions.append((token, ok))
            self._changed.set()

    async def main() -> None:
        async with world() as it:
            late = Late(it.account)
            endpoint, private_data = await it.provider.connect(it.address, late, b"", late.leases(2))
            assert private_data == b"welcome"
            endpoint.close()
            await late.ended()
            endpoint.post([], Send([b"x"]), "late")
            endpoint.post_reads([], "later")
            endpoint.post_receives(late.leases(3))
            assert late.completions == []
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert late.completions == [("late", False), ("later", False)]

    asyncio.run(main())


def test_a_graceful_close_sends_what_is_posted_first() -> None:
    async def main() -> None:
        async with world() as it:
            client, server = await it.pair()
            assert client.endpoint is not None
            assert server.endpoint is not None
            memory = bytearray(4 * MIB)
            handle, base = server.endpoint.register(memoryview(memory), remote_write=True)
            client.endpoint.post([RdmaWrite(handle, base, memoryview(b"\x07" * len(memory)))], Send([b"last"]), 1)
            client.endpoint.close()
            assert await server.ended() == "the peer closed the connection"
            assert server.messages == [b"last"]
            assert memory == b"\x07" * len(memory)
            assert await client.ended() == "closed by this side"
            assert client.completions == [(1, True)]

    asyncio.run(main())


def test_a_close_does_not_wait_for_ever_for_a_peer_that_takes_nothing() -> None:
    async def main() -> None:
        async with world(SoftIwarpOptions(close_timeout=0.05, send_buffer=4096)) as it:
            raw = await it.raw(options=lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096))
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            assert server.endpoint is not None
            server.endpoint.post([], Send([bytes(MIB)]), 1)
            server.endpoint.close()
            await server.ended()
            assert server.completions == [(1, False)]
            raw.close()

    asyncio.run(main())


def test_back_pressure_holds_memory_only_until_the_kernel_has_it() -> None:
    async def main() -> None:
        async with world(SoftIwarpOptions(send_buffer=4096)) as it:
            raw = await it.raw(options=lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096))
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            assert server.endpoint is not None
            data = [bytearray([number]) * 200_000 for number in range(5)]
            for number, piece in enumerate(data):
                server.endpoint.post([RdmaWrite(1, 0, memoryview(piece))], Send([b"x"]), number)
            await settle()
            assert len(server.completions) < 5
            with pytest.raises(BufferError):
                data[4].append(0)
            received = b""
            while received.count(b"\x04") < 200_000:
                received += (await raw.next_ulpdu())[14:]
            await server.until(lambda me: me.completions == [(number, True) for number in range(5)])
            data[4].append(0)
            raw.close()

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(0, 3000, 97))
def test_no_lease_is_lost_whenever_the_peer_goes_away(cut: int) -> None:
    async def main() -> None:
        async with world() as it:
            it.receives = 16
            raw = await it.raw()
            server = it.servers[0]
            endpoint = server.endpoint
            assert endpoint is not None

            def reply(messages: Any) -> None:
                for number in range(len(messages)):
                    lease = it.account.lease(4096)
                    endpoint.post([RdmaWrite(1, 0, lease.view)], Send([b"reply"]), lease)
                    sink = it.account.lease(4096)
                    endpoint.post_reads([RdmaRead(number, 0, sink.view)], sink)

            server.on_received = reply
            messages = [untagged(SEND, 0, number, 0, bytes(700)) for number in range(1, 5)]
            stream = b"".join(len(m).to_bytes(2, "big") + m + bytes(-(len(m) + 2) % 4 + 4) for m in messages)
            await raw.send(stream[:cut])
            await asyncio.sleep(0)
            if cut % 2:
                raw.close()
            else:
                endpoint.close(abort=cut % 4 == 0)
                raw.close()
            await server.ended()
            for lease, _ in server.completions:
                lease.release()

    asyncio.run(main())


def test_a_failing_owner_costs_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as it:
            first_client, first_server = await it.pair()
            client, server = await it.pair()
            assert first_client.endpoint is not None
            assert client.endpoint is not None

            def fail(messages: Any) -> None:
                for lease, _, _ in messages:
                    lease.release()
                raise ZeroDivisionError("owner's mistake")

            first_server.received = fail  # type: ignore[method-assign]
            first_client.endpoint.post([], Send([b"x"]), 1)
            await first_server.ended()
            await first_client.ended()
            client.endpoint.post([], Send([b"fine"]), 1)
            await server.until(lambda me: me.messages == [b"fine"])

    asyncio.run(main())
    assert "owner's mistake" in caplog.text


def test_bad_arguments_are_refused_and_leave_nothing_behind() -> None:
    async def main() -> None:
        async with world() as it:
            client, _ = await it.pair()
            endpoint = client.endpoint
            assert endpoint is not None
            data = bytearray(100)
            with pytest.raises(OverflowError):
                endpoint.post([RdmaWrite(1 << 32, 0, memoryview(data))], None, 1)
            with pytest.raises(OverflowError):
                endpoint.post([RdmaWrite(1, -1, memoryview(data))], None, 1)
            with pytest.raises(BufferError):
                endpoint.post([], Send([data, memoryview(data)[::2]]), 1)
            with pytest.raises(BufferError):
                endpoint.post_reads([RdmaRead(1, 0, memoryview(b"read-only"))], 1)
            with pytest.raises(BufferError):
                endpoint.register(memoryview(b"read-only"), remote_write=True)
            with pytest.raises(KeyError):
                endpoint.invalidate(12345)
            data.append(0)

    asyncio.run(main())


def test_statistics_of_connections_past_and_present_add_up() -> None:
    async def main() -> None:
        it = World()
        await it.listen()
        for _ in range(3):
            client, server = await it.pair()
            assert client.endpoint is not None
            client.endpoint.post([], Send([bytes(1000)]), 1)
            await server.until(lambda me: len(me.messages) == 1)
        client.endpoint.close()
        await client.ended()
        await server.ended()
        statistics = it.provider.statistics()
        assert statistics["sends_out"] == statistics["sends_in"] == 3
        assert statistics["largest_fpdu_out"] == 1024
        assert statistics["connections"] == 4
        assert statistics["connections_ended"] == 2
        await it.close()

    asyncio.run(main())


def test_the_watchdog_cuts_a_peer_that_acknowledges_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(SoftIwarpOptions(stall_timeout=30, send_buffer=4096)) as it:
            raw = await it.raw(options=lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096))
            await raw.message()
            server = it.servers[0]
            await server.until(lambda me: len(me.messages) == 1)
            assert server.endpoint is not None
            server.endpoint.post([], Send([bytes(MIB)]), 1)
            now = asyncio.get_running_loop().time()
            await settle()
            server.endpoint.check(now)
            server.endpoint.check(now + 29)
            # Some progress starts the clock again.
            await raw.exactly(100_000)
            await settle()
            server.endpoint.check(now + 58)
            server.endpoint.check(now + 87)
            assert server.reasons == []
            server.endpoint.check(now + 89)
            assert "has acknowledged nothing for 31 s" in await server.ended()
            assert server.completions == [(1, False)]
            raw.close()

    asyncio.run(main())
    assert "the connection is cut" in caplog.text


def test_the_watchdog_cuts_unanswered_reads_and_unfinished_fpdus_but_not_idle_peers() -> None:
    async def main() -> None:
        async with world(SoftIwarpOptions(stall_timeout=30)) as it:
            reader, unfinished, idle = [await it.raw() for _ in range(3)]
            for raw in (reader, unfinished, idle):
                await raw.message()
            for server in it.servers:
                await server.until(lambda me: len(me.messages) == 1)
            endpoints = [server.endpoint for server in it.servers]
            assert endpoints[0] is not None
            endpoints[0].post_reads([RdmaRead(1, 0, memoryview(bytearray(4)))], "read")
            await reader.next_ulpdu()
            await unfinished.send(b"\x00")
            # What comes back acknowledges the Read Request, which TCP alone may put off.
            await reader.message(b"acknowledged")
            await it.servers[0].until(lambda me: len(me.messages) == 2)
            await settle()
            now = asyncio.get_running_loop().time()
            for later in (0.0, 29.0, 31.0, 1000.0):
                for endpoint in endpoints:
                    assert endpoint is not None
                    endpoint.check(now + later)
            assert "an RDMA Read unanswered" in await it.servers[0].ended()
            assert "an FPDU unfinished" in await it.servers[1].ended()
            assert it.servers[2].reasons == []
            for raw in (reader, unfinished, idle):
                raw.close()

    asyncio.run(main())


def test_the_pool_of_a_provider_is_the_one_given() -> None:
    pool = Pool(MIB)
    it = World(pool=pool)
    assert it.provider.pool is pool
    assert it.provider.name == "softiwarp"
