"""MPA frames from octets: decoded and encoded again, answered, and fed to a listener in cuts."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from rpcrdma.memory import Pool
from rpcrdma.verbs.softiwarp import mpa
from rpcrdma.verbs.softiwarp.endpoint import Endpoint
from rpcrdma.verbs.softiwarp.listener import HalfOpen
from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions
from tests.fuzz.iwarp_fakes import Loop, Owner

OPTIONS = SoftIwarpOptions(fpdu="max", keepalive=0)


def check_frames(data: bytes, pool: Pool) -> None:
    """MPA frames: as functions, and as a listener takes them."""
    for key in (mpa.REQUEST_KEY, mpa.REPLY_KEY):
        octets = key + data[1:]
        try:
            length = mpa.frame_length(octets[:20], key) if len(octets) >= 20 else 0
            if length < 20 or length > len(octets):
                continue
            frame = mpa.decode(octets[:length], key)
        except mpa.MpaError:
            continue
        again = frame.encode(key)
        assert mpa.decode(again, key) == frame
        assert len(again) == length
        if key == mpa.REQUEST_KEY:
            reply, agreement = mpa.respond(
                frame, b"private", wanted_reads=4, inbound_reads=16, default_reads=16, crc=False
            )
            assert agreement.outbound_reads in range(1, 17)
            assert agreement.inbound_reads in range(17)
            assert mpa.decode(reply.encode(mpa.REPLY_KEY), mpa.REPLY_KEY) == reply
            assert mpa.decode(mpa.reject(frame, data).encode(mpa.REPLY_KEY), mpa.REPLY_KEY).rejected
        else:
            for revision in (1, 2):
                sent = mpa.request(
                    b"",
                    initiator_depth=4,
                    responder_resources=16,
                    crc=False,
                    revision=revision,
                    peer_to_peer=length % 2 > 0,
                )
                with contextlib.suppress(mpa.MpaError):
                    agreed = mpa.conclude(sent, frame, initiator_depth=4, responder_resources=16, max_inbound_reads=128)
                    assert agreed.outbound_reads <= 4
                    assert agreed.inbound_reads <= 128
    check_listener(data, pool)


class Named(socket.socket):
    """A socket of a pair, which has no address of its own."""

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1


class _Listening:
    """What a half-open connection needs of its provider."""

    def __init__(self, loop: Loop) -> None:
        self.loop: Any = loop
        self.options = OPTIONS
        self.hosts = None
        self.half_open: dict[HalfOpen, None] = {}
        self.endpoints: list[Endpoint] = []

    def adopt(self, endpoint: Endpoint) -> None:
        self.endpoints.append(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        self.endpoints.remove(endpoint)


def check_listener(data: bytes, pool: Pool) -> None:
    """Octets in cuts to a half-open connection: a Reply, a rejection or the end; what follows the frame is FPDUs."""
    loop, owner = Loop(), Owner()
    listening = _Listening(loop)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    first = data[:1] or b"\0"
    octets = data if first[0] & 1 else mpa.REQUEST_KEY + data[1:]
    account = pool.account(1 << 20)

    def on_request(request: Any) -> None:
        if request.private_data[:1] == b"R":
            request.reject(b"no")
        else:
            request.accept(owner, b"yes", [account.lease(1024)], initiator_depth=4)

    half = HalfOpen(listening, Named(fileno=theirs.detach()), ("127.0.0.1", 1), on_request)
    step = (first[0] >> 1) % 23 + 1
    for start in range(0, len(octets), step):
        with contextlib.suppress(OSError):
            ours.send(octets[start : start + step])
        for _ in range(3):
            reader = next(iter(loop.readers.values()), None)
            if reader is not None:
                reader()
        loop.run()
    reply = b""
    with contextlib.suppress(OSError):
        reply = ours.recv(1 << 16)
    if reply:
        assert mpa.frame_length(reply[:20], mpa.REPLY_KEY) <= len(reply)
    ours.close()
    for _ in range(3):
        reader = next(iter(loop.readers.values()), None)
        if reader is not None:
            reader()
        loop.run()
    loop.expire()
    half.drop("the end")
    assert not listening.half_open
    assert not listening.endpoints
    assert not loop.readers
    assert account.in_use == 0
