"""Questions about NFSv4.1's COMPOUND and sessions (RFC 8881), over any transport, in octets."""

from __future__ import annotations

import os

from nfsd.conformance.basics import ANY, _xids
from nfsd.conformance.link import Differs, Exchanger, Target, asks, expect, opaque, rpc_call
from rpcrdma.peer.wire import words

PUTROOTFH, GETATTR, EXCHANGE_ID, CREATE_SESSION, SEQUENCE, ILLEGAL = 24, 9, 42, 43, 53, 10044
MINOR_VERS_MISMATCH, OP_ILLEGAL, BADSESSION, BADSLOT = 10021, 10044, 10052, 10053
SEQ_MISORDERED, SEQUENCE_POS, OP_NOT_IN_SESSION = 10063, 10064, 10071


async def compound(to: Exchanger, *operations: bytes, minor: int = 1) -> tuple[int, bytes]:
    """Status, and what follows the tag: the count of results, and they."""
    arguments = opaque(b"conformance!") + words(minor, len(operations)) + b"".join(operations)
    found = await to.exchange(rpc_call(next(_xids), 1, version=4) + arguments)
    expect(found[4:24], words(1, 0, 0, 0, 0), "the RPC reply of COMPOUND")
    expect(found[28:44], opaque(b"conformance!"), "the tag that came back")
    return int.from_bytes(found[24:28], "big"), found[44:]


class Session:
    """A session of its own client; nothing that it has open outlives its lease."""

    def __init__(self, to: Exchanger, client: bytes, sessionid: bytes, slots: int) -> None:
        self.to, self.client, self.sessionid, self.slots = to, client, sessionid, slots
        """``slots``: the number of them."""
        self._number = 0

    @classmethod
    async def make(cls, to: Exchanger, *, backward: bool = False) -> Session:
        """EXCHANGE_ID and CREATE_SESSION; ``backward``: callbacks may come on this connection. Raises Differs."""
        owner = os.urandom(8) + opaque(b"rdma-nfsd conformance %d" % next(_xids))
        status, found = await compound(to, words(EXCHANGE_ID) + owner + words(0, 0, 0))
        if status:
            raise Differs(f"EXCHANGE_ID: NFS status {status}")
        client, sequence = found[12:20], found[20:24]
        fore = words(0, 1 << 16, 1 << 16, 1 << 16, 8, 4, 0)
        back = words(0, 4096, 4096, 0, 2, 1, 0)
        asked = words(CREATE_SESSION) + client + sequence + words(2 * backward) + fore + back + words(0x40000000, 1, 0)
        status, found = await compound(to, asked)
        if status:
            raise Differs(f"CREATE_SESSION: NFS status {status}")
        return cls(to, client, found[12:28], int.from_bytes(found[56:60], "big"))

    async def run(self, *operations: bytes) -> tuple[int, bytes]:
        """The next COMPOUND of slot 0, as :func:`compound`."""
        self._number += 1
        return await compound(self.to, self.sequence(self._number), *operations)

    def sequence(self, number: int, slot: int = 0, *, cache: bool = False) -> bytes:
        """The operation SEQUENCE."""
        return words(SEQUENCE) + self.sessionid + words(number, slot, slot, cache)


@asks("RFC 8881 16.2.3 minor-version", over=ANY)
async def minor_version(target: Target) -> None:
    to = await target.exchanger()
    found = await compound(to, words(PUTROOTFH), minor=99)
    expect(found, (MINOR_VERS_MISMATCH, words(0)), "status and results of COMPOUND with minor version 99")


@asks("RFC 8881 2.10.2 not-in-session", over=ANY)
async def not_in_session(target: Target) -> None:
    to = await target.exchanger()
    status, _ = await compound(to, words(PUTROOTFH))
    expect(status, OP_NOT_IN_SESSION, "PUTROOTFH without SEQUENCE")


@asks("RFC 8881 15.1.11.1 bad-session", over=ANY)
async def bad_session(target: Target) -> None:
    to = await target.exchanger()
    status, _ = await compound(to, words(SEQUENCE) + b"\xee" * 16 + words(1, 0, 0, 0))
    expect(status, BADSESSION, "SEQUENCE with a session that there is not")


@asks("RFC 8881 15.1.11.2 bad-slot", over=ANY)
async def bad_slot(target: Target) -> None:
    session = await Session.make(await target.exchanger())
    status, _ = await compound(session.to, session.sequence(1, session.slots + 1000))
    expect(status, BADSLOT, f"slot {session.slots + 1000} of {session.slots}")


@asks("RFC 8881 18.46.3 sequence-pos", over=ANY)
async def sequence_pos(target: Target) -> None:
    session = await Session.make(await target.exchanger())
    status, _ = await compound(session.to, session.sequence(1), words(PUTROOTFH), session.sequence(2, 1))
    expect(status, SEQUENCE_POS, "SEQUENCE as the third operation")


@asks("RFC 8881 2.10.6.1 replay", "RFC 8881 2.10.6.1 misordered", over=ANY)
async def replay(target: Target) -> None:
    session = await Session.make(await target.exchanger())
    operations = session.sequence(1, cache=True), words(PUTROOTFH), words(GETATTR, 1, 2)
    first = await compound(session.to, *operations)
    expect(first[0], 0, "SEQUENCE, PUTROOTFH, GETATTR")
    again = await compound(session.to, *operations)
    expect(again[0], first[0], "the status of the same again")
    # But for SEQUENCE's status flags, which tell of the moment.
    flags = slice(44, 48)
    expect(again[1][: flags.start], first[1][: flags.start], "the results of the same again")
    expect(again[1][flags.stop :], first[1][flags.stop :], "the results of the same again, behind the flags")
    status, _ = await compound(session.to, session.sequence(3), words(PUTROOTFH))
    expect(status, SEQ_MISORDERED, "the sequence ID 3 behind 1")
    status, _ = await compound(session.to, session.sequence(2), words(PUTROOTFH))
    expect(status, 0, "the sequence ID 2 behind 1")


@asks("RFC 8881 15.1.3.4 illegal", over=ANY)
async def illegal(target: Target) -> None:
    session = await Session.make(await target.exchanger())
    for number, operation in enumerate((2, 60000), 1):
        status, found = await compound(session.to, session.sequence(number), words(PUTROOTFH), words(operation))
        expect(status, OP_ILLEGAL, f"operation {operation}")
        expect(found[-8:], words(ILLEGAL, OP_ILLEGAL), "the operation and status in its result")
