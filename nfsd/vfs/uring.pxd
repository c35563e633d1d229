"""C declarations of one thread's ring of READs that the kernel works on (io_uring(7))."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    DEPTH = 64                  # READs that a ring has at the same time

cdef extern from "linux/io_uring.h" nogil:
    struct io_uring_sqe:
        uint8_t opcode
        int fd
        uint64_t off
        uint64_t addr
        uint32_t len
        uint64_t user_data
    struct io_uring_cqe:
        uint64_t user_data
        int res

ctypedef struct uring_t:        # zeros: not tried yet
    int opened                  # 1: open; -1: not to be had
    int fd
    void *rings
    size_t rings_size
    io_uring_sqe *entries
    size_t entries_size
    uint32_t *submit_head
    uint32_t *submit_tail
    uint32_t *submit_array
    uint32_t submit_mask
    uint32_t *done_head
    uint32_t *done_tail
    uint32_t done_mask
    io_uring_cqe *done

cdef int uring_open(uring_t *ring) noexcept nogil
cdef void uring_close(uring_t *ring) noexcept nogil
cdef void uring_read(uring_t *ring, int fd, void *octets, uint32_t size, uint64_t offset, void *tag) noexcept nogil
cdef int uring_enter(uring_t *ring, uint32_t wait) noexcept nogil
cdef void *uring_done(uring_t *ring, int *result) noexcept nogil
cdef void *uring_take_back(uring_t *ring) noexcept nogil
