# distutils: extra_compile_args = -O2
"""Runs: FPDUs framed for one sendmsg(), and sent.

Owns the layout of what goes out: RFC 5044 sections 4.1 to 4.4 (FPDU, CRC, Markers), the headers of RFC 5041 section 4
and RFC 5040 section 4. :class:`Run` is the base of :class:`transmit.Transmitter`, which decides what is framed when;
it knows one message at a time (``active``). Imports :mod:`framing`, :mod:`chain` and :mod:`crc`.

Headers, trailers and small payloads are written to an arena; larger payloads are pointed at where they lie. A chain
that is wholly framed waits in ``framed`` until the kernel has taken its last octet.

A payload in a pipe (:mod:`rpcrdma.pipes`) stays in the pages it is in. Its run takes a splice() for every FPDU, and
between two of them one sendmmsg(): of the trailer, whose MSG_EOR has the next FPDU begin a socket buffer, and of the
next header. An FPDU carries as many pages as fit one such buffer beside its header and trailer.
"""

from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from rpcrdma.copying cimport copy_octets
from rpcrdma.verbs.softiwarp cimport crc as crc32c
from rpcrdma.verbs.softiwarp.chain cimport Chain, ChainQueue, Message, Piece
from rpcrdma.verbs.softiwarp.framing cimport (
    CRC_LENGTH,
    MSG_DONTWAIT,
    MSG_EOR,
    MSG_MORE,
    MSG_NOSIGNAL,
    OP_READ_REQUEST,
    OP_TERMINATE,
    READ_REQUEST_HEADER,
    TAGGED_HEADER,
    htole32,
    iovec,
    mmsghdr,
    msghdr,
    put16,
    put32,
    put64,
    sendmmsg,
    sendmsg,
)


cdef enum:
    IOV_MAX = 1024
    # 0x01: DDP version 1; 0x80: tagged; 0x40: last (RFC 5041 section 4.1). RDMAP version 1 is 0x40 of the next octet.
    DDP_VERSION = 0x01
    DDP_TAGGED_FLAG = 0x80
    DDP_LAST = 0x40
    RDMAP_VERSION = 0x40


cdef size_t room_between_markers(size_t room, size_t to_marker) noexcept nogil:
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


