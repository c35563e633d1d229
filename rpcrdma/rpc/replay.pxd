"""C declarations of the duplicate request cache."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.digest cimport Digest
from rpcrdma.rpc.kept_replies cimport KeptReplies, kept_t


cdef uint64_t caller_digest(uint32_t flavor, const uint8_t *body, size_t size) noexcept nogil

cdef class Peer:
    cdef readonly bytes name
    cdef readonly object host
    cdef bint port_counts


cdef void digest_arguments(Digest *digest, const uint8_t *octets, size_t size, Peer peer) noexcept
cdef bytes key_of(
    uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure, uint64_t caller, Digest *arguments, Peer peer
)


cdef class Entry:
    cdef readonly bytes key
    cdef readonly bytes reply
    # Where in it DDP-eligible items are: start and length, without padding. The retransmission of a call whose reply had
    # no room brings larger Write chunks, where these must go again (RFC 8267 section 6.4.1).
    cdef tuple cuts
    cdef object transport
    cdef readonly list waiters
    cdef bint passed_on         # it was begun by one who leaves it to another


cdef class Passed:
    """Holds a call on its way from the one to the other. The code that drops the call releases this, as one would a lease."""

    cdef ReplayCache cache
    cdef Entry entry
    cdef object lease           # of the message; None: there is none
    cdef object begun           # what others go on from; None: they begin anew
    cdef readonly tuple taken   # the context whose window has the call's sequence number, and that; None: none has. And where
                                # in the message arguments begin and end that have been unprotected; 0: they have not been


cdef class Share:
    cdef object host
    cdef kept_t *oldest         # of its replies; NULL: it has none
    cdef kept_t *newest
    cdef size_t size
    cdef int level              # where it stands in the cache's ``levels``, if it holds anything


cdef class ReplayCache:
    cdef readonly size_t max_bytes
    cdef readonly size_t room       # of that, for entries: without their table
    cdef readonly size_t size
    cdef public size_t hits
    cdef size_t added           # entries, so far
    cdef double ttl
    cdef object clock
    cdef dict running
    cdef KeptReplies finished
    cdef dict shares            # by host
    cdef object order           # of the shares, for looking at one after the other
    cdef list levels            # the shares by the highest bit of what they hold
    cdef int top                # no share is in a higher one

    cdef bint is_new(self, bytes key) except -1
    cdef Passed pass_on(self, Entry entry, object lease, object begun, tuple taken)
    cdef int conclude(self, Entry entry, object host, bytes reply, tuple cuts) except -1
    cpdef Entry begin(self, bytes key, object transport, Passed passed=*)
    cdef int remember(self, bytes key, object host, bytes reply) except -1
    cdef int keep(self, bytes key, object host, bytes reply, tuple cuts) except -1
    cdef int account(self, Share share, size_t octets, bint more) except -1
    cdef Share largest(self)
    cdef int drop_oldest(self, Share share) except -1
    cdef int drop_expired(self, Share share, double now, size_t most) except -1
    cdef int sweep(self, double now) except -1
