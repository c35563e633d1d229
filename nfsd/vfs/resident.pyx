"""Whether data is in the page cache: what a read on the loop must know before, for RWF_NOWAIT is not enough.

A read with RWF_NOWAIT does not wait for pages, but where one is missing it starts to read ahead, and so it does where it meets
the mark that the last reading ahead has left behind. To find the blocks and to queue the requests may take as long as
the disk does: with a disk that does not answer, for ever. cachestat(2) starts nothing.

The mark is on a page until that page is read. So which pages have been read here is remembered, one number for each of some
pages in a table of constant size: what is in memory and has been read needs nothing behind it. A reading ahead may mark
pages anew, and so what may have been read ahead by a worker is forgotten. What another process has read ahead since is not
known; then the loop begins a reading ahead, once for that page.

A kernel without cachestat (before Linux 6.5) leaves it to RWF_NOWAIT. A kernel that has it and does not tell (a seccomp
filter, a file the server may not write) is not guessed at: such reads are for the workers.

Owns no descriptor; imports nothing.
"""

from libc.errno cimport ENOSYS, errno
from libc.stdint cimport uint32_t, uint64_t

from nfsd.vfs.kernel cimport SYS_CACHESTAT, c_syscall, getpagesize

cdef extern from "sys/stat.h" nogil:
    struct c_stat "stat":
        long st_size
    int fstat(int fd, c_stat *status)

cdef struct range_t:
    uint64_t offset
    uint64_t length

cdef struct counts_t:
    uint64_t cached
    uint64_t dirty
    uint64_t writeback
    uint64_t evicted
    uint64_t recently_evicted

cdef enum:
    AHEAD = 256 << 10       # octets: twice what the kernel reads ahead by default
    REMEMBERED = 1 << 18    # pages; those of a file stand side by side
    SMALL = 64 << 10        # octets: what is read of more is looked at as a whole

cdef uint32_t _read[REMEMBERED]

cdef uint64_t PAGE = getpagesize()


cdef inline uint64_t pages(uint64_t begin, uint64_t end) noexcept nogil:
    """How many pages these octets touch, of which there is one at least."""
    return (end - 1) // PAGE - begin // PAGE + 1


cdef inline int cached(int fd, uint64_t begin, uint64_t end, uint64_t *count) noexcept nogil:
    """Count pages in memory. Returns 0, or the errno of a kernel that does not tell."""
    cdef range_t where
    cdef counts_t counts
    where.offset = begin
    where.length = end - begin
    if c_syscall(SYS_CACHESTAT, fd, &where, &counts, 0) != 0:
        return errno
    count[0] = counts.cached
    return 0


cdef inline uint64_t spread(uint64_t file) noexcept nogil:
    return file * 0x9E3779B97F4A7C15u


cdef inline uint32_t *place_of(uint64_t file, uint64_t page) noexcept nogil:
    return &_read[((spread(file) >> 40) + page) & (REMEMBERED - 1)]


cdef inline uint32_t name_of(uint64_t file, uint64_t page) noexcept nogil:
    """What stands there for this page; never 0."""
    return <uint32_t>(spread(file) ^ page // REMEMBERED * 0x85EBCA6Bu) | 1


cdef void was_read(uint64_t file, uint64_t offset, size_t size, bint waited) noexcept nogil:
    """Remember pages that have been read, ``waited`` for by a worker: then the kernel may have read ahead."""
    cdef uint64_t page = offset // PAGE
    cdef uint64_t last
    if size == 0 or size > SMALL:
        return
    last = (offset + size - 1) // PAGE
    while page <= last:
        place_of(file, page)[0] = name_of(file, page)
        page += 1
    while waited and page <= last + AHEAD // PAGE:
        if place_of(file, page)[0] == name_of(file, page):
            place_of(file, page)[0] = 0
        page += 1


cdef bint has_been_read(uint64_t file, uint64_t offset, size_t size) noexcept nogil:
    """Whether all its pages are remembered."""
    cdef uint64_t page = offset // PAGE
    if size > SMALL:
        return False
    while page * PAGE < offset + size:
        if place_of(file, page)[0] != name_of(file, page):
            return False
        page += 1
    return True


cdef bint in_memory(int fd, uint64_t file, uint64_t offset, size_t size) noexcept nogil:
    """Whether reading this starts no I/O, or no kernel of this kind could know. ``file``: any number of its own.

    So it is if everything is there up to what would be read ahead; or if what is wanted is there and has been read; or if
    it is there and nothing behind it, for then it was not read ahead, and has no mark."""
    cdef uint64_t count = 0, end = offset + size
    cdef c_stat status
    cdef int error
    if size == 0:
        return True
    error = cached(fd, offset, end, &count)  # finds out the most, and takes the least
    if error != 0:
        return error == ENOSYS
    if count < pages(offset, end):
        if fstat(fd, &status) != 0:
            return False
        if offset >= <uint64_t>status.st_size:
            return True
        end = min(end, <uint64_t>status.st_size)
        if count < pages(offset, end):
            return False
    if has_been_read(file, offset, size):
        return True
    end = (end + PAGE - 1) // PAGE * PAGE
    if cached(fd, end, end + AHEAD, &count) != 0:
        return False
    if count == 0 or count >= AHEAD // PAGE:
        return True
    if fstat(fd, &status) != 0:
        return False
    if end >= <uint64_t>status.st_size or count >= pages(end, min(end + AHEAD, <uint64_t>status.st_size)):
        return True
    return cached(fd, end, end + PAGE, &count) == 0 and count == 0


def resident(int fd, uint64_t offset, size_t size, uint64_t file=0):
    """Whether a read of this now would start no I/O, as far as the kernel tells."""
    return in_memory(fd, file, offset, size)


def remember(uint64_t file, uint64_t offset, size_t size, bint waited):
    """A read of this has been made."""
    was_read(file, offset, size, waited)
