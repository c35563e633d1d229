"""Targets ``version_one`` and ``version_two``: what a peer's Send goes through, from its header to its arguments.

An input is a series of messages, each behind its length in two octets (the last one takes what is left). The version
word of each is set to the target's unless its top bit is set. Each message is decoded on its own and its parts encoded
again; then all of them go to one responder (a state machine without I/O), whose answers are read by the headers of
:mod:`rpcrdma.peer.wire`, written independently of the code under test.

What must hold
    Headers: only Discard and HeaderFault are raised; what is decoded is bounded and encodes to the octets it came from;
    the reply to it has the size foretold; error messages decode to what was encoded; a second reading (tests/support)
    sees the same header.
    RPC and XDR: both codecs see the same value, the same error and the same place; with strict padding the value
    encodes to the very octets it came from.
    Responder: nothing is raised; every call has one answer, never with a grant of zero; RDMA Writes stay within the
    segments offered, RDMA Reads within what may be leased; after the end no buffer is missing.
"""

from __future__ import annotations

import struct
from typing import Any

from nfsd.protocol import nfs3
from nfsd.protocol.nfs4_ops import CALLBACK_OPERATIONS, OPERATIONS
from rpcrdma.engine.backward import BackwardCall
from rpcrdma.engine.config import ResponderOptions
from rpcrdma.engine.responder import Responder
from rpcrdma.memory import Pool
from rpcrdma.peer.wire import ReplyHeader
from rpcrdma.rpc import messages
from rpcrdma.wire import private_data
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.errors import decode_error
from rpcrdma.wire.header import (
    CALL,
    OPTION,
    RDMA_ERROR,
    REPLY,
    SMALLEST_HEADER,
    UNDECIDED,
    Discard,
    Fault,
    Header,
    HeaderFault,
    MessageHeader,
    OptionHeader,
    encode_version_error,
)
from rpcrdma.wire.private_data import PrivateData, Properties
from rpcrdma.wire.transport_header import offers
from rpcrdma.wire.version_one import VersionOne
from rpcrdma.wire.version_two import VersionTwo
from rpcrdma.xdr import XdrError, codec, native
from rpcrdma.xdr.payload import Payload
from tests.support.headers import check_header as compared
from tests.unit.xdr_values import DECLARED

LARGEST = 4096
MOST_MESSAGES = 8
MAX_SEGMENTS = 96
MAX_CALL = 1 << 16
CREDITS = 4
BACKWARD_XID = 0x7BAC0001

ARGUMENTS: dict[tuple[int, int, int], Any] = {
    (nfs3.NFS_PROGRAM, 3, number): types.arguments
    for number, types in nfs3.PROCEDURES.items()
    if types.arguments is not None
}
"""Declared arguments by program, version and procedure. Any other program names one of all declarations."""
COMPOUNDS = {nfs3.NFS_PROGRAM: OPERATIONS, 0x40000000: CALLBACK_OPERATIONS}
"""What the COMPOUND (version 4 or 1, procedure 1) of a program consists of."""
MOST_OPERATIONS = 16

OPTIONS = ResponderOptions(
    credits=CREDITS, backward_credits=2, max_segments=MAX_SEGMENTS, max_call_size=MAX_CALL, remote_invalidation=True
)


def split(data: bytes) -> list[bytes]:
    """The messages of an input."""
    found = []
    while len(data) >= 2 and len(found) < MOST_MESSAGES:
        size = int.from_bytes(data[:2], "big")
        found.append(data[2 : 2 + min(size, LARGEST)])
        data = data[2 + size :]
    return found


def join(messages: list[bytes]) -> bytes:
    """An input of these messages."""
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


def check_private_data(data: bytes) -> None:
    """RFC 8797: what is found is something that could have been sent."""
    found = private_data.find(data)
    agreed = private_data.negotiate(PrivateData(True, 4096, 4096), found)
    assert 1024 <= agreed.send_threshold <= 4096
    assert 1024 <= agreed.receive_threshold <= 4096
    if found is not None:
        assert private_data.find(b"\0" + found.encode()) == found
        assert found.encode()[:5] in data


