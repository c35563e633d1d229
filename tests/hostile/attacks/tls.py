"""Attacks on TLS over TCP (RFC 9289): on handshakes, and on records behind them (RFC 8446)."""

from __future__ import annotations

import random
import ssl
import struct

from rpcrdma.tls.secrets import KeyLog, Secrets, secrets_of
from tests.hostile.attack import Scene, attack, ignoring
from tests.hostile.peer import NULL3, Tcp, record
from tests.support.tls import ALERT, DATA, HANDSHAKE, KEY_UPDATE, Forged

PROBE = struct.pack(">10I", 7, 0, 2, 100003, 3, 0, 7, 0, 0, 0)
"""NULL with AUTH_TLS."""


def context() -> tuple[ssl.SSLContext, KeyLog]:
    """A client's, that asks for no certificate, and what tells its secrets."""
    made, log = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), KeyLog()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.keylog_filename = log.path
    return made, log


class Secured:
    """A connection that is secured, and the keys of its client."""

    def __init__(self, way: Tcp, made: ssl.SSLContext, log: KeyLog) -> None:
        """Raises OSError and EOFError."""
        self.way = way
        way.exchange(PROBE)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = made.wrap_bio(incoming, outgoing)
        told: dict[str, bytes] = {}
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                way.send(outgoing.read())
                octets = way.socket.recv(65536)
                if not octets:
                    raise EOFError from None
                incoming.write(octets)
            finally:
                told |= log.take()
        way.send(outgoing.read())
        secrets: Secrets = secrets_of(tls, told, b"")
        self.forged = Forged(secrets.outgoing)
        self._tls, self._incoming = tls, incoming

    def read(self) -> bytes:
        """What the server sends next; b"": it has said that this is the end. Raises SSLError for its alerts, OSError,
        EOFError."""
        while True:
            try:
                return self._tls.read(65536)
            except ssl.SSLWantReadError:
                octets = self.way.socket.recv(65536)
                if not octets:
                    raise EOFError from None
                self._incoming.write(octets)


def hello() -> bytes:
    """What a client's handshake begins with."""
    made, log = context()
    outgoing = ssl.MemoryBIO()
    tls = made.wrap_bio(ssl.MemoryBIO(), outgoing)
    with ignoring():
        tls.do_handshake()
    log.close()
    return outgoing.read()


@attack("TLS", "400 connections that have asked for TLS and send half a handshake, again and again", effect="probes")
def half_tls_handshakes(scene: Scene) -> None:
    half = hello()[:100]
    ways: list[Tcp] = []
    with scene.setting_up():
        for _ in range(400):
            with ignoring():
                way = scene.tcp(patience=2.5)
                way.exchange(PROBE)
                way.send(half)
                ways.append(way)
                scene.count("probes")
            if scene.over:
                return
    for number in scene.rounds():
        with ignoring():
            way = scene.tcp(patience=2.5)
            way.exchange(PROBE)
            way.send(half[: 1 + number % 99])
            scene.count("probes")


@attack("TLS", "handshakes of octets that are none", effect="handshakes")
def tls_garbage_handshakes(scene: Scene) -> None:
    dice = random.Random(1)
    good = hello()
    for number in scene.rounds():
        with ignoring(), Tcp(scene.doors.tcp, scene.source, patience=2.5) as way:
            way.exchange(PROBE)
            octets = bytearray(good if number % 2 else dice.randbytes(300))
            octets[dice.randrange(len(octets))] ^= 1 + dice.randrange(255)
            way.send(bytes(octets))
            scene.count("handshakes")
            way.socket.recv(4096)


@attack("TLS", "a connection that changes keys without end, with a call between now and then", effect="changes of keys")
def tls_key_updates(scene: Scene) -> None:
    made, log = context()
    while not scene.over:
        with ignoring(), Tcp(scene.doors.tcp, scene.source, patience=2.5) as way:
            forged = Secured(way, made, log).forged
            for number in scene.rounds():
                octets = b""
                for _ in range(50):
                    octets += forged.seal(HANDSHAKE, KEY_UPDATE + bytes([number % 2]))
                    forged.update()
                if number % 3:
                    octets += forged.seal(DATA, record(NULL3))
                way.send(octets)
                scene.count("changes of keys", 50)


@attack(
    "TLS",
    "records that are garbage, too long, of other kinds, replayed, or empty, behind good handshakes",
    effect="records",
)
def tls_bad_records(scene: Scene) -> None:
    made, log = context()
    dice = random.Random(2)
    for number in scene.rounds():
        with ignoring(), Tcp(scene.doors.tcp, scene.source, patience=2.5) as way:
            forged = Secured(way, made, log).forged
            good = forged.seal(DATA, record(NULL3))
            bad = (
                dice.randbytes(100),
                b"\x17\3\3" + dice.randbytes(2) + dice.randbytes(20000),
                good + good,
                good[:-1] + bytes([good[-1] ^ 1]),
                good + forged.seal(dice.randrange(256), dice.randbytes(dice.randrange(40))),
                good + forged.seal(HANDSHAKE, dice.randbytes(dice.randrange(1, 40))),
                good + forged.seal(ALERT, dice.randbytes(2)),
                good + b"".join(forged.seal(DATA, b"", 16000) for _ in range(20)),
                good + forged.seal(0, bytes(300)),
            )[number % 9]
            way.send(bad)
            scene.count("records")
            way.socket.recv(4096)


@attack("TLS", "60 secured connections whose records come an octet at a time", effect="octets")
def tls_slow_records(scene: Scene) -> None:
    made, log = context()
    ways = []
    with scene.setting_up():
        for _ in range(60):
            with ignoring():
                way = scene.tcp(patience=2.5)
                ways.append((way, Secured(way, made, log).forged.seal(DATA, record(NULL3), 16000)))
            if scene.over:
                return
    for number in scene.rounds():
        for way, octets in ways:
            with ignoring():
                way.send(octets[number % len(octets) :][:1])
                scene.count("octets")
