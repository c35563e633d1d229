"""CRC32C (RFC 5044 section 4.4) from libisal, called from C.

Owns the binding to ``crc32_iscsi`` of Intel's ISA-L (Debian package libisal2), looked up at import so that the
provider runs, without CRCs, where the library is not installed. Imports nothing of the project.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t


cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *name, int flags)
    void *dlsym(void *handle, const char *name)
    int RTLD_NOW, RTLD_LOCAL


ctypedef unsigned int (*crc_function)(unsigned char *data, int length, unsigned int seed) noexcept nogil

cdef crc_function crc32_iscsi = NULL
cdef void *library = dlopen(b"libisal.so.2", RTLD_NOW | RTLD_LOCAL)
if library != NULL:
    crc32_iscsi = <crc_function>dlsym(library, b"crc32_iscsi")


cdef bint available() noexcept nogil:
    return crc32_iscsi != NULL


cdef unsigned int extend(unsigned int crc, const void *data, size_t length) noexcept nogil:
    """Extend ``crc`` over ``data``: start with 0xffffffff, invert at the end."""
    cdef int piece
    while length:
        piece = <int>(length if length < (1 << 30) else (1 << 30))
        crc = crc32_iscsi(<unsigned char *>data, piece, crc)
        data = <const char *>data + piece
        length -= piece
    return crc


def is_available():
    """Whether the library that computes CRC32C was found."""
    return available()


def crc32c(data):
    """The CRC32C of ``data``, as a number. Raises RuntimeError without the library, and BufferError for octets that are not
    one behind the other."""
    # A typed memoryview here would be 17,000 lines of C, compiled with every build.
    cdef Py_buffer octets
    if not available():
        raise RuntimeError("libisal.so.2 (Debian package libisal2) is not installed")
    PyObject_GetBuffer(data, &octets, PyBUF_SIMPLE)
    cdef unsigned int crc = extend(0xFFFFFFFF, octets.buf, octets.len) ^ 0xFFFFFFFF
    PyBuffer_Release(&octets)
    return crc
