"""C declarations of what NFSv3's native procedures share, and those of names."""

from libc.stdint cimport uint8_t, uint64_t

from nfsd.vfs.direct cimport Standing
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Node
from rpcrdma.place cimport Place
from rpcrdma.rpc.direct cimport DirectProgram, Work


cdef class Nfs3Names(DirectProgram):
    """The procedures of names."""

    cdef DirectNames files
    cdef readonly uint64_t absent       # LOOKUPs of names that there are not

    cdef int waits(self, Work work, Work earlier, Node node, Standing standing) except -1
    cdef uint64_t fsid(self, Node node) except? 0
    cdef uint8_t *store_after(self, uint8_t *at, Node node) except NULL
    cdef int failed_names(self, Node directory, int error, Place place) except -1
    cdef int carry(self, NameChange change, Work brought, Standing standing, Place place) except -1
    cdef bint lookup(self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place) except -1
    cdef bint setattr(self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place) except -1
    cdef int create(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
    cdef int remove(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
