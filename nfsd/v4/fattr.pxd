"""C declarations of fattr4 in native code."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport NativeFiles
from nfsd.vfs.records cimport Node

cdef enum:
    WORDS = 3               # of the numbers of all attributes there are
    LARGEST_FATTR = 640     # octets of a fattr4 with everything native code knows

ctypedef struct facts_t:        # what does not follow from a struct statx
    uint64_t change
    uint8_t *change_at          # set to where it has been put
    uint64_t fsid[2]
    uint32_t lease_time
    uint32_t error              # rdattr_error
    uint32_t handle_size
    const uint8_t *handle
    uint64_t mounted_on_fileid


# Whether native code knows all of these attributes, the names of owners apart from numbers.
cdef bint all_native(uint64_t mask) noexcept nogil
cdef bint wants_owners(uint64_t mask) noexcept nogil
cdef uint8_t *store_mask(uint8_t *at, const uint32_t *words, size_t length) noexcept nogil
cdef uint8_t *store_values(uint8_t *at, uint64_t mask, statx_t *status, facts_t *facts) noexcept nogil
# The fattr4 of them, in LARGEST_FATTR octets: behind it.
cdef uint8_t *store_fattr(uint8_t *at, uint64_t mask, statx_t *status, facts_t *facts) noexcept nogil


cdef class Fattr:
    """Attributes that follow from a ``struct statx``."""

    cdef NativeFiles files
    cdef object server
    cdef uint32_t lease_time

    cdef uint8_t *store(self, uint8_t *at, uint64_t mask, Node node, statx_t *status) except NULL