cdef class Run:
    """The FPDUs of one sendmsg() on a non-blocking socket."""

    def __cinit__(self):
        self.fd = -1
        self.send_msn = self.read_msn = 1
        self.framed = ChainQueue()
        self.done = []

    def __dealloc__(self):
        free(self.arena)
        free(self.vectors)
        free(self.fpdu_ends)

    cdef int make_room(self) except -1:
        self.vectors = <iovec *>malloc(VECTORS * sizeof(iovec))
        self.fpdu_ends = <uint32_t *>malloc(VECTORS * sizeof(uint32_t))
        self.arena = <char *>malloc(ARENA)
        if self.vectors == NULL or self.fpdu_ends == NULL or self.arena == NULL:
            raise MemoryError
        self.arena_size = ARENA
        return 0

    cdef void begin(self) noexcept:
        """Start an empty run."""
        self.vector_count = self.vector_next = 0
        self.arena_used = self.arena_open = 0
        self.fpdu_count = 0
        self.run_octets = self.run_sent = 0
        self.one_by_one = False
        self.paged = None

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
                copy_octets(self.arena + self.arena_used, data, got)
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

    cdef int frame_pages(self, Message *message, size_t payload, bint last) except -1:
        """Frame one FPDU whose payload is the next in the active chain's pipe: three vectors, of which the second has
        no address. There are neither CRC nor Markers."""
        cdef size_t pad = -payload & 3
        self.write_header(self.arena + self.arena_used, message, TAGGED_HEADER, payload, last)
        self.arena_used += TAGGED_HEADER
        self.close_arena()
        self.vectors[self.vector_count].iov_base = NULL
        self.vectors[self.vector_count].iov_len = payload
        self.vector_count += 1
        memset(self.arena + self.arena_used, 0, pad + CRC_LENGTH)
        self.arena_used += pad + CRC_LENGTH
        self.close_arena()
        self.paged = self.active
        self.paged.pages_framed += payload
        self.active_sent += payload
        self.count_fpdu(TAGGED_HEADER + payload + pad + CRC_LENGTH)
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
                copy_octets(where, data, room)
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

    cdef int send_run(self) except -1:
        """Send what is left of the run. Returns SENT, BLOCKED or FAILED."""
        cdef msghdr message
        cdef size_t given, cut, i
        cdef uint32_t count
        cdef ssize_t sent
        cdef int flags
        if self.paged is not None:
            return self.send_pages()
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
                    self.counters.cut += 1
                    return BLOCKED
                self.error = errno
                return FAILED
            self.advance(<size_t>sent)
            if <size_t>sent < given:
                self.counters.cut += 1
                if self.aligned and self.run_sent % self.segment:
                    self.one_by_one = True
                return BLOCKED
        return SENT

    cdef int send_pages(self) except -1:
        """The same for a run of FPDUs whose payload is in a pipe."""
        cdef size_t asked
        cdef ssize_t sent
        while self.run_sent < self.run_octets:
            if self.vectors[self.vector_next].iov_base == NULL:
                asked = self.vectors[self.vector_next].iov_len
                sent = self.paged.pages.send(self.fd, asked, True)
                if sent == 0:
                    self.error = EIO  # a page that was framed cannot be had any more
                    return FAILED
            else:
                sent = self.send_between(&asked)
            self.counters.system_calls += 1
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    self.counters.cut += 1
                    return BLOCKED
                self.error = errno
                return FAILED
            self.advance(<size_t>sent)
            if <size_t>sent < asked:
                self.counters.cut += 1
                return BLOCKED
        return SENT

    cdef ssize_t send_between(self, size_t *asked) noexcept:
        """Send what stands between two payloads in pages: a trailer, or a header, or both; or what is left of them.
        Returns octets, of ``asked``; -1 with errno set."""
        cdef mmsghdr[2] messages
        cdef iovec *vector = self.vectors + self.vector_next
        cdef bint trailer = self.vector_next % 3 == 2
        cdef bint more = self.vector_next + 1 < self.vector_count
        cdef int count = 2 if trailer and more else 1
        cdef int sent
        memset(messages, 0, sizeof(messages))
        messages[0].msg_hdr.msg_iov = vector
        messages[1].msg_hdr.msg_iov = vector + 1
        messages[0].msg_hdr.msg_iovlen = messages[1].msg_hdr.msg_iovlen = 1
        # Only this flag is a message's own.
        messages[0].msg_hdr.msg_flags = MSG_EOR if trailer else 0
        asked[0] = vector.iov_len
        if count == 2:
            asked[0] += vector[1].iov_len
        sent = sendmmsg(self.fd, messages, count, MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if more else 0))
        if sent < 0:
            return -1
        return messages[0].msg_len + (messages[1].msg_len if sent == 2 else 0)

    cdef int advance(self, size_t sent) except -1:
        """So many octets of the run have left."""
        cdef iovec *vector = self.vectors + self.vector_next
        self.counters.octets += sent
        self.run_sent += sent
        while sent and sent >= vector.iov_len:
            sent -= vector.iov_len
            vector += 1
            self.vector_next += 1
        if sent:
            if vector.iov_base != NULL:
                vector.iov_base = <char *>vector.iov_base + sent
            vector.iov_len -= sent
        self.note_progress()
        return 0

    cdef void note_progress(self):
        """Complete the chains whose last octet has left."""
        cdef Chain chain = self.framed.first
        while chain is not None and chain.end <= self.vector_next:
            self.framed.pop()
            if chain.signalled:
                self.done.append(chain.token)
            chain.release()
            chain = self.framed.first
