"""Replies that are sealed: what a client finds in them, whatever payloads the results have (RFC 2203 section 5.3.3)."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from rpcrdma.client.gss import _check_verifier, _open
from rpcrdma.gss.mechanism import Acceptance, Credential, GssError, Initiation, Sealer
from rpcrdma.rpc.gss_messages import DATA, INTEGRITY, PRIVACY, GssCredential
from rpcrdma.rpc.program import RpcReply
from rpcrdma.rpc.secured import encrypted_size, sealed_reply
from rpcrdma.xdr.payload import Payload
from tests.unit.gss_support import SERVICE, realm

XID, SEQUENCE = 7, 9
NUMBER = struct.pack(">I", SEQUENCE)
HEAD = struct.pack(">6I", XID, 1, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sealer, Sealer]]:
    """The sealers of a client and of a server."""
    with realm(tmp_path_factory.mktemp("realm")) as example:
        credential = Credential("nfs", {"rcache": "none:", "keytab": f"FILE:{example.directory}/keytab"}, True)
        client, server = Initiation(SERVICE), Acceptance()
        client.step(server.step(credential, client.step(b"")))
        yield Sealer(client.export()), Sealer(server.export())


class Hold:
    """What keeps octets, and counts how often they are let go."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.released = 0

    def release(self) -> None:
        self.released += 1


def reply_of(parts: list[bytes | int]) -> tuple[RpcReply, bytes, list[Hold]]:
    """A reply of octets in the head and payloads of so many octets; its results as they stand without chunks."""
    head, whole, payloads, holds = HEAD, b"", [], []
    for part in parts:
        if isinstance(part, bytes):
            head += part
            whole += part
        else:
            octets = os.urandom(part)
            holds.append(Hold(0))
            payloads.append((len(head), Payload(memoryview(octets), holds[-1])))
            whole += octets + bytes(-part & 3)
    return RpcReply(XID, head, payloads), whole, holds


def octets_of(reply: RpcReply) -> bytes:
    """As transports send it: what is XDR of its own stands where it is, and gets no padding."""
    sent, at = b"", 0
    for offset, payload in reply.payloads:
        assert not payload.eligible
        assert len(payload) % 4 == 0
        sent += reply.head[at:offset] + bytes(payload.view)
        at = offset
    return sent + reply.head[at:]


PARTS: dict[str, list[Any]] = {
    "nothing": [],
    "a head": [b"abcd"],
    "a payload": [b"abcd", 4096],
    "an odd one": [b"abcd", 4097, b"last"],
    "short ones": [1, b"abcd", 3, 0, b"efgh", 2],
    "long ones": [b"abcd", 100_003, b"efgh" * 9, 65_536, 5, b"ijkl"],
    "many": [b"a word, and one more", 17] * 40,
}


@pytest.mark.parametrize("service", [INTEGRITY, PRIVACY])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_client_finds_the_results(ends: tuple[Sealer, Sealer], parts: list[bytes | int], service: int) -> None:
    client, server = ends
    reply, whole, holds = reply_of(parts)
    credential = GssCredential(1, DATA, SEQUENCE, service, b"h" * 16)
    lease: Any = Hold(encrypted_size(server, reply)) if service == PRIVACY and len(reply) > 60_000 else None
    sealed = sealed_reply(server, credential, reply, server.sign(NUMBER), lease)
    octets = octets_of(sealed)
    assert len(octets) % 4 == 0
    assert octets[:12] == HEAD[:12]
    start = _check_verifier(client, octets, NUMBER)
    assert octets[start : start + 4] == bytes(4)
    assert _open(client, service, memoryview(octets)[start + 4 :], SEQUENCE) == whole
    sealed.release()
    sealed.release()
    assert [hold.released for hold in holds] == [1] * len(holds)
    assert lease is None or lease.released == 1


def test_a_mic_of_pieces_is_that_of_the_whole(ends: tuple[Sealer, Sealer]) -> None:
    client, server = ends
    octets = os.urandom(70_000)
    for cuts in ((0,), (1, 2, 3), (4, 4, 69_999), tuple(range(0, 70_000, 999))):
        edges = (0, *cuts, len(octets))
        pieces = [memoryview(octets)[start:end] for start, end in itertools.pairwise(edges)]
        assert client.verify(octets, server.sign(*pieces))


def test_what_is_no_mic_is_refused(ends: tuple[Sealer, Sealer]) -> None:
    client, server = ends
    for size in (0, 4, 100, 20_000):
        octets = os.urandom(size)
        mic = server.sign(octets)
        assert client.verify(octets, mic)
        for length in range(len(mic)):
            assert not client.verify(octets, mic[:length])
        assert not client.verify(octets, mic + b"\0")
        assert not client.verify(octets + b"\0", mic)
        for at in range(len(mic)):
            assert not client.verify(octets, mic[:at] + bytes([mic[at] ^ 1]) + mic[at + 1 :])
        # The library has an assertion about two of the octets, where it is asked in another way.
        assert not client.verify(octets, mic[:6] + bytes(2) + mic[8:])
        assert not server.verify(octets, mic)  # its own
    for length in range(80):
        assert not client.verify(b"octets", os.urandom(length))


def test_what_is_not_encrypted_by_the_other_side_is_refused(ends: tuple[Sealer, Sealer]) -> None:
    """Every octet of the header with every value: flags, filler, extra count and rotation among them (RFC 4121 section
    4.2.6.2)."""
    client, server = ends
    size = 100
    room = server.room(size)
    token = bytearray(sum(room) + size)
    token = token[: server.wrap(token, room, size)]
    start, length = client.unwrap(bytearray(token))
    assert length == size
    for at in range(48):
        for value in range(256):
            changed = bytearray(token)
            changed[at] = value
            if changed == token or at in range(8, 16):  # the sender's number says nothing here
                continue
            try:
                where, length = client.unwrap(changed)
            except GssError:
                continue
            # The filler is not protected, and a rotation of the whole length is none.
            assert (where, length) == (start, size)
    for length in range(len(token)):
        with pytest.raises(GssError):
            client.unwrap(bytearray(token[:length]))
