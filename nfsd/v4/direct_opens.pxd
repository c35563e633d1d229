"""C declarations of OPEN and CLOSE in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.direct_compound cimport Arguments, DirectCompound
from nfsd.vfs.records cimport Node
from rpcrdma.place cimport Place


# The open_delegation4 of an OPEN without a delegation; ``why``: for who has expressed a wish.
cdef uint8_t *store_no_delegation(uint8_t *at, uint32_t wanted, uint32_t why) noexcept nogil

cdef uint8_t *store_stateid(uint8_t *at, object stateid) except NULL


cdef class DirectOpens(DirectCompound):
    # The OPEN at hand.
    cdef bytes owner
    cdef uint32_t share
    cdef uint32_t denied
    cdef uint32_t seqid         # v4.0: of its owner

    cdef int open(self, Arguments *arguments, Place place) except -1
    cdef int open_new(self, Arguments *arguments, const uint8_t *how, uint32_t wanted, Place place) except -1
    cdef object opener_of(self, const uint8_t *clientid)
    cdef bint open_there(self, Arguments *arguments, object client, uint32_t claim, uint32_t wanted, Place place) except -1
    cdef Node named(self, Arguments *arguments)
    cdef object client_of(self, uint64_t clientid)
    cdef bint renew(self, Arguments *arguments, Place place) except -1
    cdef int recorded(self, object owner, uint32_t status, Place place, object handle) except -1
    cdef bint open_confirm(self, Arguments *arguments, Place place) except -1
    cdef bint close(self, Arguments *arguments, Place place) except -1
