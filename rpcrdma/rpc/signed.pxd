"""C declarations of the signatures of native calls."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.gss.contexts cimport Context
from rpcrdma.place cimport Place
from rpcrdma.rpc.call_header cimport call_header_t
from rpcrdma.rpc.ciphering cimport Opening, Sealing, Turns, cipher_t

cdef enum:
    LONGEST_HEAD = 24 + 64  # octets of an accepted reply before its results, verifier included
    SERVICES = 3            # rpc_gss_service_t: none, integrity, privacy
    NONE = 1
    INTEGRITY = 2
    PRIVACY = 3

cdef bint is_protected(const uint8_t *message, const call_header_t *header) noexcept
cdef class Known:
    """The contexts of an acceptor. They are looked up where they stand, so that nothing is used that is gone."""

    cdef dict contexts          # by handle
    cdef Context latest         # the one that was found last: calls come in batches
    cdef object look_up         # what there is to do about one whose time is over, or whose principal is to be asked about

    cdef Turns turns            # at what is long
    cdef uint64_t calls[SERVICES]   # that were taken with a good signature

    cdef Context find(self, const uint8_t *handle, double now)

cdef class Signed:
    """By whom a call is signed, as which one of theirs, and what follows of that for its reply."""

    cdef Context context        # None: nobody has signed it
    cdef Known known
    cdef uint32_t sequence
    cdef uint32_t service
    cdef object credential      # the RpcCredential of the context's calls of this service
    # Where in the message arguments begin and end that have been taken out of their protection; 0: they have not been.
    cdef size_t begin
    cdef size_t end
    cdef size_t headed          # octets of the reply's header
    cdef uint8_t *covered       # what is protected of the reply begins here; NULL: nothing is

    cdef bint take(self) noexcept
    cdef tuple number(self)
    cdef bint find(self, uint8_t *message, size_t at, size_t size, cipher_t *cipher) noexcept
    cdef bint opened(self, const uint8_t *message, const cipher_t *cipher) noexcept
    cdef bint open(self, const uint8_t *message, size_t at, size_t size) noexcept
    cdef Opening to_open(self, const uint8_t *message, size_t at, size_t size)
    cdef int head(self, Place place, uint32_t xid) except -1
    cdef bint protect(self, Place place) except -1
    cdef size_t lay_out(self, Place place, cipher_t *cipher) except 0
    cdef bint sealed(self, const cipher_t *cipher) except -1
    cdef int seal(self, Place place) except -1
    cdef Sealing to_seal(self, Place place)
    cdef bint succeeded(self, const uint8_t *start) noexcept
    cdef bytes plain(self, const uint8_t *start, Place place)

cdef Signed UNSIGNED
cdef Signed signature(Known known, const uint8_t *message, call_header_t *header, double now)
