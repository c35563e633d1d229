"""Random legal and illegal messages, each answer compared with what the specifications prescribe:

    python -m tests.peer.random_messages --count 10000 --seed 1

A server with the echo program gets them in both versions, over the loopback and the embedded iWARP provider, on
connections with any private data; two well-behaved connections look at data of theirs in between. Prints how many
messages of each kind there were and how they were answered, and ends with an error at the first difference, with the
seed and the message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpcrdma.peer.requester import FILL, Message, Peer
from rpcrdma.peer.wire import ERR_VERS, ERROR, REPLY, Malformed, Segment, words
from rpcrdma.server.rdma import RdmaConnection
from rpcrdma.verbs.loopback import LoopbackProvider
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from rpcrdma.wire.private_data import PrivateData
from tests.peer.messages import KINDS, Draft, Maker
from tests.peer.oracle import RECEIVE, Answered, Discarded, Lost, Memory, Oracle, Outcome, Refused
from tests.peer.rig import Rig
from tests.peer.store import Witness, store_program

PROVIDERS = {"loopback": LoopbackProvider, "softiwarp": SoftIwarp}
PRIVATE_DATA = (
    (PrivateData(remote_invalidation=True, send_size=4096, receive_size=4096).encode(), 4096, True),
    (PrivateData(remote_invalidation=False, send_size=4096, receive_size=4096).encode(), 4096, False),
    (PrivateData(remote_invalidation=True, send_size=2048, receive_size=2048).encode(), 2048, True),
    (b"", 1024, False),
)
"""What a peer may say, and what follows: octets that it takes, and whether it may be invalidated (RFC 8797)."""
CREDITS = 128
BURST = 6
"""Messages sent at once, at most."""
LIFE = 60
"""Messages after which a connection is left for another one."""
WITNESS_EVERY = 20
RPC_ERRORS = ("GARBAGE_ARGS", "AUTH_ERROR", "RPC_MISMATCH", "PROG_UNAVAIL", "PROG_MISMATCH", "PROC_UNAVAIL")
AGAIN = "sent again, its memory refused"


class Difference(AssertionError):
    """An answer is not what the specifications prescribe."""


class Sent(NamedTuple):
    """A message under way."""

    kind: str
    draft: Draft
    octets: bytes
    outcomes: list[Outcome]


class Tally:
    """What was sent, and what came of it."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        self.connections = 0
        self.resident: list[int] = []
        """MiB of the process after a half of the messages, and after all."""
        self.looks = 0
        """Times that a witness found its data."""

    @property
    def messages(self) -> int:
        return self.answers.total()

    def table(self) -> str:
        """By kind and by answer, as Markdown."""
        by_answer: Counter[str] = Counter()
        answers: Counter[tuple[str, str]] = Counter()
        for (name, answer), count in self.answers.items():
            column = "RPC error" if answer in RPC_ERRORS else answer
            by_answer[column] += count
            answers[name, column] += count
        columns = [answer for answer, _ in by_answer.most_common()]
        kinds = [name for name in (*KINDS, AGAIN) if any(key[0] == name for key in self.answers)]
        lines = [f"| | all | {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) + 1)]
        for name in kinds:
            row = [answers[name, answer] for answer in columns]
            lines.append(f"| {name} | {sum(row)} | {' | '.join(str(count or '') for count in row)} |")
        total = " | ".join(str(by_answer[answer]) for answer in columns)
        return "\n".join([*lines, f"| all | {self.messages} | {total} |"])


def difference(outcome: Outcome, message: Message) -> str | None:
    """What distinguishes an answer from the one prescribed; None if nothing does."""
    try:
        got = message.header
    except Malformed as error:
        return f"the answer cannot be read: {error}"
    wanted: dict[str, object] = {"direction": REPLY}
    found: dict[str, object] = {"invalidated": message.invalidated}
    if isinstance(outcome, Refused):
        wanted |= {"procedure": ERROR, "error": outcome.code, "versions": outcome.versions, "invalidated": None}
        if outcome.shortages:
            wanted["shortage"] = got.shortage if got.shortage in outcome.shortages else outcome.shortages
    elif isinstance(outcome, Answered):
        wanted |= {name: getattr(outcome, name) for name in ("procedure", "writes", "reply", "payload", "inv_handle")}
        wanted |= {"error": 0, "reads": 0}
        allowed = outcome.invalidated
        wanted["invalidated"] = message.invalidated if message.invalidated in allowed else set(allowed)
        if outcome.any_status and len(got.payload) == len(outcome.payload):
            wanted["payload"] = outcome.payload[:-4] + got.payload[-4:]
    else:
        return f"an answer, though it should be {outcome.name}"
    wanted |= {"xid": outcome.xid, "version": outcome.version}
    for name, value in wanted.items():
        if found.get(name, getattr(got, name, None)) != value:
            return f"{name} is {found.get(name, getattr(got, name, None))!r:.300}, not {value!r:.300}"
    return None


class Conversation:
    """One connection after the other, each with some dozens of messages."""

    def __init__(self, rig: Rig, chance: random.Random, tally: Tally, kinds: Sequence[str] = ()) -> None:
        self.rig, self.chance, self.tally = rig, chance, tally
        self.kinds = {name: weight for name, (weight, _) in KINDS.items() if name in kinds or not kinds}
        self.suspects: set[int] = set()
        self.peer: Peer | None = None
        self._xid = chance.randrange(1 << 28)
        self._left = 0
        self._again: bytes | None = None

    async def connect(self) -> None:
        """Leave the connection, if there is one, and make another."""
        if self.peer is not None:
            if self.peer.reason is None:
                self.peer.endpoint.close(abort=self.chance.random() < 0.5)
                await self.peer.over()
            self.rig.peers.remove(self.peer)
        private_data, threshold, both_r = self.chance.choice(PRIVATE_DATA)
        self.peer = await self.rig.peer(private_data)
        self.threshold = threshold
        self.memory: dict[int, Memory] = {}
        both_r = both_r and self.rig.options.responder.remote_invalidation
        self.oracle = Oracle(self.memory, threshold=threshold, both_r=both_r)
        self.oracle.suspects = self.suspects
        self.favourite = self.chance.choice([1, 2])
        self._left = LIFE
        self.tally.connections += 1

    async def step(self) -> None:
        """Send some messages, and see to their answers."""
        if self.peer is None or self.peer.reason is not None or self._left <= 0:
            await self.connect()
        burst: list[Sent] = []
        xids: set[int] = set()
        for _ in range(self.chance.randrange(1, BURST + 1)):
            sent = self._compose()
            xid = int.from_bytes(sent.octets[:4], "big")
            if any(isinstance(outcome, Lost) for outcome in sent.outcomes) or xid in xids:
                await self._send(burst)
                await self._send([sent])
                return
            burst.append(sent)
            xids.add(xid)
            if self.oracle.settled is None:
                # What the next one must get depends on the version that this one settles.
                break
        await self._send(burst)

    def _compose(self) -> Sent:
        assert self.peer is not None
        self._left -= 1
        self._xid += 1
        if self._again is not None:
            octets, self._again = self._again, None
            xid, version = (int.from_bytes(octets[at : at + 4], "big") for at in (0, 4))
            code = 2 if version == 1 else 3
            # RFC 8166 section 4.5.3. Which resources would do, nobody can say.
            return Sent(AGAIN, Draft(xid, version), octets, [Refused(xid, version, code)])
        version = self.oracle.settled or self.favourite
        maker = Maker(self.chance, self.peer, version, self.oracle.limit(version))
        name = self.chance.choices(list(self.kinds), list(self.kinds.values()))[0]
        draft = maker.call(self._xid)
        octets = KINDS[name][1](maker, draft)
        for exposed in draft.memory:
            self.memory[exposed.handle] = Memory(exposed.base, exposed.memory, exposed.readable, exposed.writable)
        return Sent(name, draft, octets, self.oracle.prescribe(octets))

    async def _send(self, burst: list[Sent]) -> None:
        """Send messages at once, wait for all their answers, and see that there are no more than these."""
        if not burst:
            return
        assert self.peer is not None
        waiting = {}
        for sent in burst:
            self.peer.send(sent.octets)
            if not isinstance(sent.outcomes[0], Discarded):
                waiting[int.from_bytes(sent.octets[:4], "big")] = sent
            else:
                self._finish(sent, sent.outcomes[0])
        while waiting:
            try:
                message = await self.peer.message()
            except ConnectionError:
                self._over(burst)
                return
            answered = waiting.pop(int.from_bytes(message.octets[:4], "big"), None)
            if answered is None:
                raise Difference(f"an answer to nothing, or a second one: {message.octets[:64].hex()}")
            self._take(answered, message)
        await self._fence(burst)
        for sent in burst:
            for exposed in sent.draft.memory:
                self.memory.pop(exposed.handle, None)
                with contextlib.suppress(KeyError):
                    self.peer.endpoint.invalidate(exposed.handle)

    def _over(self, burst: list[Sent]) -> None:
        """The connection has ended: one message alone may do that."""
        assert self.peer is not None
        (sent, *others) = burst
        lost = next((outcome for outcome in sent.outcomes if isinstance(outcome, Lost)), None)
        if others or lost is None or self.peer.reason is None:
            raise Difference(self._story(sent, f"no answer; the connection: {self.peer.reason}"))
        self._finish(sent, lost)
        if lost.refused and self.chance.random() < 0.5:
            self._again = sent.octets

    def _take(self, sent: Sent, message: Message) -> None:
        assert self.peer is not None
        reasons = []
        for outcome in sent.outcomes:
            reason = difference(outcome, message)
            if reason is None:
                break
            reasons.append(reason)
        else:
            raise Difference(self._story(sent, "; ".join(reasons)))
        reply = message.header
        if not 1 <= reply.credit <= CREDITS or len(message.octets) > max(self.threshold, RECEIVE):
            raise Difference(self._story(sent, f"{reply.credit} credits, {len(message.octets)} octets"))
        if isinstance(outcome, Answered) and self.oracle.settled is None:
            self.oracle.settled = outcome.version
        self._finish(sent, outcome)

    def _finish(self, sent: Sent, outcome: Outcome) -> None:
        """Look at the memory, and count."""
        if not isinstance(outcome, Lost):
            self._look(sent, outcome.written if isinstance(outcome, Answered) else [])
        self.tally.answers[sent.kind, outcome.name] += 1

    def _look(self, sent: Sent, written: list[tuple[Segment, bytes]]) -> None:
        """The memory has what was to be written to it, and nothing else."""
        for exposed in sent.draft.memory:
            if not exposed.writable:
                continue
            expected = bytearray([FILL]) * len(exposed.memory)
            for part, data in written:
                if part.handle == exposed.handle:
                    start = part.offset - exposed.base
                    expected[start : start + len(data)] = data
            if exposed.memory != expected:
                raise Difference(self._story(sent, "the memory has other octets than it should"))

    async def _fence(self, burst: list[Sent]) -> None:
        """Whatever the server had to say to the burst has been said when this message's answer comes."""
        assert self.peer is not None
        self._xid += 1
        self.peer.send(words(self._xid, 9, 32, 0, 0, 0, 0))
        try:
            got = (await self.peer.message()).header
        except ConnectionError as error:
            raise Difference(self._story(burst[-1], f"the connection does not live on: {error}")) from error
        if (got.xid, got.error, got.versions) != (self._xid, ERR_VERS, (1, 2)):
            raise Difference(self._story(burst[-1], f"a second answer: {got}"))

    def _story(self, sent: Sent, what: str) -> str:
        prescribed = " or ".join(outcome.name for outcome in sent.outcomes)
        settled = self.oracle.settled
        return (
            f"{sent.kind}: {what}\nprescribed: {prescribed}; version settled: {settled}\n"
            f"message: {sent.octets[:600].hex()}{'...' if len(sent.octets) > 600 else ''}"
        )


def resident() -> int:
    """MiB of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 >> 10


@contextlib.contextmanager
def no_errors_logged() -> Iterator[None]:
    """Fail if the server has logged an error of its own."""
    records: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(self.format(record))

    keeper = Keeper(logging.ERROR)
    logging.getLogger("rpcrdma").addHandler(keeper)
    try:
        yield
    finally:
        logging.getLogger("rpcrdma").removeHandler(keeper)
    if records:
        raise Difference(f"{len(records)} errors in the log, the first: {records[0]}")


async def converse(provider: str, count: int, seed: int, kinds: Sequence[str] = (), **responder: Any) -> Tally:
    """Send ``count`` messages, of all kinds where none is named. Raises Difference."""
    chance = random.Random(seed)
    tally = Tally()
    with no_errors_logged():
        async with Rig(provider=PROVIDERS[provider], programs=[store_program()], **responder) as rig:
            witnesses = [Witness(await rig.peer(), version) for version in (1, 2)]
            data = chance.randbytes(50_001)
            await witnesses[0].put(data)
            conversation = Conversation(rig, chance, tally, kinds)
            looked = 0
            while tally.messages < count:
                await conversation.step()
                if tally.messages >= count / 2 and not tally.resident:
                    tally.resident.append(resident())
                if tally.messages >= looked + WITNESS_EVERY:
                    looked = tally.messages
                    rig.control.transports.clear()
                    tally.looks += 1
                    if await witnesses[tally.looks % 2].get(len(data)) != data:
                        raise Difference("a witness's data is not what it was")
            tally.resident.append(resident())
            await rig.until(lambda: len(rig.server.connections) == len([peer for peer in rig.peers if not peer.reason]))
            rig.control.transports.clear()
            gc.collect()
            kept = [one for one in gc.get_objects() if isinstance(one, RdmaConnection) and one._server is rig.server]
            if len(kept) != len(rig.server.connections):
                raise Difference(f"{len(kept)} connections in memory, of which {len(rig.server.connections)} live")
            for connection in rig.server.connections:
                window = connection.responder.credits
                found = window.outstanding, window.unsent, window.posted
                if found != (0, 0, window.target):
                    raise Difference(f"outstanding calls, unsent answers, Receives: {found}")
    return tally


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10000, help="messages to each provider (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--provider", choices=PROVIDERS, help="only this one")
    options = parser.parse_args()
    every = Tally()
    for provider in [options.provider] if options.provider else PROVIDERS:
        started = time.monotonic()
        try:
            tally = asyncio.run(converse(provider, options.count, options.seed))
        except Difference as found:
            sys.exit(f"{provider}, --seed {options.seed}: {found}")
        every.answers += tally.answers
        print(
            f"{provider}, seed {options.seed}: {tally.messages} messages on {tally.connections} connections, in"
            f" {time.monotonic() - started:.0f} s; no difference; witnesses have looked {tally.looks} times; resident"
            f" {tally.resident[0]} MiB after a half of them and {tally.resident[-1]} MiB after all"
        )
    print(f"\n{every.table()}")


if __name__ == "__main__":
    main()
