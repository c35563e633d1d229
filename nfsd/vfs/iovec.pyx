"""One ``struct iovec`` for a buffer: the only argument of a system call that holds an address inside memory."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t


def iovec(object buffer not None):
    """A ``struct iovec`` of a writable buffer, which the caller keeps alive while it is used."""
    cdef Py_buffer view
    cdef uint64_t *fields
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, 16)
    fields = <uint64_t *>PyBytes_AS_STRING(packed)
    fields[0] = <uint64_t><size_t>view.buf
    fields[1] = <uint64_t>view.len
    PyBuffer_Release(&view)
    return packed
