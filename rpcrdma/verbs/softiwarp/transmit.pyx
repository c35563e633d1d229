# distutils: extra_compile_args = -O2
"""The sending half of a connection: what is sent when, and how messages are cut into FPDUs.

Owns RFC 5044 sections 4.5 and 5.1 (FPDU size, segment alignment), the source side of RFC 5041 section 5.2 and of
RFC 5040 section 5. Imports only its siblings below it (:mod:`framing`, :mod:`chain`, :mod:`frame`).

Operation
    Posted chains wait in ``queue``. :meth:`Transmitter.flush` frames as much as fits one sendmsg() (a *run*), sends it,
    and goes on until nothing is left, the socket is full, or the turn's share is used up. A chain is done when the
    kernel has copied its last octet, so its memory may be reused at once.

Ordering
    Chains leave in the order posted, and one message is never cut into by another. RDMA Reads beyond ``max_reads``
    step aside when their turn comes (later work passes them) and go out, in order, as earlier ones are answered. Read
    Responses have a queue of their own, which takes turns with the chains, message by message.

Where FPDUs begin
    Linux siw consumes the first 16 octets of a header piecemeal, but stalls for good when the header's remaining octets
    or the trailer (pad and CRC) straddle two socket buffers that its TCP did not join. So, with ``aligned``, no FPDU
    straddles a TCP segment at all (RFC 5044 section 5.1 asks for the same):

    * TCP cuts one sendmsg() into segments of exactly snd_mss octets, counted from its first octet: it fills buffers
      with multiples of snd_mss, and MSG_EOR at the end of the previous sendmsg() keeps it from adding to that one's
      last buffer. TCP_NODELAY sends the short last segment at once.
    * Within a run, therefore, the octet offset modulo snd_mss tells the room left in the segment. An FPDU goes there if
      it fits whole; a longer message is cut so that its FPDU fills the room exactly (if that leaves at least the 128
      octets of RFC 5044 section 4.5); otherwise the run ends and the FPDU opens the next one.
    * FPDUs are multiples of 4 octets. When snd_mss is not, a full-size FPDU leaves 1 to 3 octets of the segment, into
      which nothing fits, so the run ends there: one sendmsg() per full-size FPDU, as over loopback (65483).
    * When the socket takes only part of a run, the rest goes first. The kernel stops at buffer boundaries, so the grid
      still holds if that part is a multiple of snd_mss; if not, the remaining FPDUs go one by one with MSG_EOR.

    * Payloads in pages of a file (over loopback: the segments are large enough for nothing else) leave in FPDUs that
      are one segment each. Each is sent in three parts, of which TCP may send the first ones for want of room for the
      next; but header and trailer are a part of their own, and short of a segment's end.

    What this cannot prevent is TCP itself cutting at the edge of the peer's window, which happens to bulk data as long
    as the peer's window is smaller than what is on the way, or after a change of snd_mss in mid-flight (it is read
    again for every run). Window edges lie a multiple of the window scale behind a segment's end, so with an snd_mss
    that is a multiple of 4 such cuts, too, fall between 4-octet units of the FPDU: never inside the last 4 octets of a
    Send's header nor inside the CRC, but possibly inside a Read Request or between pad and CRC. The watchdog in
    :mod:`endpoint` is for what remains.
"""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.pipes cimport PAGE
from rpcrdma.verbs.softiwarp.chain cimport Chain, ChainQueue, Message, chain_of_terminate
from rpcrdma.verbs.softiwarp.frame cimport (
    BLOCKED,
    COPY,
    MARKER_INTERVAL,
    PAGES,
    PAGES_FPDU,
    RUN_OCTETS,
    RUN_VECTORS,
    SENT,
    VECTORS,
    Run,
    room_between_markers,
)
from rpcrdma.verbs.softiwarp.framing cimport (
    CRC_LENGTH,
    OP_READ_REQUEST,
    OP_READ_RESPONSE,
    OP_SEND_INVALIDATE,
    OP_TERMINATE,
    OP_WRITE,
    READ_REQUEST_HEADER,
    TAGGED_HEADER,
    UNTAGGED_HEADER,
    getsockopt,
)


cdef enum:
    IPPROTO_TCP = 6
    TCP_MAXSEG = 2
    LEAST_SEGMENT = 136     # RFC 5044 section 4.5: never a MULPDU below 128
    LEAST_CUT = 136
    LARGEST_FPDU = 64772    # ULPDU of at most 64768 (RFC 5044 section 3)


