"""CRC32C for the data path."""


cdef bint available() noexcept nogil
cdef unsigned int extend(unsigned int crc, const void *data, size_t length) noexcept nogil
