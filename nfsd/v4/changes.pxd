"""C declarations of changes in native COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.owners cimport Nfs4Owners
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport opaque_t


cdef uint32_t status_in(int error) except 0
cdef uint32_t wrong_name(opaque_t *name) noexcept nogil
cdef uint8_t *store_change_info(uint8_t *at, uint64_t before, uint64_t after) noexcept nogil


cdef class Nfs4Changes(Nfs4Owners):
    """OPEN and CLOSE too, and what changes have in common."""

    cdef int saw_change(self, Node node, statx_t *status) except -1
