"""What is protected as a whole has no part that travels by itself (RFC 8166 section 8.2.2), whatever a peer offers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from rpcrdma.client.gss import _open
from rpcrdma.rpc.gss_messages import INTEGRITY, NONE, PRIVACY
from rpcrdma.rpc.program import RpcReply
from tests.peer import ECHO, ERROR, FILL, MSG, NOMSG, Arguments, Exposed, Peer, Rig, Segment, header
from tests.rfc.plugin import covers
from tests.support import kdc
from tests.unit.client_support import pattern
from tests.unit.gss_support import Raw, acceptor, integrity, outcome, privacy, realm, results

ROOM = 50_000
PROTECTED = pytest.mark.parametrize("service", [NONE, INTEGRITY, PRIVACY], ids=["krb5", "krb5i", "krb5p"])
"""With krb5 arguments and results are as without Kerberos: it shows that the chunks of these tests are good ones."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


class RawPeer(Raw):
    """A caller that makes every octet of its calls and of their transport headers itself."""

    def __init__(self, rig: Rig, peer: Peer) -> None:
        super().__init__(rig.dispatcher)
        self.peer = peer

    async def send(
        self, message: bytes, reads: list[tuple[int, Segment]] | None = None, writes: list[Exposed] | None = None
    ) -> RpcReply:
        """The reply, which is in a Reply chunk if it is long."""
        long = len(message) > 3000
        if long:
            reads = [(0, self.peer.readable(message).segment()), *(reads or [])]
        room = self.peer.writable(ROOM)
        offered = [[memory.segment()] for memory in writes or ()]
        lists = header(
            self.xid, procedure=NOMSG if long else MSG, reads=reads or (), writes=offered, reply=[room.segment()]
        )
        answer = await self.peer.call(lists, b"" if long else message)
        assert answer.procedure != ERROR
        self.placed = [chunk[0].length for chunk in answer.writes]
        inline = answer.procedure == MSG
        assert answer.reply is not None
        return RpcReply(self.xid, answer.payload if inline else bytes(room.memory[: answer.reply[0].length]), [])

    def item(self, item: bytes, service: int, *, reduced: bool = False) -> bytes:
        """A call of ECHO with one item; reduced, the item is not in what is protected."""
        arguments = Arguments([item]).without(*[0] * reduced)
        sequence = self.sequence = self.sequence + 1
        if service != NONE:
            arguments = (integrity if service == INTEGRITY else privacy)(self, sequence, arguments)
        message = self.message(arguments, ECHO, sequence=sequence, service=service)
        self.body_at = len(message) - len(arguments)
        return message

    def plain(self, reply: RpcReply, service: int) -> bytes:
        """The results of the last call."""
        octets = results(reply)
        return bytes(octets) if service == NONE else _open(self.sealer, service, octets, self.sequence)


def run(example: kdc.Realm, test: Callable[[RawPeer, Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        made = acceptor(example)
        try:
            async with Rig(gss=made) as rig:
                raw = RawPeer(rig, await rig.peer())
                await raw.make()
                await test(raw, rig)
        finally:
            made.close()

    asyncio.run(main())


@covers("RFC 8166 8.2.2 gss-not-reduced")
@PROTECTED
@pytest.mark.parametrize("size", [40, 40_000])
def test_no_protected_result_goes_into_a_write_chunk(example: kdc.Realm, size: int, service: int) -> None:
    async def test(raw: RawPeer, rig: Rig) -> None:
        item, offered = pattern(size), raw.peer.writable(ROOM)
        reply = await raw.send(raw.item(item, service), writes=[offered])
        assert outcome(reply) == "SUCCESS"
        placed = size if service == NONE else 0
        assert raw.placed == [placed]
        assert offered.memory[:placed] == item[:placed]
        assert bytes(offered.memory[placed:]) == bytes([FILL]) * (ROOM - placed)
        echoed = Arguments([item])
        assert raw.plain(reply, service) == (echoed.without(0) if placed else echoed.octets)
        assert rig.control.executed == 1

    run(example, test)


@covers("RFC 8166 8.2.2 gss-not-reduced")
@PROTECTED
@pytest.mark.parametrize("counted_from", ["call", "arguments"])
def test_no_part_of_protected_arguments_is_taken_from_a_read_chunk(
    example: kdc.Realm, counted_from: str, service: int
) -> None:
    """Nobody has signed what is in the chunk. Its position may be where the item would stand in the call, or in what
    is protected."""

    async def test(raw: RawPeer, rig: Rig) -> None:
        item = pattern(400)
        message = raw.item(item, service, reduced=True)
        at = len(Arguments([item]).without(0))
        if service == NONE:
            at += raw.body_at
        elif counted_from == "arguments":
            at += 4  # a sequence number comes first
        else:
            at += raw.body_at + 8  # and the length of it all
        reply = await raw.send(message, reads=[(at, raw.peer.readable(item).segment())])
        if service == NONE:
            assert (outcome(reply), rig.control.executed) == ("SUCCESS", 1)
            return
        assert (outcome(reply), rig.control.executed) == ("GARBAGE_ARGS", 0)
        assert outcome(await raw.send(raw.item(item, service))) == "SUCCESS"

    run(example, test)
