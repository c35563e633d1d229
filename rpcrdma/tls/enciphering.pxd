"""C declarations of enciphering and sending, by whom it may be."""

from libc.stdint cimport uint8_t

from rpcrdma.crew cimport task_t
from rpcrdma.tls.records cimport direction_t


cdef enum:
    SOURCES = 64


cdef struct source_t:
    const uint8_t *base
    size_t length
    int pipe                # where the octets are read from; -1: they are at ``base``
    uint8_t octets[8]       # a few that stand here


cdef struct job_t:
    task_t task             # first, so that it is where the job is
    direction_t *keys
    int fd
    source_t sources[SOURCES]
    size_t count
    size_t index            # what of them comes next
    size_t offset
    size_t left             # octets that have not been enciphered
    size_t enciphered       # octets that have, or that the kernel has for that
    uint8_t *room           # for records
    size_t capacity
    size_t start            # of those that have not left
    size_t end
    bint blocked            # the socket takes no more
    int error


cdef void run(task_t *task) noexcept nogil
cdef void pass_on(task_t *task) noexcept nogil
