"""C declarations of changes in native COMPOUNDs."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.direct_opens cimport DirectOpens
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport changes_t
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place

cdef struct settable_t:         # attributes that a client gives a file
    changes_t changes
    int64_t size                # -1: not given
    uint32_t umask              # to be taken from the mode
    bint umask_given
    uint32_t mask[3]            # which of them


cdef uint32_t status_in(int error) except 0
cdef uint32_t wrong_name(opaque_t *name) noexcept nogil
cdef uint8_t *store_change_info(uint8_t *at, uint64_t before, uint64_t after) noexcept nogil
cdef uint8_t *store_bitmap(uint8_t *at, const uint32_t *words) noexcept nogil


cdef class DirectChanges(DirectOpens):
    """OPEN and CLOSE too, and what changes attributes."""

    cdef int saw_change(self, Node node, statx_t *status) except -1
    cdef int setattr(self, Arguments *arguments, Place place) except -1
    cdef int not_set(self, uint32_t status, Place place) except -1
    cdef object resized_through(self, const uint8_t *stateid)
    cdef const uint8_t *wanted(self, const uint8_t *at, const uint8_t *end, settable_t *given)
    cdef const uint8_t *values(self, const uint8_t *at, const uint8_t *end, settable_t *given)
    cdef const uint8_t *load_owner(self, const uint8_t *at, const uint8_t *end, bint group, uint32_t *number)
