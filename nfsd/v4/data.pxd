"""C declarations of READ, WRITE and COMMIT of NFSv4."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.locks cimport Nfs4Locks
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Transfer
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Work


cdef class Nfs4Data(Nfs4Locks):
    """Names, attributes, opens and locks too, and data."""

    cdef bint special           # the stateid of the present operation is: nothing has been opened for it

    cdef OpenFile opened(self, const uint8_t *stateid, bint write, bint *held)
    cdef object checked(self, const uint8_t *stateid, bint write)
    cdef int not_opened(self, bint write, Place place) except -1
    cdef uint32_t irregular(self, const uint8_t *stateid=*) noexcept
    cdef int saw(self, Node node) except -1
    cdef int read(self, Arguments *arguments, Place place) except -1
    cdef int have_read(self, Arguments *arguments, Transfer transfer, Place place) except -1
    cdef int read_nothing(self, Arguments *arguments, uint64_t offset, Work brought, Place place) except -1
    cdef int store_read(self, Arguments *arguments, Node node, size_t got, bint eof, Place place) except -1
    cdef int write(self, Arguments *arguments, Place place) except -1
    cdef int malformed(self, Place place) except -1
    cdef int written(
        self, const uint8_t *arguments, const uint8_t *source, size_t count, bint fetched, Place place
    ) except -1
    cdef uint32_t unwritable(self, const uint8_t *stateid, uint64_t offset, size_t count) noexcept
    cdef int have_written(self, Work brought, uint32_t stable, Place place) except -1
    cdef int saw_written(self, Node node) except -1
    cdef int store_written(self, size_t done, uint32_t stable, bytes verifier, Place place) except -1
    cdef int commit(self, Arguments *arguments, Place place) except -1
    cdef uint32_t uncommittable(self, Arguments *arguments) noexcept
