"""What a responder keeps of the calls and chains in its hands. Imports :mod:`rpcrdma.wire` and this package."""

from __future__ import annotations

from collections import deque

from rpcrdma.engine.assembly import ReadPlan
from rpcrdma.engine.reduce import Reply
from rpcrdma.holds import Hold
from rpcrdma.memory import Lease
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.header import REPLY, Fault, Header, encode_version_error
from rpcrdma.wire.transport_header import offers
from rpcrdma.wire.version_two import VersionTwo

_NOTHING = memoryview(b"")


class ForwardCall:
    """One call of the peer's. Once handed up, ``holds`` are its taker's to release; also the token of its Reads."""

    __slots__ = ("chunks", "codec", "data", "header", "holds", "plan", "reply_header", "sink")

    def __init__(self, codec: Codec, header: Header, reply_header: int, data: memoryview, holder: Hold) -> None:
        self.codec = codec
        self.header = header
        self.reply_header = reply_header
        """Octets of the header of any reply."""
        self.data = data
        """The reduced payload stream: the whole RPC message but what is in ``chunks``."""
        self.chunks: list[tuple[int, memoryview]] = []
        """(position in the unreduced stream, data), ascending. Data may end with its XDR padding, or not."""
        self.holds: list[Hold] = [holder]
        self.plan: ReadPlan | None = None
        self.sink = _NOTHING

    def hold_sink(self, lease: Lease) -> None:
        """Give the call the memory its Read chunks are fetched to."""
        self.holds.append(lease)
        self.sink = lease.view

    def place(self) -> None:
        """The Read chunks have been fetched: make them accessible."""
        plan = self.plan
        if plan is None:
            return
        self.chunks = plan.placed(self.sink)
        body = plan.body
        if body is not None:
            self.data = self.sink[body.start : body.start + body.length]

    def release(self) -> None:
        """Let go of a call that is not handed up."""
        self.data = self.sink = _NOTHING
        self.chunks = []
        holds, self.holds = self.holds, []
        for lease in holds:
            lease.release()


class Chain:
    """The token of a posted chain: what has to stay untouched until it has completed."""

    __slots__ = ("lease", "reply", "written")

    def __init__(self, written: Header | None = None, reply: Reply | None = None, lease: Lease | None = None) -> None:
        self.written = written
        """The header of the call to whose chunks the chain writes."""
        self.reply = reply
        self.lease = lease

    def release(self) -> None:
        """The chain has completed, or will never be posted."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.release()
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class Refusal:
    """An error to be sent instead of a reply."""

    __slots__ = ("codec", "fault", "version", "xid")

    def __init__(self, xid: int, version: int, fault: Fault, codec: Codec | None) -> None:
        self.xid = xid
        self.version = version
        self.fault = fault
        self.codec = codec
        """None where the version is the fault."""

    def encode(self, grant: int, versions: range) -> bytes:
        """The message. ``versions`` are those that there are at this end."""
        if self.codec is None:
            return encode_version_error(self.xid, self.version, grant, versions[0], versions[-1])
        return self.codec.encode_error(self.xid, grant, self.fault)


class OptionAnswer:
    """The answer to an RDMA2_OPTIONAL message."""

    __slots__ = ("info", "opttype", "xid")

    def __init__(self, xid: int, opttype: int, info: bytes) -> None:
        self.xid = xid
        self.opttype = opttype
        self.info = info

    def encode(self, grant: int) -> bytes:
        """The message; of a Responder, it has direction REPLY ("Message Direction")."""
        return VersionTwo().encode_option(self.xid, grant, REPLY, self.opttype, self.info)


class Suspects:
    """Calls whose memory the peer may turn out to have refused us (RFC 8166 section 4.5.3)."""

    __slots__ = ("failed", "written")

    def __init__(self) -> None:
        self.failed: Header | None = None
        """The call whose RDMA operation was the first to fail."""
        self.written: deque[Header] = deque(maxlen=64)
        """Calls recently written to: a Write that was reported as done may yet have been refused."""

    def refused_call(self, handle: int | None) -> int | None:
        """The XID of the call whose memory was refused, so far as it can be told; ``handle`` is that memory's."""
        failed = self.failed
        if handle is not None:
            for header in (failed, *reversed(self.written)):
                if header is not None and offers(header, handle):
                    return header.xid
        return None if failed is None else failed.xid
