"""C declarations of OPEN in COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.opens cimport OpenTable
from nfsd.state.records cimport ClientRecord
from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.name_changes cimport NameChanges
from nfsd.v4.given cimport settable_t
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Credential, Node, OpenFile
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand, Work

cdef struct createhow_t:        # createhow4
    uint32_t mode
    uint32_t shown[3]           # the attributes that OPEN tells to have been set
    settable_t given


cdef class Opening(Errand):
    """The rest of an OPEN whose file has been found or made; or the whole of a rare one."""

    cdef bint rare
    cdef Node node
    cdef Credential credential      # of the caller there
    cdef NameChange change          # that has made the file; None: it was there
    cdef bint walked                # a worker has found it, some time ago
    cdef uint64_t before            # the directory's change attribute
    cdef uint64_t after
    cdef uint32_t shown[3]          # attributes that have been set
    cdef size_t used                # octets of arguments


cdef class Nfs4Opens(NameChanges):
    """Names and attributes too, and OPEN."""

    # The OPEN at hand.
    cdef bytes owner
    cdef uint32_t share             # access without wishes
    cdef uint32_t share_access      # and with them
    cdef uint32_t denied
    cdef uint32_t seqid             # v4.0: of its owner

    cdef int open(self, Arguments *arguments, Place place) except -1
    cdef bint usual(self, Arguments *arguments, const uint8_t **how) except -1
    cdef int open_turn(self, bint reclaim, bint held, Work brought, Arguments *arguments, Place place) except -1
    cdef object asked(self, Opening opening, opaque_t *name)
    cdef int open_now(self, Opening opening, opaque_t *name, OpenFile opened, bint created) except -1
    cdef int grant(
        self, OpenTable table, ClientRecord client, Opening opening, opaque_t *name, OpenFile opened, bint created
    ) except -1
    cdef int through(self, Opening opening, Arguments *arguments, Place place) except -1
    cdef int open_there(
        self, uint32_t claim, opaque_t *name, const uint8_t *behind, Work brought, Arguments *arguments, Place place
    ) except -1
    cdef Node named(self, opaque_t *name, Work brought, int *error)
    cdef int open_rarely(self, Work brought, Arguments *arguments, Place place) except -1
    cdef int store_opened(self, Opening opening, Arguments *arguments, Place place) except -1
    cdef const uint8_t *load_how(self, const uint8_t *at, const uint8_t *end, createhow_t *how)
    cdef int open_new(
        self, createhow_t *how, opaque_t *name, const uint8_t *behind, Work brought, Arguments *arguments, Place place
    ) except -1
    cdef bint may_make(self, object client) except -1
    cdef int downgrade(self, Arguments *arguments, Place place) except -1