def check_error(message: bytes) -> None:
    """An RDMA_ERROR that is understood encodes to the octets it came from."""
    error = decode_error(memoryview(message))
    if error is None:
        return
    assert str(error)
    credit = int.from_bytes(message[8:12], "big")
    if error.code == 1:
        again = encode_version_error(error.xid, error.version, credit, *error.versions)
    else:
        spoken: Codec = VersionOne() if error.version == 1 else VersionTwo()
        fault = {2: Fault.HEADER, 3: Fault.NO_ROOM, 4: Fault.PROCEDURE, 5: Fault.OPTION}[error.code]
        again = spoken.encode_error(error.xid, credit, fault, error.shortage)
    assert message.startswith(again)


def check_fault(spoken: Codec, fault: HeaderFault, message: bytes) -> None:
    """A header's fault names the message it is about, and its error message is understood."""
    assert (fault.xid, fault.version) == struct.unpack_from(">2I", message)
    error = decode_error(memoryview(spoken.encode_error(fault.xid, 1, fault.fault)))
    assert error is not None
    assert error.xid == fault.xid


def check_header(spoken: Codec, message: bytes) -> Header | None:
    """The header decodes, or is refused in the ways documented; and what was decoded is what stood there."""
    view = memoryview(message)
    compared(spoken, view, MAX_SEGMENTS)
    try:
        header = spoken.decode(view, MAX_SEGMENTS)
    except Discard:
        return None
    except HeaderFault as fault:
        check_fault(spoken, fault, message)
        return None
    assert SMALLEST_HEADER <= header.payload <= len(message)
    credit = int.from_bytes(message[8:12], "big")
    if isinstance(header, OptionHeader):
        assert isinstance(spoken, VersionTwo)
        again = spoken.encode_option(header.xid, credit, header.optdir, header.opttype, bytes(header.info))
        assert len(again) == header.payload
        assert message.startswith(again[: 28 + len(header.info)])
        return header
    chunks = [*header.writes, *([] if header.reply is None else [header.reply])]
    assert len(header.reads) + sum(len(chunk) for chunk in chunks) <= MAX_SEGMENTS
    assert len(header.writes) <= MAX_SEGMENTS
    handle = header.inv_handle if isinstance(header, MessageHeader) else 0
    again = spoken.encode_call(
        header.xid, credit, header.procedure, header.reads, header.writes, header.reply, invalidate=handle
    )
    if header.direction == REPLY and isinstance(header, MessageHeader):
        again = again[:16] + REPLY.to_bytes(4, "big") + again[20:]
    assert again == message[: header.payload]
    check_reply(spoken, header)
    return header


def check_reply(spoken: Codec, header: Header) -> None:
    """The reply's header, all chunks returned, has the size foretold and reads as it should."""
    size = spoken.reply_size(header)
    buffer = memoryview(bytearray(size))
    sizes = [sum(length for _, length, _ in chunk) for chunk in [*header.writes, header.reply or []]]
    assert spoken.encode_reply(buffer, header, 7, 0, sizes[:-1], sizes[-1]) == size
    seen = ReplyHeader.parse(bytes(buffer))
    assert (seen.xid, seen.credit, seen.procedure, seen.reads, seen.payload) == (header.xid, 7, 0, 0, b"")
    assert [[tuple(segment) for segment in chunk] for chunk in seen.writes] == header.writes
    assert (None if seen.reply is None else [tuple(segment) for segment in seen.reply]) == header.reply
    handle = spoken.invalidates(header)
    assert handle is None or offers(header, handle)


def read_chunks(header: Header, message: bytes) -> list[tuple[int, memoryview]]:
    """Octets for the Read chunks of ``header``, as a responder would hand them to the decoder."""
    lengths: dict[int, int] = {}
    for position, _, length, _ in header.reads:
        lengths[position] = lengths.get(position, 0) + length
    source = message * 2
    return [(position, memoryview(source[: min(length, len(source))])) for position, length in sorted(lengths.items())]


