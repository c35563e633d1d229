"""What this machine can do at best, in native code without a server: the measure that servers' figures are put beside.

Owns a server of fixed-size requests and replies that does nothing else, to be run in a process of its own, and loops of
single system calls, and of a call's signatures. Imports the clock, and security contexts.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from rpcrdma.clock cimport nanoseconds
from rpcrdma.gss.mechanism cimport MAX_MIC, Sealer

import os

cdef enum:
    HEADER = 68             # octets of a call with a context of ours, up to the verifier (RFC 2203 section 5.3.1)
    PRIME = 7919            # places in a file, one such step behind the other, are not in order

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int MSG_NOSIGNAL, MSG_WAITALL

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *sink, size_t size, long offset)
    ssize_t pwrite(int fd, const void *source, size_t size, long offset)


def answer(int fd, size_t request, size_t reply):
    """Answer each request of so many octets with a reply, one by one, until the peer closes. Returns how many."""
    cdef uint8_t *buffer = <uint8_t *>malloc(max(request, reply))
    cdef uint64_t count = 0
    cdef ssize_t got
    if buffer == NULL:
        raise MemoryError
    memset(buffer, 0, max(request, reply))
    with nogil:
        while True:
            got = recv(fd, buffer, request, MSG_WAITALL)
            if got < 0 and errno == EINTR:
                continue
            if got < <ssize_t>request or send(fd, buffer, reply, MSG_NOSIGNAL) < <ssize_t>reply:
                break
            count += 1
    free(buffer)
    return count


def ask(int fd, size_t request, size_t reply, int outstanding, double seconds):
    """Keep requests outstanding with the other end for so long. Returns (answered, seconds)."""
    cdef size_t room = max(request, reply) * outstanding
    cdef uint8_t *buffer = <uint8_t *>malloc(room)
    cdef uint64_t count = 0, begun, until, moment
    cdef size_t left = 0, whole
    cdef ssize_t got
    cdef int failed = 0
    if buffer == NULL:
        raise MemoryError
    memset(buffer, 0, room)
    with nogil:
        begun = moment = nanoseconds()
        until = begun + <uint64_t>(seconds * 1e9)
        if send(fd, buffer, request * outstanding, MSG_NOSIGNAL) < 0:
            failed = errno
        while moment < until and not failed:
            got = recv(fd, buffer, room, 0)
            if got <= 0:
                failed = errno if got < 0 else 1
                break
            left += got
            whole = left // reply
            left -= whole * reply
            count += whole
            moment = nanoseconds()
            if whole and send(fd, buffer, request * whole, MSG_NOSIGNAL) < 0:
                failed = errno
    free(buffer)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return count, (moment - begun) / 1e9


def drain(int fd):
    """Receive and throw away until the peer closes. Returns octets."""
    cdef size_t size = 1 << 20
    cdef uint8_t *buffer = <uint8_t *>malloc(size)
    cdef uint64_t total = 0
    cdef ssize_t got
    with nogil:
        while True:
            got = recv(fd, buffer, size, 0)
            if got < 0 and errno == EINTR:
                continue
            if got <= 0:
                break
            total += got
    free(buffer)
    return total


def store(int fd, int file, size_t size, size_t header, size_t reply, size_t room):
    """Put the data of each request, ``size`` octets behind its header, into a file's first ``room`` octets, until the peer
    closes. Requests that came together are answered together. Returns how many."""
    cdef size_t request = header + size
    cdef size_t most = max(<size_t>1, (<size_t>256 << 10) // request)
    cdef uint8_t *buffer = <uint8_t *>malloc(most * request)
    cdef uint8_t *replies = <uint8_t *>calloc(most, reply)
    cdef uint64_t count = 0
    cdef size_t have = 0, whole, i
    cdef ssize_t got
    if buffer == NULL or replies == NULL:
        free(buffer)
        free(replies)
        raise MemoryError
    with nogil:
        while True:
            got = recv(fd, buffer + have, most * request - have, 0)
            if got < 0 and errno == EINTR:
                continue
            if got <= 0:
                break
            have += got
            whole = have // request
            for i in range(whole):
                if pwrite(file, buffer + i * request + header, size, <long>((count * PRIME) % (room // size) * size)) < 0:
                    got = -1
                count += 1
            have -= whole * request
            if have:
                memmove(buffer, buffer + whole * request, have)
            if got < 0 or whole and send(fd, replies, whole * reply, MSG_NOSIGNAL) < 0:
                break
    free(buffer)
    free(replies)
    return count


def stream(int fd, double seconds):
    """Send 1 MiB after 1 MiB. Returns octets per second."""
    cdef size_t size = 1 << 20
    cdef uint8_t *buffer = <uint8_t *>malloc(size)
    cdef uint64_t total = 0, begun, until, moment
    cdef ssize_t sent
    memset(buffer, 1, size)
    with nogil:
        begun = moment = nanoseconds()
        until = begun + <uint64_t>(seconds * 1e9)
        while moment < until:
            sent = send(fd, buffer, size, MSG_NOSIGNAL)
            if sent < 0:
                break
            total += sent
            moment = nanoseconds()
    free(buffer)
    return total / ((moment - begun) / 1e9)


def file_calls(int fd, offsets, bint write, size_t size=4096):
    """One pread or pwrite at each offset. Returns how many."""
    cdef uint8_t *buffer = <uint8_t *>malloc(size)
    cdef long offset
    cdef uint64_t count = 0
    memset(buffer, 1, size)
    for offset in offsets:
        if (pwrite(fd, buffer, size, offset) if write else pread(fd, buffer, size, offset)) == <ssize_t>size:
            count += 1
    free(buffer)
    return count


def copying(double seconds):
    """memcpy of 256 MiB. Returns octets per second."""
    cdef size_t size = 256 << 20
    cdef uint8_t *source = <uint8_t *>malloc(size)
    cdef uint8_t *sink = <uint8_t *>malloc(size)
    cdef uint64_t total = 0, begun, moment
    if source == NULL or sink == NULL:
        free(source)
        free(sink)
        raise MemoryError
    memset(source, 1, size)
    memset(sink, 1, size)
    with nogil:
        begun = moment = nanoseconds()
        while moment - begun < <uint64_t>(seconds * 1e9):
            memcpy(sink, source, size)
            source[0] = <uint8_t>(sink[size - 1] + sink[0])  # or the compiler sees that nobody looks
            total += size
            moment = nanoseconds()
    free(source)
    free(sink)
    return total / ((moment - begun) / 1e9)


def signatures(Sealer theirs not None, Sealer ours not None, int times):
    """Verify a call's header that they have signed, and sign a sequence number for its reply, so many times. Returns the
    octets of a signature."""
    cdef uint8_t header[HEADER]
    cdef uint8_t given[MAX_MIC]
    cdef uint8_t made[MAX_MIC]
    cdef ssize_t length
    memset(header, 1, sizeof(header))
    length = theirs.sign_to(header, sizeof(header), given, sizeof(given))
    for _ in range(times):
        if not ours.verifies(header, sizeof(header), given, length) or ours.sign_to(header, 4, made, sizeof(made)) < 0:
            raise ValueError("the two are not the ends of one context")
    return length
