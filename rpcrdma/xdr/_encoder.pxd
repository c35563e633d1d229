"""The native encoder for Cython code: the same object as from Python, without the calls' overhead."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.xdr._op cimport Op


cdef class Encoder:
    cdef char *buffer
    cdef Py_ssize_t capacity
    cdef Py_ssize_t used
    cdef Py_ssize_t chunked
    cdef int exports
    cdef public Py_ssize_t limit
    cdef readonly list payloads

    cdef char *reserve(self, Py_ssize_t length) except NULL
    cdef int put_uint32(self, uint32_t value) except -1
    cdef int put_uint64(self, uint64_t value) except -1
    cdef int room(self, Py_ssize_t length) except -1
    cdef int put_octets(self, const void *octets, Py_ssize_t length) except -1
    cdef int put_counted(self, const void *octets, Py_ssize_t length) except -1
    cdef int put_integer(self, int kind, object value) except -1
    cdef int put_enum(self, Op op, object value) except -1
    cdef int put_list(self, Op op, object value) except -1
    cdef int put_struct(self, Op op, object value) except -1
    cdef int put_union(self, Op op, object value) except -1
    cdef int put_fixed(self, object data, Py_ssize_t size) except -1
    cdef int put_opaque(self, object data, Py_ssize_t limit) except -1
    cdef int put_bulk(self, object data, Py_ssize_t limit) except -1
    cdef int put(self, Op op, object value) except -1
