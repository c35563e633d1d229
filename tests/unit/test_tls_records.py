"""TLS's records: what Python's ssl has enciphered is deciphered and the other way round, and peers break the rules."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from rpcrdma.crew import Crew
from rpcrdma.memory import Lease, Pool
from rpcrdma.rpc.program import RpcReply
from rpcrdma.tcp.stream import RecordStream
from rpcrdma.tls.records import MOST_EMPTY, directions
from rpcrdma.tls.secrets import SUITES, KeyLog, Secret, Secrets, secrets_of
from tests.support.tls import ALERT, DATA, HANDSHAKE, KEY_UPDATE, Forged

LAST = 0x80000000
AUTHORITY = trustme.CA()


def handshake(native: str = "server") -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO, Secrets]:
    """A handshake in memory: the peer of the native end, what it reads and writes, and the native end's secrets."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(server)
    server.num_tickets = 2 if native == "client" else 0  # a client is told of them behind the handshake
    AUTHORITY.configure_trust(client)
    log = KeyLog()
    (server if native == "server" else client).keylog_filename = log.path
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = {
        "client": client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        "server": server.wrap_bio(to_server, to_client, server_side=True),
    }
    told: dict[str, bytes] = {}
    left = set(ends)
    while left:
        for name in ("client", "server"):
            try:
                ends[name].do_handshake()
                left.discard(name)
            except ssl.SSLWantReadError:
                pass
            told |= log.take()
    assert not log.take()
    log.close()
    incoming, outgoing = (to_client, to_server) if native == "server" else (to_server, to_client)
    peer = ends["client" if native == "server" else "server"]
    return peer, incoming, outgoing, secrets_of(ends[native], told, outgoing.read())


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), 60)
        return listener.accept()[0], one


