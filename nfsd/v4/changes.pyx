"""What the native operations of NFSv4 that change something have in common.

Owns names of files as arguments, change_info4, and what a change leaves behind to be seen.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport NFS4ERR_BADCHAR, NFS4ERR_BADNAME, NFS4ERR_INVAL, NFS4_OK
from rpcrdma.octets cimport opaque_t, store32, store64

from os import strerror

from nfsd.v4.errors import status_of


cdef uint32_t status_in(int error) except 0:
    """The nfsstat4 of an errno."""
    return <uint32_t>int(status_of(OSError(error, strerror(error))))


cdef uint32_t wrong_name(opaque_t *name) noexcept nogil:
    """NFS4_OK, or what is wrong with a component4 (:func:`nfsd.v4.names.check_name`)."""
    if name.length == 0:
        return NFS4ERR_INVAL
    if name.length <= 2 and name.octets[0] == c"." and name.octets[name.length - 1] == c".":
        return NFS4ERR_BADNAME
    if memchr(name.octets, 0, name.length) != NULL or memchr(name.octets, c"/", name.length) != NULL:
        return NFS4ERR_BADCHAR
    return NFS4_OK


cdef uint8_t *store_change_info(uint8_t *at, uint64_t before, uint64_t after) noexcept nogil:
    """A change_info4: nothing of ours came between, hence atomic."""
    return store64(store64(store32(at, 1), before), after)


cdef class Nfs4Changes(Nfs4Owners):
    cdef int saw_change(self, Node node, statx_t *status) except -1:
        """A change has left the current file so. On a disk others may have changed it since, and what it is then belongs
        to the change attribute that it has by now."""
        self.seen = not node.inline and self.files.look(node, &self.status)
        if not self.seen:
            self.status, self.seen = status[0], True
        return 0
