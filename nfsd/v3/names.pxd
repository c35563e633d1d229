"""C declarations of what NFSv3's native procedures share, and of LOOKUP."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v3.name_arguments cimport name_arguments_t
from nfsd.v3.needs cimport Kind, Progress
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.native_names cimport NativeNames
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.native_program cimport NativeProgram
from rpcrdma.rpc.work cimport Errand, Work

cdef enum:
    # What else than an outcome of the call a step may come to.
    DONE = 3                    # what is left is the reply
    GENERAL = 4                 # it is an errand's
    AGAIN = 5                   # what it was prepared for has changed meanwhile


cdef class Carried(Errand):
    """A coroutine of :class:`nfsd.v3.errands.Errands`, whose result is what the reply is made of."""


cdef class Nfs3Names(NativeProgram):
    cdef NativeNames files
    cdef object delegations
    cdef object errands
    cdef Caller caller                  # the present one
    cdef readonly uint64_t absent       # LOOKUPs of names that there are not

    cdef Progress have                  # what has been brought for the present call; None: nothing

    cdef Progress progress(self, Node node, Standing standing)
    cdef int need(self, Kind kind, Node node, Standing standing, Work done=*, bytes handle=*) except -1
    cdef int hand_over(self, object coroutine, Node node, Node other, Standing standing) except -1
    cdef int waits(self, Work work, Work earlier, Node node, Standing standing) except -1
    cdef uint64_t fsid_in(self, Node node, statx_t *status) except? 0
    cdef uint8_t *store_seen(self, uint8_t *at, Node node, statx_t *seen) except NULL
    cdef int fail(self, uint32_t procedure, uint32_t status, Node node, Node other, Place place) except -1
    cdef int failed(
        self, uint32_t procedure, uint32_t status, Node node, statx_t *seen, Node other, statx_t *other_seen, Place place
    ) except -1
    cdef uint8_t *store_around(self, uint8_t *at, Node directory, statx_t *before, statx_t *after) except NULL
    cdef uint8_t *store_change(self, uint8_t *at, Node directory, object change) except NULL
    cdef int store_made(
        self, Node node, statx_t *status, Node directory, statx_t *before, statx_t *after, Place place
    ) except -1
    cdef int carried(self, uint32_t procedure, Carried errand, Place place) except -1
    cdef int done(self, uint32_t procedure, object outcome, Node node, Node other, Place place) except -1
    cdef int not_named(self, uint32_t procedure, object error, Place place) except -1
    cdef int refused(self, uint32_t procedure, int error, Node node, Node other, Place place) except -1
    cdef int lookup(
        self, Standing standing, Node directory, name_arguments_t *arguments, Place place, Work brought
    ) except -1
    cdef int store_found(self, Node node, statx_t *status, Node directory, statx_t *after, Place place) except -1


cdef bint is_component(opaque_t *name) noexcept nogil
cdef Walk walked(Work brought)
cdef bytes octets_of(opaque_t *name)
cdef uint32_t status_in(int error) except 0