class Ends:
    """A record stream under TLS, and its peer. With ``kernel`` that enciphers what is sent."""

    def __init__(self, native: str = "server", crew: Crew | None = None, kernel: Any = None) -> None:
        self.tls, self._to_tls, self._from_tls, self.secrets = handshake(native)
        self.own, self.sock = socket.socketpair() if kernel is None else tcp_pair()
        self.own.setblocking(False)
        self.sock.settimeout(60)
        self.pool = Pool(64 << 20)
        self.stream = RecordStream(self.own.fileno(), self.pool.account(64 << 20), most_records=1 << 20)
        self.crew, self.woken = crew, 0
        link = None if kernel is None else kernel.take(self.own, self.secrets.outgoing)
        assert link or not kernel
        self.stream.secure(directions(self.secrets), crew, self._wake, link)

    def _wake(self) -> None:
        self.woken += 1

    def send(self, message: bytes) -> None:
        """Have the peer send a record of RPC."""
        self.tls.write((LAST | len(message)).to_bytes(4, "big") + message)
        self.pass_on()

    def pass_on(self) -> None:
        """Send what the peer has enciphered, and receive in between: a socket takes only so much."""
        octets = memoryview(self._from_tls.read())
        while octets:
            select.select([], [self.sock], [], 60)
            octets = octets[self.sock.send(octets[:65536]) :]
            self.receive()

    def receive(self) -> None:
        """Take what has arrived."""
        while True:
            for record, hold in self.stream.receive():
                self.came.append(bytes(record))
                record.release()
                hold.release()
            if not self.stream.unfinished:
                return

    @property
    def came(self) -> list[bytes]:
        """Records."""
        return self.__dict__.setdefault("_came", [])  # type: ignore[no-any-return]

    def take(self, size: int) -> bytes:
        """So many octets that the stream has sent, deciphered by the peer."""
        found = bytearray()
        while len(found) < size:
            if self.stream.busy:
                assert self.crew is not None
                select.select([self.crew], [], [], 0.01)
                self.crew.take()
            else:
                self.stream.flush()
            try:
                found += self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                if select.select([self.sock], [], [], 0)[0]:
                    self._to_tls.write(self.sock.recv(1 << 16))
        return bytes(found)

    def raw(self, kind: int, content: bytes) -> None:
        """Have the peer send a record of any kind, sealed with the keys that it has."""
        self.sock.sendall(self.forged().seal(kind, content))

    def forged(self) -> Forged:
        """The peer's keys."""
        return self.__dict__.setdefault("_forged", Forged(self.secrets.incoming))  # type: ignore[no-any-return]

    def close(self) -> None:
        self.stream.close()
        self.own.close()
        self.sock.close()
        assert self.pool.in_use == 0
        assert self.pool.leaked == 0


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def message(size: int) -> bytes:
    """Octets that are not alike."""
    return (b"%08d" % size + bytes(range(251)) * (size // 251 + 1))[:size]


SIZES = (4, 100, 16380, 16384, 32764, 32768, 65532, 300001, (1 << 20) + 200)


@pytest.mark.parametrize("native", ["server", "client"])
def test_records_of_every_size_come_and_go(native: str) -> None:
    ends = Ends(native)
    for size in SIZES:
        ends.send(message(size))
        ends.stream.queue(RpcReply(1, message(size), []))
        assert ends.take(4 + size)[4:] == message(size)
    assert ends.came == [message(size) for size in SIZES]
    assert not ends.stream.partial
    assert ends.pool.in_use == 0, "nothing is kept between two wake-ups"
    ends.close()


def test_what_is_long_is_sent_by_threads() -> None:
    crew = Crew(2)
    all_ends = [Ends(crew=crew) for _ in range(4)]
    for ends in all_ends:
        for size in SIZES:
            ends.stream.queue(RpcReply(1, message(size), []))
        ends.stream.flush()
        assert ends.stream.busy
        assert ends.stream.queued > 1 << 20
    for ends in all_ends:
        expected = b"".join((LAST | size).to_bytes(4, "big") + message(size) for size in SIZES)
        assert ends.take(len(expected)) == expected
        while ends.stream.busy:
            crew.take()
        assert ends.stream.flush()
        assert ends.woken
        assert ends.stream.queued == 0
        ends.close()
    crew.close()


def test_a_connection_may_end_while_a_thread_sends() -> None:
    crew = Crew(1)
    all_ends = [Ends(crew=crew) for _ in range(8)]
    for ends in all_ends:
        for _ in range(4):
            ends.stream.queue(RpcReply(1, message(1 << 20), []))
        ends.stream.flush()
    for ends in all_ends:
        ends.close()  # nothing is leased any more
    crew.take()
    assert not any(ends.woken for ends in all_ends[1:])
    crew.close()


def test_sending_needs_no_memory() -> None:
    """What waits to be sent may hold all of it: then records go one by one."""
    ends = Ends()
    held: list[Lease] = []
    account = ends.pool.account(64 << 20)
    while ends.pool.in_use < 64 << 20:
        held.append(account.lease(1 << 20))
    ends.stream.queue(RpcReply(1, message(300000), []))
    assert ends.take(300004)[4:] == message(300000)
    for lease in held:
        lease.release()
    ends.close()


def test_keys_change_when_the_peer_says_so(ends: Ends) -> None:
    """And the other direction's, if it asks for that (RFC 8446 section 4.6.3)."""
    for asks in (0, 1, 1):
        ends.raw(HANDSHAKE, KEY_UPDATE + bytes([asks]))
        ends.forged().update()
        ends.raw(DATA, (LAST | 4).to_bytes(4, "big") + b"more")
        ends.receive()
        ends.stream.queue(RpcReply(1, b"there", []))
        assert ends.take(9)[4:] == b"there"  # the library follows
    assert ends.came == [b"more"] * 3


def test_padding_and_records_cut_anyhow(ends: Ends) -> None:
    whole = b"".join(
        ends.forged().seal(DATA, part, padding)
        for part, padding in ((b"\x80\0", 0), (b"", 9), (b"\0\6ab", 700), (b"cdef", 1))
    )
    for at in range(len(whole)):
        ends.sock.sendall(whole[at : at + 1])
        ends.receive()
        assert ends.stream.partial == (at + 1 < len(whole))
    assert ends.came == [b"abcdef"]


def test_the_end_is_told(ends: Ends) -> None:
    ends.raw(ALERT, b"\1\0")
    ends.sock.sendall(b"what comes behind it is not looked at")
    ends.receive()
    assert ends.stream.eof
    ends.stream.close()
    ends._to_tls.write(ends.sock.recv(4096))
    assert ends.tls.read(1) == b""


BREACHES: dict[str, tuple[Callable[[Forged], bytes], int]] = {
    "garbage": (lambda peer: bytes(range(64)), 10),
    "in the clear": (lambda peer: b"\x16\3\3\0\5\x18\0\0\1\0", 10),
    "another tag": (lambda peer: peer.seal(DATA, b"\x80\0\0\0")[:-1] + b"!", 20),
    "a replay": (lambda peer: peer.seal(DATA, b"\x80\0\0\4data") * 2, 20),
    "no tag": (lambda peer: b"\x17\3\3\0\5hello", 20),
    "an empty one": (lambda peer: b"\x17\3\3\0\0", 20),
    "too long": (lambda peer: b"\x17\3\3\x41\1", 22),
    "much data": (lambda peer: peer.seal(DATA, bytes(16385)), 22),
    "only padding": (lambda peer: peer.seal(0, b"", 20), 10),
    "another kind": (lambda peer: peer.seal(20, b"\1"), 10),
    "a handshake": (lambda peer: peer.seal(HANDSHAKE, b"\1\0\0\0"), 10),
    "a ticket": (lambda peer: peer.seal(HANDSHAKE, b"\4\0\0\1x"), 10),
    "an empty message": (lambda peer: peer.seal(HANDSHAKE, b""), 10),
    "an endless message": (lambda peer: peer.seal(HANDSHAKE, b"\x18\xff\xff\xff"), 50),
    "a change of other length": (lambda peer: peer.seal(HANDSHAKE, b"\x18\0\0\2\0\0"), 50),
    "a change of another kind": (lambda peer: peer.seal(HANDSHAKE, KEY_UPDATE + b"\2"), 47),
    "more behind a change": (lambda peer: peer.seal(HANDSHAKE, (KEY_UPDATE + b"\0") * 2), 10),
    "data in a message": (lambda peer: peer.seal(HANDSHAKE, KEY_UPDATE) + peer.seal(DATA, b"x"), 10),
    "a long alert": (lambda peer: peer.seal(ALERT, b"\1\0\0"), 50),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_what_breaks_the_rules_ends_the_connection(ends: Ends, breach: str) -> None:
    """The peer is told why, with the alert that RFC 8446 section 6.2 has for it."""
    make, alert = BREACHES[breach]
    ends.sock.sendall(make(ends.forged()))
    with pytest.raises(ConnectionError):
        ends.receive()
    ends.stream.close()
    ends._to_tls.write(ends.sock.recv(4096))
    with pytest.raises(ssl.SSLError) as told:
        ends.tls.read(1)
    names = {10: "UNEXPECTED_MESSAGE", 20: "BAD_RECORD_MAC", 22: "RECORD_OVERFLOW", 47: "ILLEGAL_PARAMETER"}
    assert names.get(alert, "DECODE_ERROR") in str(told.value)


def test_records_without_data_end_the_connection(ends: Ends) -> None:
    """A peer could keep the loop at work with them: keys may change, but not all the time."""
    sent = 0
    while sent <= MOST_EMPTY:
        one = ends.forged().seal(HANDSHAKE, KEY_UPDATE + b"\1")
        ends.forged().update()
        ends.sock.sendall(one)
        sent += len(one)
        if sent <= MOST_EMPTY:
            ends.receive()
    with pytest.raises(ConnectionError, match="without data"):
        ends.receive()


def test_secrets_are_expanded_as_the_rfc_has_it() -> None:
    """RFC 8448 section 3: the server's application traffic secret, and its key and IV."""
    secret = Secret(
        "TLS_AES_128_GCM_SHA256", bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
    )
    key, iv = secret.keys()
    assert key.hex() == "9f02283b6c9c07efc26bb9f2ac92e356"
    assert iv.hex() == "cf782b88dd83549aadf1e984"
    assert secret.octets.hex() not in repr(secret)


@pytest.mark.parametrize("cipher", SUITES)
def test_every_suite_goes_both_ways(cipher: str) -> None:
    """One native end speaks with another."""
    digest = 48 if "384" in cipher else 32
    one, other = Secret(cipher, b"1" * digest), Secret(cipher, b"2" * digest)
    a, b = socket.socketpair()
    streams = []
    pool = Pool(64 << 20)
    for sock, secrets in ((a, Secrets(one, other, True)), (b, Secrets(other, one, False))):
        sock.setblocking(False)
        streams.append(RecordStream(sock.fileno(), pool.account(64 << 20)))
        streams[-1].secure(directions(secrets))
    streams[0].queue(RpcReply(1, message(50000), []))
    found: list[bytes] = []
    while not found:
        streams[0].flush()
        for record, hold in streams[1].receive():
            found.append(bytes(record))
            record.release()
            hold.release()
    assert found == [message(50000)]
    for stream, sock in zip(streams, (a, b), strict=True):
        stream.close()
        sock.close()
