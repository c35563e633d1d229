"""One thread's ring of READs that the kernel works on at the same time (io_uring(7)).

Owns the ring's memory and descriptor; imports nothing. What a ring is for: a thread that reads with pread(2) waits for
one disk access; with a ring it has many under way, and the kernel copies what has come in when the thread asks. The
requests are the thread's own, as whom it is; nothing here starts a thread.

A ring is its thread's: nobody else may touch it. The kernel may have been told to refuse rings (the sysctl
kernel.io_uring_disabled, a container's seccomp filter): then the thread reads one file at a time.
"""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from nfsd.vfs.kernel cimport c_close, c_syscall

import errno as numbers
import os

cdef extern from *:
    """
    #define ring_load(where) __atomic_load_n((where), __ATOMIC_ACQUIRE)
    #define ring_store(where, value) __atomic_store_n((where), (value), __ATOMIC_RELEASE)
    """
    uint32_t ring_load(uint32_t *where) nogil
    void ring_store(uint32_t *where, uint32_t value) nogil

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    const int PROT_READ
    const int PROT_WRITE
    const int MAP_SHARED
    const int MAP_POPULATE
    void *MAP_FAILED

cdef extern from "linux/io_uring.h" nogil:
    struct io_sqring_offsets:
        uint32_t head
        uint32_t tail
        uint32_t ring_mask
        uint32_t array
    struct io_cqring_offsets:
        uint32_t head
        uint32_t tail
        uint32_t ring_mask
        uint32_t cqes
    struct io_uring_params:
        uint32_t sq_entries
        uint32_t cq_entries
        uint32_t flags
        uint32_t features
        io_sqring_offsets sq_off
        io_cqring_offsets cq_off
    const int IORING_OP_READ
    const unsigned int IORING_ENTER_GETEVENTS
    const unsigned int IORING_FEAT_SINGLE_MMAP
    const long IORING_OFF_SQ_RING
    const long IORING_OFF_SQES

cdef enum:
    # Newer than some headers; the same on every architecture.
    SYS_SETUP = 425
    SYS_ENTER = 426
    SINGLE_ISSUER = 1 << 12     # Linux 6.0
    DEFER_TASKRUN = 1 << 13     # Linux 6.1: completions are worked on when the thread asks for them


cdef int uring_open(uring_t *ring) noexcept nogil:
    """Make the ring. Returns 0, or the errno of a kernel that makes none for us."""
    cdef io_uring_params params
    cdef uint32_t flags = SINGLE_ISSUER | DEFER_TASKRUN
    cdef int error
    memset(ring, 0, sizeof(ring[0]))
    ring.opened = -1
    while True:
        memset(&params, 0, sizeof(params))
        params.flags = flags
        ring.fd = <int>c_syscall(SYS_SETUP, DEPTH, &params)
        if ring.fd >= 0:
            break
        if flags == 0:
            return errno
        flags = 0  # an older kernel knows no flags
    if not params.features & IORING_FEAT_SINGLE_MMAP:
        c_close(ring.fd)
        return 38  # ENOSYS: Linux before 5.4
    ring.rings_size = max(
        params.sq_off.array + params.sq_entries * sizeof(uint32_t),
        params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe),
    )
    ring.entries_size = params.sq_entries * sizeof(io_uring_sqe)
    ring.rings = mmap(
        NULL, ring.rings_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING
    )
    if ring.rings == MAP_FAILED:
        error = errno
        c_close(ring.fd)
        return error
    ring.entries = <io_uring_sqe *>mmap(
        NULL, ring.entries_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES
    )
    if <void *>ring.entries == MAP_FAILED:
        error = errno
        munmap(ring.rings, ring.rings_size)
        c_close(ring.fd)
        return error
    ring.submit_head = at(ring, params.sq_off.head)
    ring.submit_tail = at(ring, params.sq_off.tail)
    ring.submit_array = at(ring, params.sq_off.array)
    ring.submit_mask = at(ring, params.sq_off.ring_mask)[0]
    ring.done_head = at(ring, params.cq_off.head)
    ring.done_tail = at(ring, params.cq_off.tail)
    ring.done_mask = at(ring, params.cq_off.ring_mask)[0]
    ring.done = <io_uring_cqe *>at(ring, params.cq_off.cqes)
    ring.opened = 1
    return 0


cdef inline uint32_t *at(uring_t *ring, uint32_t offset) noexcept nogil:
    return <uint32_t *>(<uint8_t *>ring.rings + offset)


cdef void uring_close(uring_t *ring) noexcept nogil:
    """Nothing is under way."""
    if ring.opened == 1:
        munmap(ring.entries, ring.entries_size)
        munmap(ring.rings, ring.rings_size)
        c_close(ring.fd)
    ring.opened = -1


cdef void uring_read(uring_t *ring, int fd, void *octets, uint32_t size, uint64_t offset, void *tag) noexcept nogil:
    """Put a read in, to begin with the next :func:`uring_enter`. There is room for DEPTH that are not done."""
    cdef uint32_t tail = ring.submit_tail[0]
    cdef uint32_t index = tail & ring.submit_mask
    cdef io_uring_sqe *entry = &ring.entries[index]
    memset(entry, 0, sizeof(io_uring_sqe))
    entry.opcode = <uint8_t>IORING_OP_READ
    entry.fd = fd
    entry.off = offset
    entry.addr = <uint64_t>octets
    entry.len = size
    entry.user_data = <uint64_t>tag
    ring.submit_array[index] = index
    ring_store(ring.submit_tail, tail + 1)


cdef int uring_enter(uring_t *ring, uint32_t wait) noexcept nogil:
    """Begin what has been put in, and wait until so many are done. Returns 0, or an errno: then some may have begun."""
    cdef uint32_t new = ring.submit_tail[0] - ring_load(ring.submit_head)
    if c_syscall(SYS_ENTER, ring.fd, new, wait, IORING_ENTER_GETEVENTS, NULL, 0) < 0:
        return errno
    return 0


cdef void *uring_done(uring_t *ring, int *result) noexcept nogil:
    """The tag of a read that is done, and its octets or -errno; NULL: there is none."""
    cdef uint32_t head = ring.done_head[0]
    cdef io_uring_cqe *entry
    cdef void *tag
    if head == ring_load(ring.done_tail):
        return NULL
    entry = &ring.done[head & ring.done_mask]
    tag, result[0] = <void *>entry.user_data, entry.res
    ring_store(ring.done_head, head + 1)
    return tag


cdef void *uring_take_back(uring_t *ring) noexcept nogil:
    """The tag of the last read put in, which the kernel has not seen: it is in no more. NULL: there is none."""
    cdef uint32_t tail = ring.submit_tail[0]
    if tail == ring_load(ring.submit_head):
        return NULL
    ring_store(ring.submit_tail, tail - 1)
    return <void *>ring.entries[(tail - 1) & ring.submit_mask].user_data


def hindrance():
    """Why there are no rings here; empty if there are."""
    cdef uring_t ring
    cdef int error = uring_open(&ring)
    if error:
        return f"{os.strerror(error)} ({numbers.errorcode.get(error, error)})"
    uring_close(&ring)
    return ""