def decoded(module: Any, kind: Any, data: memoryview, chunks: Any, offset: int, strict: bool) -> tuple[Any, ...]:
    """Everything that can be seen of a decoding, or of its failure."""
    decoder = module.Decoder(data, chunks, offset, strict)
    try:
        value = decoder.decode(kind)
    except XdrError as raised:
        return type(raised), None
    after = (decoder.position, decoder.unreduced_position, decoder.remaining, decoder.skipped_chunk)
    try:
        decoder.finish(strict=True)
    except XdrError as raised:
        return type(raised), value, after
    return None, value, after


def check_type(kind: Any, data: memoryview, chunks: list[tuple[int, memoryview]], offset: int) -> int | None:
    """Both codecs agree. Returns where the value ends, None when there is none."""
    lenient = decoded(codec, kind, data, chunks, offset, False)
    assert decoded(native, kind, data, chunks, offset, False) == lenient, kind
    if len(lenient) == 2:
        return None
    strict = decoded(codec, kind, data, chunks, offset, True)
    assert decoded(native, kind, data, chunks, offset, True) == strict, kind
    end: int = lenient[2][0]
    if len(strict) == 3:
        assert strict == lenient
        if strict[2][1] == end:
            for module in (codec, native):
                encoder = module.Encoder(len(data))
                encoder.encode(kind, strict[1])
                assert encoder.getvalue() == data[offset:end], (kind, strict[1])
    return end


def check_compound(operations: Any, data: memoryview, chunks: list[tuple[int, memoryview]], offset: int) -> None:
    """The operations of a COMPOUND, each where the one before ends, as the server decodes them."""
    decoder = native.Decoder(data, (), offset)
    try:
        decoder.opaque(1024)
        decoder.uint32()
        count = decoder.uint32()
        at: int | None = decoder.position
        for _ in range(min(count, MOST_OPERATIONS)):
            if at is None:
                return
            operation = operations.get(native.Decoder(data, (), at).uint32())
            if operation is None:
                return
            at += 4
            if operation.arguments is not None:
                at = check_type(operation.arguments, data, chunks, at)
    except XdrError:
        return


def check_rpc(header: Header, message: bytes) -> None:
    """The payload stream as an RPC message, and behind it the arguments that it announces."""
    data = memoryview(message)[header.payload :]
    chunks = read_chunks(header, message)
    decoder = native.Decoder(data, [], 0)
    try:
        rpc = decoder.decode(messages.rpc_msg)
    except XdrError:
        check_type(messages.rpc_msg, data, [], 0)
        return
    check_type(messages.rpc_msg, data, [], 0)
    body = rpc.body.cbody
    if body is None:
        return
    if body.cred.flavor == 1:
        check_type(messages.authsys_parms, memoryview(body.cred.body), [], 0)
    if body.prog in COMPOUNDS and body.vers in (1, 4) and body.proc == 1:
        check_compound(COMPOUNDS[body.prog], data, chunks, decoder.position)
        return
    kind = ARGUMENTS.get((body.prog, body.vers, body.proc), DECLARED[body.prog % len(DECLARED)])
    check_type(kind, data, chunks, decoder.position)


class _Reply:
    """A reply whose size follows from the call, with a payload where a Write chunk is offered."""

    def __init__(self, call: Any, account: Any) -> None:
        self.released = 0
        octets = bytes(call.data[-4:]).rjust(4, b"\0")
        self.head = struct.pack(">II", call.header.xid, 1) + bytes(octets[0] % 64 * 4)
        self.payloads: list[tuple[int, Payload]] = []
        if octets[1] & 1:
            size = int.from_bytes(octets[2:], "big") % 9000
            lease = account.lease(size)
            self.payloads.append((8, Payload(lease.view[:size], lease)))

    def release(self) -> None:
        self.released += 1
        for _, payload in self.payloads:
            payload.release()


