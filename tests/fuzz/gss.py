"""Target ``gss``: calls under RPCSEC_GSS whose credentials, verifiers and bodies are damaged (``rpcrdma/rpc/secured``).

Kerberos is stood in for by a checksum with a key, so that no KDC is needed and every octet counts. An input is a few
calls of one dispatcher, of contexts that there are and are not, and of all services; some octets are changed, put in
or left out.

What must hold
    Each call has the one outcome that :mod:`tests.fuzz.gss_model` predicts from RFC 2203 (section 5.3.3): executed,
    denied with which status, garbage, or dropped. A procedure is carried out for calls with a good
    signature alone, and once for each sequence number. The reply is signed, and its results are protected as those of
    the call were. Nothing is logged as our mistake, and nothing is held afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Annotated, Any
from zlib import crc32

from rpcrdma.gss.acceptor import AcceptorLimits, Busy
from rpcrdma.gss.mechanism import GssError
from rpcrdma.rpc.dispatch import NO_REPLY, Dispatcher
from rpcrdma.rpc.program import Call, Procedure, Program
from rpcrdma.xdr import Decoder, XdrError, opaque
from tests.fuzz.gss_model import MOST_NUMBERS, expected, opened
from tests.fuzz.iwarp_fakes import Errors
from tests.fuzz.nfs3_calls import Input
from tests.unit.rpc_support import FakeTransport

PROGRAM, TEXT = 0x20000079, Annotated[bytes, opaque(64)]
HANDLES = (b"a" * 16, b"b" * 16, b"nobody's", b"")
MOST_CALLS = 6


class Seal:
    """A mechanism that a test can follow."""

    def __init__(self, key: int) -> None:
        self.key = key

    def sign(self, octets: Any) -> bytes:
        return struct.pack(">II", crc32(octets, self.key), len(octets))

    def verify(self, octets: Any, mic: Any) -> bool:
        return bytes(mic) == self.sign(octets)

    def room(self, size: int) -> tuple[int, int, int]:
        return 4, 0, 8

    def wrap(self, into: Any, room: tuple[int, int, int], size: int) -> int:
        into[:4] = b"wrap"
        into[4 : 4 + size] = bytes(octet ^ 0x55 for octet in into[4 : 4 + size])
        into[4 + size : 12 + size] = self.sign(into[: 4 + size])
        return size + 12

    def unwrap(self, token: Any) -> tuple[int, int]:
        end = len(token) - 8
        if end < 4 or bytes(token[:4]) != b"wrap" or not self.verify(token[:end], token[end:]):
            raise GssError("not ours")
        token[4:end] = bytes(octet ^ 0x55 for octet in token[4:end])
        return 4, end - 4


class Context:
    """Stands for an established context."""

    def __init__(self, handle: bytes, key: int) -> None:
        self.handle, self.sealer, self.digest = handle, Seal(key), key
        self.principal, self.identity, self.credentials = f"{key}@A", None, ()
        self.seen: set[int] = set()

    def fresh(self, sequence: int) -> bool:
        return sequence not in self.seen

    def admit(self, sequence: int) -> int:
        if not self.fresh(sequence):
            return 1
        self.seen.add(sequence)
        return 0

    @contextmanager
    def lent(self) -> Iterator[Seal]:
        yield self.sealer


class Acceptor:
    """Stands for the one with Kerberos behind it."""

    def __init__(self) -> None:
        self.limits, self.counts = AcceptorLimits(), Counter[str]()
        self.contexts = {handle: Context(handle, index + 1) for index, handle in enumerate(HANDLES[:2])}
        self.table, self.crew = SimpleNamespace(by_handle=self.contexts), None

    def find(self, handle: bytes) -> Context | None:
        return self.contexts.get(handle)

    def destroy(self, context: Context) -> None:
        del self.contexts[context.handle]

    async def work(self, function: Any) -> Any:
        return function()

    async def make(self, host: str, handle: bytes, token: bytes) -> Any:
        raise KeyError(handle) if handle else Busy


def opaque_of(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) & 3)


def damaged(source: Input, octets: bytes) -> bytes:
    changed = bytearray(octets)
    for _ in range(max(source.octet() % 8 - 5, 0)):
        kind, value, at = source.octet(), source.octet(), source.number() % (len(changed) + 1)
        if kind % 3 == 0:
            changed[at : at + 1] = bytes((value,))
        elif kind % 3 == 1:
            del changed[at & ~3 : (at & ~3) + 4 * (value % 3)]
        else:
            changed[at & ~3 : at & ~3] = bytes((value,)) * 4
    return bytes(changed)


class Target:
    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._errors = Errors()
        logging.getLogger("rpcrdma").addHandler(self._errors)

    def close(self) -> None:
        logging.getLogger("rpcrdma").removeHandler(self._errors)
        self._loop.close()

    def one(self, data: bytes) -> None:
        self._loop.run_until_complete(self._one(Input(data)))
        assert not self._errors.records, self._errors.records

    async def _one(self, source: Input) -> None:
        done: list[bytes] = []

        async def repeat(call: Call, text: bytes) -> bytes:
            done.append(bytes(text))
            return bytes(text)

        rows = {0: Procedure("NULL", repeat, TEXT, TEXT), 1: Procedure("REPEAT", repeat, TEXT, TEXT)}
        acceptor = Acceptor()
        dispatcher = Dispatcher([Program(PROGRAM, "repeat", {1: rows})], gss=acceptor)  # type: ignore[arg-type]
        for _ in range(MOST_CALLS):
            if source.over:
                break
            message, executed = self._message(source, acceptor), len(done)
            wanted = expected(message, acceptor.find)
            text = None if wanted.arguments is None else text_of(wanted.arguments)
            if wanted.arguments is not None and text is None:
                wanted.outcome = "GARBAGE_ARGS"
            replies: list[Any] = []
            dispatcher.dispatch(FakeTransport(), memoryview(bytearray(message)), (), [], replies.append)  # type: ignore[arg-type]
            for _ in range(20):
                if replies:
                    break
                await asyncio.sleep(0)
            (reply,) = replies
            found = outcome(reply)
            assert found == wanted.outcome, (found, wanted, message.hex())
            assert len(done) - executed == (text is not None)
            if text is not None:
                assert done[-1] == text
                assert opened(bytes(reply.head), wanted.who, wanted.context.sealer) == opaque_of(text)
            self.reached[found] += 1
        assert not dispatcher.running
        assert not dispatcher.securing

    def _message(self, source: Input, acceptor: Acceptor) -> bytes:
        kind, sequence = source.octet(), source.octet() % 6
        handle, service = HANDLES[kind % 4], (kind >> 2) % 4
        sealer = Seal(HANDLES.index(handle) + 1)
        procedure = source.octet()
        number = (sequence, MOST_NUMBERS - 1, MOST_NUMBERS)[max(procedure % 16 - 13, 0)]
        version = 2 if procedure >> 4 == 15 else 1
        gss = (0, 0, 0, 0, 0, 1, 2, 3)[(procedure >> 4) % 8]
        fields = struct.pack(">4I", version, gss, number, service) + opaque_of(handle)
        cred = damaged(source, fields)
        head = struct.pack(">8I", 7, 0, 2, PROGRAM, 1, procedure & 1, 6, len(cred)) + cred + bytes(-len(cred) & 3)
        mic = damaged(source, sealer.sign(head))
        text = opaque_of(b"t" * (source.octet() % 20))
        body = struct.pack(">I", number) + text
        if service == 2:
            text = opaque_of(body) + opaque_of(sealer.sign(body))
        elif service == 3:
            token = bytearray(b"    " + body + bytes(8))
            sealer.wrap(token, (4, 0, 8), len(body))
            text = opaque_of(bytes(token))
        return head + struct.pack(">I", 6) + opaque_of(mic) + damaged(source, text)


def text_of(arguments: bytes) -> bytes | None:
    """Those of REPEAT; None: they are garbage."""
    decoder = Decoder(arguments)
    try:
        text = bytes(decoder.decode(TEXT))
        decoder.finish()
    except XdrError:
        return None
    return text


def outcome(reply: Any) -> str:
    from tests.unit.gss_support import outcome as named

    return named(reply) if reply is not NO_REPLY else "dropped"
