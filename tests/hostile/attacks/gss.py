"""Attacks on RPCSEC_GSS (RFC 2203): tokens, contexts half made and whole, sequence numbers, and what is encrypted.

The attacker has a ticket of its own, as a user of the realm may, and so do those from many addresses.
"""

from __future__ import annotations

import random
import struct
from collections import Counter

from rpcrdma.gss.contexts import MAX_SEQUENCE, SEQUENCE_WINDOW
from rpcrdma.gss.mechanism import GssError, Initiation, Sealer
from rpcrdma.peer.wire import header
from rpcrdma.rpc.gss_messages import (
    CONTINUE_INIT,
    DATA,
    DESTROY,
    FLAVOR,
    INIT,
    INTEGRITY,
    NONE,
    PRIVACY,
    GssCredential,
    parse_init_results,
)
from tests.hostile.attack import Refused, Scene, attack, ignoring
from tests.hostile.peer import Iwarp, Tcp, accepted, record

GSS = "RPCSEC_GSS"
"""The layer: its attacks take a realm."""
SERVICE = "nfs@localhost"
DCE_STYLE = 0x1000
"""A flag with which Kerberos takes a step more (gssapi_ext.h): the acceptor has to wait for it."""
HOSTS = 100
WRITE = 7
CONTINUE_NEEDED = 1
FORMS = (b"\1\1", b"\2\1", b"\1\2", b"\4\4", b"\5\4", b"\4\5")
"""What tokens begin with: those of RFC 1964 section 1.2, and of RFC 4121 section 4.1."""
UNSIGNED = struct.pack(">2I28x", FLAVOR, 28)
"""A verifier of zeros."""


def call(credential: bytes, rest: bytes, xid: int, procedure: int = 0) -> bytes:
    """NULL, or another procedure of NFSv3."""
    xid &= 0xFFFFFFFF
    return struct.pack(">8I", xid, 0, 2, 100003, 3, procedure, FLAVOR, len(credential)) + credential + rest