cdef class Transmitter(Run):
    """Sends one connection's FPDUs on a non-blocking socket."""

    def __init__(self, int fd, bint crc, bint markers, bint aligned, uint32_t max_reads, bint enabled):
        self.fd = fd
        self.crc = crc
        self.markers = markers
        self.aligned = aligned
        self.max_reads = max_reads
        self.enabled = enabled
        self.segment = LARGEST_FPDU
        self.queue = ChainQueue()
        self.responses = ChainQueue()
        self.reads = ChainQueue()

    # -- What the endpoint asks for ------------------------------------------------------------------------------

    cdef void post(self, Chain chain):
        """Queue a chain of writes and a send, or of reads."""
        self.queue.append(chain)

    cdef void respond(self, Chain chain):
        """Queue a Read Response."""
        self.responses.append(chain)

    cdef int terminate(self, bytes message) except -1:
        """Send a Terminate as soon as an FPDU may begin, and nothing after it (RFC 5040 section 5.4)."""
        if self.terminating is None and not self.stopped:
            self.terminating = chain_of_terminate(message)
        return 0

    cdef bint busy(self) noexcept:
        """Whether anything waits to be sent; RDMA Reads that only await their answers do not."""
        if self.run_sent < self.run_octets:
            return True
        if self.stopped:
            return False
        return (
            self.terminating is not None
            or self.queue.first is not None
            or self.responses.first is not None
            or (self.issuing is not None and self.outstanding_reads < self.max_reads)
        )

    cdef Chain read_answered(self):
        """Note that the oldest outstanding Read is complete. Returns its chain when that was the chain's last."""
        cdef Chain chain = self.reads.first
        chain.answered += 1
        self.outstanding_reads -= 1
        if chain.answered == chain.message_count:
            self.reads.pop()
            return chain
        return None

    cdef list drop_all(self):
        """Forget everything. Returns the tokens not yet reported, in the order posted as far as there is one."""
        cdef list tokens = list(self.done)
        cdef Chain chain
        cdef ChainQueue queue
        self.done = []
        self.active = None
        self.issuing = None
        self.terminating = None
        for queue in (self.framed, self.reads, self.responses, self.queue):
            chain = queue.pop()
            while chain is not None:
                if chain.signalled:
                    tokens.append(chain.token)
                chain.release()
                chain = queue.pop()
        self.run_octets = self.run_sent = 0
        self.vector_count = self.vector_next = 0
        self.outstanding_reads = 0
        self.stopped = True
        return tokens

    cdef int flush(self, size_t most) except -1:
        """Send what waits, a run more than ``most`` octets at most. Returns one of the FLUSH_ values; tokens of what has
        left are in ``done``."""
        cdef size_t sent = 0
        cdef int outcome
        if not self.enabled:
            return FLUSH_IDLE
        if self.vectors == NULL:
            self.make_room()
        while True:
            if self.run_sent < self.run_octets:
                sent += self.run_octets - self.run_sent
                outcome = self.send_run()
                if outcome != SENT:
                    return FLUSH_BLOCKED if outcome == BLOCKED else FLUSH_FAILED
                if sent >= most:
                    return FLUSH_MORE if self.busy() else FLUSH_IDLE
            self.build_run(min(most - sent, <size_t>RUN_OCTETS))
            if self.run_octets == 0:
                return FLUSH_IDLE

    def counter_values(self):
        """The counters by name."""
        return {
            "fpdus_out": self.counters.fpdus,
            "octets_out": self.counters.octets,
            "largest_fpdu_out": self.counters.largest_fpdu,
            "send_calls": self.counters.system_calls,
            "send_calls_cut": self.counters.cut,
            "sends_out": self.counters.sends,
            "writes_out": self.counters.writes,
            "invalidations_out": self.counters.invalidations,
            "reads_out": self.counters.reads,
            "read_responses_out": self.counters.responses,
        }

    # -- Framing -------------------------------------------------------------------------------------------------

    cdef int measure_segment(self) noexcept:
        """Ask TCP for the segment size in use: it changes with the path and with TCP options."""
        cdef int value = 0
        cdef unsigned int length = sizeof(value)
        if not self.aligned:
            return 0
        if getsockopt(self.fd, IPPROTO_TCP, TCP_MAXSEG, &value, &length) == 0 and value > 0:
            self.segment = value if value > LEAST_SEGMENT else LEAST_SEGMENT
        return 0

    cdef bint takes_pages(self) noexcept:
        """Whether payloads may be left in pipes. Towards small segments they may not: pages would have to be cut up, and
        a page's parts are fragments like whole ones."""
        if self.crc or self.markers:
            return False
        self.measure_segment()
        return self.segment >= PAGES_FPDU

    cdef Message *pick(self) except? NULL:
        """The message to frame next; makes its chain ``active``. NULL when nothing may be sent now."""
        cdef Chain chain = self.active
        if self.terminating is not None:
            # Between two FPDUs, even of one message: nothing that was posted is finished any more.
            self.active = self.terminating
            self.active_sent = self.active_piece = self.active_offset = 0
            return self.active.messages
        if chain is not None:
            if chain.registration is not None and not chain.registration.valid:
                return self.refuse_response()
            return chain.messages + chain.current
        self.active_sent = self.active_piece = self.active_offset = 0
        while True:
            if self.issuing is not None and self.outstanding_reads < self.max_reads:
                self.active = self.issuing
                return self.active.messages + self.active.current
            chain = self.queue.first
            if chain is not None and chain.message_count == 0:
                self.queue.pop()
                chain.end = self.vector_count
                self.framed.append(chain)
                self.note_progress()
                continue
            if chain is not None and chain.messages[0].opcode == OP_READ_REQUEST:
                self.queue.pop()
                self.reads.append(chain)
                if self.issuing is None:
                    self.issuing = chain
                continue
            if self.responses.first is not None and (self.response_turn or chain is None):
                self.response_turn = False
                chain = self.responses.first
                if chain.registration is not None and not chain.registration.valid:
                    return self.refuse_response()
                self.active = chain
                return chain.messages
            if chain is None:
                return NULL
            self.response_turn = True
            self.active = chain
            return chain.messages + chain.current

    cdef Message *refuse_response(self) except NULL:
        """The source of a Read Response was invalidated under way: RFC 5040 section 7.1, an invalid STag."""
        self.refused = True
        self.terminate(b"\x01\x00\x00\x00")
        self.active = self.terminating
        self.active_sent = self.active_piece = self.active_offset = 0
        return self.active.messages

    cdef int build_run(self, size_t most) except -1:
        """Frame FPDUs for one sendmsg(), as many as begin within ``most`` octets."""
        cdef Message *message
        cdef size_t header, left, limit, room, needed, start
        cdef bint splits, last
        self.begin()
        if not self.busy():
            return 0
        self.measure_segment()
        while self.vector_count < RUN_VECTORS and self.run_octets < most and self.fpdu_count < VECTORS:
            if self.stopped:
                break
            message = self.pick()
            if message == NULL:
                break
            splits = True
            if message.opcode == OP_WRITE or message.opcode == OP_READ_RESPONSE:
                header = TAGGED_HEADER
                left = message.length - self.active_sent
            elif message.opcode == OP_READ_REQUEST:
                header = READ_REQUEST_HEADER
                left = 0
            else:
                header = UNTAGGED_HEADER
                left = message.length - self.active_sent
                splits = message.opcode != OP_TERMINATE
            if message.opcode == OP_WRITE and self.active.pages is not None:
                if self.run_octets and self.paged is not self.active:
                    break  # such FPDUs are a run of their own
                limit = PAGES * PAGE - ((self.active.pages.page_at + self.active.pages_framed) & (PAGE - 1))
                last = left <= limit
                self.frame_pages(message, left if last else limit, last)
                if last:
                    self.finish_message(message)
                continue
            if self.paged is not None:
                break
            start = self.run_octets % self.segment if self.aligned else 0
            room = self.segment - start
            if self.markers:
                limit = room_between_markers(room, (MARKER_INTERVAL - self.stream % MARKER_INTERVAL) % MARKER_INTERVAL)
            else:
                limit = room & ~<size_t>3
            if limit > LARGEST_FPDU:
                limit = LARGEST_FPDU
            if header + CRC_LENGTH > limit:
                break
            limit -= header + CRC_LENGTH
            last = True
            if left > limit:
                # With a segment size that is no multiple of 4, filling the room would not reach the boundary.
                if not splits or (start and (room < LEAST_CUT or self.segment & 3)):
                    break
                left = limit
                last = False
            if self.markers:
                needed = room
            else:
                needed = <size_t>message.pieces * COPY
                needed = header + 8 + (needed if needed < left else left)
            if self.arena_used + needed > self.arena_size:
                break
            if self.markers:
                self.frame_marked(message, header, left, last)
            else:
                self.frame(message, header, left, last)
            if last:
                self.finish_message(message)
        self.close_arena()
        return 0

    cdef void finish_message(self, Message *message):
        """The active message is wholly framed: count it, and move its chain on."""
        cdef Chain chain = self.active
        cdef uint8_t opcode = message.opcode
        self.active = None
        chain.current += 1
        if opcode == OP_READ_REQUEST:
            self.read_msn += 1
            self.outstanding_reads += 1
            self.counters.reads += 1
            if chain.current == chain.message_count:
                self.issuing = chain.next
            return
        if opcode == OP_WRITE:
            self.counters.writes += 1
        elif opcode == OP_READ_RESPONSE:
            self.counters.responses += 1
            self.responses.pop()
        elif opcode == OP_TERMINATE:
            self.stopped = True
            self.terminating = None
        else:
            self.send_msn += 1
            self.counters.sends += 1
            if opcode == OP_SEND_INVALIDATE:
                self.counters.invalidations += 1
        if chain.current < chain.message_count:
            return
        if opcode != OP_READ_RESPONSE and opcode != OP_TERMINATE:
            self.queue.pop()
        chain.end = self.vector_count + (1 if self.arena_used > self.arena_open else 0)
        self.framed.append(chain)
