"""The native codec for Cython code: the same objects as from Python, without the calls' overhead."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class Op:
    cdef int kind
    cdef uint32_t size
    cdef uint32_t min_size
    cdef bint strict
    cdef bint leaf
    cdef bint direct
    cdef str name
    cdef Op element
    cdef object cls
    cdef dict members
    cdef tuple parts
    cdef tuple names
    cdef Py_ssize_t count
    cdef Py_ssize_t *offsets
    cdef dict arms
    cdef int default
    cdef short small[128]
    cdef list small_members

    cdef int find_slots(self) except -1


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
