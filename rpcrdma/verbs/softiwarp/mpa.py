"""MPA connection setup: the Request and Reply frames and what the two ends agree on.

Owns RFC 5044 section 7.1 (frames, startup rules) and RFC 6581 sections 6 and 9 (enhanced frames, IRD and ORD, RTR).
Without I/O; imports nothing of the project.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
HEADER_LENGTH = 20
MAX_PRIVATE_DATA = 512
"""RFC 5044 section 7.1.1."""
ENHANCED_LENGTH = 4
LEFT_TO_ULP = 0x3FFF
"""An IRD or ORD that is not negotiated (RFC 6581 section 9.1)."""

_FLAG_MARKERS, _FLAG_CRC, _FLAG_REJECTED, _FLAG_ENHANCED = 0x80, 0x40, 0x20, 0x10

INSUFFICIENT_IRD = 0x06
NO_MATCHING_RTR = 0x07
"""MPA error codes of RFC 6581 section 8, sent in a Terminate of layer LLP."""


class MpaError(Exception):
    """The frame is improperly formatted or not to be accepted: the connection is closed (RFC 5044 section 7.1.2)."""


class MpaReject(MpaError):
    """The Request is well formed but refused: answer with a Reply that has R set."""


class MpaTerminate(MpaError):
    """The Reply cannot be agreed to: send a Terminate of layer LLP with ``code`` (RFC 6581 section 8)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RTR(enum.IntFlag):
    """Ready-To-Receive indications of the peer-to-peer model (RFC 6581 section 9.2, control flags B, C, D)."""

    NONE = 0
    SEND = 4
    WRITE = 2
    READ = 1


@dataclass(frozen=True, slots=True)
class Enhanced:
    """The 4 octets before the private data when S is set (RFC 6581 section 9). IRD and ORD are the sender's own."""

    ird: int = 0
    ord: int = 0
    peer_to_peer: bool = False
    rtr: RTR = RTR.NONE

    def encode(self) -> bytes:
        """Return the 4 octets."""
        first = self.peer_to_peer << 15 | bool(self.rtr & RTR.SEND) << 14 | self.ird
        second = bool(self.rtr & RTR.WRITE) << 15 | bool(self.rtr & RTR.READ) << 14 | self.ord
        return first.to_bytes(2, "big") + second.to_bytes(2, "big")

    @classmethod
    def decode(cls, data: bytes) -> Enhanced:
        """Read the 4 octets."""
        first, second = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
        peer_to_peer = bool(first & 0x8000)
        rtr = RTR.NONE
        # RFC 6581 section 9.2: "On reception, if Control Flag A is 0" the others are to be ignored.
        if peer_to_peer:
            rtr |= RTR.SEND if first & 0x4000 else RTR.NONE
            rtr |= RTR.WRITE if second & 0x8000 else RTR.NONE
            rtr |= RTR.READ if second & 0x4000 else RTR.NONE
        return cls(first & 0x3FFF, second & 0x3FFF, peer_to_peer, rtr)


@dataclass(frozen=True, slots=True)
class Frame:
    """An MPA Request or Reply frame. ``private_data`` excludes the enhanced octets."""

    revision: int = 2
    markers: bool = False
    crc: bool = False
    rejected: bool = False
    enhanced: Enhanced | None = None
    private_data: bytes = b""

    def encode(self, key: bytes) -> bytes:
        """Return the whole frame, to be sent with one send()."""
        body = (self.enhanced.encode() if self.enhanced is not None else b"") + self.private_data
        if len(body) > MAX_PRIVATE_DATA:
            raise ValueError(f"{len(body)} octets of MPA private data, at most {MAX_PRIVATE_DATA} are allowed")
        flags = (
            self.markers * _FLAG_MARKERS
            | self.crc * _FLAG_CRC
            | self.rejected * _FLAG_REJECTED
            | (self.enhanced is not None) * _FLAG_ENHANCED
        )
        return key + bytes((flags, self.revision)) + len(body).to_bytes(2, "big") + body


