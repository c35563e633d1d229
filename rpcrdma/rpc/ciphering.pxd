"""C declarations of what threads do with a security context's keys."""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.crew cimport Crew, Finished, task_t
from rpcrdma.gss.contexts cimport Context
from rpcrdma.gss.library cimport gss_iov_buffer
from rpcrdma.gss.mechanism cimport Sealer
from rpcrdma.memory cimport Lease
from rpcrdma.place cimport MOST_SPANS, aside_t
from rpcrdma.rpc.work cimport Work


cdef enum:
    MOST_PARTS = MOST_SPANS + 2     # of what is signed or encrypted

    # What is to be done.
    SIGN = 0
    ENCRYPT = 1
    VERIFY = 2
    DECRYPT = 3


cdef struct cipher_t:
    task_t task                     # first, so that it is where this is
    void *handle                    # of a sealer that nobody else has meanwhile
    int kind
    gss_iov_buffer parts[MOST_PARTS]
    int count
    uint8_t *octets
    size_t size
    const uint8_t *mic
    size_t mic_size
    size_t start                    # of what has been decrypted,
    ssize_t length                  # and its length, or a MIC's. -1: it could not be done


cdef void do_cipher(task_t *task) noexcept nogil


cdef class Job(Finished):
    cdef cipher_t cipher
    cdef Ciphering of               # None: it is no thread's


cdef class Turns:
    """Whose next is done: hosts take turns."""

    cdef readonly Crew crew         # None: all is done on the loop
    cdef int at_once                # of a host
    cdef dict hosts                 # those that have any

    cdef int begin(self, Ciphering work) except -1
    cdef int ended(self, str host) except -1


cdef class Ciphering(Work):
    """Something long that is done with a context's keys, by a thread."""

    cdef Turns turns
    cdef Context context
    cdef Sealer sealer
    cdef Job own

    cdef int post(self) except -1
    cdef int done(self) except -1
    cdef int abandon(self) except -1


cdef class Opening(Ciphering):
    """Arguments are taken out of their protection."""


cdef class Sealing(Ciphering):
    """Results are protected. What is written of the reply stays where it is."""

    cdef Lease payload
    cdef aside_t aside
    cdef uint32_t shown             # as the program has said
    cdef object tally