def opaque(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets + bytes(-len(octets) & 3)


def init(token: bytes, xid: int, handle: bytes = b"") -> bytes:
    """A step of a context."""
    who = GssCredential(1, CONTINUE_INIT if handle else INIT, 0, NONE, handle)
    return call(who.encode(), bytes(8) + opaque(token), xid)


def answer(reply: bytes) -> tuple[bytes, int, bytes]:
    """Handle, status and token of what an INIT is answered. Raises Refused and ValueError."""
    handle, major, _, _, token = parse_init_results(memoryview(accepted(reply)))
    return handle, major, token


def executed(reply: bytes) -> bool:
    """Whether the call was accepted, and succeeded as far as RPC is concerned."""
    try:
        accepted(reply)
    except Refused:
        return False
    return True


def conversation(way: Tcp | Iwarp, *messages: bytes) -> list[bytes]:
    """All that comes before the reply to the last of these calls, and that. Raises OSError and EOFError."""
    replies = [b""]
    for message in messages:
        if isinstance(way, Tcp):
            way.send(record(message))
        else:
            way.post(header(int.from_bytes(message[:4], "big")), message)
    while replies[-1][:4] != messages[-1][:4]:
        replies.append(way.reply() if isinstance(way, Tcp) else way.next()[28:])
    return replies[1:]


class Signed:
    """A context of the attacker's, on a connection."""

    def __init__(self, way: Tcp | Iwarp) -> None:
        """Raises OSError, EOFError, Refused, ValueError and GssError."""
        self.way, making = way, Initiation(SERVICE)
        self.handle, _, token = answer(way.exchange(init(making.step(b""), 1)))
        making.step(token)
        self.sealer = Sealer(making.export())

    def message(
        self, sequence: int, arguments: bytes = b"", *, xid: int | None = None, procedure: int = 0,
        service: int = NONE, gss: int = DATA, handle: bytes | None = None,
    ) -> bytes:  # fmt: skip
        """A call with its verifier; its XID is the sequence number unless that is given."""
        who = GssCredential(1, gss, sequence, service, self.handle if handle is None else handle)
        head = call(who.encode(), b"", sequence if xid is None else xid, procedure)
        return head + struct.pack(">I", FLAVOR) + opaque(self.sealer.sign(head)) + arguments

    def encrypted(self, sequence: int, size: int) -> bytes:
        """A WRITE whose so many octets of arguments are none; they are encrypted as they should be."""
        room = self.sealer.room(size + 4)
        token = bytearray(sum(room) + size + 4)
        struct.pack_into(">I", token, room[0], sequence)
        length = self.sealer.wrap(token, room, size + 4)
        return self.message(sequence, opaque(bytes(token[:length])), service=PRIVACY, procedure=WRITE)


def crowd(scene: Scene) -> list[Tcp]:
    """A connection of each of a hundred hosts."""
    ways = []
    with scene.setting_up():
        for _ in range(HOSTS):
            with ignoring():
                ways.append(scene.tcp(source=scene.address(), patience=10))
    return ways


@attack(
    GSS,
    "tokens that are garbage, changed, cut short, as long as may be and longer, from a hundred hosts",
    effect="tokens",
)
def gss_bad_tokens(scene: Scene) -> None:
    dice = random.Random(1)
    good = Initiation(SERVICE).step(b"")
    hosts = [scene.address() for _ in range(HOSTS)]
    for number in scene.rounds():
        changed = bytearray(good)
        changed[dice.randrange(len(good))] ^= 1 + dice.randrange(255)
        token = (
            bytes(changed), good[: dice.randrange(len(good))], dice.randbytes(400), good + dice.randbytes(65 << 10),
            good[:200] + dice.randbytes(60 << 10), dice.randbytes(1 << 20), b"",
        )[number % 7]  # fmt: skip
        with ignoring(), Tcp(scene.doors.tcp, hosts[number % HOSTS], patience=2.5) as way:
            reply = way.exchange(init(token, number))
            scene.count("tokens")
            if len(token) > 64 << 10:
                scene.must(not executed(reply), "a token of more than 64 KiB was taken")
            half = init(token, number, dice.randbytes(16))
            scene.must(not executed(way.exchange(half)), "a context was continued that nobody had begun")


@attack(GSS, "contexts of a hundred hosts, made as fast as they can be and never used", effect="contexts")
def gss_context_flood(scene: Scene) -> None:
    ways = crowd(scene)
    for number in scene.rounds():
        # Who replays a token makes a context by it, though he cannot sign calls with that.
        token = Initiation(SERVICE).step(b"")
        for at, way in enumerate(ways):
            with ignoring():
                way.send(b"".join(record(init(token, (number * HOSTS + at) * 4 + more)) for more in range(4)))
        for way in ways:
            with ignoring():
                for _ in range(4):
                    scene.count("contexts", executed(way.reply()))


@attack(GSS, "contexts that a hundred hosts make by half, and begin again", effect="half made")
def gss_half_made(scene: Scene) -> None:
    ways = crowd(scene)
    for number in scene.rounds():
        token = Initiation(SERVICE, None, DCE_STYLE).step(b"")
        for at, way in enumerate(ways):
            with ignoring():
                way.send(b"".join(record(init(token, (number * HOSTS + at) * 8 + more)) for more in range(8)))
        for way in ways:
            with ignoring(ValueError):
                for _ in range(8):
                    handle, major, _ = answer(way.reply())
                    scene.count("half made", major == CONTINUE_NEEDED)
                if number % 2:
                    use = call(GssCredential(1, DATA, 1, NONE, handle).encode(), UNSIGNED, 1)
                    scene.must(not executed(way.exchange(use)), "a context was used that is made by half")
                    major = answer(way.exchange(init(bytes(100), 2, handle)))[1]
                    scene.must(major >> 16 != 0, "a context was made of a token of zeros")


@attack(
    GSS,
    "calls replayed, behind the window, far ahead of it, above MAXSEQ, and with verifiers that are wrong",
    effect="calls",
)
def gss_sequence_games(scene: Scene) -> None:
    dice = random.Random(2)
    while not scene.over:
        with ignoring(GssError, ValueError), Tcp(scene.doors.tcp, scene.source, patience=10) as way:
            signed, highest = Signed(way), 2 * SEQUENCE_WINDOW
            for number in scene.rounds(500):
                highest += (1, 2, 1500, 1)[number % 4]
                good = signed.message(highest, xid=1)
                bad = bytearray(signed.message(highest + dice.randrange(1 << 20), xid=2))
                bad[dice.randrange(32, len(bad))] ^= 1 + dice.randrange(255)
                old = signed.message(max(1, highest - SEQUENCE_WINDOW - dice.randrange(5000)), xid=3)
                ahead = signed.message(MAX_SEQUENCE + dice.randrange(MAX_SEQUENCE), xid=4)
                highest += 1
                told = conversation(
                    way, *[good] * (1 + number % 3), bytes(bad), old, ahead, signed.message(highest, xid=5)
                )
                answers = Counter(reply[3] for reply in told if executed(reply))
                scene.count("calls", 5 + number % 3)
                scene.must(answers[5] == 1, "a good call was not executed")
                scene.must(answers[1] == 1, "a call that was sent several times was not answered once")
                scene.must(not answers[2], "a call was executed whose verifier is wrong")
                scene.must(not answers[3], "a call was executed from behind the window")
                scene.must(not answers[4], "a call was executed whose number is above MAXSEQ")


@attack(
    GSS,
    "another's context, whose calls were overheard: used, replayed and destroyed from elsewhere",
    effect="attempts",
)
def gss_contexts_of_others(scene: Scene) -> None:
    dice = random.Random(3)
    neighbour = scene.address()
    while not scene.over:
        with (
            ignoring(GssError, ValueError),
            Tcp(scene.doors.tcp, scene.source, patience=10) as own,
            Iwarp(scene.doors.rdma, neighbour, patience=10) as far,
        ):
            far.want_credits(8)
            victim, intruder = Signed(own), Signed(far)
            for sequence in scene.rounds(1000):
                overheard = victim.message(2 * sequence + 1)
                scene.must(executed(own.exchange(overheard)), "a call of the context's own was not executed")
                changed = bytearray(overheard)
                changed[39] = DESTROY
                attempts = [overheard, bytes(changed)]
                for gss in (DATA, DESTROY):
                    who = GssCredential(1, gss, 2 * sequence + 2, NONE, victim.handle).encode()
                    attempts += [
                        intruder.message(2 * sequence + 2, gss=gss, handle=victim.handle),
                        intruder.message(2 * sequence + 2, gss=gss, handle=dice.randbytes(16)),
                        call(who, UNSIGNED, 2 * sequence + 2),
                    ]
                told = conversation(far, *attempts)
                scene.must(not any(map(executed, told)), "another's context was used, or destroyed")
                scene.count("attempts", len(attempts))
                alive = executed(own.exchange(victim.message(2 * sequence + 2)))
                scene.must(alive, "another's context is gone")


@attack(
    GSS,
    "arguments under krb5i and krb5p that are garbage, cut short, of other calls, up to 1 MiB",
    effect="calls",
)
def gss_garbage_bodies(scene: Scene) -> None:
    dice = random.Random(4)
    while not scene.over:
        with ignoring(GssError, ValueError), Tcp(scene.doors.tcp, scene.source, patience=10) as way:
            signed = Signed(way)
            for number in scene.rounds(2000):
                sequence = number + 1
                noise = dice.randbytes(dice.choice((0, 3, 16, 60, 4096, 1 << 17, 1 << 20)))
                whole = signed.encrypted(sequence, 200)[-300:]
                body = (
                    opaque(noise), noise, whole[: dice.randrange(len(whole))], struct.pack(">I", 0xFFFFFFFF) + noise,
                    struct.pack(">II", 4, sequence) + opaque(noise), struct.pack(">I", dice.randrange(1 << 32)) + noise,
                    opaque(dice.choice(FORMS) + noise),
                )[number % 7]  # fmt: skip
                service = dice.choice((INTEGRITY, PRIVACY))
                reply = way.exchange(signed.message(sequence, body, service=service, procedure=WRITE))
                scene.must(not executed(reply), "arguments were taken that are garbage")
                scene.count("calls")


@attack(GSS, "credentials that are cut short, of 64 KiB, or say that they are of 4 GiB", effect="credentials")
def gss_huge_credentials(scene: Scene) -> None:
    dice = random.Random(5)
    for number in scene.rounds():
        size = dice.choice((0, 3, 20, 64, 400, 401, 4096, 64 << 10, 1 << 20))
        # INIT is left out: without a handle its credential is good, whatever else is in it (RFC 2203 section 5.2.2).
        gss = dice.choice((DATA, CONTINUE_INIT, DESTROY, 4))
        fixed = struct.pack(">4I", 1, gss, dice.randrange(1 << 32), dice.randrange(5))
        told = struct.pack(">I", dice.choice((0, 16, size, size + 1, 0x7FFFFFFF, 0xFFFFFFFF)))
        body = (dice.randbytes(size), fixed + told + bytes(size), fixed[: size % 17])[number % 3]
        octets = bytearray(call(body + bytes(-len(body) & 3), bytes(8) + opaque(dice.randbytes(40)), number))
        if number % 4 == 0:
            octets[28:32] = told
        source = scene.source if number % 2 else scene.address()
        with ignoring(), Tcp(scene.doors.tcp, source, patience=2.5) as way:
            scene.count("credentials")
            reply = way.exchange(bytes(octets))
            scene.must(not executed(reply), "a credential was taken that is none")


@attack(
    GSS,
    "calls of 1 MiB under krb5p that are no WRITEs, over 16 connections of one host, 8 outstanding on each",
    effect="calls",
)
def gss_long_calls(scene: Scene) -> None:
    ways: list[Signed] = []
    with scene.setting_up():
        for _ in range(16):
            with ignoring(GssError, ValueError):
                ways.append(Signed(scene.tcp(patience=10)))
            if scene.over:
                return
    for number in scene.rounds():
        for signed in ways:
            with ignoring():
                for at in range(8):
                    signed.way.send(record(signed.encrypted(number * 8 + at + 1, 1 << 20)))
                    scene.count("calls")
                    if scene.over:
                        return
