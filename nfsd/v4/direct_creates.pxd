"""C declarations of what makes files in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.given cimport settable_t
from nfsd.v4.name_changes cimport NameChanges
from nfsd.vfs.name_changes cimport NameChange
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place

cdef struct createhow_t:        # createhow4
    uint32_t mode
    uint32_t shown[3]           # the attributes that OPEN tells to have been set
    settable_t given


cdef class DirectCreates(NameChanges):
    """Changes, and OPEN that makes files."""

    cdef const uint8_t *load_how(self, const uint8_t *at, const uint8_t *end, createhow_t *how)
    cdef int make_and_open(
        self, Arguments *arguments, createhow_t *how, opaque_t *name, const uint8_t *behind, uint32_t wanted, Place place
    ) except -1
    cdef bint open_instead(self, Arguments *arguments, opaque_t *name, uint32_t wanted, Place place) except -1
    cdef NameChange to_open_new(
        self, Arguments *arguments, createhow_t *how, opaque_t *name, uint32_t wanted
    )
    cdef tuple request(self)
    cdef int opened_new(self, NameChange change, createhow_t *how, uint32_t wanted, Place place) except -1
