"""C declarations of turns of a listing."""

from libc.stdint cimport int64_t, uint64_t

from nfsd.vfs.lanes cimport job_t
from nfsd.vfs.listing cimport listing_t

cdef enum:
    DIRENT = 48                 # octets of a struct linux_dirent64 with a name that is not long
    DIRENTS = 256 * 48          # octets read of a directory at a time, at most: those of a turn
    COOKIE_SHIFT = 3


cdef inline uint64_t to_cookie(uint64_t offset) noexcept nogil:
    return <uint64_t>0x7FFFFFFFFFFFFFFF if offset == <uint64_t>0x7FFFFFFFFFFFFFFF else offset + COOKIE_SHIFT


cdef inline int64_t to_offset(uint64_t cookie) noexcept nogil:
    """Of a cookie that has been given out, or 0: the beginning."""
    if cookie == 0 or cookie == <uint64_t>0x7FFFFFFFFFFFFFFF:
        return <int64_t>cookie
    return <int64_t>(cookie - COOKIE_SHIFT)


# The job's data is a listing_t, which says how the turn has ended.
cdef void take_turn(job_t *job) noexcept nogil
# The same of what is remembered: an ``outcome`` of MORE with nothing listed may mean that the directory is to be read.
cdef void recall_turn(job_t *job) noexcept nogil
# Go on behind the present entry.
cdef void done_with_entry(listing_t *listing) noexcept nogil
