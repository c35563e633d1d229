"""C declarations of OPEN and CLOSE in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.records cimport OpenState
from nfsd.v4.direct_compound cimport Arguments, DirectCompound
from nfsd.vfs.records cimport Credential, Node
from rpcrdma.place cimport Place


# The open_delegation4 of an OPEN without a delegation; ``why``: for who has expressed a wish.
cdef uint8_t *store_no_delegation(uint8_t *at, uint32_t wanted, uint32_t why) noexcept nogil


cdef class DirectOpens(DirectCompound):
    cdef bint prepared          # an OPEN or a CLOSE, to be carried out at the end
    # The OPEN.
    cdef Node opening
    cdef uint8_t *opening_at    # its result
    cdef uint8_t *opening_end   # behind that
    cdef bytes owner
    cdef Credential opener
    cdef uint32_t share
    cdef uint32_t denied
    # The CLOSE.
    cdef OpenState closing
    cdef uint8_t *closing_at
    cdef uint32_t seqid         # v4.0: of its owner, for either

    cdef int open(self, Arguments *arguments, Place place) except -1
    cdef int open_new(self, Arguments *arguments, const uint8_t *how, uint32_t wanted, Place place) except -1
    cdef object opener_of(self, const uint8_t *clientid)
    cdef bint open_there(self, Arguments *arguments, uint32_t claim, uint32_t wanted, Place place) except -1
    cdef Node named(self, Arguments *arguments)
    cdef bint parts(self) noexcept
    cdef object client_of(self, uint64_t clientid)
    cdef bint renew(self, Arguments *arguments, Place place) except -1
    cdef int recorded(self, object owner, uint32_t status, const uint8_t *result, const uint8_t *end, object handle) except -1
    cdef bint close(self, Arguments *arguments, Place place) except -1
