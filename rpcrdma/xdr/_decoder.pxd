"""The native decoder for Cython code: the same object as from Python, without the calls' overhead."""

from libc.stdint cimport int64_t, uint64_t

from rpcrdma.xdr._op cimport Op


cdef class Decoder:
    cdef Py_buffer view
    cdef const unsigned char *data
    cdef Py_ssize_t length
    cdef Py_ssize_t at
    cdef Py_ssize_t chunked
    cdef Py_ssize_t chunk
    cdef Py_ssize_t chunk_position
    cdef list chunks
    cdef object whole
    cdef bint held
    cdef public bint strict_padding

    cdef int next_chunk(self) except -1
    cdef const unsigned char *take(self, Py_ssize_t length) except NULL
    cdef int64_t get_uint32(self) except -1
    cdef int get_uint64(self, uint64_t *value) except -1
    cdef const unsigned char *get_padded(self, Py_ssize_t length) except NULL
    cdef Py_ssize_t get_length(self, Py_ssize_t limit) except -1
    cdef object get_enum(self, Op op)
    cdef bint get_bool(self) except -1
    cdef list get_list(self, Op op)
    cdef object get_struct(self, Op op)
    cdef object get_union(self, Op op)
    cdef bytes get_opaque(self, Py_ssize_t limit)
    cdef object get_bulk(self, Py_ssize_t limit)
    cdef object get(self, Op op)


cdef class ResultDecoder(Decoder):
    cdef public list places
    cdef Py_ssize_t place
