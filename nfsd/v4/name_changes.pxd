"""C declarations of CREATE, REMOVE, RENAME and LINK in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v4.changes cimport Nfs4Changes
from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.given cimport settable_t
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand, Work

cdef enum:
    DONE = 3                    # of a change: what is left is the reply

cdef struct creation_t:         # CREATE4args
    uint32_t kind
    opaque_t text               # of a symbolic link
    bint fetched                # which an RDMA Read has fetched
    uint32_t device[2]
    opaque_t name
    const uint8_t *attributes   # a fattr4
    const uint8_t *behind       # all of it
    uint32_t mask[3]            # which attributes


cdef class Carried(Errand):
    """What the file service does in its own way (:mod:`nfsd.v4.name_errands`)."""


cdef NameChange begun(Work brought)
cdef bytes octets_of(opaque_t *name)


cdef class NameChanges(Nfs4Changes):
    """Attributes, and what changes names."""

    cdef int proceed(self, NameChange change, Work brought, Place place) except -1
    cdef int unprepared(self, Work brought) except -1
    cdef int carry(self, NameChange change, Work brought, Place place) except -1
    cdef int refused(self, int error, Node directory, Node other, Place place) except -1
    cdef int hand_on(self, object coroutine) except -1
    cdef int succeeded(self, NameChange change, Work brought, Place place) except -1
    cdef uint32_t changeable(self) noexcept
    cdef uint32_t moving(self, bint directory, uint32_t status) noexcept
    cdef int create(self, Arguments *arguments, Place place) except -1
    cdef int create_this(self, creation_t *creation, Place place) except -1
    cdef const uint8_t *load_creation(
        self, const uint8_t *at, const uint8_t *end, Place place, creation_t *into
    ) noexcept
    cdef const uint8_t *load_text(
        self, const uint8_t *at, const uint8_t *end, Place place, creation_t *into
    ) noexcept
    cdef bint makes_with(self, creation_t *creation, settable_t *given) except -1
    cdef NameChange to_create(self, creation_t *creation, settable_t *given)
    cdef int name_given(
        self, Arguments *arguments, bint first, uint32_t refusal, opaque_t *name, Place place
    ) except -1
    cdef int remove(self, Arguments *arguments, Place place) except -1
    cdef int rename(self, Arguments *arguments, Place place) except -1
    cdef int link(self, Arguments *arguments, Place place) except -1
