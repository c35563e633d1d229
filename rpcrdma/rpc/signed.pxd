"""C declarations of the signatures of native calls."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.gss.contexts cimport Context
from rpcrdma.place cimport Place
from rpcrdma.rpc.call_header cimport call_header_t

cdef enum:
    LONGEST_HEAD = 24 + 64  # octets of an accepted reply before its results, verifier included

cdef class Known:
    """The contexts of an acceptor. They are looked up where they stand, so that nothing is used that is gone."""

    cdef dict contexts          # by handle
    cdef Context latest         # the one that was found last: calls come in batches
    cdef object look_up         # what there is to do about one whose time is over, or whose principal is to be asked about

    cdef readonly uint64_t calls    # that were taken with a good signature

    cdef Context find(self, const uint8_t *handle, double now)

cdef class Signed:
    """By whom a call is signed, as which one of theirs, and what follows of that for its reply."""

    cdef Context context        # None: nobody has signed it
    cdef Known known
    cdef uint32_t sequence
    cdef object credential      # the RpcCredential of the context's calls
    cdef size_t headed          # octets of the reply's header

    cdef bint take(self) noexcept
    cdef tuple number(self)
    cdef int head(self, Place place, uint32_t xid) except -1
    cdef bint succeeded(self, const uint8_t *start) noexcept
    cdef bytes plain(self, const uint8_t *start, Place place)

cdef Signed UNSIGNED
cdef Signed signature(Known known, const uint8_t *message, call_header_t *header, double now)
