"""C declarations of NFSv3's native procedures about one file's attributes."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.v3.name_changes cimport Nfs3Changes
from nfsd.vfs.attribute_changes cimport AttributeChange
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport Standing, changes_t
from nfsd.vfs.records cimport Node
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Work


cdef class Nfs3Attributes(Nfs3Changes):
    cdef bint seen(self, Node node, statx_t *status) except -1
    cdef int getattr(self, Standing standing, Node node, Place place) except -1
    cdef int access(self, Standing standing, Node node, const uint8_t *arguments, Place place) except -1
    cdef int setattr(
        self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
    cdef int set_later(self, Standing standing, Node node, changes_t *changes, int64_t size) except -1
    cdef int not_set(self, Standing standing, Node node, AttributeChange change, Place place) except -1
    cdef int tell(self, uint32_t status, Node node, Place place) except -1


cdef bint load_setattr(
    const uint8_t *at, const uint8_t *end, changes_t *changes, int64_t *size, uint32_t *status
) noexcept nogil
