"""C declarations of :mod:`rpcrdma.copying`."""


cdef void copy_octets(void *to, const void *source, size_t size) noexcept nogil
cdef void move_octets(void *to, const void *source, size_t size) noexcept nogil
