# distutils: extra_compile_args = -O2
"""The receiving half of a connection: FPDUs taken apart, checked, and placed.

Owns the receiving side of RFC 5044 section 6, RFC 5041 sections 5.2 and 7.1 and RFC 5040 sections 5 and 7.2. Imports
its siblings below it and :mod:`rpcrdma.memory`. What is received where is :mod:`intake`'s.

Buffer ownership
    A posted Receive is taken from ``posted`` by a message's first segment, and handed on with the message. Payload
    destinations are the Receive, the sink of the oldest outstanding RDMA Read (held by its chain), or registered
    memory (held by ``target``).

Checks
    Everything in a header is checked before its payload is placed. With CRCs in use an FPDU is looked at only once all
    of it has come and its CRC is right (RFC 5044 section 6). The first error is final: a Terminate with the RFC's code
    is queued, and nothing further is taken from the stream (RFC 5041 section 7.1, RFC 5040 section 7.1).
    Reserved bits are not checked (RFC 5041 section 4.1: "not checked on receive").
"""

from collections import deque

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from rpcrdma.copying cimport copy_octets
from rpcrdma.memory cimport Lease
from rpcrdma.verbs.softiwarp cimport crc as crc32c
from rpcrdma.verbs.softiwarp.chain cimport Chain, Message, chain_of_response
from rpcrdma.verbs.softiwarp.framing cimport (
    CRC_LENGTH,
    DDP_TAGGED,
    DDP_UNTAGGED,
    LAYER_DDP,
    LAYER_LLP,
    LAYER_RDMAP,
    LLP_MPA,
    OP_READ_REQUEST,
    OP_READ_RESPONSE,
    OP_SEND,
    OP_SEND_INVALIDATE,
    OP_SEND_SOLICITED_INVALIDATE,
    OP_TERMINATE,
    OP_WRITE,
    RDMAP_OPERATION,
    RDMAP_PROTECTION,
    READ_REQUEST_HEADER,
    TAGGED_HEADER,
    UNTAGGED_HEADER,
    get16,
    get32,
    get64,
    htole32,
)
from rpcrdma.verbs.softiwarp.stags cimport Registration, StagTable
from rpcrdma.verbs.softiwarp.transmit cimport Transmitter

from rpcrdma.verbs.softiwarp.terminate import describe, describe_received, refusal


