"""C declarations of :mod:`rpcrdma.rpc.kept_replies`."""

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

ctypedef struct kept_t:         # one reply, in one piece of memory with its key
    size_t hash                 # of the key
    kept_t *newer               # the next one of the same host
    double expires
    PyObject *cuts              # a reference to a tuple; NULL: there is none
    size_t key_size
    size_t reply_size
    # The octets of the key follow, and those of the reply.

ctypedef struct slot_t:
    size_t hash
    kept_t *kept


cdef class KeptReplies:
    cdef slot_t *slots
    cdef uint8_t *tags          # of the hash in each slot; 0: the slot is free
    cdef size_t mask            # of a hash; that and one more are the slots
    cdef readonly size_t count

    cdef size_t table_octets(self) noexcept
    cdef size_t place_of(self, bytes key) noexcept
    cdef kept_t *find(self, bytes key) noexcept
    cdef kept_t *add(self, bytes key, bytes reply, tuple cuts) except? NULL
    cdef void drop(self, kept_t *kept) noexcept
    cdef void clear(self, size_t at) noexcept


cdef bytes reply_of(const kept_t *kept)
cdef tuple cuts_of(const kept_t *kept)