def check_responder(pool: Pool, inputs: list[bytes]) -> None:
    """All messages go to one responder; see the module's text for what must hold of its outputs."""
    receives, account = pool.account(1 << 20), pool.account(16 << 20)
    posted = [receives.lease(LARGEST) for _ in range(CREDITS + 2)]
    responder = Responder(OPTIONS, Properties(4096, 4096, True), len(posted), receives, account, lambda: None)
    replies: list[_Reply] = []
    backward: list[bytes | None] = []
    expected = answered = 0

    def drive() -> None:
        nonlocal answered
        while responder.receives or responder.reads or responder.chains or responder.calls:
            posted.extend(responder.receives)
            responder.receives.clear()
            reads, responder.reads = responder.reads, []
            for work, token in reads:
                assert sum(len(read.sink) for read in work) <= MAX_CALL
                for read in work:
                    read.sink[:] = (struct.pack(">II", token.header.xid, 0) * (len(read.sink) // 8 + 1))[
                        : len(read.sink)
                    ]
                responder.completed(token, True)
            calls, responder.calls = responder.calls, []
            for call in calls:
                reply = _Reply(call, account)
                replies.append(reply)
                for lease in call.holds:
                    lease.release()
                offered[call.header.xid] = call.header
                responder.reply(call, reply)
            chains, responder.chains = responder.chains, []
            for writes, send, token in chains:
                message = b"".join(bytes(part) for part in send.segments)
                assert len(message) <= LARGEST
                seen = ReplyHeader.parse(message)
                assert seen.credit > 0
                if seen.xid != BACKWARD_XID or seen.reads or seen.procedure:
                    answered += 1
                elif message == first_backward:
                    pass
                else:
                    answered += 1
                check_writes(writes, offered.get(seen.xid))
                responder.completed(token, True)

    offered: dict[int, Header] = {}
    call = BackwardCall(BACKWARD_XID, struct.pack(">10I", BACKWARD_XID, 0, 2, 1, 1, 0, 0, 0, 0, 0), backward.append)
    first_backward = b""
    if inputs and inputs[0][-1:] > b"\x7f":
        responder.call_back(call)
        sends = [b"".join(bytes(part) for part in send.segments) for _, send, _ in responder.chains]
        if sends:
            first_backward = sends[0]
        drive()
    for message in inputs:
        if not posted:
            break
        lease = posted.pop(0)
        lease.view[: len(message)] = message
        before = (responder.counters.discards, responder.counters.receives)
        responder.received([(lease, len(message), None)])
        drive()
        assert responder.failure is None
        assert responder.counters.receives == before[1] + 1
        expected += 1
    assert answered <= expected
    assert responder.idle
    assert responder.credits.posted == len(posted) == CREDITS + 2
    assert all(reply.released == 1 for reply in replies)
    assert len(backward) <= 1
    responder.close()
    for lease in posted:
        lease.release()
    assert pool.in_use == 0
    assert pool.leaked == 0


def check_writes(writes: Any, header: Header | None) -> None:
    """Nothing is written but to what the call offered."""
    for write in writes:
        assert header is not None
        chunks = [*header.writes, *([] if header.reply is None else [header.reply])]
        assert any(
            handle == write.handle and offset <= write.offset and write.offset + len(write.source) <= offset + length
            for chunk in chunks
            for handle, length, offset in chunk
        )


class Target:
    """One version's decoders."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.codec: Codec = VersionOne() if version == 1 else VersionTwo()
        self.pool = Pool(64 << 20)
        self.reached: dict[str, int] = {}

    def close(self) -> None:
        """Nothing outlives an input."""

    def one(self, data: bytes) -> None:
        """Check one input. Raises AssertionError, or whatever the code under test should not have raised."""
        inputs = [self.of_version(message) for message in split(data)]
        for message in inputs:
            self.message(message)
        check_responder(self.pool, inputs)

    def of_version(self, message: bytes) -> bytes:
        """The message in the target's version, unless the top bit of its version is set."""
        if len(message) < 8 or message[4] & 0x80:
            return message
        return message[:4] + self.version.to_bytes(4, "big") + message[8:]

    def message(self, message: bytes) -> None:
        """Check one message on its own."""
        check_private_data(message[:64])
        check_error(message)
        if len(message) < SMALLEST_HEADER or int.from_bytes(message[4:8], "big") != self.version:
            return
        if int.from_bytes(message[12:16], "big") == RDMA_ERROR:
            return
        header = check_header(self.codec, message)
        if header is not None and header.direction in (CALL, REPLY, UNDECIDED, OPTION):
            check_rpc(header, message)