cdef class Receiver:
    """Receives one connection's FPDUs from a non-blocking socket."""

    def __init__(
        self, int fd, bint crc, uint32_t inbound_reads, bint expect_rtr, StagTable stags, Transmitter transmitter
    ):
        self.fd = fd
        self.crc = crc
        self.inbound_reads = inbound_reads
        self.expect_rtr = expect_rtr
        self.stags = stags
        self.transmitter = transmitter
        self.posted = deque()
        self.messages = []
        self.answered = []
        self.send_msn = self.read_msn = 1
        self.state = AT_HEADER
        self.kept_size = KEPT_WITH_CRC if crc else KEPT
        self.kept = <char *>malloc(self.kept_size)
        if self.kept == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.kept)

    cdef bint within_fpdu(self) noexcept:
        """Whether part of an FPDU has come and part is still to come."""
        return self.state != AT_HEADER or self.kept_length != 0

    cdef void release_all(self):
        """Give back every Receive, including the one being filled and those not yet delivered."""
        self.finished = True
        while self.posted:
            (<Lease>self.posted.popleft()).release()
        if self.current is not None:
            self.current.release()
            self.current = None
        self.drop_messages()
        self.target = None

    cdef void drop_messages(self):
        """Give back what has not been delivered."""
        for message in self.messages:
            (<Lease>message[0]).release()
        self.messages = []

    cdef int keep(self, char *data, size_t length) except -1:
        """Keep the start of an FPDU for the next wake-up."""
        copy_octets(self.kept, data, length)
        self.kept_length = length
        return RECEIVE_MORE

    cdef int parse(self, char *data, size_t length) except -1:
        """Walk ``length`` octets of the stream, all of which are used or kept."""
        cdef size_t taken
        cdef ssize_t header
        cdef int outcome
        while length:
            if self.state == AT_HEADER:
                header = self.take_header(data, length)
                if header == 0:
                    return self.keep(data, length)
                outcome = self.accept_header() if self.problem is None else RECEIVE_VIOLATION
                if outcome != RECEIVE_MORE:
                    return outcome
                data += header
                length -= header
                self.state = AT_PAYLOAD if self.remaining else AT_TRAILER
            elif self.state == AT_PAYLOAD:
                if self.target is not None and not self.target.valid:
                    return self.violation(LAYER_DDP, DDP_TAGGED, 0x00)
                taken = self.remaining if self.remaining < length else length
                copy_octets(self.destination, data, taken)
                self.destination += taken
                self.remaining -= taken
                data += taken
                length -= taken
                if self.remaining == 0:
                    self.state = AT_TRAILER
            else:
                taken = self.skip if self.skip < length else length
                self.skip -= taken
                data += taken
                length -= taken
                if self.skip == 0:
                    self.state = AT_HEADER
                    outcome = self.finish_fpdu()
                    if outcome != RECEIVE_MORE:
                        return outcome
        return RECEIVE_MORE

    cdef ssize_t take_header(self, char *data, size_t length) except -1:
        """Copy the header at ``data`` and split up its control octets.

        Returns its length, or 0 when more octets are needed. A violation shows in ``problem``.
        """
        cdef size_t ulpdu, framed
        cdef uint8_t ddp, rdmap
        cdef uint32_t digest
        cdef bint tagged
        if length < 4:
            return 0
        ulpdu = get16(data)
        framed = (ulpdu + 2 + 3) & ~<size_t>3
        if self.crc:
            if length < framed + CRC_LENGTH:
                return 0
            memcpy(&digest, data + framed, CRC_LENGTH)
            if htole32(digest) != crc32c.extend(0xFFFFFFFF, data, framed) ^ 0xFFFFFFFF:
                self.header_length = 0
                self.violation(LAYER_LLP, LLP_MPA, 0x02)
                return 4
        ddp = <uint8_t>data[2]
        rdmap = <uint8_t>data[3]
        tagged = (ddp & 0x80) != 0
        self.opcode = rdmap & 0x0F
        self.last = (ddp & 0x40) != 0
        self.ulpdu = <uint16_t>ulpdu
        self.header_length = TAGGED_HEADER if tagged else UNTAGGED_HEADER
        if not tagged and self.opcode == OP_READ_REQUEST and ulpdu + 2 >= READ_REQUEST_HEADER:
            self.header_length = READ_REQUEST_HEADER
        if ulpdu + 2 < self.header_length:
            # No RFC names a code for an FPDU too short for its headers.
            self.header_length = 0
            self.violation(LAYER_RDMAP, RDMAP_OPERATION, 0xFF)
            return 4
        if length < self.header_length:
            return 0
        memcpy(self.header, data, self.header_length)
        # An FPDU has come (RFC 5044 section 7.1.2 rule 4): from here on the responder may send.
        self.transmitter.enabled = True
        self.counters.fpdus += 1
        if ddp & 0x03 != 1:
            self.violation(LAYER_DDP, DDP_TAGGED if tagged else DDP_UNTAGGED, 0x04 if tagged else 0x06)
        elif rdmap & 0xC0 != 0x40:
            self.violation(LAYER_RDMAP, RDMAP_OPERATION, 0x05)
        elif self.opcode > OP_TERMINATE or tagged != (self.opcode == OP_WRITE or self.opcode == OP_READ_RESPONSE):
            self.violation(LAYER_RDMAP, RDMAP_OPERATION, 0x06)
        return self.header_length

    cdef int accept_header(self) except -1:
        """Check the header against the state of its stream and find where the payload goes."""
        self.payload = self.ulpdu + 2 - self.header_length
        self.remaining = self.payload
        self.skip = (-(self.ulpdu + 2) & 3) + CRC_LENGTH
        self.target = None
        if self.opcode == OP_WRITE:
            return self.begin_write()
        if self.opcode == OP_READ_RESPONSE:
            return self.begin_read_response()
        if self.opcode == OP_READ_REQUEST:
            return self.begin_read_request()
        if self.opcode == OP_TERMINATE:
            self.destination = self.scratch
            if self.remaining > sizeof(self.scratch):
                self.skip += self.remaining - sizeof(self.scratch)
                self.remaining = sizeof(self.scratch)
            return RECEIVE_MORE
        return self.begin_send()

    cdef int begin_send(self) except -1:
        """A segment of a Send (RFC 5041 section 7.1, untagged segments)."""
        cdef uint32_t offset = get32(self.header + 16)
        if get32(self.header + 8) != 0:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x01)
        if get32(self.header + 12) != self.send_msn:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x03)
        if self.current is None:
            if self.expect_rtr and self.payload == 0 and self.last and self.opcode == OP_SEND:
                # RFC 6581 section 9.2: the RTR is MPA's; the consumer neither sees it nor provides a Receive for it.
                return RECEIVE_MORE
            if not self.posted:
                return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x02)
            self.current = <Lease>self.posted.popleft()
            self.placed = 0
        if offset != self.placed:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x04)
        if self.payload > self.current.capacity - self.placed:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x05)
        self.destination = <char *>self.current.address + self.placed
        return RECEIVE_MORE

    cdef int begin_write(self) except -1:
        """A segment of an RDMA Write (RFC 5041 section 7.1, tagged segments)."""
        cdef uint32_t stag = get32(self.header + 4)
        cdef uint64_t offset = get64(self.header + 8)
        cdef Registration registration
        cdef int problem = 0
        if self.payload == 0:
            # RFC 5041 section 5.2: STag and TO "MUST NOT be checked for a zero-length Tagged DDP Message".
            self.write_open = self.write_open and not self.last
            return RECEIVE_MORE
        if self.write_open and stag != self.write_stag:
            return self.violation(LAYER_DDP, DDP_TAGGED, 0x00)
        if self.write_open and offset != self.write_next:
            return self.violation(LAYER_DDP, DDP_TAGGED, 0x01)
        registration = self.stags.find(stag)
        if registration is None:
            return self.violation(LAYER_DDP, DDP_TAGGED, 0x00)
        self.destination = registration.locate(offset, self.payload, True, &problem)
        if self.destination == NULL:
            # DDP has no code for missing rights: to a writer, memory it may not write has no valid STag.
            return self.violation(LAYER_DDP, DDP_TAGGED, 0x03 if problem == 0x04 else 0x01 if problem == 0x01 else 0x00)
        self.target = registration
        self.write_open = not self.last
        self.write_stag = stag
        self.write_next = offset + self.payload
        return RECEIVE_MORE

    cdef int begin_read_response(self) except -1:
        """A segment of the answer to our oldest outstanding RDMA Read (RFC 5040 section 5.2.2)."""
        cdef Chain chain
        cdef Message *message
        if self.transmitter.outstanding_reads == 0:
            if self.payload == 0:
                return self.violation(LAYER_RDMAP, RDMAP_OPERATION, 0x06)
            return self.violation(LAYER_DDP, DDP_TAGGED, 0x00)
        chain = self.transmitter.reads.first
        message = chain.messages + chain.answered
        if self.payload:
            if get32(self.header + 4) != message.sink:
                return self.violation(LAYER_DDP, DDP_TAGGED, 0x00)
            if get64(self.header + 8) != self.read_placed or self.payload > message.length - self.read_placed:
                return self.violation(LAYER_DDP, DDP_TAGGED, 0x01)
            self.destination = chain.pieces[message.first].data + self.read_placed
        if self.last and self.read_placed + self.payload != message.length:
            return self.violation(LAYER_DDP, DDP_TAGGED, 0x01)
        return RECEIVE_MORE

    cdef int begin_read_request(self) except -1:
        """A Read Request: one segment of exactly its header (RFC 5040 section 4.4)."""
        if get32(self.header + 8) != 1:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x01)
        if get32(self.header + 12) != self.read_msn:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x03)
        if get32(self.header + 16) != 0:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x04)
        if self.header_length != READ_REQUEST_HEADER:
            return self.violation(LAYER_RDMAP, RDMAP_OPERATION, 0xFF)
        if self.payload or not self.last:
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x05)
        return RECEIVE_MORE

    cdef int finish_fpdu(self) except -1:
        """All of the FPDU has come: act on it."""
        self.target = None
        if self.opcode == OP_WRITE:
            self.counters.writes += self.last
        elif self.opcode == OP_READ_RESPONSE:
            self.read_placed += self.payload
            if self.last:
                return self.finish_read_response()
        elif self.opcode == OP_READ_REQUEST:
            return self.finish_read_request()
        elif self.opcode == OP_TERMINATE:
            if self.payload >= 4:
                self.problem = "the peer sent a Terminate: " + describe_received(
                    <uint8_t>self.scratch[0], <uint8_t>self.scratch[1]
                )
                self.terminate_codes = (<uint8_t>self.scratch[0], <uint8_t>self.scratch[1])
                self.refusal = refusal(self.scratch[: min(<size_t>self.payload, sizeof(self.scratch))], self.problem)
            else:
                self.problem = "the peer sent a Terminate without a cause"
            return RECEIVE_TERMINATED
        else:
            self.placed += self.payload
            if self.last:
                return self.finish_send()
        return RECEIVE_MORE

    cdef int finish_send(self) except -1:
        """A Send is complete: invalidate what it says, then deliver it (RFC 5040 section 5.3)."""
        cdef object invalidated = None
        cdef uint32_t stag
        self.send_msn += 1
        if self.current is None:
            self.expect_rtr = False
            return RECEIVE_MORE
        self.expect_rtr = False
        if self.opcode == OP_SEND_INVALIDATE or self.opcode == OP_SEND_SOLICITED_INVALIDATE:
            stag = get32(self.header + 4)
            if self.stags.remove(stag) is None:
                return self.violation(LAYER_RDMAP, RDMAP_OPERATION, 0x09)
            invalidated = stag
            self.counters.invalidations += 1
        self.counters.sends += 1
        self.messages.append((self.current, self.placed, invalidated))
        self.current = None
        return RECEIVE_MORE

    cdef int finish_read_request(self) except -1:
        """A Read Request is complete: check its source (RFC 5040 section 7.2) and queue the answer."""
        cdef uint32_t sink_stag = get32(self.header + 20)
        cdef uint64_t sink_offset = get64(self.header + 24)
        cdef uint32_t size = get32(self.header + 32)
        cdef uint32_t allowed = self.inbound_reads
        cdef Registration registration = None
        cdef char *source = NULL
        cdef int problem = 0
        self.read_msn += 1
        if size == 0:
            # RFC 5040 section 5.2.1: answered without a look at the source. Allowed once even where no Reads are,
            # since it may be the RTR of RFC 6581.
            allowed = allowed or 1
        else:
            registration = self.stags.find(get32(self.header + 36))
            if registration is not None:
                source = registration.locate(get64(self.header + 40), size, False, &problem)
            if source == NULL:
                return self.violation(LAYER_RDMAP, RDMAP_PROTECTION, problem)
        if self.transmitter.responses.length >= allowed:
            # The depth we granted is the number of buffers on queue 1 (RFC 5040 section 5.2.2).
            return self.violation(LAYER_DDP, DDP_UNTAGGED, 0x02)
        self.counters.reads += 1
        self.transmitter.respond(chain_of_response(registration, source, size, sink_stag, sink_offset))
        return RECEIVE_MORE

    cdef int finish_read_response(self) except -1:
        """Our oldest RDMA Read is complete; tell so when it was the last of its chain."""
        cdef Chain chain = self.transmitter.read_answered()
        self.read_placed = 0
        self.counters.responses += 1
        if chain is not None:
            self.answered.append(chain.token)
            chain.release()
        return RECEIVE_MORE

    cdef int violation(self, int layer, int etype, int code) except -1:
        """Queue the Terminate (RFC 5040 section 4.8, Figure 10 for what it includes)."""
        cdef int control = 0
        cdef bytes attached = b""
        cdef size_t ddp_length
        self.finished = True
        self.problem = "the peer broke the protocol: " + describe(layer, etype, code)
        self.terminate_codes = (layer << 4 | etype, code)
        if layer != LAYER_LLP and self.header_length:
            control = 0xC0
            ddp_length = TAGGED_HEADER if self.header_length == TAGGED_HEADER else UNTAGGED_HEADER
            attached = self.header[:2] + self.header[2:ddp_length]
            if layer == LAYER_RDMAP and etype == RDMAP_PROTECTION and self.header_length == READ_REQUEST_HEADER:
                control = 0xE0
                attached += self.header[UNTAGGED_HEADER:READ_REQUEST_HEADER]
        self.transmitter.terminate(bytes((layer << 4 | etype, code, control, 0)) + attached)
        return RECEIVE_VIOLATION

    def counter_values(self):
        """The counters by name."""
        return {
            "fpdus_in": self.counters.fpdus,
            "octets_in": self.counters.octets,
            "receive_calls": self.counters.system_calls,
            "sends_in": self.counters.sends,
            "writes_in": self.counters.writes,
            "invalidations_in": self.counters.invalidations,
            "reads_in": self.counters.reads,
            "read_responses_in": self.counters.responses,
        }
