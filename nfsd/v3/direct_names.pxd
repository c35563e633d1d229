"""C declarations of what NFSv3's native procedures share, of LOOKUP and of SETATTR."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v3.needs cimport Progress
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport Standing
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place
from rpcrdma.rpc.direct cimport DirectProgram
from rpcrdma.rpc.work cimport Work

cdef enum:
    NAME3_MAX = 65536           # of a filename3, as far as the codec takes it


cdef class Nfs3Names(DirectProgram):
    cdef DirectNames files
    cdef readonly uint64_t absent       # LOOKUPs of names that there are not

    cdef Progress have                  # what has been brought for the present call; None: nothing

    cdef Progress progress(self, Node node, Standing standing)
    cdef int waits(self, Work work, Work earlier, Node node, Standing standing) except -1
    cdef uint64_t fsid(self, Node node) except? 0
    cdef uint64_t fsid_in(self, Node node, statx_t *status) except? 0
    cdef uint8_t *store_after(self, uint8_t *at, Node node) except NULL
    cdef int fail(self, uint32_t procedure, uint32_t status, Node node, Node other, Place place) except -1
    cdef int refused(self, uint32_t procedure, int error, Node node, Node other, Place place) except -1
    cdef int lookup(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
    cdef int setattr(
        self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1


cdef bint is_component(opaque_t *name) noexcept nogil
cdef Walk walked(Work brought)
cdef uint32_t status_in(int error) except 0
