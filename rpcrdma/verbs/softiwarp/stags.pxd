"""Registered memory, for the receiving and the answering side."""

from libc.stdint cimport uint32_t, uint64_t


cdef class Registration:
    cdef Py_buffer buffer
    cdef bint held
    cdef readonly bint valid
    cdef readonly uint32_t handle
    cdef readonly uint64_t base
    cdef bint remote_read
    cdef bint remote_write

    cdef char *locate(self, uint64_t offset, uint64_t length, bint write, int *problem) noexcept
    cdef void drop(self)


cdef class StagTable:
    cdef dict by_handle
    cdef object random
    cdef size_t limit

    cdef Registration find(self, uint32_t handle)
    cdef Registration remove(self, uint32_t handle)
