"""C declarations of changes in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.direct_opens cimport DirectOpens
from nfsd.vfs.direct cimport changes_t
from rpcrdma.place cimport Place


cdef class DirectChanges(DirectOpens):
    """OPEN and CLOSE too, and what changes names and attributes."""

    cdef bint may_change(self, Place place, const uint8_t *behind, const uint8_t *end, size_t result) except -1
    cdef bint may_follow(self, const uint8_t *at, const uint8_t *end) except -1
    cdef bint comes_first(self) noexcept
    cdef int remove(self, Arguments *arguments, Place place) except -1
    cdef int setattr(self, Arguments *arguments, Place place) except -1
    cdef const uint8_t *wanted(self, const uint8_t *at, const uint8_t *end, changes_t *changes, uint32_t *mask)
