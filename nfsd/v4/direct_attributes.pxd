"""C declarations of fattr4 in native code."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport DirectFiles
from nfsd.vfs.records cimport Node

cdef enum:
    LARGEST_FATTR = 640     # octets of a fattr4 with everything native code knows


cdef class DirectAttributes:
    """Attributes that follow from a ``struct statx``."""

    cdef DirectFiles files
    cdef object server
    cdef object names
    cdef uint32_t lease_time

    cdef bint known(self, const uint8_t *arguments, size_t size, size_t *used, uint64_t *mask) except -1
    cdef uint8_t *store(self, uint8_t *at, uint64_t mask, Node node, statx_t *status) except NULL
