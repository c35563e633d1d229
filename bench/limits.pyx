"""What this machine can do at best, in native code without a server: the measure that servers' figures are put beside.

Owns servers of fixed-size requests and replies that do nothing else, to be run in a process of their own (one answers, one
puts the requests' data into a file, one reads the replies' from a disk), and loops of single system calls, and of a call's
signatures. Imports the clock, security contexts, threads, and the rings by which the server reads disks.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from nfsd.vfs.uring cimport DEPTH, uring_close, uring_done, uring_enter, uring_open, uring_read, uring_t
from rpcrdma.clock cimport nanoseconds
from rpcrdma.gss.mechanism cimport MAX_MIC, Sealer
from rpcrdma.threads cimport pthread_create, pthread_join, pthread_t, sem_destroy, sem_init, sem_post, sem_t, sem_wait

import os

cdef enum:
    HEADER = 68             # octets of a call with a context of ours, up to the verifier (RFC 2203 section 5.3.1)
    PRIME = 7919            # places in a file, one such step behind the other, are not in order

    READ_AT_ONCE = 32768
    STATX_SIZE = 256

cdef extern from "sys/syscall.h" nogil:
    const long SYS_getdents64, SYS_statx

cdef extern from "fcntl.h" nogil:
    const int AT_SYMLINK_NOFOLLOW

cdef extern from "linux/stat.h" nogil:
    const unsigned int STATX_BASIC_STATS

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_WAITALL

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *sink, size_t size, long offset)
    ssize_t pwrite(int fd, const void *source, size_t size, long offset)
    long syscall(long number, ...)


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


cdef struct store_t:
    int file
    uint8_t *buffer
    size_t request, header, size, room
    size_t whole            # requests to be worked on
    uint64_t count          # of those that have been
    int failed
    bint over
    sem_t begin
    sem_t done


cdef void put(store_t *store) noexcept nogil:
    """Put the requests' data into the file."""
    cdef size_t i
    cdef long offset
    for i in range(store.whole):
        offset = <long>((store.count * PRIME) % (store.room // store.size) * store.size)
        if pwrite(store.file, store.buffer + i * store.request + store.header, store.size, offset) < 0:
            store.failed = errno
        store.count += 1


cdef void *put_when_told(void *argument) noexcept nogil:
    """A thread that may wait for the file."""
    cdef store_t *store = <store_t *>argument
    while True:
        sem_wait(&store.begin)
        if store.over:
            return NULL
        put(store)
        sem_post(&store.done)


def store(int fd, int file, size_t size, size_t header, size_t reply, size_t room, bint by_worker=False):
    """Put the data of each request, ``size`` octets behind its header, into a file's first ``room`` octets, until the peer
    closes. Requests that came together are answered together. With ``by_worker`` another thread puts it there, so that
    this one never waits for the file. Returns how many."""
    cdef size_t request = header + size
    cdef size_t most = max(<size_t>1, (<size_t>256 << 10) // request)
    cdef uint8_t *replies = <uint8_t *>calloc(most, reply)
    cdef size_t have = 0
    cdef ssize_t got
    cdef store_t store
    cdef pthread_t worker
    memset(&store, 0, sizeof(store))
    store.file, store.request, store.header, store.size, store.room = file, request, header, size, room
    store.buffer = <uint8_t *>malloc(most * request)
    if store.buffer == NULL or replies == NULL:
        free(store.buffer)
        free(replies)
        raise MemoryError
    sem_init(&store.begin, 0, 0)
    sem_init(&store.done, 0, 0)
    if by_worker and pthread_create(&worker, NULL, put_when_told, &store) != 0:
        free(store.buffer)
        free(replies)
        raise OSError("no thread can be made")
    with nogil:
        while True:
            got = recv(fd, store.buffer + have, most * request - have, 0)
            if got < 0 and errno == EINTR:
                continue
            if got <= 0:
                break
            have += got
            store.whole = have // request
            if store.whole == 0:
                continue
            if by_worker:
                sem_post(&store.begin)
                sem_wait(&store.done)
            else:
                put(&store)
            have -= store.whole * request
            if have:
                memmove(store.buffer, store.buffer + store.whole * request, have)
            if store.failed or send(fd, replies, store.whole * reply, MSG_NOSIGNAL) < 0:
                break
        store.over = True
        if by_worker:
            sem_post(&store.begin)
            pthread_join(worker, NULL)
    sem_destroy(&store.begin)
    sem_destroy(&store.done)
    free(store.buffer)
    free(replies)
    return store.count


def fetch(int fd, int file, size_t size, size_t request, size_t reply, size_t room):
    """Answer each request with ``size`` octets of a file, from one of its first ``room`` octets on, behind the rest of a
    reply, until the peer closes. As many are read at a time as have been asked for. Returns how many."""
    cdef size_t head = reply - size
    cdef uint8_t *requests = <uint8_t *>malloc(DEPTH * request)
    cdef uint8_t *replies = <uint8_t *>calloc(DEPTH, reply)
    cdef uint8_t *free_ones[DEPTH]
    cdef size_t spare = DEPTH, have = 0, i
    cdef uint64_t count = 0
    cdef ssize_t got = 0
    cdef int result = 0
    cdef uint8_t *one
    cdef uring_t ring
    memset(&ring, 0, sizeof(ring))
    if requests == NULL or replies == NULL or uring_open(&ring) != 0:
        free(requests)
        free(replies)
        raise OSError("no memory, or no ring of the kernel's")
    for i in range(DEPTH):
        free_ones[i] = replies + i * reply
    with nogil:
        while True:
            got = recv(fd, requests + have, spare * request - have, 0 if spare == DEPTH else MSG_DONTWAIT) if spare else 1
            if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
                break
            if spare and got > 0:
                have += got
            while have >= request and spare:
                have -= request
                spare -= 1
                one = free_ones[spare]
                uring_read(
                    &ring, file, one + head, <uint32_t>size, (count * PRIME) % (room // size) * size, one
                )
                count += 1
            if spare == DEPTH:
                continue
            if uring_enter(&ring, 1) not in (0, EINTR):
                break
            one = <uint8_t *>uring_done(&ring, &result)
            while one != NULL:
                if result < 0 or send(fd, one, reply, MSG_NOSIGNAL) < 0:
                    got = 0
                free_ones[spare] = one
                spare += 1
                one = <uint8_t *>uring_done(&ring, &result)
            if got == 0:
                break
        # The kernel puts what is still being read into the replies.
        while spare < DEPTH and uring_enter(&ring, 1) in (0, EINTR):
            while uring_done(&ring, &result) != NULL:
                spare += 1
    uring_close(&ring)
    free(requests)
    free(replies)
    return count


def look(str directory):
    """The attributes of everything in a directory, by name, as a listing with attributes needs them. Returns how many."""
    cdef uint8_t names[READ_AT_ONCE]
    cdef uint8_t found[STATX_SIZE]
    cdef long got
    cdef size_t at
    cdef uint64_t count = 0
    cdef int fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    with nogil:
        while True:
            got = syscall(SYS_getdents64, fd, names, READ_AT_ONCE)
            if got <= 0:
                break
            at = 0
            while at < <size_t>got:
                # struct linux_dirent64: inode number, offset, record length, type, name.
                if syscall(SYS_statx, fd, names + at + 19, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, found) == 0:
                    count += 1
                at += (<uint16_t *>(names + at + 16))[0]
    os.close(fd)
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
