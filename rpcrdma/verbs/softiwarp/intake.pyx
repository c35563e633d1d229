"""Where the next octets of a connection's stream are received: each recvmsg(), and what it is offered.

Owns the receiving system calls; what arrives is taken apart by :class:`receive.Receiver`, of which :class:`Intake` is
the part that knows where octets are. Imports its siblings below it and :mod:`rpcrdma.copying`.

One wake-up is one recvmsg() into a staging area that all connections share (nothing stays in it between wake-ups),
walked FPDU by FPDU. In the middle of a large segment the socket is read straight into the segment's destination, and
only what follows goes to the staging area.

The answer to an RDMA Read comes in FPDUs of one size, one behind the other (RFC 5041 section 5.2; whoever sends
something else in between does not break a rule). So behind the segment that is being received, vectors are offered for
trailer and header of the next one, for its payload where that belongs, and so on to the end of the message. Every
header is then taken and checked as any other. Where one is not as expected, what was received behind it is gathered in
the order of the stream and walked from there; until the answer is complete, its sink may hold anything.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport malloc
from libc.string cimport memset

from rpcrdma.copying cimport copy_octets
from rpcrdma.verbs.softiwarp.chain cimport Chain, Message
from rpcrdma.verbs.softiwarp.framing cimport (
    CRC_LENGTH,
    DDP_TAGGED,
    LAYER_DDP,
    MSG_DONTWAIT,
    OP_READ_RESPONSE,
    TAGGED_HEADER,
    msghdr,
    recvmsg,
)
from rpcrdma.verbs.softiwarp.receive cimport (
    AT_HEADER,
    AT_PAYLOAD,
    AT_TRAILER,
    KEPT,
    RECEIVE_END,
    RECEIVE_FAILED,
    RECEIVE_MORE,
    Receiver,
)


cdef enum:
    # Larger than the largest FPDU (65535 + 2 + pad + CRC) and what is kept of one.
    STAGING = 256 << 10
    # Octets at most that are expected somewhere, all of which may have to be gathered.
    EXPECTED = 1 << 20
    # From here on a payload is worth a vector to be received where it belongs.
    DIRECT = 2048
    # Read Responses of which so much is to come are worth waiting for their first header.
    BULK = 64 << 10
    # What is received then, and behind a message: the next header, and little that is to be copied.
    NEXT_HEAD = 4096
    # Of a trailer and a header.
    GAP = 32


cdef char *staging = <char *>malloc(STAGING)
cdef char *gathered = <char *>malloc(KEPT + EXPECTED)
cdef char *gaps = <char *>malloc(PARTS * GAP + NEXT_HEAD)
if staging == NULL or gathered == NULL or gaps == NULL:
    raise MemoryError


cdef inline void offer(Plan *plan, void *base, size_t length, bint placed) noexcept:
    plan.vectors[plan.count].iov_base = base
    plan.vectors[plan.count].iov_len = length
    plan.placed[plan.count] = placed
    plan.count += 1
    plan.octets += length


cdef class Intake(Receiver):
    """Receives one connection's FPDUs from a non-blocking socket."""

    cdef int receive(self, size_t most) except -1:
        """Take what has come, and nothing more after ``most`` octets. Returns one of the RECEIVE_ values; ``messages``
        and ``answered`` are to be delivered."""
        cdef Plan plan
        cdef msghdr message
        cdef size_t total = 0
        cdef ssize_t got
        cdef int outcome
        memset(&message, 0, sizeof(message))
        message.msg_iov = plan.vectors
        while True:
            if self.state == AT_PAYLOAD and self.target is not None and not self.target.valid:
                return self.violation(LAYER_DDP, DDP_TAGGED, 0x00)
            plan.count = plan.octets = 0
            self.expect(&plan, most)
            if plan.count == 0:
                self.stage(&plan)
            message.msg_iovlen = plan.count
            got = recvmsg(self.fd, &message, MSG_DONTWAIT)
            self.counters.system_calls += 1
            if got < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return RECEIVE_MORE
                self.error = errno
                return RECEIVE_FAILED
            if got == 0:
                return RECEIVE_END
            self.counters.octets += got
            total += got
            outcome = self.take(&plan, <size_t>got)
            if outcome != RECEIVE_MORE:
                self.finished = True
                return outcome
            if <size_t>got < plan.octets or total >= most:
                return RECEIVE_MORE

    cdef int stage(self, Plan *plan) noexcept:
        """Offer the staging area, behind what is kept."""
        cdef size_t room = STAGING - self.kept_length
        if self.bulk() >= BULK and room > NEXT_HEAD:
            room = NEXT_HEAD
        offer(plan, staging + self.kept_length, room, False)
        return 0

    cdef size_t bulk(self) noexcept:
        """Octets that are to come of the answer to an RDMA Read whose FPDUs come next, without CRCs."""
        cdef Chain chain
        cdef size_t index
        if self.crc or self.transmitter.outstanding_reads == 0:
            return 0
        chain = self.transmitter.reads.first
        index = chain.answered
        if self.state == AT_HEADER or self.opcode != OP_READ_RESPONSE or not self.last:
            return chain.messages[index].length - self.read_placed
        if self.transmitter.outstanding_reads == 1:
            return 0
        index += 1
        if index == chain.message_count:
            chain = chain.next
            index = 0
        return chain.messages[index].length

    cdef int expect(self, Plan *plan, size_t most) noexcept:
        """Offer the places where the next octets belong, as far as that can be told; nothing if it cannot."""
        cdef Chain chain
        cdef Message *message
        cdef char *sink
        cdef size_t at = self.read_placed, gap = 0, part
        cdef char *between = gaps
        if self.crc or self.kept_length:
            return 0
        if self.state == AT_PAYLOAD:
            if self.remaining < DIRECT:
                return 0
            offer(plan, self.destination, self.remaining, True)
        if self.opcode != OP_READ_RESPONSE or self.last or self.payload < DIRECT:
            # The end of a message, or one of which it is not known where it will belong.
            if self.state == AT_PAYLOAD:
                offer(plan, staging, NEXT_HEAD if self.bulk() >= BULK else STAGING, False)
            return 0
        # In the middle of a Read Response.
        chain = self.transmitter.reads.first
        message = chain.messages + chain.answered
        sink = chain.pieces[message.first].data
        if self.state != AT_HEADER:
            at += self.payload
            gap = self.skip
        most = min(most, <size_t>EXPECTED - NEXT_HEAD)
        while at < message.length and plan.count < PARTS - 2:
            part = min(self.payload, message.length - at)
            if plan.octets + gap + TAGGED_HEADER + part > most and plan.count:
                return 0
            offer(plan, between, gap + TAGGED_HEADER, False)
            between += GAP
            offer(plan, sink + at, part, True)
            at += part
            gap = (-(TAGGED_HEADER + part) & 3) + CRC_LENGTH
        offer(plan, between, NEXT_HEAD, False)
        return 0

    cdef int take(self, Plan *plan, size_t got) except -1:
        """Take what has come into the places that were offered."""
        cdef size_t index = 0, part
        cdef int outcome
        if self.kept_length:
            # It belongs before the first of them.
            copy_octets(staging, self.kept, self.kept_length)
            part = self.kept_length + got
            self.kept_length = 0
            return self.parse(staging, part)
        while got:
            part = min(plan.vectors[index].iov_len, got)
            if not plan.placed[index]:
                outcome = self.parse(<char *>plan.vectors[index].iov_base, part)
                if outcome != RECEIVE_MORE:
                    return outcome
            elif (
                self.state == AT_PAYLOAD
                and self.destination == <char *>plan.vectors[index].iov_base
                and self.remaining == plan.vectors[index].iov_len
            ):
                self.destination += part
                self.remaining -= part
                if self.remaining == 0:
                    self.state = AT_TRAILER
            else:
                return self.take_elsewhere(plan, index, got)
            got -= part
            index += 1
        return RECEIVE_MORE

    cdef int take_elsewhere(self, Plan *plan, size_t index, size_t left) except -1:
        """Take what has come from this vector on, which does not belong there."""
        cdef size_t length = self.kept_length, part
        copy_octets(gathered, self.kept, length)
        self.kept_length = 0
        while left:
            part = min(plan.vectors[index].iov_len, left)
            copy_octets(gathered + length, plan.vectors[index].iov_base, part)
            length += part
            left -= part
            index += 1
        return self.parse(gathered, length)
