"""The load generator over iWARP: RPC-over-RDMA calls of version One or Two on an MPA connection, without CRC and Markers.

Owns one connected blocking socket's traffic after the MPA negotiation; imports :mod:`rpcrdma.octets` alone. It plays a
requester that exposes one piece of memory per outstanding call: what is written there is counted and thrown away, what
is read from there is always the same. A reply may come in several segments. Each reply is matched by XID and checked:
transport header, RPC acceptance, NFS status, and how many octets were written (RFC 5040, 5041, 5044, 8166).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from bench.generator cimport Load, Run
from rpcrdma.octets cimport load32, load64, store32

cdef enum:
    LARGEST_PAYLOAD = 60000     # of a Read Response's FPDU
    HANDLE = 0x5A000000
    LISTS = 16                  # where the chunk lists begin in version One
    LARGEST_REPLY = 4096        # octets of a Send: what bench.servers says to the server when it connects
    LAST = 0x40                 # of the DDP control field: the segment ends its message (RFC 5041 section 4.1)


cdef class RdmaGenerator(Load):
    """Calls on one connection."""

    cdef size_t rpc_at              # where the RPC message begins in a call
    cdef size_t handle_at           # where the handle of its one chunk stands; 0: none
    cdef size_t written             # octets that the server must have written
    cdef bytes bulk                 # what it can read
    cdef const uint8_t *bulk_octets
    cdef uint64_t *received         # octets written, by slot
    cdef uint8_t[LARGEST_REPLY] parts   # of a reply whose last segment has yet to come
    cdef size_t part_octets
    cdef uint32_t msn
    cdef readonly unsigned long long invalidations

    def __cinit__(self, int fd, templates, uint32_t depth, size_t rpc_at, size_t handle_at=0, size_t written=0,
                  bytes bulk=b"", **others):
        self.rpc_at = rpc_at
        self.handle_at = handle_at
        self.written = written
        self.bulk = bulk
        self.bulk_octets = bulk
        self.response = 4096 + 2 * len(bulk)
        self.msn = 0
        self.window = 1  # until the server grants more (RFC 8166 section 3.3.3)
        self.received = <uint64_t *>calloc(depth, sizeof(uint64_t))
        if self.received == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.received)

    cdef size_t put_header(self, uint8_t *at, size_t payload, uint8_t control, uint8_t opcode) noexcept nogil:
        """What all FPDUs begin with; ``payload`` includes the DDP and RDMAP headers behind it. Octets of the FPDU."""
        cdef size_t length = payload + 2
        at[0] = <uint8_t>(length >> 8)
        at[1] = <uint8_t>length
        at[2] = control
        at[3] = opcode
        return ((length + 2 + 3) & ~<size_t>3) + 4

    cdef size_t begin_call(self, uint8_t *at, uint32_t slot, const uint8_t *call, size_t size) noexcept nogil:
        """Frame a call as one Send. Returns the octets of the FPDU."""
        cdef size_t length = self.put_header(at, 16 + size, 0x41, 0x43)
        memset(at + 4, 0, 16)
        self.msn += 1
        store32(at + 12, self.msn)
        memcpy(at + 20, call, size)
        memset(at + 20 + size, 0, length - 20 - size)
        self.fill_in(at + 20 + self.rpc_at, slot)
        memcpy(at + 20, at + 20 + self.rpc_at, 4)
        if self.handle_at:
            store32(at + 20 + self.handle_at, HANDLE | slot)
        self.received[slot] = 0
        return length

    cdef size_t answer_read(self, uint8_t *at, const uint8_t *request) noexcept nogil:
        """Frame the Read Response to a Read Request. Returns octets, but for those sent from where they are."""
        cdef uint32_t sink = load32(request + 20)
        cdef uint64_t offset = load64(request + 24)
        cdef size_t size = load32(request + 32), done = 0, part, length, total = 0
        cdef uint64_t source = load64(request + 40)
        cdef const uint8_t *data = self.bulk_octets
        while True:
            part = min(size - done, <size_t>LARGEST_PAYLOAD)
            length = self.put_header(at, 12 + part, 0xC1 if done + part == size else 0x81, 0x42)
            store32(at + 4, sink)
            store32(at + 8, <uint32_t>((offset + done) >> 32))
            store32(at + 12, <uint32_t>(offset + done))
            if self.cut(at + 16, data + source + done, part):
                length -= part  # of what is here
                memset(at + 16, 0, length - 16)
            else:
                memcpy(at + 16, data + source + done, part)
                memset(at + 16 + part, 0, length - 16 - part)
            at += length
            total += length
            done += part
            if done == size:
                return total

    cdef const char *check_reply(self, Run *run, const uint8_t *message, size_t size, uint32_t *slot) noexcept nogil:
        """What is wrong with a reply; NULL: nothing."""
        cdef size_t lists = LISTS, at
        cdef uint32_t xid
        if size < LISTS + 12 + 28:
            return b"a short reply"
        if load32(message + 4) == 2:  # version Two has the direction and a handle before the chunk lists
            lists += 8
        at = lists + 12
        xid = load32(message)
        slot[0] = xid & 0xFFF
        if not self.expects(xid):
            return b"a reply to no call"
        if load32(message + 12) != 0:
            return b"a transport error"
        if load32(message + lists + 4) == 1:
            at = lists + 12 + 16 * load32(message + lists + 8) + 8
        if at + 28 > size or load32(message + at) != xid:
            return b"not the reply"
        if self.lenient:
            return NULL
        if not self.succeeded(run, message + at + 8):
            return run.problem
        self.learn(slot[0], message + at, size - at)
        if self.received[slot[0]] != self.written:
            return b"the result was not written"
        return NULL

    cdef const uint8_t *joined(self, Run *run, const uint8_t *data, size_t *size) noexcept nogil:
        """The message that a Send's FPDU ends, whose own part of it has ``size`` octets; then it is the whole's octets.
        NULL: its end has yet to come, or the segments do not follow each other. A sender may cut a message anywhere, so
        that FPDUs keep to TCP's segments (RFC 5041 section 5.2, RFC 5044 section 5.1)."""
        cdef bint last = data[2] & LAST
        if load32(data + 16) != self.part_octets or size[0] > LARGEST_REPLY - self.part_octets:
            run.problem = b"a segment that does not belong there"
            return NULL
        if last and self.part_octets == 0:
            return data + 20
        memcpy(self.parts + self.part_octets, data + 20, size[0])
        self.part_octets += size[0]
        if not last:
            return NULL
        size[0], self.part_octets = self.part_octets, 0
        return self.parts

    cdef size_t take(self, Run *run, const uint8_t *data, size_t size) noexcept nogil:
        """Handle one FPDU."""
        cdef size_t ulpdu, length, octets
        cdef const uint8_t *message
        cdef uint8_t opcode
        cdef uint32_t slot = 0
        if size < 4:
            return 0
        ulpdu = (<size_t>data[0] << 8) | data[1]
        length = ((2 + ulpdu + 3) & ~<size_t>3) + 4
        if size < length:
            return 0
        opcode = data[3] & 0x0F
        if opcode == 0:
            slot = load32(data + 4) & 0xFFF
            if slot >= self.depth:
                run.problem = b"an RDMA Write to nowhere"
            else:
                self.received[slot] += ulpdu - 14
        elif opcode == 1:
            self.outgoing += self.answer_read(self.out + self.outgoing, data)
        elif opcode == 3 or opcode == 4:
            octets = ulpdu - 18
            message = self.joined(run, data, &octets)
            if message == NULL:
                return length
            self.invalidations += opcode == 4
            run.problem = self.check_reply(run, message, octets, &slot)
            if run.problem == NULL:
                self.answered(run, slot)
                # It grants more as it is used, and never less than before.
                self.window = max(self.window, min(self.depth, load32(message + 8)))
                self.widen(run)
            else:
                run.seen_size = min(octets, sizeof(run.seen))
                memcpy(run.seen, message, run.seen_size)
        else:
            run.problem = b"an FPDU that no server sends"
        return length
