"""C declarations of NFSv3's native procedures about data."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v3.attributes cimport Nfs3Attributes
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Transfer
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Work


cdef class Nfs3Data(Nfs3Attributes):
    cdef size_t read_max
    cdef size_t write_max

    cdef OpenFile to_use(self, Node node, Standing standing, int access)
    cdef bint holds(self, OpenFile opened) noexcept
    cdef int readlink(self, Standing standing, Node node, Place place) except -1
    cdef int read(
        self, Standing standing, Node node, const uint8_t *arguments, Place place, Work brought
    ) except -1
    cdef int have_read(self, Standing standing, Node node, Transfer transfer, Place place) except -1
    cdef int store_read(self, Node node, uint8_t *head, statx_t *after, size_t got, bint eof) except -1
    cdef int write(
        self, Standing standing, Node node, const uint8_t *arguments, Place place, Work brought
    ) except -1
    cdef int cannot_write(self, Standing standing, Node node, bint held, Place place) except -1
    cdef int have_written(
        self, Standing standing, Node node, uint32_t stable, Work brought, Place place
    ) except -1
    cdef int store_written(
        self, Node node, statx_t *before, statx_t *after, size_t done, uint32_t stable, bytes verifier, Place place
    ) except -1
    cdef int commit(self, Standing standing, Node node, Place place, Work brought) except -1
    cdef int store_committed(self, Node node, statx_t *before, statx_t *after, Place place) except -1
    cdef int tell_data(self, int error, Node node, Place place) except -1
