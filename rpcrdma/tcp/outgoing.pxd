"""C declarations of the queue of what a record stream has to send."""

from cpython.buffer cimport Py_buffer
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t

from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe


cdef struct Piece:
    char octets[8]
    char *base              # NULL: the octets are those above, or in a pipe
    size_t length
    Py_buffer buffer
    bint buffered
    PyObject *pipe          # a Pipe that holds the octets; it is what is finished, too
    PyObject *finished      # to be released when the piece has left


cdef class Cipher:
    """How octets leave that are not to leave in the clear."""

    cdef size_t waiting                 # octets that have been enciphered, and have not left
    cdef bint busy                      # another thread is sending: there is nothing to do until it has woken this one

    cdef bint flush(self, Outgoing outgoing, int fd, size_t most) except -1
    cdef int alone(self) except -1
    cdef int part(self, int fd) except -1
    cdef int close(self) except -1


cdef class Outgoing:
    cdef Piece *pieces
    cdef size_t capacity
    cdef size_t first
    cdef size_t beyond
    cdef size_t sent_of_first
    cdef size_t queued                  # octets
    cdef unsigned long long sent        # octets, since the beginning
    cdef Cipher cipher                  # None: they leave as they are

    cdef int add_reply(self, reply) except -1
    cdef int add_octets(self, unsigned int value, size_t length) except -1
    cdef int add_lease(self, uint8_t *base, size_t length, Lease lease) except -1
    cdef int add_pipe(self, Pipe pipe, size_t length) except -1
    cdef bint flush(self, int fd, size_t most) except -1
    cdef int close(self) except -1

    cdef Piece *add(self) except NULL
    cdef int add_buffer(self, source, size_t offset, size_t length) except -1
    cdef ssize_t gather(self, int fd, size_t most, size_t *asked) noexcept
    cdef int consume(self, size_t sent) except -1
