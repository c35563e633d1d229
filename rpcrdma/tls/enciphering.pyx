"""Enciphering and sending, without the interpreter's lock: at once, or by threads.

Owns the jobs' doing; imports the records. A job has octets of a connection, where they are, and
room for records. It enciphers as much as fits, sends that, and goes on until all has left or the socket takes no more.
What is short is done on the loop. What is long is a thread's (:mod:`rpcrdma.crew`), so that several connections use several
processors. A thread never waits for a peer. Each connection has one job at a time.

While a job is a thread's, the octets, the room and the keys are that thread's, too.
"""

from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport uint8_t

from rpcrdma.crew cimport task_t
from rpcrdma.tls.library cimport crypto
from rpcrdma.tls.records cimport DATA, HEADER, MOST, TRAILER, add_to_record, begin_record, end_record

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void *at, size_t length, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

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
        job.offset += part
        if job.offset == source.length:
            job.index, job.offset = job.index + 1, 0
    return end_record(job.keys, at, DATA)


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
