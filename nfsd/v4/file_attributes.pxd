"""C declarations of GETATTR, SETATTR and ACCESS of NFSv4."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.data cimport Nfs4Data
from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.given cimport settable_t
from nfsd.vfs.attribute_changes cimport AttributeChange
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand, Work


cdef const uint8_t *load_mask(const uint8_t *at, const uint8_t *end, uint64_t *mask, bint *more) noexcept nogil
cdef object whole_mask(const uint8_t *at)


cdef class Setting(Errand):
    """SETATTR, or what is left of it, as an errand: nfsstat4, and which attributes have been set."""


cdef class Nfs4Attributes(Nfs4Data):
    """Names, opens, locks and data too, and attributes."""

    cdef object asker(self)
    cdef int getattr(self, Arguments *arguments, Place place) except -1
    cdef bint asks_others(self, uint64_t mask) except -1
    cdef int fetched(self, Errand brought, Place place) except -1
    cdef int access(self, Arguments *arguments, Place place) except -1
    cdef int granted(self, Arguments *arguments, uint32_t supported, uint32_t allowed, Place place) except -1
    cdef int permitted(self, bint xattrs) except -2
    cdef int setattr(self, Arguments *arguments, Place place) except -1
    cdef int set_first(self, const uint8_t *stateid, settable_t *given, Place place) except -1
    cdef object told(self, const uint8_t *stateid, settable_t *given)
    cdef int set_rarely(self, settable_t *given, object opened, object client, object told) except -1
    cdef int set_so_far(self, AttributeChange change, settable_t *given, Place place) except -1
    cdef int set_otherwise(self, Setting brought, settable_t *given, Place place) except -1
    cdef int was_set(self, const uint32_t *mask, Place place) except -1
    cdef tuple resizable(self, const uint8_t *stateid)