def frame_length(header: bytes, key: bytes) -> int:
    """Check the 20 octets of ``header`` and return the length of the whole frame.

    Raises MpaError for a wrong key (RFC 5044 section 7.1.2 rule 5), an unknown revision or too much private data.
    """
    if header[:16] != key:
        raise MpaError("not an MPA frame: wrong key")
    if header[17] not in (1, 2):
        raise MpaError(f"MPA revision {header[17]} is not supported")
    length = int.from_bytes(header[18:20], "big")
    if length > MAX_PRIVATE_DATA:
        raise MpaError(f"{length} octets of MPA private data, at most {MAX_PRIVATE_DATA} are allowed")
    return HEADER_LENGTH + length


def decode(data: bytes, key: bytes) -> Frame:
    """Read a whole frame whose header :func:`frame_length` has passed.

    Raises MpaReject when S is set in a Request too short for the enhanced octets, MpaError for such a Reply.
    """
    flags, revision = data[16], data[17]
    body = data[HEADER_LENGTH:]
    enhanced = None
    # In revision 1 the bit is reserved and not checked (RFC 5044 section 7.1.1).
    if flags & _FLAG_ENHANCED and revision >= 2:
        if len(body) < ENHANCED_LENGTH:
            problem = "the enhanced frame is too short for its IRD and ORD"
            raise MpaReject(problem) if key == REQUEST_KEY else MpaError(problem)
        enhanced = Enhanced.decode(body[:ENHANCED_LENGTH])
        body = body[ENHANCED_LENGTH:]
    return Frame(
        revision=revision,
        markers=bool(flags & _FLAG_MARKERS),
        crc=bool(flags & _FLAG_CRC),
        rejected=bool(flags & _FLAG_REJECTED),
        enhanced=enhanced,
        private_data=body,
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both ends will do for the life of the connection."""

    crc: bool = False
    markers: bool = False
    """We insert Markers in what we send (we never ask the peer for them)."""
    outbound_reads: int = 1
    """RDMA Reads we keep outstanding (our ORD); with 0 there are none."""
    inbound_reads: int = 0
    """RDMA Reads the peer keeps outstanding (our IRD)."""
    expect_send_rtr: bool = False
    """The peer's first FPDU is a zero-length Send that belongs to MPA, not to the consumer."""
    send_rtr: RTR = RTR.NONE
    """The indication we owe the peer before anything else."""


def request_reads(request: Frame) -> tuple[int | None, int | None]:
    """Return (initiator ORD, initiator IRD) of a Request as the consumer should see them; None for what it leaves open.

    A plain Request says nothing of them (RFC 5044), and 0x3FFF leaves one to the consumers (RFC 6581 section 9.1).
    """
    if request.enhanced is None:
        return None, None
    offer = request.enhanced
    return None if offer.ord == LEFT_TO_ULP else offer.ord, None if offer.ird == LEFT_TO_ULP else offer.ird


def respond(
    request: Frame, private_data: bytes, *, wanted_reads: int, inbound_reads: int, default_reads: int, crc: bool
) -> tuple[Frame, Agreement]:
    """Compute the accepting Reply to ``request`` and what it means.

    ``wanted_reads`` is the ORD our consumer asks for, ``inbound_reads`` the IRD we can grant, ``default_reads`` the ORD
    when the peer gives no bound, ``crc`` whether we ask for CRCs ourselves.
    """
    use_crc = request.crc or crc
    if request.enhanced is None:
        # The IRD and ORD are the consumers' business (RFC 5044), so both sides' defaults stand.
        outbound = min(wanted_reads, default_reads)
        reply = Frame(revision=request.revision, crc=use_crc, private_data=private_data)
        return reply, Agreement(use_crc, request.markers, outbound, inbound_reads)
    offer = request.enhanced
    # "The responder MUST set its ORD at most to the initiator IRD" (RFC 6581 section 9.1), also when that is 0.
    outbound = min(wanted_reads, default_reads if offer.ird == LEFT_TO_ULP else offer.ird)
    inbound = inbound_reads if offer.ord == LEFT_TO_ULP else min(offer.ord, inbound_reads)
    rtr = RTR.NONE
    if offer.peer_to_peer:
        # The zero-length Send is taken only when nothing else is offered: as an FPDU it looks like a message.
        rtr = offer.rtr & (RTR.WRITE | RTR.READ) or offer.rtr or RTR.WRITE
        if rtr & RTR.READ:
            inbound = max(inbound, 1)
    answer = Enhanced(
        ird=LEFT_TO_ULP if offer.ord == LEFT_TO_ULP else inbound,
        ord=LEFT_TO_ULP if offer.ird == LEFT_TO_ULP else outbound,
        peer_to_peer=offer.peer_to_peer,
        rtr=rtr,
    )
    reply = Frame(revision=request.revision, crc=use_crc, enhanced=answer, private_data=private_data)
    return reply, Agreement(use_crc, request.markers, outbound, inbound, expect_send_rtr=rtr == RTR.SEND)


def reject(request: Frame, private_data: bytes) -> Frame:
    """Compute the rejecting Reply. The enhanced octets stay: siw counts on them (and subtracts them unchecked)."""
    enhanced = None
    if request.enhanced is not None:
        enhanced = replace(request.enhanced, ird=request.enhanced.ord, ord=request.enhanced.ird)
    room = MAX_PRIVATE_DATA - (ENHANCED_LENGTH if enhanced is not None else 0)
    return Frame(
        revision=request.revision, crc=request.crc, rejected=True, enhanced=enhanced, private_data=private_data[:room]
    )


def request(
    private_data: bytes, *, initiator_depth: int, responder_resources: int, crc: bool, revision: int, peer_to_peer: bool
) -> Frame:
    """Compute a Request. ``initiator_depth`` is our ORD, ``responder_resources`` our IRD."""
    enhanced = None
    if revision >= 2:
        enhanced = Enhanced(
            ird=min(responder_resources, LEFT_TO_ULP - 1),
            ord=min(initiator_depth, LEFT_TO_ULP - 1),
            peer_to_peer=peer_to_peer,
            rtr=RTR.WRITE | RTR.READ if peer_to_peer else RTR.NONE,
        )
    return Frame(revision=revision, crc=crc, enhanced=enhanced, private_data=private_data)


def conclude(
    sent: Frame, reply: Frame, *, initiator_depth: int, responder_resources: int, max_inbound_reads: int
) -> Agreement:
    """Work out the agreement from our Request and the accepting Reply.

    Raises MpaError for a Reply that does not fit the Request and MpaTerminate where RFC 6581 asks for a Terminate.
    """
    use_crc = sent.crc or reply.crc
    if sent.enhanced is None:
        return Agreement(use_crc, reply.markers, initiator_depth, responder_resources)
    if reply.enhanced is None:
        raise MpaError("an enhanced MPA Request was answered with a plain Reply")
    answer = reply.enhanced
    inbound = responder_resources
    if answer.ord != LEFT_TO_ULP and answer.ord > inbound:
        if answer.ord > max_inbound_reads:
            raise MpaTerminate(INSUFFICIENT_IRD, f"the responder wants {answer.ord} RDMA Reads outstanding")
        inbound = answer.ord
    outbound = initiator_depth if answer.ird == LEFT_TO_ULP else min(initiator_depth, answer.ird)
    rtr = RTR.NONE
    if sent.enhanced.peer_to_peer:
        if not answer.peer_to_peer:
            raise MpaError("the peer-to-peer model was answered with the client-server one")
        rtr = next((choice for choice in (RTR.WRITE, RTR.READ) if choice & answer.rtr & sent.enhanced.rtr), RTR.NONE)
        if rtr is RTR.NONE:
            raise MpaTerminate(NO_MATCHING_RTR, "the responder takes none of our RTR indications")
    return Agreement(use_crc, reply.markers, outbound, inbound, send_rtr=rtr)
