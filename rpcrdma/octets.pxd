"""Octets of XDR (RFC 4506) in native code: words, opaque data and arrays, loaded and stored. Layer 0."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef struct opaque_t:           # opaque<>; the octets stay where they are
    const uint8_t *octets
    uint32_t length

cdef struct array_t:            # an array of integers, in network order
    const uint8_t *octets
    uint32_t count


# A word at a time: of stores octet by octet in a row, compilers make several times as many instructions.
cdef extern from *:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>

    static inline uint32_t load32(const uint8_t *at)
    {
        uint32_t word;
        memcpy(&word, at, sizeof(word));
        return be32toh(word);
    }

    static inline uint64_t load64(const uint8_t *at)
    {
        uint64_t word;
        memcpy(&word, at, sizeof(word));
        return be64toh(word);
    }

    static inline uint8_t *store32(uint8_t *at, uint32_t value)
    {
        value = htobe32(value);
        memcpy(at, &value, sizeof(value));
        return at + sizeof(value);
    }

    static inline uint8_t *store64(uint8_t *at, uint64_t value)
    {
        value = htobe64(value);
        memcpy(at, &value, sizeof(value));
        return at + sizeof(value);
    }
    """
    uint32_t load32(const uint8_t *at) noexcept nogil
    uint64_t load64(const uint8_t *at) noexcept nogil
    uint8_t *store32(uint8_t *at, uint32_t value) noexcept nogil
    uint8_t *store64(uint8_t *at, uint64_t value) noexcept nogil


cdef inline size_t padded(size_t length) noexcept nogil:
    """With the octets that make it a multiple of four."""
    return (length + 3) & ~<size_t>3


cdef inline const uint8_t *load_opaque(
    const uint8_t *at, const uint8_t *end, uint32_t most, opaque_t *into
) noexcept nogil:
    """Behind opaque data of ``most`` octets at most; NULL: there are none, and ``into`` is empty."""
    cdef uint32_t length
    into.octets = NULL
    into.length = 0
    if end - at < 4:
        return NULL
    length = load32(at)
    if length > most or <size_t>(end - at - 4) < padded(length):
        return NULL
    into.octets = at + 4
    into.length = length
    return at + 4 + padded(length)


cdef inline const uint8_t *load_array(
    const uint8_t *at, const uint8_t *end, uint32_t most, size_t size, array_t *into
) noexcept nogil:
    """Behind an array of ``most`` integers at most, of so many octets each; NULL: there is none, and ``into`` is empty."""
    cdef uint32_t count
    into.octets = NULL
    into.count = 0
    if end - at < 4:
        return NULL
    count = load32(at)
    if count > most or <size_t>(end - at - 4) < size * count:
        return NULL
    into.octets = at + 4
    into.count = count
    return at + 4 + size * count


cdef inline uint8_t *store_opaque(uint8_t *at, const uint8_t *octets, size_t length) noexcept nogil:
    at = store32(at, <uint32_t>length)
    if length:
        memset(at + (length & ~<size_t>3), 0, padded(length) - (length & ~<size_t>3))
        memcpy(at, octets, length)
    return at + padded(length)
