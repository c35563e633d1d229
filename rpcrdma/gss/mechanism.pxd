"""C declarations of security contexts."""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.gss.library cimport gss_iov_buffer

cdef enum:
    MAX_MIC = 400           # octets of a verifier (RFC 5531 section 8.2)


cdef class Sealer:
    """One side of an established context, for one thread at a time."""

    cdef void *handle
    cdef size_t mic_size        # octets of a MIC,
    cdef size_t header          # and before
    cdef size_t trailer         # and behind what is encrypted

    cdef int measure(self) except -1
    cdef bint verifies(self, const uint8_t *octets, size_t size, const uint8_t *mic, size_t mic_size) noexcept
    cdef ssize_t sign_to(self, const uint8_t *octets, size_t size, uint8_t *at, size_t room) noexcept
    cdef ssize_t sign_parts(self, gss_iov_buffer *parts, int count, size_t size) noexcept
    cdef bint wrap_parts(self, gss_iov_buffer *parts, int count, size_t size) noexcept
    cdef ssize_t unwrap_at(self, uint8_t *token, size_t size, size_t *start) noexcept


cdef inline void part(gss_iov_buffer *at, uint32_t type, const uint8_t *octets, size_t size) noexcept nogil:
    at.type, at.buffer.length, at.buffer.value = type, size, <void *>octets


cdef bint verify_mic(void *handle, const uint8_t *octets, size_t size, const uint8_t *mic, size_t mic_size) noexcept nogil
cdef ssize_t make_mic(void *handle, gss_iov_buffer *parts, int count) noexcept nogil
cdef bint encrypt(void *handle, gss_iov_buffer *parts, int count) noexcept nogil
cdef ssize_t decrypt(void *handle, uint8_t *token, size_t size, size_t *start) noexcept nogil
