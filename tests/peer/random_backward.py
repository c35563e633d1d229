"""Random answers to backward calls (RFC 8167), right and wrong, in both versions:

    python -m tests.peer.random_backward --count 10000 --seed 1

The server makes a call, and the peer answers with anything; what is no answer must be discarded and leave the call
pending, so that the right answer that follows is the one its maker gets. Forward calls with the same XIDs go on beside.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable

from rpcrdma.peer.requester import Peer
from rpcrdma.peer.wire import ERROR, MSG, NOMSG, REPLY, Segment, header, header_two, words
from tests.peer.echo import NULL, rpc_call
from tests.peer.random_messages import PROVIDERS, Difference, no_errors_logged
from tests.peer.rig import LINUX, Rig

REPLIED, FAILED, DISCARDED = "reply", "error", "discarded"
LIFE = 40
"""Backward calls on one connection."""


class Answer:
    """Makes answers to one call."""

    def __init__(self, chance: random.Random, version: int, xid: int) -> None:
        self.chance, self.version, self.xid = chance, version, xid

    def reply(self, xid: int | None = None, **fields: object) -> bytes:
        """A header of direction REPLY."""
        build = header if self.version == 1 else header_two
        if self.version == 2:
            fields = {"direction": REPLY, **fields}
        credit = self.chance.choice([0, 1, 2, 4, 1000, 0xFFFFFFFF])
        return build(self.xid if xid is None else xid, **{"credit": credit, **fields})  # type: ignore[arg-type]

    def rpc(self, xid: int | None = None, kind: int = 1) -> bytes:
        """The RPC reply, with results of any length."""
        results = self.chance.randbytes(4 * self.chance.randrange(200))
        return struct.pack(">6I", self.xid if xid is None else xid, kind, 0, 0, 0, 0) + results

    def other(self) -> int:
        """An XID that no backward call has."""
        return self.xid ^ 1 << self.chance.randrange(8, 32)


def _error(answer: Answer) -> bytes:
    chance, version = answer.chance, answer.version
    code = chance.choice([1, 2] if version == 1 else [1, 2, 3, 4, 5])
    body = {1: words(1, 2), 3: words(chance.randrange(2), 1, 5000)}.get(code, b"")
    return words(answer.xid, version, 4, ERROR, code) + body


SEGMENT = Segment(7, 100, 0)
KINDS: dict[str, tuple[str, Callable[[Answer], bytes]]] = {
    "a reply": (REPLIED, lambda a: a.reply() + a.rpc()),
    "an error": (FAILED, _error),
    "an error with another XID": (DISCARDED, lambda a: words(a.other()) + _error(a)[4:]),
    "an error of unknown code": (DISCARDED, lambda a: words(a.xid, a.version, 4, ERROR, a.chance.randrange(6, 99))),
    "a reply with another XID": (DISCARDED, lambda a: a.reply(xid := a.other()) + a.rpc(xid)),
    "XIDs that differ": (DISCARDED, lambda a: a.reply() + a.rpc(a.other())),
    "with a Read chunk": (DISCARDED, lambda a: a.reply(reads=[(4, SEGMENT)]) + a.rpc()),
    "with a Write chunk": (DISCARDED, lambda a: a.reply(writes=[[SEGMENT]]) + a.rpc()),
    "with a Reply chunk": (DISCARDED, lambda a: a.reply(reply=[SEGMENT]) + a.rpc()),
    "a Long Reply": (DISCARDED, lambda a: a.reply(procedure=NOMSG, reply=[SEGMENT])),
    "cut short": (DISCARDED, lambda a: (a.reply() + a.rpc())[: a.chance.randrange(28)]),
}


async def exchange(rig: Rig, peer: Peer, chance: random.Random, version: int, xid: int, tally: Counter[str]) -> None:
    """One backward call, with answers until one ends it."""
    connection = rig.connection
    call = asyncio.ensure_future(connection.call_back(rpc_call(xid, procedure=0) + bytes(4 * chance.randrange(9))))
    message = await peer.message()
    if (message.header.xid, message.header.version, message.header.procedure) != (xid, version, MSG):
        raise Difference(f"a backward call that is {message.octets[:64].hex()}")
    while not call.done():
        name, (outcome, make) = chance.choice(list(KINDS.items()))
        octets = make(Answer(chance, version, xid))
        peer.send(octets)
        await _forward(peer, version, xid)
        tally[name] += 1
        if outcome == DISCARDED:
            if call.done():
                raise Difference(f"{name}: it ends the call; {octets.hex():.600}")
            continue
        try:
            got: bytes | None = bytes(await asyncio.wait_for(call, 20))
        except (OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                raise Difference(f"{name}: the call goes on waiting; {octets.hex():.600}") from error
            got = None
        wanted = octets[len(octets) - len(got) :] if got is not None and outcome == REPLIED else None
        if got != wanted or (outcome == REPLIED) != (got is not None and got[:4] == words(xid)):
            raise Difference(f"{name}: the maker of the call gets {got!r:.300}; {octets.hex():.600}")
    peer.send(Answer(chance, version, xid).reply() + Answer(chance, version, xid).rpc())  # again: it is discarded
    await _forward(peer, version, xid)


async def _forward(peer: Peer, version: int, xid: int) -> None:
    """A forward call with the same XID, whose answer also shows that what came before has been looked at."""
    found = await peer.call((header if version == 1 else header_two)(xid), rpc_call(xid, procedure=NULL))
    if (found.error, found.payload) != (0, struct.pack(">6I", xid, 1, 0, 0, 0, 0)):
        raise Difference(f"a forward call gets {found}")


async def converse(provider: str, count: int, seed: int) -> Counter[str]:
    """Send ``count`` answers; returns how many of each kind. Raises Difference."""
    chance = random.Random(seed)
    tally: Counter[str] = Counter()
    xid = chance.randrange(1 << 30)
    with no_errors_logged():
        async with Rig(provider=PROVIDERS[provider]) as rig:
            while tally.total() < count:
                peer = await rig.peer(LINUX)
                version = chance.choice([1, 2])
                await _forward(peer, version, xid)
                for _ in range(LIFE):
                    xid += 1
                    await exchange(rig, peer, chance, version, xid, tally)
                peer.endpoint.close()
                await peer.over()
                rig.peers.remove(peer)
                await rig.until(lambda: not rig.server.connections)
    return tally


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Random answers to backward calls.")
    parser.add_argument("--count", type=int, default=10000, help="answers over each provider (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for provider in PROVIDERS:
        started = time.monotonic()
        try:
            tally = asyncio.run(converse(provider, options.count, options.seed))
        except Difference as found:
            sys.exit(f"{provider}, --seed {options.seed}: {found}")
        print(f"{provider}, seed {options.seed}: {tally.total()} answers in {time.monotonic() - started:.0f} s")
        print("; ".join(f"{name} {number}" for name, number in sorted(tally.items())))


if __name__ == "__main__":
    main()
