"""A load generator in native code: RPC calls over TCP, a fixed number outstanding, every reply checked.

Owns one connected blocking socket's traffic while it runs; imports nothing of the project. One core of load costs less
than any server does per call, so the server is what is measured.

Calls are templates: whole RPC messages, of which only the XID is filled in, and in NFSv4.1 and later the sequence id and
the slot: an outstanding call has a slot of the session to itself, from slot 1 on. Each reply is matched by XID, and the words
after the reply's header (RPC acceptance, NFS status) must be zero; its length must be the expected one.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int MSG_NOSIGNAL

cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    const int CLOCK_MONOTONIC

cdef enum:
    RECEIVE = 4 << 20


cdef uint64_t now() noexcept nogil:
    """Nanoseconds of the monotonic clock."""
    cdef timespec clock
    clock_gettime(CLOCK_MONOTONIC, &clock)
    return <uint64_t>clock.tv_sec * 1000000000 + clock.tv_nsec


cdef int ascending(const void *left, const void *right) noexcept nogil:
    cdef uint32_t a = (<uint32_t *>left)[0]
    cdef uint32_t b = (<uint32_t *>right)[0]
    return -1 if a < b else (1 if a > b else 0)


cdef class Load:
    """Calls on one connection: templates, slots and latencies. Derived from for each transport."""

    def __cinit__(self, int fd, templates, uint32_t depth, *more, size_t sequence_at=0, **others):
        """``templates``: whole calls, used in turn, in which XIDs are filled in. At most 4096 outstanding."""
        cdef size_t i
        cdef bytes template
        if not 1 <= depth <= 4096:
            raise ValueError(f"{depth} calls outstanding")
        self.fd = fd
        self.templates = [bytes(template) for template in templates]
        self.count = len(self.templates)
        self.depth = depth
        self.sequence_at = sequence_at
        self.calls = <uint8_t **>calloc(self.count, sizeof(uint8_t *))
        self.sizes = <size_t *>calloc(self.count, sizeof(size_t))
        self.started = <uint64_t *>calloc(depth, sizeof(uint64_t))
        self.round = <uint32_t *>calloc(depth, sizeof(uint32_t))
        if self.calls == NULL or self.sizes == NULL or self.started == NULL or self.round == NULL:
            raise MemoryError
        for i in range(self.count):
            template = self.templates[i]
            self.calls[i] = <uint8_t *><char *>template
            self.sizes[i] = len(template)

    def __dealloc__(self):
        free(self.calls)
        free(self.sizes)
        free(self.started)
        free(self.round)
        free(self.latencies)

    cdef int transmit(self, uint8_t *data, size_t size) noexcept nogil:
        """Send everything; -1 when the connection is broken."""
        cdef size_t done = 0
        cdef ssize_t sent
        while done < size:
            sent = send(self.fd, data + done, size - done, MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                return -1
            done += sent
        return 0

    cdef ssize_t receive(self, uint8_t *data, size_t size) noexcept nogil:
        """Receive some; 0 or -1 at the end."""
        cdef ssize_t got
        while True:
            got = recv(self.fd, data, size, 0)
            if got >= 0 or errno != EINTR:
                return got

    cdef int note(self, uint64_t elapsed) noexcept nogil:
        """Remember a latency in nanoseconds."""
        cdef void *larger
        if self.samples == self.room:
            larger = realloc(self.latencies, (2 * self.room + 65536) * sizeof(uint32_t))
            if larger == NULL:
                return -1
            self.latencies = <uint32_t *>larger
            self.room = 2 * self.room + 65536
        self.latencies[self.samples] = <uint32_t>min(elapsed, <uint64_t>0xFFFFFFFF)
        self.samples += 1
        return 0

    cdef void fill_in(self, uint8_t *call, uint32_t slot) noexcept nogil:
        """Make the next call of a slot of a template."""
        store32(call, (self.round[slot] << 12) | slot)
        if self.sequence_at:
            store32(call + self.sequence_at, self.round[slot])
            store32(call + self.sequence_at + 4, slot + 1)

    cdef void sort(self) noexcept nogil:
        qsort(self.latencies, self.samples, sizeof(uint32_t), ascending)

    def percentile(self, double part):
        """Latency in microseconds below which this part of the calls was answered."""
        if not self.samples:
            return 0.0
        return self.latencies[min(<size_t>(part * self.samples), self.samples - 1)] / 1000


cdef class Generator(Load):
    """RPC calls over TCP with record marks."""

    cdef size_t reply_size          # of a whole record without its mark; 0: any

    def __cinit__(self, int fd, templates, uint32_t depth, size_t reply_size=0, **others):
        self.reply_size = reply_size

    cdef size_t begin_call(self, uint8_t *at, uint32_t slot, const uint8_t *call, size_t size) noexcept nogil:
        """Put a call with its record mark. Returns octets."""
        store32(at, <uint32_t>0x80000000 | <uint32_t>size)
        memcpy(at + 4, call, size)
        self.fill_in(at + 4, slot)
        return 4 + size

    def run(self, double seconds, size_t most=0):
        """Keep ``depth`` calls outstanding for so long (or ``most`` calls). Returns (calls answered, seconds)."""
        cdef size_t next_call = 0, outgoing = 0, largest = 0, i, have = 0, at, length, issued = 0, answered = 0
        cdef uint32_t slot, xid
        cdef uint64_t begun, until, moment
        cdef uint8_t *out
        cdef uint8_t *buffer
        cdef ssize_t got
        cdef const char *problem = NULL
        for i in range(self.count):
            largest = max(largest, self.sizes[i] + 4)
        out = <uint8_t *>malloc(largest * self.depth)
        buffer = <uint8_t *>malloc(RECEIVE)
        if out == NULL or buffer == NULL:
            free(out)
            free(buffer)
            raise MemoryError
        self.samples = 0
        with nogil:
            begun = now()
            until = begun + <uint64_t>(seconds * 1e9)
            for slot in range(self.depth):
                self.started[slot] = begun
                self.round[slot] += 1
                outgoing += self.begin_call(out + outgoing, slot, self.calls[next_call], self.sizes[next_call])
                next_call = (next_call + 1) % self.count
                issued += 1
            if self.transmit(out, outgoing) != 0:
                problem = b"cannot send"
            while answered < issued and problem == NULL:
                got = self.receive(buffer + have, RECEIVE - have)
                if got <= 0:
                    problem = b"the server closed the connection"
                    break
                have += got
                at = outgoing = 0
                moment = now()
                while have - at >= 4:
                    length = load32(buffer + at) & 0x7FFFFFFF
                    if have - at < 4 + length:
                        break
                    xid = load32(buffer + at + 4)
                    slot = xid & 0xFFF
                    if slot >= self.depth or length < 28 or xid >> 12 != (self.round[slot] & 0xFFFFF):
                        problem = b"a reply to no call"
                        break
                    for i in range(12, 32):
                        if buffer[at + i] != 0:
                            problem = b"a call failed"
                    if self.reply_size and length != self.reply_size:
                        problem = b"a reply of an unexpected length"
                    at += 4 + length
                    answered += 1
                    self.note(moment - self.started[slot])
                    if moment < until and (most == 0 or issued < most) and problem == NULL:
                        self.started[slot] = moment
                        self.round[slot] += 1
                        outgoing += self.begin_call(
                            out + outgoing, slot, self.calls[next_call], self.sizes[next_call]
                        )
                        next_call = (next_call + 1) % self.count
                        issued += 1
                memmove(buffer, buffer + at, have - at)
                have -= at
                if outgoing and problem == NULL and self.transmit(out, outgoing) != 0:
                    problem = b"cannot send"
            moment = now()
            free(out)
            free(buffer)
            self.sort()
        if problem != NULL:
            raise RuntimeError(problem.decode())
        return answered, (moment - begun) / 1e9
