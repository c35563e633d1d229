"""The sending half of a connection: FPDUs cut, framed and sent without a copy.

Owns RFC 5044 sections 4 and 5.1 (FPDUs, CRC, Markers, segment alignment), the source side of RFC 5041 section 5.2 and
of RFC 5040 section 5. Imports only its siblings below it (:mod:`framing`, :mod:`chain`, :mod:`crc`).

Operation
    Posted chains wait in ``queue``. :meth:`Transmitter.flush` frames as much as fits one sendmsg() (a *run*), sends it,
    and goes on until nothing is left, the socket is full, or the turn's share is used up. Headers and trailers are
    written to an arena; payloads are sent from where they lie, except small ones, which are cheaper to copy than to
    point at. A chain is done when the kernel has copied its last octet, so its memory may be reused at once.

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

    What this cannot prevent is TCP itself cutting at the edge of the peer's window or after a change of snd_mss in
    mid-flight (it is read again for every run). The watchdog in :mod:`endpoint` is for that.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from rpcrdma.verbs.softiwarp cimport crc as crc32c
from rpcrdma.verbs.softiwarp.chain cimport Chain, ChainQueue, Message, Piece, chain_of_terminate
from rpcrdma.verbs.softiwarp.framing cimport (
    CRC_LENGTH,
    MSG_DONTWAIT,
    MSG_EOR,
    MSG_NOSIGNAL,
    OP_READ_REQUEST,
    OP_READ_RESPONSE,
    OP_SEND,
    OP_SEND_INVALIDATE,
    OP_TERMINATE,
    OP_WRITE,
    READ_REQUEST_HEADER,
    TAGGED_HEADER,
    UNTAGGED_HEADER,
    getsockopt,
    htole32,
    iovec,
    msghdr,
    put16,
    put32,
    put64,
    sendmsg,
)


cdef enum:
    IPPROTO_TCP = 6
    TCP_MAXSEG = 2
    IOV_MAX = 1024
    # A run ends before an FPDU that would start beyond RUN_VECTORS. One FPDU adds at most 515 vectors: each piece it
    # points at is longer than COPY octets, and at most one arena chunk lies between two of them.
    RUN_VECTORS = 1000
    VECTORS = 1536
    COPY = 256
    ARENA = 72 << 10
    RUN_OCTETS = 1 << 20
    TURN_OCTETS = 4 << 20
    LEAST_SEGMENT = 136     # RFC 5044 section 4.5: never a MULPDU below 128
    LEAST_CUT = 136
    LARGEST_FPDU = 64772    # ULPDU of at most 64768 (RFC 5044 section 3)
    MARKER_INTERVAL = 512
    MARKER_LENGTH = 4
    # 0x01: DDP version 1; 0x80: tagged; 0x40: last (RFC 5041 section 4.1). RDMAP version 1 is 0x40 of the next octet.
    DDP_VERSION = 0x01
    DDP_TAGGED_FLAG = 0x80
    DDP_LAST = 0x40
    RDMAP_VERSION = 0x40


cdef size_t room_for(size_t room, size_t to_marker) noexcept nogil:
    """FPDU octets, without Markers, that fit ``room`` octets of the stream when the next Marker is ``to_marker`` away."""
    cdef size_t beyond, rest
    if room <= to_marker:
        return room & ~<size_t>3
    beyond = room - to_marker
    rest = beyond % MARKER_INTERVAL
    return (
        to_marker
        + beyond // MARKER_INTERVAL * (MARKER_INTERVAL - MARKER_LENGTH)
        + (rest - MARKER_LENGTH if rest > MARKER_LENGTH else 0)
    ) & ~<size_t>3


cdef class Transmitter:
    """Sends one connection's FPDUs on a non-blocking socket."""

    def __cinit__(self):
        self.fd = -1

    def __init__(self, int fd, bint crc, bint markers, bint aligned, uint32_t max_reads, bint enabled):
        self.fd = fd
        self.crc = crc
        self.markers = markers
        self.aligned = aligned
        self.max_reads = max_reads
        self.enabled = enabled
        self.segment = LARGEST_FPDU
        self.send_msn = self.read_msn = 1
        self.queue = ChainQueue()
        self.responses = ChainQueue()
        self.reads = ChainQueue()
        self.framed = ChainQueue()
        self.done = []

    def __dealloc__(self):
        free(self.arena)
        free(self.vectors)
        free(self.fpdu_ends)

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

    cdef int flush(self) except -1:
        """Send what waits. Returns one of the FLUSH_ values; tokens of what has left are in ``done``."""
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
                if outcome != FLUSH_IDLE:
                    return outcome
                if sent >= TURN_OCTETS:
                    return FLUSH_MORE if self.busy() else FLUSH_IDLE
            self.build_run()
            if self.run_octets == 0:
                return FLUSH_IDLE

    def counter_values(self):
        """The counters by name."""
        return {
            "fpdus_out": self.counters.fpdus,
            "octets_out": self.counters.octets,
            "largest_fpdu_out": self.counters.largest_fpdu,
            "send_calls": self.counters.system_calls,
            "sends_out": self.counters.sends,
            "writes_out": self.counters.writes,
            "invalidations_out": self.counters.invalidations,
            "reads_out": self.counters.reads,
            "read_responses_out": self.counters.responses,
        }

    # -- Framing -------------------------------------------------------------------------------------------------

    cdef int make_room(self) except -1:
        self.vectors = <iovec *>malloc(VECTORS * sizeof(iovec))
        self.fpdu_ends = <uint32_t *>malloc(VECTORS * sizeof(uint32_t))
        self.arena = <char *>malloc(ARENA)
        if self.vectors == NULL or self.fpdu_ends == NULL or self.arena == NULL:
            raise MemoryError
        self.arena_size = ARENA
        return 0

    cdef int measure_segment(self) noexcept:
        """Ask TCP for the segment size in use: it changes with the path and with TCP options."""
        cdef int value = 0
        cdef unsigned int length = sizeof(value)
        if not self.aligned:
            return 0
        if getsockopt(self.fd, IPPROTO_TCP, TCP_MAXSEG, &value, &length) == 0 and value > 0:
            self.segment = value if value > LEAST_SEGMENT else LEAST_SEGMENT
        return 0

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

    cdef int build_run(self) except -1:
        """Frame FPDUs for one sendmsg()."""
        cdef Message *message
        cdef size_t header, left, limit, room, needed, start
        cdef bint splits, last
        self.vector_count = self.vector_next = 0
        self.arena_used = self.arena_open = 0
        self.fpdu_count = 0
        self.run_octets = self.run_sent = 0
        self.one_by_one = False
        self.measure_segment()
        while self.vector_count < RUN_VECTORS and self.run_octets < RUN_OCTETS and self.fpdu_count < VECTORS:
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
            start = self.run_octets % self.segment if self.aligned else 0
            room = self.segment - start
            if self.markers:
                limit = room_for(room, (MARKER_INTERVAL - self.stream % MARKER_INTERVAL) % MARKER_INTERVAL)
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

    cdef void write_header(self, char *where, Message *message, size_t header, size_t payload, bint last) noexcept:
        """Write the ULPDU length and the DDP and RDMAP headers (RFC 5041 sections 4.2 and 4.3, RFC 5040 section 4)."""
        cdef uint8_t control = DDP_VERSION
        if last:
            control |= DDP_LAST
        put16(where, <unsigned short>(header - 2 + payload))
        where[3] = <char>(RDMAP_VERSION | message.opcode)
        if header == TAGGED_HEADER:
            where[2] = <char>(control | DDP_TAGGED_FLAG)
            put32(where + 4, message.stag)
            put64(where + 8, message.offset + self.active_sent)
            return
        where[2] = <char>control
        put32(where + 16, <uint32_t>self.active_sent)
        if message.opcode == OP_READ_REQUEST:
            # The sink STag is only ours to recognize: a Read Response is matched by its order.
            message.sink = self.read_msn
            put32(where + 4, 0)
            put32(where + 8, 1)
            put32(where + 12, self.read_msn)
            put32(where + 20, message.sink)
            put64(where + 24, 0)
            put32(where + 32, <uint32_t>message.length)
            put32(where + 36, message.stag)
            put64(where + 40, message.offset)
        elif message.opcode == OP_TERMINATE:
            put32(where + 4, 0)
            put32(where + 8, 2)
            put32(where + 12, 1)
        else:
            put32(where + 4, message.stag)
            put32(where + 8, 0)
            put32(where + 12, self.send_msn)

    cdef char *next_octets(self, size_t wanted, size_t *got) noexcept:
        """The next at most ``wanted`` contiguous octets of the active message's payload."""
        cdef Chain chain = self.active
        cdef Message *message = chain.messages + chain.current
        cdef Piece *piece = chain.pieces + message.first + self.active_piece
        cdef char *where
        while piece.length == self.active_offset:
            self.active_piece += 1
            self.active_offset = 0
            piece += 1
        got[0] = piece.length - self.active_offset
        if got[0] > wanted:
            got[0] = wanted
        where = piece.data + self.active_offset
        self.active_offset += got[0]
        return where

    cdef void close_arena(self) noexcept:
        """Point a vector at what was written to the arena since the last one."""
        if self.arena_used > self.arena_open:
            self.vectors[self.vector_count].iov_base = self.arena + self.arena_open
            self.vectors[self.vector_count].iov_len = self.arena_used - self.arena_open
            self.vector_count += 1
            self.arena_open = self.arena_used

    cdef int frame(self, Message *message, size_t header, size_t payload, bint last) except -1:
        """Frame one FPDU without Markers."""
        cdef char *where = self.arena + self.arena_used
        cdef char *data
        cdef size_t left = payload
        cdef size_t got = 0
        cdef size_t pad
        cdef uint32_t digest = 0xFFFFFFFF
        self.write_header(where, message, header, payload, last)
        self.arena_used += header
        if self.crc:
            digest = crc32c.extend(digest, where, header)
        while left:
            data = self.next_octets(left, &got)
            left -= got
            if self.crc:
                digest = crc32c.extend(digest, data, got)
            if got <= COPY:
                memcpy(self.arena + self.arena_used, data, got)
                self.arena_used += got
            else:
                self.close_arena()
                self.vectors[self.vector_count].iov_base = data
                self.vectors[self.vector_count].iov_len = got
                self.vector_count += 1
        # The ULPDU length field and the ULPDU are padded to a multiple of 4 (RFC 5044 section 4.1).
        pad = -(header + payload) & 3
        where = self.arena + self.arena_used
        memset(where, 0, pad + CRC_LENGTH)
        if self.crc:
            digest = htole32(crc32c.extend(digest, where, pad) ^ 0xFFFFFFFF)
            memcpy(where + pad, &digest, CRC_LENGTH)
        self.arena_used += pad + CRC_LENGTH
        self.active_sent += payload
        self.count_fpdu(header + payload + pad + CRC_LENGTH)
        return 0

    cdef int frame_marked(self, Message *message, size_t header, size_t payload, bint last) except -1:
        """Frame one FPDU with Markers (RFC 5044 section 4.3), all of it copied into the arena."""
        cdef char start[READ_REQUEST_HEADER]
        cdef char *where = self.arena + self.arena_used
        cdef char *begin = where
        cdef char *data = start
        cdef size_t got = header
        cdef size_t left = payload
        cdef size_t pad = -(header + payload) & 3
        cdef size_t room
        cdef uint32_t digest
        cdef uint64_t length_field
        self.write_header(start, message, header, payload, last)
        # "An FPDUPTR value of 0x0000 is a special case": the Marker right before the ULPDU length field.
        length_field = self.stream
        if length_field % MARKER_INTERVAL == 0:
            length_field += MARKER_LENGTH
        while True:
            while got or data == NULL:
                if self.stream % MARKER_INTERVAL == 0:
                    put16(where, 0)
                    put16(where + 2, <unsigned short>(self.stream - length_field if self.stream > length_field else 0))
                    where += MARKER_LENGTH
                    self.stream += MARKER_LENGTH
                if data == NULL:
                    break
                room = MARKER_INTERVAL - self.stream % MARKER_INTERVAL
                if room > got:
                    room = got
                memcpy(where, data, room)
                where += room
                data += room
                got -= room
                self.stream += room
            if data == NULL:
                break
            if left:
                data = self.next_octets(left, &got)
                left -= got
            elif pad:
                memset(start, 0, pad)
                data, got, pad = start, pad, 0
            else:
                # A Marker between pad and CRC belongs to this FPDU and to its CRC (RFC 5044 section 4.4).
                data = NULL
        digest = 0
        if self.crc:
            digest = htole32(crc32c.extend(0xFFFFFFFF, begin, where - begin) ^ 0xFFFFFFFF)
        memcpy(where, &digest, CRC_LENGTH)
        where += CRC_LENGTH
        self.stream += CRC_LENGTH
        self.arena_used += where - begin
        self.active_sent += payload
        self.count_fpdu(where - begin)
        return 0

    cdef void count_fpdu(self, size_t octets) noexcept:
        self.run_octets += octets
        self.fpdu_ends[self.fpdu_count] = <uint32_t>self.run_octets
        self.fpdu_count += 1
        self.counters.fpdus += 1
        if octets > self.counters.largest_fpdu:
            self.counters.largest_fpdu = octets

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

    # -- Sending -------------------------------------------------------------------------------------------------

    cdef int send_run(self) except -1:
        """Send what is left of the run. Returns FLUSH_IDLE when all of it has left."""
        cdef msghdr message
        cdef size_t given, cut, i
        cdef uint32_t count
        cdef ssize_t sent
        cdef int flags
        memset(&message, 0, sizeof(message))
        while self.run_sent < self.run_octets:
            given = self.run_octets - self.run_sent
            flags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_EOR
            if self.one_by_one:
                for i in range(self.fpdu_count):
                    if self.fpdu_ends[i] > self.run_sent:
                        given = self.fpdu_ends[i] - self.run_sent
                        break
            count = 0
            cut = 0
            while cut < given and count < IOV_MAX:
                cut += self.vectors[self.vector_next + count].iov_len
                count += 1
            if cut < given:
                # More vectors than one call takes: the next call goes on in the middle of the run.
                given = cut
                flags = MSG_DONTWAIT | MSG_NOSIGNAL
            cut -= given
            message.msg_iov = self.vectors + self.vector_next
            message.msg_iovlen = count
            self.vectors[self.vector_next + count - 1].iov_len -= cut
            sent = sendmsg(self.fd, &message, flags)
            self.vectors[self.vector_next + count - 1].iov_len += cut
            self.counters.system_calls += 1
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return FLUSH_BLOCKED
                self.error = errno
                return FLUSH_FAILED
            self.counters.octets += sent
            self.run_sent += sent
            cut = sent
            while cut and cut >= self.vectors[self.vector_next].iov_len:
                cut -= self.vectors[self.vector_next].iov_len
                self.vector_next += 1
            if cut:
                self.vectors[self.vector_next].iov_base = <char *>self.vectors[self.vector_next].iov_base + cut
                self.vectors[self.vector_next].iov_len -= cut
            self.note_progress()
            if <size_t>sent < given:
                if self.aligned and self.run_sent % self.segment:
                    self.one_by_one = True
                return FLUSH_BLOCKED
        return FLUSH_IDLE

    cdef void note_progress(self):
        """Complete the chains whose last octet has left."""
        cdef Chain chain = self.framed.first
        while chain is not None and chain.end <= self.vector_next:
            self.framed.pop()
            if chain.signalled:
                self.done.append(chain.token)
            chain.release()
            chain = self.framed.first
