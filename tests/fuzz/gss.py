"""Target ``gss``: calls under RPCSEC_GSS whose credentials, verifiers and bodies are damaged (``rpcrdma/rpc/secured``).

Kerberos is stood in for by a checksum with a key, so that no KDC is needed and every octet counts. An input is a few
calls of one dispatcher, of contexts that there are and are not, and of all services; some octets are changed, put in
or left out.

What must hold
    Each call has the one outcome that a reader written with the declared XDR types predicts from RFC 2203 (section
    5.3.3): executed, denied with which status, garbage, or dropped. A procedure is carried out for calls with a good
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
from rpcrdma.rpc.messages import opaque_auth
from rpcrdma.rpc.program import Call, Procedure, Program
from rpcrdma.xdr import Decoder, XdrError, opaque, uint32
from rpcrdma.xdr import struct as xdr_struct
from tests.fuzz.iwarp_fakes import Errors
from tests.fuzz.nfs3_calls import Input
from tests.unit.rpc_support import FakeTransport

PROGRAM, TEXT = 0x20000079, Annotated[bytes, opaque(64)]
HANDLES = (b"a" * 16, b"b" * 16, b"nobody's", b"")
MOST_CALLS, MOST_NUMBERS = 6, 1 << 31


@xdr_struct
class rpc_gss_cred:
    version: uint32
    procedure: uint32
    sequence: uint32
    service: uint32
    handle: Annotated[bytes, opaque(64)]


@xdr_struct
class rpc_gss_integ_data:
    body: Annotated[bytes, opaque(1 << 20)]
    checksum: Annotated[bytes, opaque(1 << 20)]


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

    def admit(self, sequence: int) -> int:
        if sequence in self.seen:
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
            wanted = expected(message, acceptor)
            replies: list[Any] = []
            dispatcher.dispatch(FakeTransport(), memoryview(bytearray(message)), (), [], replies.append)  # type: ignore[arg-type]
            for _ in range(20):
                if replies:
                    break
                await asyncio.sleep(0)
            (reply,) = replies
            found = outcome(reply)
            assert found == wanted[0], (found, wanted, message.hex())
            assert len(done) - executed == (found == "SUCCESS" and wanted[1] is not None)
            if wanted[1] is not None:
                context, credential, text = wanted[1]
                assert done[-1] == text
                assert opened(bytes(reply.head), context, credential) == opaque_of(text)
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


def outcome(reply: Any) -> str:
    from tests.unit.gss_support import outcome as named

    return named(reply) if reply is not NO_REPLY else "dropped"


def expected(message: bytes, acceptor: Acceptor) -> tuple[str, Any]:
    """What becomes of a call, and with what: by the declared types, from the RFC."""
    decoder = Decoder(message, (), 24)
    try:
        cred = decoder.decode(opaque_auth)
        end = decoder.position
    except XdrError:
        length = int.from_bytes(message[28:32], "big")
        return ("AUTH_BADCRED" if length > 400 else "GARBAGE_ARGS"), None
    if len(message) - end < 8:
        return "GARBAGE_ARGS", None
    body, procedure = bytes(cred.body), message[23]
    if len(body) >= 4 and body[:4] != struct.pack(">I", 1):
        return "AUTH_BADCRED", None
    try:
        credential = Decoder(body)
        who = credential.decode(rpc_gss_cred)
        credential.finish(strict=True)
    except XdrError:
        return "AUTH_BADCRED", None
    if who.procedure > 3 or (who.procedure in (0, 3) and who.service not in (1, 2, 3)):
        return "AUTH_BADCRED", None
    flavor, size = struct.unpack_from(">II", message, end)
    start = end + 8 + size + (-size & 3)
    if start > len(message):
        return "GARBAGE_ARGS", None
    if who.procedure in (1, 2):  # no verifier here is the empty one that these have
        return "AUTH_BADVERF" if (flavor, size) != (0, 0) else "AUTH_BADCRED", None
    context = acceptor.find(bytes(who.handle))
    if context is None or not context.sealer.verify(message[:end], message[end + 8 : end + 8 + size]):
        return "RPCSEC_GSS_CREDPROBLEM", None
    if who.sequence >= MOST_NUMBERS:
        return "RPCSEC_GSS_CTXPROBLEM", None
    if who.sequence in context.seen:
        return "dropped", None
    if who.procedure == 3:
        return ("AUTH_BADCRED" if procedure else "SUCCESS"), None
    text = arguments(message[start:], who, context)
    return ("GARBAGE_ARGS", None) if text is None else ("SUCCESS", (context, who, text))


def arguments(octets: bytes, who: rpc_gss_cred, context: Context) -> bytes | None:
    """Those of REPEAT; None: they are garbage."""
    try:
        if who.service == 2:
            decoder = Decoder(octets)
            both = decoder.decode(rpc_gss_integ_data)
            decoder.finish(strict=True)
            if len(both.body) & 3 or not both.checksum or not context.sealer.verify(both.body, both.checksum):
                return None
            octets = bytes(both.body)
        elif who.service == 3:
            decoder = Decoder(octets)
            token = bytearray(decoder.opaque(1 << 20))
            decoder.finish(strict=True)
            start, length = context.sealer.unwrap(token)
            octets = bytes(token[start : start + length])
        decoder = Decoder(octets)
        if who.service != 1 and decoder.uint32() != who.sequence:
            return None
        text = bytes(decoder.decode(TEXT))
        decoder.finish()
    except (XdrError, GssError):
        return None
    return text


def opened(reply: bytes, context: Context, who: rpc_gss_cred) -> bytes:
    """The results of a reply, without their protection, which must be as it should be."""
    number = struct.pack(">I", who.sequence)
    assert reply[12:20] == struct.pack(">II", 6, 8)
    assert context.sealer.verify(number, reply[20:28])
    results = reply[32:]
    if who.service == 1:
        return results
    if who.service == 2:
        both = Decoder(results).decode(rpc_gss_integ_data)
        assert context.sealer.verify(both.body, both.checksum)
        body = bytes(both.body)
    else:
        token = bytearray(Decoder(results).opaque(1 << 20))
        start, length = context.sealer.unwrap(token)
        body = bytes(token[start : start + length])
    assert body[:4] == number
    return body[4:]
