"""Enciphering and sending, without the interpreter's lock: at once, or by threads; and sending alone, where the kernel
enciphers.

Owns the jobs' doing; imports the records. A job has octets of a connection, where they are, and
room for records. It enciphers as much as fits, sends that, and goes on until all has left or the socket takes no more.
Where the kernel enciphers (:mod:`rpcrdma.tls.kernel`) it sends them from where they are.
What is short is done on the loop. What is long is a thread's (:mod:`rpcrdma.crew`), so that several connections use several
processors. A thread never waits for a peer. Each connection has one job at a time.

While a job is a thread's, the octets, the room and the keys are that thread's, too.
"""

from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport uint8_t
from libc.string cimport memset

from rpcrdma.crew cimport task_t
from rpcrdma.tls.library cimport crypto
from rpcrdma.tls.records cimport DATA, HEADER, MOST, TRAILER, add_to_record, begin_record, end_record, iovec

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    """
    ssize_t c_splice "splice"(int source, long *at, int sink, long *sink_at, size_t count, unsigned int flags) nogil
    unsigned int SPLICE_F_MOVE, SPLICE_F_NONBLOCK, SPLICE_F_MORE

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

    ssize_t c_send "send"(int fd, const void *at, size_t length, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void *at, size_t length)

cdef enum:
    LEAST = 4096            # octets of room for which a record is begun, if it is not the last


# -- what a job is --------------------------------------------------------------------------------------------------
cdef void run(task_t *task) noexcept nogil:
    """Encipher and send, until all has left, or the socket takes no more, or it cannot be done."""
    cdef job_t *job = <job_t *>task
    cdef ssize_t sent
    job.blocked = False
    while not job.task.cancelled:
        while job.start < job.end:
            sent = c_send(job.fd, job.room + job.start, job.end - job.start, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                job.start += sent
            elif errno == EAGAIN:
                job.blocked = True
                return
            elif errno != EINTR:
                job.error = errno
                return
        job.start = job.end = 0
        if job.left == 0:
            return
        if not fill(job):
            crypto.clear_error()
            job.error = EIO
            return


cdef bint fill(job_t *job) noexcept nogil:
    """Make as many records as there is room for."""
    cdef size_t room, length
    while job.left:
        room = job.capacity - job.end
        if room < min(job.left, <size_t>LEAST) + HEADER + TRAILER:
            break
        length = min(job.left, <size_t>MOST, room - HEADER - TRAILER)
        if not make_record(job, job.room + job.end, length):
            return False
        job.end += HEADER + length + TRAILER
        job.left -= length
        job.enciphered += length
    return job.end > 0


cdef bint make_record(job_t *job, uint8_t *at, size_t length) noexcept nogil:
    """One record of what comes next."""
    cdef source_t *source
    cdef size_t part
    if not begin_record(job.keys, at, length):
        return False
    at += HEADER
    while length:
        source = &job.sources[job.index]
        part = min(length, source.length - job.offset)
        if source.pipe >= 0:
            # Copied before: a file's pages may change while they are being enciphered.
            if not read_all(source.pipe, at, part) or not add_to_record(job.keys, at, at, part):
                return False
        elif not add_to_record(job.keys, at, source.base + job.offset, part):
            return False
        at += part
        length -= part
        advance(job, part)
    return end_record(job.keys, at, DATA)


cdef inline void advance(job_t *job, size_t octets) noexcept nogil:
    """So many of the present source are done with."""
    job.offset += octets
    if job.offset == job.sources[job.index].length:
        job.index, job.offset = job.index + 1, 0


cdef bint read_all(int pipe, uint8_t *at, size_t length) noexcept nogil:
    """Read what is known to be there."""
    cdef ssize_t got
    while length:
        got = c_read(pipe, at, length)
        if got <= 0:
            if got < 0 and errno == EINTR:
                continue
            return False
        at += got
        length -= got
    return True


# -- where the kernel enciphers -----------------------------------------------------------------------------------------
cdef void pass_on(task_t *task) noexcept nogil:
    """Send what there is as it is, until all has left, or the socket takes no more, or it cannot be done."""
    cdef job_t *job = <job_t *>task
    cdef size_t part
    cdef ssize_t sent
    job.blocked = False
    while job.left and not job.task.cancelled:
        sent = splice_pages(job) if job.sources[job.index].pipe >= 0 else send_octets(job)
        if sent > 0:
            job.enciphered += sent
            job.left -= sent
            while sent:
                part = min(<size_t>sent, job.sources[job.index].length - job.offset)
                sent -= part
                advance(job, part)
        elif sent < 0 and errno == EAGAIN:
            job.blocked = True
            return
        elif sent == 0 or errno != EINTR:
            job.error = errno if sent else EIO
            return


cdef ssize_t splice_pages(job_t *job) noexcept nogil:
    """Send what is in a pipe."""
    cdef source_t *source = &job.sources[job.index]
    cdef size_t count = source.length - job.offset
    cdef unsigned int flags = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | (SPLICE_F_MORE if job.left > count else 0)
    # A peer that is gone raises SIGPIPE here, which Python ignores.
    return c_splice(source.pipe, NULL, job.fd, NULL, count, flags)


cdef ssize_t send_octets(job_t *job) noexcept nogil:
    """Send what comes up to the next pipe. If there is one, the kernel begins the record of its pages with it."""
    cdef iovec vectors[SOURCES]
    cdef msghdr message
    cdef size_t index = job.index, skip = job.offset
    cdef int flags = MSG_DONTWAIT | MSG_NOSIGNAL
    memset(&message, 0, sizeof(message))
    message.msg_iov = vectors
    while index < job.count and job.sources[index].pipe < 0:
        vectors[message.msg_iovlen].iov_base = <void *>(job.sources[index].base + skip)
        vectors[message.msg_iovlen].iov_len = job.sources[index].length - skip
        message.msg_iovlen += 1
        index, skip = index + 1, 0
    if index < job.count:
        flags |= MSG_MORE
    return sendmsg(job.fd, &message, flags)
