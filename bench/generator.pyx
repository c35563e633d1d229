"""A load generator in native code: RPC calls over TCP, a fixed number outstanding, every reply checked.

Owns one connected blocking socket's traffic while it runs; imports nothing of the project. One core of load costs less
than any server does per call, so the server is what is measured.

Calls are templates: whole RPC messages, of which only the XID is filled in. Each reply is matched by XID, and the words
after the reply's header (RPC acceptance, NFS status) must be zero; its length must be the expected one.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove
from libc.errno cimport EINTR, errno

import os

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


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void store32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline uint64_t now() noexcept nogil:
    cdef timespec clock
    clock_gettime(CLOCK_MONOTONIC, &clock)
    return <uint64_t>clock.tv_sec * 1000000000 + clock.tv_nsec


cdef int ascending(const void *left, const void *right) noexcept nogil:
    cdef uint32_t a = (<uint32_t *>left)[0]
    cdef uint32_t b = (<uint32_t *>right)[0]
    return -1 if a < b else (1 if a > b else 0)


cdef class Generator:
    """Calls on one connection."""

    cdef int fd
    cdef list templates
    cdef uint8_t **calls            # with their record marks
    cdef size_t *sizes
    cdef size_t count
    cdef size_t reply_size          # of a whole record without its mark; 0: any
    cdef uint32_t depth
    cdef uint64_t *started          # by slot: XIDs are slot numbers and a round
    cdef uint32_t *round
    cdef uint32_t *latencies        # nanoseconds, saturated
    cdef size_t samples
    cdef size_t room
    cdef readonly str failure

    def __cinit__(self, int fd, templates, uint32_t depth, size_t reply_size=0):
        """``templates``: RPC calls, used in turn, whose first four octets (the XID) are overwritten."""
        cdef size_t i
        cdef bytes template
        self.fd = fd
        self.templates = [
            (0x80000000 | len(message)).to_bytes(4, "big") + bytes(message) for message in templates
        ]
        self.count = len(self.templates)
        self.depth = depth
        self.reply_size = reply_size
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

    cdef int note(self, uint64_t elapsed) noexcept nogil:
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
            largest = max(largest, self.sizes[i])
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
                memcpy(out + outgoing, self.calls[next_call], self.sizes[next_call])
                self.round[slot] += 1
                store32(out + outgoing + 4, (self.round[slot] << 12) | slot)
                outgoing += self.sizes[next_call]
                next_call = (next_call + 1) % self.count
                issued += 1
            if self.transmit(out, outgoing) != 0:
                problem = b"cannot send"
            while answered < issued and problem == NULL:
                got = recv(self.fd, buffer + have, RECEIVE - have, 0)
                if got <= 0:
                    if got < 0 and errno == EINTR:
                        continue
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
                        memcpy(out + outgoing, self.calls[next_call], self.sizes[next_call])
                        self.round[slot] += 1
                        store32(out + outgoing + 4, (self.round[slot] << 12) | slot)
                        outgoing += self.sizes[next_call]
                        next_call = (next_call + 1) % self.count
                        issued += 1
                memmove(buffer, buffer + at, have - at)
                have -= at
                if outgoing and problem == NULL and self.transmit(out, outgoing) != 0:
                    problem = b"cannot send"
            moment = now()
            free(out)
            free(buffer)
            qsort(self.latencies, self.samples, sizeof(uint32_t), ascending)
        if problem != NULL:
            raise RuntimeError(problem.decode())
        return answered, (moment - begun) / 1e9

    def percentile(self, double part):
        """Latency in microseconds below which this part of the calls was answered."""
        if not self.samples:
            return 0.0
        return self.latencies[min(<size_t>(part * self.samples), self.samples - 1)] / 1000
