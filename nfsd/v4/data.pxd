"""C declarations of READ, WRITE and COMMIT of NFSv4."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.direct_compound cimport Arguments
from nfsd.v4.direct_locks cimport DirectLocks
from nfsd.vfs.records cimport OpenFile
from rpcrdma.place cimport Place


cdef class Nfs4Data(DirectLocks):
    """Names, attributes, opens and locks too, and data."""

    cdef OpenFile opened(self, const uint8_t *stateid, bint write, bint *held)
    cdef int why_not(self, const uint8_t *stateid, bint write) except -1
    cdef int not_opened(self, Place place) except -1
    cdef bint is_current(self, const uint8_t *stateid) noexcept
    cdef uint32_t irregular(self, const uint8_t *stateid=*) noexcept
    cdef int saw(self, OpenFile opened) except -1
    cdef const uint8_t *to_be_written(
        self, Arguments *arguments, Place place, size_t count, const uint8_t **behind
    ) noexcept
    cdef uint32_t unwritable(self, const uint8_t *stateid, uint64_t offset, size_t count) noexcept
    cdef int read(self, Arguments *arguments, Place place) except -1
    cdef int write(self, Arguments *arguments, Place place) except -1
    cdef int commit(self, Arguments *arguments, Place place) except -1
